"""What is said of a file that was described or written: for programs as a document, for people as text."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vitrail.config import Card, ModelConfig, Provenance, ViTConfig, encode, name_of
from vitrail.config.dense import QueryHead
from vitrail.config.name_tables import NamesTable
from vitrail.config.outputs import LabelOutputs, NumberOutputs, OrderedOutputs
from vitrail.errors import harmless

Arrays = str | os.PathLike[str] | np.ndarray | Tensor  # an .npy file, or an array in memory
NOUNS = {LabelOutputs: "labels", NumberOutputs: "numbers", OrderedOutputs: "ordered classes"}  # of what it says
PARTS = ("embedding", "convolutions", "class token", "positions", "attention", "MLPs", "norms", "hidden", "head")
SHOWN = 20  # tensors of a file that was not recognised
SOME = 8  # notes of one kind


@dataclass(frozen=True, kw_only=True)
class TensorStatistics:
    """A tensor of the file: what it says of itself, and its numbers where they are numbers."""

    name: str
    ours: str | None
    shape: tuple[int, ...]
    dtype: str
    mean: float | None = None
    deviation: float | None = None
    low: float | None = None
    high: float | None = None
    zeros: float | None = None  # their share
    not_finite: int = 0

    @property
    def parameters(self) -> int:
        """How many numbers it has."""
        return prod(self.shape)

    @property
    def part(self) -> str:
        """The part of the model that it belongs to, in words."""
        name = self.ours or ""
        if "norm" in name or "_scale" in name:
            return "norms"
        marks = {"attention": "attention", "mlp": "MLPs", "stages.": "convolutions", "root": "convolutions"}
        return next((part for mark, part in marks.items() if mark in name), name.split(".")[0].replace("_", " "))


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A table of names for a file, why each entry is so, and what a check on images gave; or why there is none."""

    table: NamesTable | None
    why: Mapping[str, str]
    reason: str = ""  # why there is none
    check: str = ""  # what trying the open points gave
    agrees: bool | None = None  # None: nothing was tried

    def text(self, title: str = "") -> str:
        """Give the table as a TOML file."""
        assert self.table is not None
        return self.table.text(self.why, title)

    def document(self) -> dict[str, Any]:
        """Give it as a JSON object."""
        return {
            "table": None if self.table is None else self.table.document(),
            "open": {} if self.table is None else {name: list(choices) for name, choices in self.table.open.items()},
            "why": dict(self.why),
            "reason": self.reason,
            "check": self.check,
            "agrees": self.agrees,
        }


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a checkpoint is; `reason` says why it cannot be loaded, and `layout` is None where it was not recognised.

    Printed, it is a page for people: `print(vitrail.describe("vit.npz"))`.
    """

    source: str
    container: str
    size: int  # bytes
    layout: str | None
    title: str | None
    model: str | None  # the paper's name, where it has one
    config: ModelConfig | None
    card: Card
    reason: str | None
    odd: tuple[str, ...]
    tensors: tuple[TensorStatistics, ...] = field(repr=False)
    proposal: Proposal | None = None  # of which tensor is what, where no layout says it
    program: Mapping[str, Any] | None = None  # what a file of vitrail.export says of itself beside its model

    @property
    def parameters(self) -> int:
        """How many numbers the model's tensors have."""
        return sum(tensor.parameters for tensor in self.tensors if tensor.ours is not None or self.reason)

    def document(self) -> dict[str, Any]:
        """Give it as a JSON object."""
        tensors = [encode(tensor) for tensor in self.tensors]
        return {
            "source": self.source,
            "container": self.container,
            "bytes": self.size,
            "layout": self.layout,
            "model": self.model,
            "config": None if self.config is None else encode(self.config),
            "grid": list(self.config.grid) if isinstance(self.config, ViTConfig) else None,
            "parameters": self.parameters,
            **{name: list(notes) for name, notes in _notes(self.card.provenance).items()},
            "class_names": None if self.card.class_names is None else list(self.card.class_names),
            "preprocessing": encode(self.card.preprocessing),
            "assumed": list(self.card.assumed),
            "metrics": dict(self.card.metrics),
            "odd": list(self.odd),
            "reason": self.reason,
            "proposal": None if self.proposal is None else self.proposal.document(),
            "program": self.program,
            "tensors": [{"name": tensor.pop("name"), "parameter": tensor.pop("ours"), **tensor} for tensor in tensors],
        }

    def text(self, *, tensors: bool = False) -> str:
        """Give it as a page for people, with the numbers of every part, or of every tensor."""
        found = _notes(self.card.provenance)
        labelled = {label: (text,) for label, text in self._lines()}
        labelled |= {"inferred": found["inferred"], "changed": found["changes"]}
        labelled |= {"left out": _first(found["left_out"]), "odd": self.odd}
        if self.program is not None:
            return harmless("\n".join(_labelled(labelled)))
        if tensors or self.reason:
            shown = self.tensors if tensors else self.tensors[:SHOWN]
            rows = [(t.name, "x".join(map(str, t.shape)) or "one number", t.dtype, t) for t in shown]
            table = [*_table("shape", rows)]
            table += [f"and {len(self.tensors) - len(shown)} more"] if len(shown) < len(self.tensors) else []
        else:
            table = _table("parameters", self._parts())
        return harmless("\n".join([*_labelled(labelled), "", *table, *_proposed(self.proposal)]))

    __str__ = text

    def _lines(self) -> Iterator[tuple[str, str]]:
        """Give what is said in one line each, with its label."""
        config, card = self.config, self.card
        yield "file", f"{self.source} ({self.container}, {self.size / 1e6:,.1f} MB)"
        if config is None:
            yield from (("layout", "not recognised"), ("tensors", f"{len(self.tensors):,}"))
            yield "because", self.reason or ""
            return
        yield "layout", f"{self.layout}: {self.title}"
        if self.program is not None:
            yield from _program(self.program)
        if self.reason:
            yield "but", self.reason
        yield "model", self.model or "none of the paper's by name"
        before = ""
        if isinstance(config, ViTConfig):
            (rows, cols), (height, width) = config.grid, config.image_size
            heads = f"{config.heads} heads of {config.head_width}"
            yield "shape", f"{config.depth} layers, width {config.width}, MLP {config.mlp_width}, {heads}"
            patches = f"{rows}x{cols} patches of {config.stem.stride} pixels at {height}x{width}"
            yield "tokens", f"{patches}, {config.channels} channels, pooled by {config.pooling}"
            yield "numerics", f"{config.activation}, epsilon {config.epsilon:g}"
            before = f"a tanh layer of {config.pre_logits}, then " if config.pre_logits else ""
        else:
            units = ", ".join(map(str, config.units))
            yield "shape", f"units {units}, width {config.width}, {config.channels} channels"
            yield "numerics", f"epsilon {config.epsilon:g}, of the filters {config.filter_epsilon:g}"
        how = "" if config.cosine_scale is None else f" by cosines, times {config.cosine_scale:g}"
        noun = NOUNS.get(type(card.outputs), "classes")
        classes = f"{before}{config.classes:,} {noun}{how}" if config.classes else f"{before}no classifier"
        if (dense := getattr(config, "head", None)) is not None:
            what = f"{dense.queries} queries" if isinstance(dense, QueryHead) else "a linear layer of patches"
            drawn = " and draw" if dense.shapes else ""
            classes = f"{what} to {dense.task}{drawn} {classes}"
        yield "head", classes
        if self.tensors:
            yield "parameters", f"{self.parameters:,} in {len(self.tensors):,} tensors"
        if card.class_names:
            yield noun.split()[-1], ", ".join(card.class_names[:6]) + (", ..." if len(card.class_names) > 6 else "")
        if card.provenance:
            how = card.preprocessing
            yield "preprocessing", f"{how.resize}, {how.interpolation}; {how.levels()}"
            if (assumption := card.assumption(config.image_size)) is not None:
                yield "assumed", assumption
        if card.metrics:
            yield "metrics", ", ".join(f"{name} {value:g}" for name, value in card.metrics.items())

    def _parts(self) -> Iterator[tuple[str, str, str, TensorStatistics]]:
        """Put the tensors of a part together: the stem, positions, attention, MLPs, norms, the head."""
        groups: dict[str, list[TensorStatistics]] = {part: [] for part in PARTS}
        for tensor in self.tensors:
            if tensor.ours is not None:
                groups.setdefault(tensor.part, []).append(tensor)
        for part, tensors in groups.items():
            if tensors:
                kinds = ", ".join(sorted({tensor.dtype for tensor in tensors}))
                yield part, f"{sum(tensor.parameters for tensor in tensors):,}", kinds, together(tensors)


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written, in which layout, with what was lost on the way, and what a reader should know."""

    path: Path
    layout: str
    config: ModelConfig
    came: Provenance | None  # what was opened and done to it, where a file was
    lost: tuple[str, ...]
    notes: tuple[str, ...]
    parameters: int

    def document(self) -> dict[str, Any]:
        """Give it as a JSON object."""
        found = _notes(self.came)
        notes = {"inferred": found["inferred"], "changed": found["changes"], "left_out": found["left_out"]}
        return {
            "path": str(self.path),
            "layout": self.layout,
            "from": None if self.came is None else self.came.layout,
            "model": name_of(self.config),
            "parameters": self.parameters,
            **{name: list(texts) for name, texts in (notes | {"lost": self.lost, "note": self.notes}).items()},
        }

    def __str__(self) -> str:
        """Say it to people."""
        said, model = self.document(), name_of(self.config) or "a model"
        labelled: dict[str, Sequence[str]] = {}
        if self.came is not None:
            labelled["recognised"] = (f"{self.came.layout} ({self.came.container}): {model}",)
        for name in ("inferred", "changed", "left_out", "lost", "note"):
            labelled[name.replace("_", " ")] = _first(said[name])
        labelled["wrote"] = (f"{self.path} ({self.layout}, {self.parameters:,} parameters)",)
        return harmless("\n".join(_labelled(labelled)))


def _program(said: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Say what a program takes and gives, and how far it is from the model that it was made of."""
    yield "written", f"to {said['to']}, in {said['precision']}"
    sizes, own = said["sizes"], "{}x{}".format(*said["sizes"]["own"])
    most = f" to {sizes['most']}" if sizes["most"] < 1 << 16 else " on"
    multiples = "" if sizes["step"] == 1 else f" that are multiples of {sizes['step']}"
    sides = f"any sides{multiples}, from {sizes['least']} pixels{most}"
    kind = "uint8 B H W C, resized" if said["input"] == "pixels" else "float32 B C H W, scaled"
    yield "takes", f"{said['input']}, {kind}: any batch; {sides if sizes['free'] else f'{own} alone'}"
    yield "gives", " and ".join(said["outputs"])
    found = said["verified"]
    yield (
        "verified",
        f"differs from the model by {found['difference']:.1e} at most, of numbers up to {found['scale']:.3g}",
    )
    if (int8 := said.get("int8")) is not None:
        images = f"{int8['images']:,} images"
        before, after = (f"{share:.2%}" for share in int8["accuracy"])
        measured = (
            f"accuracy {before} before, {after} in int8" if int8["labeled"] else f"{after} of the answers stay the same"
        )
        yield "int8", f"{int8['layers'] - len(int8['kept'])} of {int8['layers']} products; {measured}, on {images}"


