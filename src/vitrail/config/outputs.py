"""What the outputs of a model mean, where they are not the logits of one class: kept in its card."""

from dataclasses import dataclass
from typing import Any

from vitrail.config.check import Checked, bounded, needs, number, positive, several
from vitrail.errors import ConfigError

_threshold = bounded("from 0 to 1", lambda found: 0 <= found <= 1)


def _numbers(name: str, value: object) -> Any:  # noqa: ANN401
    return several(name, value, "a number for each output", number)


def _deviations(name: str, value: object) -> Any:  # noqa: ANN401
    return several(name, value, "a positive number for each output", positive)


def _thresholds(name: str, value: object) -> Any:  # noqa: ANN401
    return several(name, value, "a probability for each label", _threshold)


@dataclass(frozen=True, kw_only=True)
class LabelOutputs(Checked, word="label-outputs"):
    """A logit for each label, which is there where its sigmoid reaches its threshold."""

    thresholds: tuple[float, ...] = needs(_thresholds, ())
    allow_empty: bool = False  # it was trained on images without any label too

    @property
    def size(self) -> int:
        """How many outputs there are."""
        return len(self.thresholds)


@dataclass(frozen=True, kw_only=True)
class NumberOutputs(Checked, word="number-outputs"):
    """Numbers: each output times its deviation, plus its mean."""

    mean: tuple[float, ...] = needs(_numbers, ())
    deviation: tuple[float, ...] = needs(_deviations, ())

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.mean) != len(self.deviation):
            raise ConfigError(f"mean and deviation must be as many; got {len(self.mean)} and {len(self.deviation)}.")

    @property
    def size(self) -> int:
        """How many outputs there are."""
        return len(self.mean)


@dataclass(frozen=True, kw_only=True)
class OrderedOutputs(Checked, word="ordered-outputs"):
    """A logit for each of so many classes in their order, lowest first; the answer is the median."""

    size: int = 2


Outputs = LabelOutputs | NumberOutputs | OrderedOutputs
TASK_OF = {LabelOutputs: "multilabel", NumberOutputs: "regression", OrderedOutputs: "ordinal"}
