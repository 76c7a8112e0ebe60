"""The open points of a table of names, settled by trying: which of them gives the outputs that its own model gave."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from time import monotonic
from typing import Any

from torch import Tensor

from vitrail.checkpoint.archives.base import Archive
from vitrail.checkpoint.proposing.trial import ENDS, FEW, NEVER, STARTS, Trial
from vitrail.config.name_tables import Choices, NamesTable, combinations
from vitrail.errors import ConfigError

CLOSE = 1e-4  # difference that is agreement, relative to the largest output where that is over 1
SAME = 1e-5  # differences that a number format explains
NEAR = 0.05  # differences that an activation and an epsilon may explain
LONGEST = 120.0  # seconds of a search
# What a step down a list of choices costs: what few models do is tried last.
COSTS = {"activation": 2, "pooling": 3, "norm": 3, "final_norm": 2, "class_entry": 6, "order": 3, "scale": 3, "qkv": 3}
FINE = ("epsilon", "activation")  # what changes little: tried last, around what is nearest
APPROXIMATE = {"gelu": ("gelu", "gelu-tanh", "quick-gelu")}
Step = Callable[[int, int], object]  # of so many ways, how many are tried


@dataclass(frozen=True, kw_only=True)
class Settled:
    """What trying gave: the table as far as it is settled, and what to say of it."""

    table: NamesTable
    agrees: bool
    difference: float
    tried: int
    kind: str  # of the outputs: logits, probabilities, log-probabilities or features
    said: tuple[str, ...]

    def __str__(self) -> str:
        """Say it in a line or a few."""
        return "\n".join(self.said)


def settle(
    archive: Archive, table: NamesTable, images: Tensor, outputs: Tensor, step: Step, *, seconds: float = LONGEST
) -> Settled:
    """Try every way to settle what is open, the likely first, until one gives these outputs; then look for others."""
    trial = Trial(archive, images, outputs)
    points = {name: _choices(name, choices, trial) for name, choices in table.open.items()}
    coarse = {name: _coarse(name, choices) for name, choices in points.items()}
    search = _Search(trial, table, points, total=prod(map(len, coarse.values())), until=monotonic() + seconds)
    agreed = search.run(coarse, step)
    step(search.total, search.total)
    if agreed is not None:
        return _agreed(trial, table, points, agreed, *trial.difference(table.settled(agreed, checked={})))
    if search.best[0] == NEVER:
        why = trial.refusals[0] if trial.refusals else "nothing is open."
        return _nothing(table, trial, f"no way to read the file fits these images: {why}")
    way = search.best[1]
    difference, kind = trial.difference(table.settled(way, checked={}))
    return _nothing(table, trial, _nearest(way, difference, trial, search, seconds), difference, kind)


class _Search:
    """A search of the way that gives the outputs."""

    def __init__(
        self, trial: Trial, table: NamesTable, points: Mapping[str, tuple[object, ...]], *, total: int, until: float
    ) -> None:
        self.trial, self.table, self.points, self.total, self.until = trial, table, points, total, until
        self.best: tuple[float, dict[str, object]] = (NEVER, {})
        self.ended = False  # before every way was tried

    def run(self, coarse: Mapping[str, tuple[object, ...]], step: Step) -> dict[str, object] | None:
        """Find a way that agrees on all images; nothing where none does, or where time is over."""
        outside = {name for name in (*STARTS, *ENDS) if name in coarse}
        starts, ends = (
            list(combinations({name: coarse[name] for name in names if name in coarse}, COSTS))
            for names in (STARTS, ENDS)
        )
        later: list[tuple[float, dict[str, object]]] = []
        seen: set[tuple[object, ...]] = set()
        least = NEVER
        for way in combinations({name: coarse[name] for name in coarse if name not in outside}, COSTS):
            if (key := _key(self.table, way)) in seen:
                continue
            seen.add(key)
            if self.trial.tried and self._is_late():
                return None
            step(min(self.trial.tried + 1, self.total), self.total)
            chosen = [end for end in ends if _is_sensible(end)]
            found = [(each, dict(whole)) for each, whole in self.trial.differences(self.table, way, starts, chosen)]
            for each, whole in sorted(found, key=lambda pair: pair[0]):
                self.best = min(self.best, (each, whole), key=lambda pair: pair[0])
                if each >= NEAR * self.trial.scale:
                    break
                if each >= least:  # it is not the nearest so far: the others first
                    later.append((each, whole))
                elif (agreed := self._refined(whole)) is not None:
                    return agreed
                least = min(least, each)
        for _, whole in sorted(later, key=lambda pair: pair[0]):
            if self._is_late():
                return None
            if (agreed := self._refined(whole)) is not None:
                return agreed
        return None

    def _is_late(self) -> bool:
        self.ended = monotonic() > self.until
        return self.ended

    def _refined(self, way: dict[str, object]) -> dict[str, object] | None:
        """Try what changes little; give the way where it agrees with the outputs of all images."""
        found, way = _refine(self.trial, self.table, way, self.points, FEW)
        self.best = min(self.best, (found, way), key=lambda pair: pair[0])
        most = CLOSE * self.trial.scale
        if found > most or self.trial.difference(self.table.settled(way, checked={}))[0] > most:
            return None
        return way


def _choices(name: str, choices: tuple[object, ...], trial: Trial) -> tuple[object, ...]:
    """Give the choices of a point; those of an image size are the images' own."""
    if name == "image_size":
        return ((trial.images.shape[2], trial.images.shape[3]),)
    if name == "channels" and not choices:
        return (trial.images.shape[1],)
    if not choices:
        raise ConfigError(f"{name} is open in the table without choices: [{'?'!r}, ...].")
    return choices


