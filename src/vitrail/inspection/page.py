"""One HTML file that opens from a disk without a network: attention in a byte a weight, pictures that fit, figures."""

import base64
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Num, UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrail.config import Grid
from vitrail.data.decode import encode
from vitrail.data.pixels import to_picture
from vitrail.data.transforms.resize import resize
from vitrail.errors import DataError, one_line
from vitrail.inspection.attention import AttentionShape, Weights

LEVELS = 255


class MapPlan(NamedTuple):
    """How much of the weights is kept: cells of so many patches a side; all heads of the first images."""

    cell: int
    all_heads: int


class Maps(NamedTuple):
    """The weights of one image: bytes, and what the largest of each map stands for."""

    grid: Grid
    levels: NDArray[np.uint8]  # L h N N, of queries and keys; one head where their mean is kept
    peaks: NDArray[np.float32]  # L h N


def plan_maps(images: int, layers: int, heads: int, grid: Grid, most: int) -> MapPlan:
    """Choose the finest grid at which all images' means fit into so many bytes, one of them with all its heads."""
    for cell in range(1, max(grid) + 1):
        cells = _cells(grid, cell)
        count = cells[0] * cells[1]
        mean = layers * count * (count + 4)
        room = most - images * mean
        if room >= (heads - 1) * mean or (count == 1 and room >= 0):
            return MapPlan(cell, min(images, max(room // max((heads - 1) * mean, 1), 0)))
    return MapPlan(max(grid), 0)


class QueryMaps:
    """Keeps every patch's attention to every other, of all heads or their mean, in cells of several patches."""

    def __init__(self, shape: AttentionShape, cell: int, *, all_heads: bool) -> None:
        self.shape, self.cell, self.all_heads = shape, cell, all_heads
        self.grid = _cells(shape.grid, cell)
        rows, cols = (torch.arange(side, device=shape.device) // cell for side in shape.grid)
        cells = (rows[:, None] * self.grid[1] + cols).flatten()  # the cell of every patch
        self.members = F.one_hot(cells, self.grid[0] * self.grid[1]).float()  # patches by cells
        self._sums: Tensor | None = None
        self._levels: list[Tensor] = []
        self._peaks: list[Tensor] = []

    def see(self, layer: int, first: int, weights: Weights) -> None:
        """Add the patches among these queries to their cells; after the layer's last one, write bytes."""
        heads = weights.by_head if self.all_heads else weights.mean[:, None]
        start, kept = self.shape.patches(first, heads)
        if self._sums is None:
            self._sums = kept.new_zeros(*kept.shape[:2], len(self.members.T), len(self.members.T))
        rows = slice(start, start + kept.shape[2])
        if self.cell == 1:
            self._sums[:, :, rows] = kept
        else:
            queries = self.members[rows] / self.members.sum(dim=0)  # the mean of a cell's
            self._sums += queries.T @ (kept @ self.members)  # keys are added up: what a cell's patches get
        if first + heads.shape[2] == self.shape.tokens:
            levels, peaks = _quantized(self._sums)
            self._levels.append(levels.cpu())
            self._peaks.append(peaks.float().cpu())
            self._sums = None

    def each(self) -> list[Maps]:
        """Give the maps of every image."""
        levels, peaks = torch.stack(self._levels, dim=1), torch.stack(self._peaks, dim=1)
        return [Maps(self.grid, one.numpy(), two.numpy()) for one, two in zip(levels, peaks, strict=True)]


def to_levels(weights: Float[Tensor, "*B rows cols"], cell: int) -> tuple[UInt8[Tensor, "*B N"], Float[Tensor, "*B"]]:
    """Turn maps of patches into bytes of cells, and what the largest of each stands for."""
    high, wide = weights.shape[-2:]
    rows, cols = _cells((high, wide), cell)
    padded = F.pad(weights.float(), (0, cols * cell - wide, 0, rows * cell - high))
    parts = padded.unflatten(-1, (cols, cell)).unflatten(-3, (rows, cell))  # ... rows cell cols cell
    return _quantized(parts.sum(dim=(-3, -1)).flatten(-2))


def _quantized(weights: Float[Tensor, "*B N"]) -> tuple[UInt8[Tensor, "*B N"], Float[Tensor, "*B"]]:
    peaks = weights.amax(dim=-1)
    scaled = weights / peaks.clamp(min=torch.finfo(weights.dtype).tiny)[..., None] * LEVELS
    return scaled.round().to(torch.uint8), peaks


def _cells(grid: Grid, cell: int) -> Grid:
    return -(-grid[0] // cell), -(-grid[1] // cell)


SIDES = (512, 384, 256, 160, 96, 48)  # pixels of the longer side, until all pictures fit
LOSSLESS = 160  # pixels up to which a picture is carried without loss, where all fit so
QUALITY = 85


class Picture(NamedTuple):
    """An image as a page carries it."""

    url: str
    height: int
    width: int
    bytes: int


def pictures_of(pixels: Sequence[Num[Tensor, "C H W"]] | Num[Tensor, "B C H W"], most: int) -> list[Picture]:
    """Encode images so that all of them take no more than so many bytes; smaller than the last side none is made."""
    small = max(max(picture.shape[1:]) for picture in pixels) <= LOSSLESS
    made = [_encoded(picture, lossless=True) for picture in pixels] if small else []
    if made and sum(picture.bytes for picture in made) <= most:
        return made
    for side in SIDES:
        made = [_encoded(small_enough(picture, side), lossless=False) for picture in pixels]
        if sum(picture.bytes for picture in made) <= most:
            break
    return made


def small_enough(picture: Num[Tensor, "C H W"], side: int) -> Num[Tensor, "C h w"]:
    """Make a picture no larger than this."""
    factor = side / max(picture.shape[1:])
    if factor >= 1:
        return picture
    height, width = (max(round(length * factor), 1) for length in picture.shape[1:])
    return resize(picture, (height, width), "antialias")


def with_color(pixels: Num[Tensor, "*B C H W"]) -> UInt8[Tensor, "*B 3 H W"]:
    """Give images as they are shown: gray thrice, the first three of more channels, real levels from least to most."""
    shown = (
        pixels[..., :3, :, :] if pixels.shape[-3] >= 3 else pixels[..., :1, :, :].expand(*pixels.shape[:-3], 3, -1, -1)
    )
    if not shown.is_floating_point():
        return shown
    images = shown.cpu().reshape(-1, *shown.shape[-3:]).permute(0, 2, 3, 1).numpy()  # B H W 3
    pictures = np.zeros(images.shape, np.uint8)
    for place, image in enumerate(images):
        pictures[place] = to_picture(image)
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).reshape(shown.shape)


def url_of(data: bytes, kind: str) -> str:
    """Give bytes as an address that holds them."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def picture_document(picture: Num[Tensor, "C h w"]) -> dict[str, Any]:
    """Give a picture as a page reads it: without loss where it is small."""
    made = _encoded(picture, lossless=max(picture.shape[1:]) <= LOSSLESS)
    return {"src": made.url, "width": made.width, "height": made.height}


def _encoded(picture: Num[Tensor, "C H W"], *, lossless: bool) -> Picture:
    shown = with_color(picture).permute(1, 2, 0).contiguous().numpy()
    data = encode(shown, "PNG") if lossless else encode(shown, "JPEG", QUALITY)
    return Picture(url_of(data, "png" if lossless else "jpeg"), shown.shape[0], shown.shape[1], len(data))


# Written so, the document can hold no tag that ends its script, whatever a class or a file is called.
ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


TEMPLATE = files("vitrail.inspection") / "template"  # parts that all pages share


def render_page(document: Mapping[str, Any]) -> str:
    """Write the page of a document: template, style, scripts and data in one text."""
    document = plain(document)
    return fill_template("page.html", TEMPLATE, title=html.escape(document["title"]), document=as_script(document))


def fill_template(name: str, *folders: Traversable, **parts: str) -> str:
    """Put parts, and files of the folders, in the {{places}} of a file that name them; the first folder that has one.

    What is put in is not read for places, unless it is a file of HTML.
    """

    def part(found: re.Match[str]) -> str:
        return parts[found[1]] if found[1] in parts else fill_template(found[1], *folders, **parts).strip()

    text = next(file for folder in folders if (file := folder / name).is_file()).read_text(encoding="utf-8")
    return re.sub(r"\{\{([a-z.]+)\}\}", part, text) if name.endswith(".html") else text


def plain(value: Any) -> Any:  # noqa: ANN401
    """Give a document whose texts hide nothing: no sign that turns others round, drives anything, or is half of one."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def as_script(document: Mapping[str, Any]) -> str:
    """Write a document as a script of a page may hold it; numbers must be finite."""
    try:
        text = json.dumps(dict(document), allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise DataError(
            "a page's numbers must be finite; the document has one that is not. "
            "Look for NaN in the model's weights or in the images first."
        ) from error
    for sign, escape in ESCAPES.items():
        text = text.replace(sign, escape)
    return text
