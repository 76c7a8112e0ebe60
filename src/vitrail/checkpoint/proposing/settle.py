"""The open points of a table of names, settled by trying: which of them gives the outputs that its own model gave."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vitrail.checkpoint.adapt import Request, Weights
from vitrail.checkpoint.archives.base import Archive
from vitrail.checkpoint.layouts.table import configure, rows
from vitrail.config import ViTConfig
from vitrail.config.name_tables import Choices, NamesTable, combinations
from vitrail.errors import CheckpointError, ConfigError, VitrailError
from vitrail.models import Model, ViT, skeleton

CLOSE = 1e-4  # difference that is agreement, relative to the largest output where that is over 1
SAME = 1e-5  # differences that a number format explains
FEW = 2  # images that the search looks at
MOST = 20_000  # ways that are tried
KEPT = 1024  # models without weights
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


class Both(nn.Module):
    """A model without weights of its own, that gives its representation and its logits."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model, self.classes = model, model.config.classes

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Give both; no logits where there is no classifier."""
        assert isinstance(self.model, ViT)
        features = self.model.represent(images)
        return features, self.model.head(features) if self.classes else None


class Trial:
    """A file's tensors, images, and the outputs that its own model gave for them."""

    def __init__(self, archive: Archive, images: Tensor, outputs: Tensor) -> None:
        self.read = archive.read
        self.images, self.outputs = check_pair(images, outputs)
        self.tried = 0
        self._raw: dict[str, Tensor] = {}
        self.shapes = {name: entry.shape for name, entry in archive.entries.items()}
        self._models: dict[ViTConfig, Both] = {}
        self.scale = max(1.0, float(self.outputs.abs().max()))
        self.refusals: list[str] = []

    def tensor(self, name: str) -> Tensor:
        """Read a tensor once."""
        if name not in self._raw:
            self._raw[name] = self.read(name).float()
        return self._raw[name]

    def build(self, table: NamesTable) -> "tuple[Both, Weights]":
        """Give the model that a settled table means, at the size of the images, and its weights."""
        size = (self.images.shape[2], self.images.shape[3])
        config = configure(table, self.shapes, Request(image_size=size))
        if config.image_size != size:
            raise CheckpointError(f"its positions are of images of {_by(config.image_size)}; these are {_by(size)}.")
        if config.channels != self.images.shape[1]:
            raise CheckpointError(
                f"its patches have {config.channels} channels; the images have {self.images.shape[1]}."
            )
        weights: Weights = {}
        for row in rows(table, config):
            for name, shape in row.shapes().items():
                if self.shapes.get(name) != shape:
                    raise CheckpointError(f"{name!r} is {self.shapes.get(name, 'not there')}, not {shape}.")
            weights[row.ours] = row.codec.read(*map(self.tensor, row.theirs)).contiguous()
        if config not in self._models:
            if len(self._models) == KEPT:
                self._models.clear()
            self._models[config] = Both(skeleton(config)).eval()
        return self._models[config], weights

    def difference(self, table: NamesTable, count: int | None = None) -> tuple[float, str]:
        """Give the largest difference from the outputs, and what these are."""
        self.tried += 1
        try:
            both, weights = self.build(table)
        except (VitrailError, RuntimeError) as error:
            self.refusals.append(str(error))
            return float("inf"), ""
        images, wanted = self.images[:count], self.outputs[:count]
        with torch.inference_mode():
            named = {f"model.{name}": tensor for name, tensor in weights.items()}
            features, logits = functional_call(both, named, (images,), strict=True)
        kinds: dict[str, Tensor] = {}
        if logits is not None and logits.shape == wanted.shape:
            kinds = {"logits": logits}
            if is_probability(wanted):
                kinds["probabilities"] = logits.softmax(dim=1)
            elif bool((wanted <= 0).all()) and is_probability(wanted.exp()):
                kinds["log-probabilities"] = logits.log_softmax(dim=1)
        if features.shape == wanted.shape:
            kinds["features"] = features
        if not kinds:
            has = f"{both.classes} classes and {features.shape[1]} features"
            self.refusals.append(f"the outputs have {wanted.shape[1]} columns; the model has {has}.")
            return float("inf"), ""
        found = {kind: float((given - wanted).abs().max()) for kind, given in kinds.items()}
        kind = min(found, key=lambda each: found[each])
        return (found[kind] if found[kind] == found[kind] else float("inf")), kind


