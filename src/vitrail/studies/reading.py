"""What is read off the cells of a study: estimates over seeds, differences, findings with a verdict, tables, plots."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from vitrail.evaluation.results import over_seeds
from vitrail.figures import Theme
from vitrail.figures.studies import Panel, Series, draw_panels
from vitrail.ops.metrics import mean_interval
from vitrail.studies.table import Results

Verdict = Literal["confirmed", "not seen", "contradicted"]
Expects = Literal["more", "less", "equal"]
EQUAL = 1.5  # points within which accuracies are called equal


class Estimate(NamedTuple):
    """The mean over seeds, its deviation, and the 95 % interval of the mean (Student's t); None of a single value."""

    mean: float
    deviation: float | None
    interval: tuple[float, float] | None
    values: tuple[float, ...]

    def scaled(self, factor: float) -> "Estimate":
        """Give it in another unit."""
        interval = None if self.interval is None else (factor * self.interval[0], factor * self.interval[1])
        deviation = None if self.deviation is None else abs(factor) * self.deviation
        return Estimate(factor * self.mean, deviation, interval, tuple(factor * value for value in self.values))

    def document(self) -> dict[str, Any]:
        """Give it as plain values, for JSON."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def estimate(values: Sequence[float]) -> Estimate | None:
    """Estimate a mean from one value a seed; None of no value."""
    if not values:
        return None
    mean, deviation = over_seeds(values)
    interval = mean_interval(np.array(values))
    known = len(values) > 1 and not math.isnan(interval[0])
    return Estimate(mean, deviation, interval if known else None, tuple(values))


def percent(results: Results, number: str = "accuracy") -> Estimate | None:
    """Estimate a share in per cent."""
    found = estimate(list(results.by_seed(number).values()))
    return None if found is None else found.scaled(100)


def points(results: Results, number: str = "accuracy") -> dict[int, float]:
    """Give a share in per cent, by seed."""
    return {seed: 100 * value for seed, value in results.by_seed(number).items()}


def exactly(value: float) -> Estimate:
    """Give what was counted, not measured."""
    return Estimate(value, 0.0, (value, value), (value,))


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> Estimate | None:
    """Estimate the difference of two, seed by seed."""
    return estimate([one[seed] - other[seed] for seed in one if seed in other])


def mean_by_seed(parts: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Give the mean of several numbers, seed by seed; of the seeds that all have."""
    shared = [seed for seed in parts[0] if all(seed in part for part in parts)] if parts else []
    return {seed: sum(part[seed] for part in parts) / len(parts) for seed in shared}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A part of the claim: what is compared, how it came out, and what the paper has."""

    says: str
    estimate: Estimate | None
    expects: Expects
    unit: str = "points"
    margin: float = 0.0  # within which a difference counts as none
    published: str = ""

    @property
    def verdict(self) -> Verdict:
        """Confirmed or contradicted where the interval says so; otherwise not seen."""
        found = self.estimate
        if found is None or found.interval is None:
            return "not seen"
        low, high = found.interval
        match self.expects:
            case "more":
                return "confirmed" if low > self.margin else "contradicted" if high < self.margin else "not seen"
            case "less":
                return "confirmed" if high < -self.margin else "contradicted" if low > -self.margin else "not seen"
            case "equal":
                inside = -self.margin < low and high < self.margin
                outside = low > self.margin or high < -self.margin
                return "confirmed" if inside else "contradicted" if outside else "not seen"

    def document(self) -> dict[str, Any]:
        """Give it as plain values, for JSON."""
        said = {"says": self.says, "expects": self.expects, "unit": self.unit, "margin": self.margin}
        found = None if self.estimate is None else self.estimate.document()
        return {**said, "estimate": found, "published": self.published, "verdict": self.verdict}


class Table(NamedTuple):
    """A table of texts, with a title."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


class Plot(NamedTuple):
    """A figure of panels: those measured here, and those of the paper, apart."""

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]

    def draw(self, theme: Theme) -> bytes:
        """Draw it as a PNG file."""
        return draw_panels(self.panels, theme)


class Picture(NamedTuple):
    """A figure that something else draws."""

    name: str
    title: str
    caption: str
    draw: Callable[[Theme], bytes]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a study says."""

    findings: Sequence[Finding]
    tables: Sequence[Table]
    plots: Sequence[Plot | Picture] = ()
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def verdict(self) -> Verdict:
        """Contradicted where a part is; confirmed where all parts are."""
        parts = {finding.verdict for finding in self.findings}
        return "contradicted" if "contradicted" in parts else "confirmed" if parts == {"confirmed"} else "not seen"


def shown(found: Estimate | None, digits: int = 1) -> str:
    """Write an estimate: the mean, and its deviation over seeds."""
    if found is None:
        return "diverged"
    spread = "" if found.deviation is None else f" ± {found.deviation:.{digits}f}"
    return f"{found.mean:.{digits}f}{spread}"


def in_interval(found: Estimate | None, unit: str, digits: int = 1) -> str:
    """Write an estimate with its interval."""
    if found is None:
        return "nothing to compare"
    sign = "+" if unit == "points" else ""
    value = f"{found.mean:{sign}.{digits}f} {unit}"
    if found.interval is None:
        return f"{value}, one seed"
    low, high = found.interval
    if low == high:
        return value  # counted
    return f"{value} ({low:{sign}.{digits}f} to {high:{sign}.{digits}f})"


def curve(
    name: str, parts: Sequence[tuple[float, Results]], number: str = "accuracy", *, joined: bool = True
) -> Series:
    """Give estimates in per cent over places, with their intervals; those that diverged are left out."""
    found = [(place, estimate) for place, part in parts if (estimate := percent(part, number)) is not None]
    ends = [estimate.interval or (estimate.mean, estimate.mean) for _, estimate in found]
    return Series(
        name=name,
        x=[place for place, _ in found],
        y=[estimate.mean for _, estimate in found],
        low=[low for low, _ in ends],
        high=[high for _, high in ends],
        joined=joined,
    )


def dots(name: str, parts: Sequence[Results], number: str = "accuracy") -> Series:
    """Give estimates as dots, one for each category."""
    return curve(name, list(enumerate(parts)), number)


def best(options: Mapping[Any, Results], number: str = "accuracy") -> Any:  # noqa: ANN401
    """Give the option whose mean is highest; one that diverged with a seed is none."""
    most = max(len(found) for found in options.values())
    means = {
        key: sum(values.values()) / len(values)
        for key, found in options.items()
        if len(values := found.by_seed(number)) == most
    }
    return max(means, key=lambda key: means[key]) if means else next(iter(options))
