"""Which weights of a checkpoint a run trains: all, the classifier alone, norms, or the last blocks."""

import re
from dataclasses import dataclass

from vitrail.config.check import DEEPEST, Checked, needs, whole
from vitrail.config.model import ModelConfig, ViTConfig
from vitrail.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Full(Checked, word="full"):
    """All weights."""


@dataclass(frozen=True, kw_only=True)
class HeadAlone(Checked, word="head"):
    """The classifier alone: a linear probe of features that stay as they are."""


@dataclass(frozen=True, kw_only=True)
class Norms(Checked, word="norms"):
    """The scales and shifts of every norm, and the classifier."""


@dataclass(frozen=True, kw_only=True)
class LastBlocks(Checked, word="last"):
    """The last blocks (of a BiT the last stages), all that comes after them, and the classifier."""

    blocks: int = needs(whole, 1, most=DEEPEST)


Adapt = Full | HeadAlone | Norms | LastBlocks
LAST = re.compile(r"last[-_ ]?(\d+)")


def read_word(value: object) -> object:
    """Read last-3 as the last three blocks; anything else stays as it is."""
    found = LAST.fullmatch(value) if isinstance(value, str) else None
    return value if found is None else LastBlocks(blocks=int(found[1]))


def word_of(adapt: Adapt) -> str:
    """Write a way of adapting as people type it."""
    match adapt:
        case Full():
            return "full"
        case HeadAlone():
            return "head"
        case Norms():
            return "norms"
        case LastBlocks(blocks=blocks):
            return f"last-{blocks}"


def check_adapt(config: ModelConfig, adapt: Adapt, *, fresh: bool) -> None:
    """Refuse a way of adapting that this model has no parts for, or that would leave weights as they were drawn."""
    if isinstance(adapt, Full):
        return
    if fresh:
        raise ConfigError(
            f"adapt={word_of(adapt)} keeps weights that were trained before, and a fresh model has none. "
            "Begin with a checkpoint, model=FILE; or set adapt=full."
        )
    if isinstance(adapt, LastBlocks):
        count, what = (config.layers, "blocks") if isinstance(config, ViTConfig) else (len(config.units), "stages")
        if adapt.blocks > count:
            raise ConfigError(
                f"adapt=last-{adapt.blocks}: the model has {count} {what}. Set adapt=last-{max(count // 2, 1)}, "
                "or adapt=full for all of it."
            )
