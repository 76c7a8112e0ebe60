"""What a model of several labels, numbers or ordered classes says of images: the same objects, with its own answers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from jaxtyping import Float
from torch import Tensor

from vitrail.config.check import whole
from vitrail.config.outputs import LabelOutputs, NumberOutputs, OrderedOutputs, Outputs
from vitrail.errors import ConfigError, one_line
from vitrail.ops.metrics import bounded, first_classes
from vitrail.ops.task_losses import median_class
from vitrail.ops.task_metrics import answers_of
from vitrail.verbs.predictions import Prediction, Predictions

UNKNOWN = OrderedOutputs()  # until it is said


@dataclass(frozen=True, eq=False, repr=False)
class LabelPrediction(Prediction):
    """Which labels a model says of one image: those whose probability reaches their threshold."""

    outputs: Outputs = UNKNOWN

    @property
    def probabilities(self) -> Float[Tensor, " K"]:
        """The probability of every label, each by itself."""
        return answers_of(self.outputs, self.logits[None])[0]

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that are said, in their own order; perhaps none."""
        assert isinstance(self.outputs, LabelOutputs)
        rows = zip(self.class_names, self.probabilities.tolist(), self.outputs.thresholds, strict=True)
        return tuple(name for name, share, least in rows if share >= least)

    @property
    def label(self) -> str:
        """The labels that are said, parted by a bar."""
        return "|".join(self.labels)

    def __str__(self) -> str:
        said = ", ".join(
            f"{name} {share:.1%}" for name, share in self.top(len(self.class_names)) if name in self.labels
        )
        return f"{one_line(self.name)}: {said or 'none'}"

    def __repr__(self) -> str:
        return f"LabelPrediction(name={self.name!r}, labels={self.labels!r})"


@dataclass(frozen=True, eq=False, repr=False)
class NumberPrediction(Prediction):
    """The numbers that a model says of one image, in their own units."""

    outputs: Outputs = UNKNOWN

    @property
    def values(self) -> dict[str, float]:
        """Every number by its name."""
        found = answers_of(self.outputs, self.logits[None])[0].tolist()
        return dict(zip(self.class_names, found, strict=True))

    @property
    def probabilities(self) -> Float[Tensor, " K"]:
        """Refuse: numbers have none."""
        raise ConfigError("the model answers with numbers, which have no probabilities. Take values.")

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """Refuse: numbers are no classes."""
        raise ConfigError("the model answers with numbers, not with classes. Take values.")

    def __str__(self) -> str:
        return f"{one_line(self.name)}: {', '.join(f'{name} {value:.6g}' for name, value in self.values.items())}"

    def __repr__(self) -> str:
        return f"NumberPrediction(name={self.name!r}, values={self.values!r})"


@dataclass(frozen=True, eq=False, repr=False)
class OrderedPrediction(Prediction):
    """Which of ordered classes a model says of one image: the median, nearest to all that is probable."""

    @property
    def answer(self) -> int:
        """The place of that class in the order."""
        return int(median_class(self.probabilities[None])[0])

    @property
    def label(self) -> str:
        """Its name."""
        return self.class_names[self.answer]

    @property
    def probability(self) -> float:
        """Its probability."""
        return float(self.probabilities[self.answer])

    @property
    def expected(self) -> float:
        """The expected place in the order, from 0."""
        shares = self.probabilities.double()
        return float((shares * shares.new_tensor(range(len(shares)))).sum())

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """Give the answer first, and then the most probable of the other classes."""
        order = [int(number) for number in first_classes(bounded(self.logits[None]), len(self.class_names))[0]]
        chosen = [self.answer, *(number for number in order if number != self.answer)][: whole("count", count)]
        return [(self.class_names[number], float(self.probabilities[number])) for number in chosen]

    def __repr__(self) -> str:
        return f"OrderedPrediction(name={self.name!r}, label={self.label!r}, expected={self.expected:.3f})"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TaskPredictions(Predictions):
    """What a model of several labels, numbers or ordered classes says of every image that could be read."""

    outputs: Outputs = field(default=UNKNOWN)

    def one(self, index: int) -> Prediction:
        """Give the prediction of one image."""
        held: Any = (self.names[index], self.logits[index], self.class_names)
        match self.outputs:
            case LabelOutputs():
                return LabelPrediction(*held, outputs=self.outputs)
            case NumberOutputs():
                return NumberPrediction(*held, outputs=self.outputs)
            case OrderedOutputs():
                return OrderedPrediction(*held, temperature=self.temperature)
            case _:
                assert_never(self.outputs)

    def rows(self) -> list[dict[str, Any]]:
        """Give a flat row for each image: its labels and the probability of each, its numbers, or its class."""
        return [dict(zip(self._heads(), self._cells(each), strict=True)) for each in self]

    def columns(self) -> dict[str, list[Any]]:
        """Give the answers as columns."""
        rows = self.rows()
        return {head: [row[head] for row in rows] for head in self._heads() if head != "name"}

    def _heads(self) -> list[str]:
        if isinstance(self.outputs, OrderedOutputs):
            return ["name", "label", "probability", "expected"]
        return ["name", *(["labels"] if isinstance(self.outputs, LabelOutputs) else []), *self.class_names]

    def _cells(self, each: Prediction) -> Iterator[Any]:
        yield each.name
        match each:
            case NumberPrediction():
                yield from each.values.values()
            case OrderedPrediction():
                yield from (each.label, each.probability, each.expected)
            case _:
                yield each.label
                yield from each.probabilities.tolist()

    def document(self) -> dict[str, Any]:
        """Give the answers and the failures as plain values, for JSON."""
        answers = [{"name": each.name, **self._said(each)} for each in self]
        failed = [each._asdict() for each in self.failed]
        return {**self.setting, "predictions": answers, "failed": failed, "computed": dict(self.computed)}

    def _said(self, each: Prediction) -> Mapping[str, Any]:
        if isinstance(each, NumberPrediction):
            return {"values": each.values}
        top = [{"label": label, "probability": share} for label, share in each.top(self.classes_shown)]
        if isinstance(each, OrderedPrediction):
            return {"label": each.label, "expected": each.expected, "top": top}
        assert isinstance(each, LabelPrediction)
        return {"labels": [*each.labels], "top": top}

    def table(self, shown: int | None = None) -> Iterator[str]:
        """Give a line for each image."""
        yield from (str(each) for each in self[:shown])
