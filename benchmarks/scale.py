"""The table of docs/scale.md: a training on many GPUs by the plan, and by a simulated step.

`python benchmarks/scale.py [--model ViT-G/14] [--images 300e6] [--epochs 14] [--batch 4096]`

Nothing is measured: operations are counted, a GPU does the share of its peak that ViT-B/16 was measured to reach on an
H200, and each block's weights and gradients are float32. What the network does is in `vitrail.ops.cost.timeline`.
"""

import argparse
import sys
from dataclasses import replace
from typing import Literal

from vitrail.config import ViTConfig, parse
from vitrail.config.devices import UTILIZATION, device_row
from vitrail.ops.cost.counts import parameters, training_flops
from vitrail.ops.cost.place import UPDATED
from vitrail.ops.cost.timeline import Layer, Network, simulate
from vitrail.verbs.plan import plan


def main() -> None:
    """Print the table."""
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--model", default="ViT-G/14")
    reader.add_argument("--on", default="H200")
    reader.add_argument("--images", type=float, default=300e6)
    reader.add_argument("--epochs", type=float, default=14)
    reader.add_argument("--batch", type=int, default=4096)
    given = reader.parse_args()
    config, device = parse(given.model, {"classes": 1000}), device_row(given.on)
    assert isinstance(config, ViTConfig)
    total = parameters(config).total
    sys.stdout.write(
        "| GPUs | way | memory | computes | sends | plan, one after the other | simulated | share | days |\n"
    )
    sys.stdout.write("|---|---|---|---|---|---|---|---|---|\n")
    for nodes in (1, 8, 64):
        network = Network(nodes=nodes, each=8)
        batch = given.batch / network.world
        counted = plan(given.model, on=given.on, nodes=nodes, gpus_per_node=network.each, batch_size=given.batch)
        assert counted.ranks is not None
        ranks = replace(counted.ranks, step=replace(counted.ranks.step, batch=round(batch)), parts=1)  # all at once
        pace = device.peak("bfloat16") * UTILIZATION
        seconds = training_flops(config) * batch / pace / config.depth
        layers = [Layer(forward=seconds / 3, backward=2 * seconds / 3, size=4 * total / config.depth)] * config.depth
        update = UPDATED["adam"] * total / (device.bandwidth * 1e9)
        ways: tuple[tuple[Literal["ddp", "fsdp"], int, float], ...] = (
            ("ddp", ranks.ddp_memory(), ranks.ddp_traffic()),
            ("fsdp", ranks.fsdp_memory(), ranks.fsdp_traffic()),
        )
        for kind, memory, traffic in ways:
            found = simulate(kind, layers, network, update=update)
            bandwidth = network.between if nodes > 1 else network.within
            planned = found.computed + traffic / bandwidth
            days = given.images * given.epochs / given.batch * found.seconds / 86_400
            cells = [str(network.world), kind.upper(), f"{memory / 2**30:.0f} GiB", f"{found.computed:.3f} s"]
            cells += [f"{found.sent:.3f} s", f"{planned:.3f} s", f"{found.seconds:.3f} s"]
            cells += [f"{found.computed / found.seconds:.0%}", f"{days:.1f}"]
            sys.stdout.write(f"| {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main()