def check_pair(images: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Refuse images and outputs that do not go together."""
    if images.ndim != 4 or not images.is_floating_point() or 0 in images.shape:
        raise ConfigError(
            f"the images must be float B C H W, as the model read them; got {images.dtype} {tuple(images.shape)}."
        )
    if outputs.ndim != 2 or not outputs.is_floating_point() or outputs.shape[0] != images.shape[0]:
        raise ConfigError(
            f"the outputs must be float B K, one row for each of the {images.shape[0]} images; got {outputs.dtype} "
            f"{tuple(outputs.shape)}."
        )
    if not (torch.isfinite(images).all() and torch.isfinite(outputs).all()):
        raise ConfigError("the images and outputs must be finite numbers; some are NaN or infinity.")
    return images.float(), outputs.float()


def is_probability(rows: Tensor) -> bool:
    """Tell whether every row is made of probabilities."""
    return bool((rows >= 0).all()) and bool(((rows.sum(dim=1) - 1).abs() < 1e-4).all())


def settle(archive: Archive, table: NamesTable, images: Tensor, outputs: Tensor, step: Step) -> Settled:
    """Try every way to settle what is open, the likely first, until one gives these outputs; then look for others."""
    trial = Trial(archive, images, outputs)
    points = {name: _choices(name, choices, trial) for name, choices in table.open.items()}
    coarse = {name: _coarse(name, choices) for name, choices in points.items()}
    total = min(prod(map(len, coarse.values())), MOST)
    best: tuple[float, dict[str, object]] = (float("inf"), {})
    seen: set[tuple[object, ...]] = set()
    tried = 0
    for way in combinations(coarse, COSTS):
        if not _is_sensible(way) or (key := _key(table, way)) in seen:
            continue
        seen.add(key)
        if (tried := tried + 1) > MOST:
            break
        step(tried, total)
        found, _ = trial.difference(table.settled(way, checked={}), FEW)
        if found < 0.05 * trial.scale:  # close: the rest is numerics
            found, way = _refine(trial, table, way, points, FEW)
        if found < best[0]:
            best = (found, way)
        if found <= CLOSE * trial.scale:
            break
    step(total, total)
    if best[0] == float("inf"):
        why = trial.refusals[0] if trial.refusals else "nothing is open."
        return _nothing(table, trial, f"no way to read the file fits these images: {why}")
    difference, kind = trial.difference(table.settled(best[1], checked={}))
    if difference > CLOSE * trial.scale:
        return _nothing(table, trial, _nearest(best[1], difference, trial), difference, kind)
    return _agreed(trial, table, points, best[1], difference, kind)


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
            found, _ = trial.difference(table.settled(other, checked={}))
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


def _nearest(way: Mapping[str, object], difference: float, trial: Trial) -> str:
    values = ", ".join(f"{name} {_show(value)}" for name, value in way.items())
    return (
        f"none of {trial.tried:,} ways gives these outputs, so its model does something that no table can say; "
        f"the nearest differs by {difference:.2g} of {trial.scale:.2g}: {values}"
    )


def _nothing(table: NamesTable, trial: Trial, what: str, difference: float = float("inf"), kind: str = "") -> Settled:
    return Settled(table=table, agrees=False, difference=difference, tried=trial.tried, kind=kind, said=(what,))


def _show(value: object) -> str:
    return _by(value) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else str(value)


def _by(size: Any) -> str:  # noqa: ANN401
    return "x".join(map(str, size))