def _proposed(proposal: Proposal | None) -> Iterator[str]:
    """Say what is proposed, as the table that it is."""
    if proposal is None:
        return
    yield ""
    if proposal.table is None:
        yield f"no names are proposed: {proposal.reason}"
        return
    if proposal.check:
        yield from ("check", *(f"  {line}" for line in proposal.check.splitlines()), "")
    points = proposal.table.open
    still = f"; open: {', '.join(points)}" if points else ""
    yield f"names, as a table for names=FILE.toml (write it with write_names=FILE.toml){still}"
    yield from ("", proposal.text().rstrip())


def together(tensors: Sequence[TensorStatistics]) -> TensorStatistics:
    """Give the statistics of several tensors as those of one."""
    known = [tensor for tensor in tensors if tensor.mean is not None]
    first = tensors[0]
    if not known:
        return first
    weights = [tensor.parameters for tensor in known]
    total = sum(weights)
    mean = sum(w * (t.mean or 0.0) for w, t in zip(weights, known, strict=True)) / total
    square = sum(w * ((t.deviation or 0.0) ** 2 + (t.mean or 0.0) ** 2) for w, t in zip(weights, known, strict=True))
    return replace(
        first,
        mean=mean,
        deviation=max(square / total - mean**2, 0.0) ** 0.5,
        low=min(tensor.low or 0.0 for tensor in known),
        high=max(tensor.high or 0.0 for tensor in known),
    )