def _coarse(name: str, choices: tuple[object, ...]) -> tuple[object, ...]:
    """Give the choices that differ much."""
    if name == "epsilon":
        return choices[:1]
    if name != "activation":
        return choices
    close = {each: kind for kind, others in APPROXIMATE.items() for each in others}
    return tuple({close.get(str(choice), choice): choice for choice in reversed(choices)}.values())[::-1]


def _is_sensible(way: Mapping[str, object]) -> bool:
    """Leave out what is the same function twice: of one token, a norm before or after pooling."""
    return way.get("pooling") != "token" or way.get("final_norm") != "pooled"


def _key(table: NamesTable, way: Mapping[str, object]) -> tuple[object, ...]:
    """Tell ways apart that are different models: with one head, all orders of heads are one."""
    plain = dict(way)
    heads = plain.get("heads", table.get("heads"))
    if heads == 1:
        plain["qkv"] = "head feature part" if plain.get("qkv") == "head feature part" else "one"
        plain["scale"] = "none" if plain.get("scale") == "none" else "one"
    return tuple(sorted((name, str(value)) for name, value in plain.items()))


def _refine(
    trial: Trial, table: NamesTable, way: dict[str, object], points: Mapping[str, tuple[object, ...]], count: int
) -> tuple[float, dict[str, object]]:
    """Find the activation and the epsilon that are nearest."""
    fine = {name: points[name] for name in FINE if name in points}
    tried = [{**way, **values} for values in combinations(fine)]
    found = [(trial.difference(table.settled(each, checked={}), count)[0], each) for each in tried]
    return min(found, key=lambda each: each[0])


def _agreed(
    trial: Trial,
    table: NamesTable,
    points: Mapping[str, tuple[object, ...]],
    way: dict[str, object],
    difference: float,
    kind: str,
) -> Settled:
    """Look whether another choice of one point, or of two heads' points, agrees too, and say so."""
    said = [f"agrees with {kind} of {len(trial.images)} images: largest difference {difference:.1e}"]
    settled = dict(way)
    own = _key(table, way)
    for name, choices in points.items():
        twins: list[object] = []
        for choice in choices:
            other = {**way, name: choice}
            if choice == way[name] or not _is_sensible(other) or _key(table, other) == own:
                continue
            tried = table.settled(other, checked={})
            if trial.difference(tried, FEW)[0] > CLOSE * trial.scale:
                continue
            found, _ = trial.difference(tried)
            if found <= CLOSE * trial.scale and not _much_worse(found, difference, trial.scale):
                twins.append(choice)
        if not twins:
            continue
        others = ", ".join(map(str, twins))
        if name in FINE:
            said.append(f"these images do not tell {name} {way[name]} from {others}: the nearest is taken")
            continue
        said.append(f"these images do not tell {name} {way[name]} from {others}: it stays open. Give other images")
        del settled[name]
        settled[name] = Choices((way[name], *twins))
    values = ", ".join(f"{name} {_show(value)}" for name, value in way.items() if settled[name] is value)
    said.insert(1, f"settled: {values}" if values else "nothing was open")
    if len(trial.images) == 1:
        said.append("one image tells little: give several")
    checked = {"outputs": kind, "images": len(trial.images), "largest_difference": float(f"{difference:.2e}")}
    new = table.settled(settled)
    return Settled(
        table=replace(new, checked={} if new.open else checked),
        agrees=True,
        difference=difference,
        tried=trial.tried,
        kind=kind,
        said=tuple(said),
    )


def _much_worse(found: float, best: float, scale: float) -> bool:
    """Tell whether a difference is more than another by what no number format explains."""
    return found > 3 * best and found > SAME * scale * 0.2


def _nearest(way: Mapping[str, object], difference: float, trial: Trial, search: _Search, seconds: float) -> str:
    values = ", ".join(f"{name} {_show(value)}" for name, value in way.items())
    nearest = f"the nearest differs by {difference:.2g} of {trial.scale:.2g}: {values}"
    if search.ended:
        return (
            f"none of {trial.tried:,} ways that were tried in {seconds:g} s, of {search.total:,}, gives these outputs; "
            f"{nearest}. Write the table (write_names), say in it what you know, such as heads, and check that one"
        )
    none = f"none of {trial.tried:,} ways gives these outputs"
    return f"{none}, so its model does something that no table can say; {nearest}"


def _nothing(table: NamesTable, trial: Trial, what: str, difference: float = float("inf"), kind: str = "") -> Settled:
    return Settled(table=table, agrees=False, difference=difference, tried=trial.tried, kind=kind, said=(what,))


def _show(value: object) -> str:
    return _by(value) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else str(value)


def _by(size: Any) -> str:  # noqa: ANN401
    return "x".join(map(str, size))
