"""What training some of the weights saves: of memory, counted from the parameters, and of a step's arithmetic."""

from vitrail.config.objective import Adapt, Full, HeadAlone, LastBlocks, LoRA, Norms, word_of
from vitrail.config.recipe import Adam, Training
from vitrail.models import Model

BYTES = 4  # of a number that is kept beside a weight


def describe_savings(model: Model, training: Training) -> list[str]:
    """Say how many weights are trained, and what that saves; nothing where all are."""
    adapt = training.adapt
    if isinstance(adapt, Full):
        return []
    every = [parameter.numel() for parameter in model.parameters()]
    trained = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
    each = BYTES * (3 if isinstance(training.optimizer, Adam) else 2) + (0 if training.ema is None else BYTES)
    kept, whole = (each * sum(part) / 2**20 for part in (trained, every))
    share = arithmetic(adapt, model.layers)
    return [
        f"adapt={word_of(adapt)} trains {sum(trained):,} of {sum(every):,} weights ({sum(trained) / sum(every):.1%}): "
        f"gradients and the optimizer take {kept:,.1f} MiB instead of {whole:,.1f}, and a step about {share:.0%} of "
        "the arithmetic of training all"
    ]


def arithmetic(adapt: Adapt, layers: int) -> float:
    """Give the arithmetic of a step by that of training all weights: forward, back to the inputs, and to the weights.

    Each of the three costs as much. What is not trained needs no gradient of weights; what is before all that is
    trained needs none at all.
    """
    match adapt:
        case Full():
            return 1.0
        case HeadAlone():
            return 1 / 3
        case LoRA() | Norms():
            return 2 / 3
        case LastBlocks(blocks=blocks):
            return (1 + 2 * min(blocks / max(layers, 1), 1.0)) / 3