def _notes(provenance: Provenance | None) -> dict[str, tuple[str, ...]]:
    return {name: getattr(provenance, name, ()) for name in ("inferred", "left_out", "changes")}


def _first(texts: Sequence[str]) -> tuple[str, ...]:
    """Give some of many, and say how many more there are."""
    return (*texts[:SOME], *([f"and {len(texts) - SOME} more"] if len(texts) > SOME else []))


def _labelled(texts: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """Give lines with their label before the first of a kind."""
    wide = max(map(len, texts))
    for label, lines in texts.items():
        yield from (f"{'' if index else label:<{wide}}  {line}" for index, line in enumerate(lines))


def _table(size: str, lines: Iterable[tuple[str, str, str, TensorStatistics]]) -> Iterator[str]:
    rows = [("part", size, "type", "mean", "deviation", "low", "high")]
    for part, held, kind, numbers in lines:
        values = (numbers.mean, numbers.deviation, numbers.low, numbers.high)
        mean, deviation, low, high = ("" if value is None else f"{value:.3g}" for value in values)
        rows.append((part, held, kind, mean, deviation, low, high))
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [f"{cell:<{wide[i]}}" if i < 3 else f"{cell:>{wide[i]}}" for i, cell in enumerate(row)]
        yield "  ".join(cells).rstrip()
