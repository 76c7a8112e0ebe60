"""TPUv3-core-days, the unit of the paper's Table 2, from compute: at the rates that its own rows had.

Table 6 has the exaFLOPs of two of Table 2's models: ViT-H/14 on JFT, 4262 in 2.5k core-days, and ViT-L/16 for 14
epochs, 1567 in 0.68k. So a core made 19.7 and 26.7 TFLOP/s, 32 and 43 % of its peak. Between these two the rate is
interpolated by the logarithms of it and of a forward pass; smaller models, hybrids and ResNets have that of L/16.
"""

from math import exp, log

from vitrail.config import ModelConfig, parse
from vitrail.ops.cost.counts import EXA, forward_macs

DAY = 86_400
# Model, exaFLOPs of Table 6, TPUv3-core-days of Table 2.
PAPER = (("ViT-L/16", 1567, 680), ("ViT-H/14", 4262, 2500))


def core_rate(config: ModelConfig) -> float:
    """Give the FLOP/s that one core of a TPUv3 made of such a model."""
    (small, low), (large, high) = (
        (log(forward_macs(parse(name)).backbone), log(exa * EXA / (days * DAY))) for name, exa, days in PAPER
    )
    place = (log(forward_macs(config).backbone) - small) / (large - small)
    return exp(low + (high - low) * min(max(place, 0.0), 1.0))


def core_days(config: ModelConfig, exaflops: float) -> float:
    """Give the TPUv3-core-days of a training of so many exaFLOPs, by the convention of Table 6."""
    return exaflops * EXA / core_rate(config) / DAY
