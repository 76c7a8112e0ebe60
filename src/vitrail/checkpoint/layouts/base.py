"""What a layout is: the names and axes that a library gives to the weights of a model."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from vitrail.checkpoint.adapt import Request
from vitrail.checkpoint.archives.base import Entry, Headers, Shape
from vitrail.config import ModelConfig, Resampling
from vitrail.files import parse_json

NOTE = "vitrail"  # the name of the note that a safetensors file of ours carries
AVERAGED = {"ema", "teacher"}
Dialect = Mapping[str, Any]  # what a layout leaves open, as one file has it; plain enough for JSON


class Codec(NamedTuple):
    """`read` makes ours of theirs; `write` makes theirs of ours, each of them in the shape given."""

    read: Callable[..., Tensor]
    write: Callable[[Tensor, Shape], tuple[Tensor, ...]]


class Row(NamedTuple):
    """One parameter of ours: the tensors of theirs that it is made of, the shape of each, and how to go there and back.

    Where a file stacks the layers, `layer` is the one of theirs that is meant.
    """

    ours: str
    theirs: tuple[str, ...]
    shape: Shape
    codec: Codec
    layer: int | None = None
    others: tuple[Shape, ...] = ()  # of all but the first tensor, where these differ

    def shapes(self) -> dict[str, Shape]:
        """Give the shape of each tensor of theirs, by its name."""
        every = (self.shape, *(self.others or (self.shape,) * (len(self.theirs) - 1)))
        return dict(zip(self.theirs, every, strict=False))

    def under(self, prefix: str) -> "Row":
        """Give the row with something before their names."""
        return self._replace(theirs=tuple(prefix + name for name in self.theirs))


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a file holds: the model, how the layout is spoken, what was inferred, and what is left out."""

    config: ModelConfig
    dialect: Dialect
    inferred: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Holds:
    """What a layout can say of a model; a model with anything else does not fit."""

    families: tuple[str, ...] = ("vit",)
    activations: tuple[str, ...] = ("gelu",)
    documented: tuple[str, ...] = ()  # activations that the document in a folder can say
    epsilon: float | None = 1e-6  # None: any
    poolings: tuple[str, ...] = ("token",)
    hidden: str = "yes"  # yes, no, or headless: only where there is no classifier after it
    headless: bool = True
    layer_scale: bool = False
    bias_free: bool = False
    parts: tuple[str, ...] = ()  # of those that the paper's ViT lacks
    rectangles: bool = True
    resampling: Resampling = "bilinear-corners"  # of positions, at another image size
    stem: Mapping[str, object] = field(default_factory=dict)  # of a hybrid
    bit: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A library's names and axes: how they are recognised, read and written."""

    name: str
    title: str
    recognize: Callable[[Mapping[str, Entry]], str | None]  # the prefix of its names, or nothing
    infer: Callable[[Headers, Request, Mapping[str, Any]], Found]
    rows: Callable[[ModelConfig, Dialect], Iterator[Row]]
    dialect: Callable[[ModelConfig], Dialect]
    holds: Holds
    writes: bool = True  # or it is read alone
    whole: Callable[[ModelConfig], bool] = lambda config: False  # holds all of it, whatever `holds` says


def common_prefix(entries: Mapping[str, Entry], anchor: str) -> str | None:
    """Find what stands before a name that every file of a layout has.

    Of several models it is an average's or a teacher's, as of a trainer's checkpoint, or the one of the shortest.
    """
    found = [name.removesuffix(anchor) for name in entries if name.endswith(anchor)]
    found = [prefix for prefix in found if prefix == "" or prefix[-1] in "./"]
    return min(found, key=lambda prefix: (not AVERAGED & {*re.split(r"[._]", prefix)}, len(prefix)), default=None)


def read_note(documents: Mapping[str, Any]) -> Mapping[str, Any]:
    """Read the configuration that we wrote into a file's notes; nothing where there is none."""
    try:
        model = parse_json(documents.get("notes", {}).get(NOTE, "{}"))["model"]
    except (ValueError, KeyError, TypeError):
        return {}
    return model if isinstance(model, dict) else {}
