"""A model as a program: one trace of it, with batch, height and width free where it can be."""

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from vitrail.config import BiasPositions, BiTConfig, ModelConfig, ViTConfig
from vitrail.data.transforms.finish import scale
from vitrail.errors import ConfigError
from vitrail.exports.graph_outputs import outputs_of
from vitrail.models import Model
from vitrail.models.heads import SHORTEST, CosineHead
from vitrail.runtime.engines import reason_of
from vitrail.runtime.folded import fold_filters

LEAST = 2  # patches on a side of a graph whose size is free: a side of one would be taken for a constant
MOST = 1 << 16  # pixels of a side, and images of a batch
PLANNED = 8  # images of a batch where an engine plans its memory for the largest; a side is then twice the longest


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Which image sizes a graph takes: any whose sides are multiples of `step` from `least` on, or its own alone."""

    own: tuple[int, int]
    step: int = 1
    least: int = 1
    most: int = MOST
    batch: int = MOST
    fixed: str | None = None  # why the size is not free

    def __str__(self) -> str:
        if self.fixed is not None:
            return f"{self.own[0]}x{self.own[1]} alone: {self.fixed}"
        multiples = "any sides" if self.step == 1 else f"any sides that are multiples of {self.step}"
        return f"{multiples}, from {self.least} pixels " + ("on" if self.most == MOST else f"to {self.most}")

    def document(self) -> dict[str, Any]:
        """Give it as plain values, for JSON."""
        free = {"step": self.step, "least": self.least, "most": self.most}
        return {"own": list(self.own), "free": self.fixed is None, **free}

    def tried(self) -> list[tuple[int, int]]:
        """Give the sizes that a file is verified at: its own, another square, a rectangle."""
        if self.fixed is not None:
            return [self.own]
        few, more = (self._near(self.own[0], factor) for factor in (0.75, 1.25))
        return [self.own, (more, more), (max(few, self.least), more + self.step)]

    def _near(self, side: int, factor: float) -> int:
        near = max(round(side * factor / self.step), 1) * self.step
        return max(near if near != side else side + self.step, self.least)


def sizes_of(config: ModelConfig, *, fixed: bool, planned: bool = False) -> Sizes:
    """Say which sizes a graph of this model can take; `planned` where an engine plans its memory for the largest."""
    sizes = Sizes(own=config.image_size, batch=PLANNED if planned else MOST)
    if isinstance(config, BiTConfig):
        step, least = 1, 4 * 2 ** (len(config.units) - 1) + 1
    else:
        step = config.stem.stride
        least = LEAST * step
    if fixed:
        return replace(sizes, fixed="so it was asked")
    if isinstance(config, ViTConfig) and config.head is not None and config.head.task == "detect":
        return replace(sizes, fixed="queries begin as some of so many patches")
    if isinstance(config, ViTConfig) and isinstance(config.positions, BiasPositions):
        return replace(sizes, fixed="its biases of offsets are those of one grid")
    if any(side % step for side in sizes.own):
        return replace(sizes, fixed=f"its sides are no multiples of the {step} pixels from one patch to the next")
    if min(sizes.own) < least:
        return replace(sizes, fixed=f"a free side is of {least} pixels or more")
    sizes = replace(sizes, step=step, least=least)
    largest = max(2 * max(sizes.own), *(side for size in sizes.tried() for side in size))
    return replace(sizes, most=largest // step * step) if planned else sizes


class Program(nn.Module):
    """What is traced: from images, or from pixels, to logits and features, all in float32."""

    def __init__(self, model: Model, dtype: torch.dtype, *, pixels: bool) -> None:
        super().__init__()
        self.model, self.dtype, self.pixels = model, dtype, pixels

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Give logits and features; of a model without a head, its features alone; or scores of pixels or objects."""
        if self.pixels:
            images = scale(images.permute(0, 3, 1, 2), self.model.card.preprocessing)
        return outputs_of(self.model, images.to(self.dtype))


class FixedCosines(nn.Module):
    """A classifier by cosines whose directions are brought to their length once, the scale among it."""

    def __init__(self, head: CosineHead) -> None:
        super().__init__()
        directions = nn.functional.normalize(head.directions.weight.detach(), dim=1, eps=SHORTEST)
        self.directions = nn.Linear(directions.shape[1], directions.shape[0], bias=False)
        self.directions.weight = nn.Parameter(head.scale * directions, requires_grad=False)

    def forward(self, representation: Float[Tensor, "B D"]) -> Float[Tensor, "B K"]:
        """Logits."""
        exact = nn.functional.normalize(representation.float(), dim=1, eps=SHORTEST)
        return self.directions(exact.to(representation.dtype))


class TwoPassGroupNorm(nn.Module):
    """GroupNorm by its mean and then its variance: an engine's own may take both from one sum, and lose digits."""

    def __init__(self, norm: nn.GroupNorm) -> None:
        super().__init__()
        self.groups, self.epsilon = norm.num_groups, norm.eps
        self.weight, self.bias = norm.weight, norm.bias

    def forward(self, features: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """Normalise each group of channels."""
        batch, height, width = features.shape[0], features.shape[2], features.shape[3]
        # reshape, since unflatten makes a rule of the sides where a group is one channel
        groups = features.reshape(batch, self.groups, (features.shape[1] // self.groups) * height * width)
        centred = groups - groups.mean(dim=2, keepdim=True)
        variance = (centred * centred).mean(dim=2, keepdim=True)
        normal = (centred * torch.rsqrt(variance + self.epsilon)).reshape(features.shape)
        return normal * self.weight[:, None, None] + self.bias[:, None, None]


def plain(model: Model) -> Model:
    """Copy a model with what a graph computes once, or otherwise, written so."""
    made = copy.deepcopy(model).requires_grad_(requires_grad=False).eval()
    fold_filters(made)
    for parent in list(made.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.GroupNorm):
                setattr(parent, name, TwoPassGroupNorm(child))
            elif isinstance(child, CosineHead):
                setattr(parent, name, FixedCosines(child))
    return made


def trace(model: Model, sizes: Sizes, *, precision: str, pixels: bool) -> ExportedProgram:
    """Trace a model once; the batch is of two images, since a size of one would be taken for a constant."""
    dtype = torch.float16 if precision == "float16" else torch.float32
    program = Program(plain(model).to(dtype), dtype, pixels=pixels).eval()
    rows, cols = (2 if pixels is False else 1), (3 if pixels is False else 2)
    free: Mapping[int, Any] = {0: Dim("batch", min=1, max=sizes.batch)}
    height, width = model.config.image_size
    if sizes.fixed is None:
        height, width = sizes.tried()[2]
        least, most = -(-sizes.least // sizes.step), sizes.most // sizes.step
        named = [Dim(name, min=least, max=most) for name in ("rows", "cols")]
        free = {**free, rows: sizes.step * named[0], cols: sizes.step * named[1]}
    shape = (2, height, width, model.config.channels) if pixels else (2, model.config.channels, height, width)
    example = torch.zeros(shape, dtype=torch.uint8 if pixels else torch.float32)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own workings
        try:
            return torch.export.export(program, (example,), dynamic_shapes=(free,), strict=False)
        except Exception as error:  # of many types; a model of one's own may do what no program can
            raise ConfigError(
                f"the model cannot be traced: {reason_of(error)}."
                + (" Where that is of sizes, take fixed_size=True." if sizes.fixed is None else "")
            ) from error
