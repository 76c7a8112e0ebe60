"""PICTURES: the only code that draws. Arrays in, PNG bytes out; nothing is shown, and no global state is touched."""

import io
import struct
import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from vitrail.errors import harmless

Numbers = NDArray[np.floating]
Picture = NDArray[np.uint8]  # H W 3
Theme = Literal["light", "dark"]
PAPER = {"light": "#fbfaf7", "dark": "#14151a"}
INK = {"light": "#22252b", "dark": "#e7e9ee"}
FAINT = {"light": "#9aa0aa", "dark": "#6b7280"}
COLORS = {  # of a window: blue, red, amber, green, violet
    "light": ("#2456a6", "#b3344a", "#b07a12", "#2f7d5b", "#6d4aa3"),
    "dark": ("#7fb0ff", "#ff8fa0", "#f2bf5e", "#7fd1ab", "#c3a5f5"),
}
HEAT = "magma"  # from black, for what lies on black; perceptually uniform
COSINE = "viridis"
GAP = 1  # cells between tiles
WIDEST = 9.0  # inches
DPI = 150
LAYOUT: Literal["constrained"] | None = "constrained"


def new_sheet(width: float, height: float, theme: Theme) -> Figure:
    """Give an empty sheet of so many inches."""
    sheet = Figure(figsize=(width, height), dpi=DPI, facecolor=PAPER[theme], layout=LAYOUT)
    FigureCanvasAgg(sheet)
    return sheet


def dress(axes: Axes, theme: Theme, x_label: str = "", y_label: str = "", *, title: str = "") -> None:
    """Give axes their names, the theme's colours, and no more lines than they need."""
    axes.set_facecolor(PAPER[theme])
    axes.tick_params(colors=INK[theme], labelsize=8, length=3)
    for side, line in axes.spines.items():
        line.set_color(FAINT[theme])
        line.set_visible(side in ("left", "bottom"))
    axes.set_xlabel(as_text(x_label), color=INK[theme], fontsize=9)
    axes.set_ylabel(as_text(y_label), color=INK[theme], fontsize=9)
    if title:
        axes.set_title(as_text(title), color=INK[theme], fontsize=9)


def undress(axes: Axes, theme: Theme, *, title: str = "") -> None:
    """Leave the picture alone, without axes."""
    axes.set_xticks([])
    axes.set_yticks([])
    for line in axes.spines.values():
        line.set_visible(False)
    if title:
        axes.set_title(as_text(title), color=INK[theme], fontsize=8, pad=3)


def add_bar(shown: AxesImage, theme: Theme, label: str = "", **place: Any) -> None:  # noqa: ANN401
    """Put the scale of a picture's colors beside it."""
    place.setdefault("shrink", 0.8)
    bar = shown.figure.colorbar(shown, ax=shown.axes, **place)
    bar.ax.tick_params(colors=INK[theme], labelsize=8)
    bar.set_label(label, color=INK[theme], fontsize=9)


def to_png(sheet: Figure) -> bytes:
    """Give the sheet as PNG."""
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # of names in other scripts: boxes are drawn
        sheet.savefig(out, format="png", facecolor=sheet.get_facecolor())
    return out.getvalue()


def as_text(text: str) -> str:
    """Give a name that is drawn as it is: no mathematics, and nothing that cannot be encoded, or hides or turns it."""
    clean = harmless(text).replace("$", r"\$")
    return f" {clean}" if clean.startswith("_") else clean


def size_of_png(png: bytes) -> tuple[int, int]:
    """Read width and height off the first bytes of a PNG."""
    width, height = struct.unpack(">II", png[16:24])
    return width, height


class Curve(NamedTuple):
    """A line with a name, and the ends of each value's interval where it has one."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    intervals: Sequence[Sequence[float]] = ()  # by place: low, high


def draw_distances(models: Sequence[tuple[str, Numbers]], theme: Theme) -> bytes:
    """Draw each head's mean attention distance by layer (L h), one panel a model (Fig. 7 right, Fig. 11)."""
    sheet = new_sheet(9.0 if len(models) > 1 else 5.4, 3.4, theme)
    top = max(float(values.max()) for _, values in models) * 1.08 or 1.0
    for place, (name, values) in enumerate(models):
        axes = sheet.add_subplot(1, len(models), place + 1)
        layers, heads = values.shape
        for head in range(heads):
            color = COLORS[theme][head % len(COLORS[theme])]
            axes.scatter(np.arange(1, layers + 1), values[:, head], s=16, color=color, alpha=0.8, linewidths=0)
        axes.plot(np.arange(1, layers + 1), values.mean(axis=1), color=FAINT[theme], linewidth=1, zorder=0)
        dress(axes, theme, "layer", "mean attention distance, pixels", title=name)
        axes.set_xlim(0.5, layers + 0.5)
        axes.set_ylim(0, top)
        axes.set_xticks(range(1, layers + 1, max(1, layers // 8)))
    return to_png(sheet)


def draw_curves(
    panels: Sequence[tuple[str, Sequence[Curve]]],
    x_label: str,
    theme: Theme,
    *,
    marks: Sequence[float] = (),
    percent: bool = False,
) -> bytes:
    """Draw panels of curves between 0 and 1, with their intervals; `marks` are lines at places worth one."""
    sheet = new_sheet(9.0, 3.2, theme)
    ends = [end for _, curves in panels for curve in curves for end in (*curve.y, *(low for low, _ in curve.intervals))]
    lowest = min(end for end in ends if not np.isnan(end))
    for place, (title, curves) in enumerate(panels):
        axes = sheet.add_subplot(1, len(panels), place + 1)
        for mark in marks:
            axes.axvline(mark, color=FAINT[theme], linewidth=0.6, linestyle=":", zorder=0)
        for number, curve in enumerate(curves):
            color = COLORS[theme][number % len(COLORS[theme])]
            axes.plot(curve.x, curve.y, color=color, linewidth=1.6, marker="o", markersize=3, label=as_text(curve.name))
            if curve.intervals:
                low, high = np.asarray(curve.intervals, dtype=np.float64).T
                axes.fill_between(curve.x, low, high, color=color, alpha=0.18, linewidth=0)
        dress(axes, theme, x_label, title=title)
        axes.set_ylim(min(lowest, 0.0) - 0.02, 1.03)
        if percent:
            axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
        if len(curves) > 1:
            axes.legend(fontsize=8, frameon=False, labelcolor=INK[theme])
    return to_png(sheet)


def draw_matrix(values: Numbers, x_label: str, y_label: str, theme: Theme) -> bytes:
    """Draw a matrix of similarities from 0 to 1, first row at the bottom."""
    rows, cols = values.shape
    sheet = new_sheet(4.6, 0.9 + 3.4 * min(max(rows / cols, 0.4), 1.6), theme)
    axes = sheet.add_subplot()
    shown = axes.imshow(values, cmap="viridis", vmin=0, vmax=1, origin="lower", interpolation="nearest", aspect="auto")
    dress(axes, theme, x_label, y_label)
    for set_ticks, count in ((axes.set_xticks, cols), (axes.set_yticks, rows)):
        places = range(0, count, max(1, count // 12))
        set_ticks(places, [str(place + 1) for place in places])
    add_bar(shown, theme, "CKA")
    return to_png(sheet)


def draw_filters(filters: Numbers, shares: Numbers, theme: Theme) -> bytes:
    """Draw filters (k C p p), each scaled to its own range, with their shares of the variance (Fig. 7 left)."""
    count = len(filters)
    cols = min(count, 14 if count > 7 else 7)
    rows = -(-count // cols)
    sheet = new_sheet(WIDEST, 0.35 + rows * (WIDEST / cols + 0.12), theme)
    for place in range(count):
        axes = sheet.add_subplot(rows, cols, place + 1)
        low, high = filters[place].min(), filters[place].max()
        scaled = (filters[place] - low) / max(high - low, 1e-12)
        gray = scaled.shape[0] != 3
        axes.imshow(scaled.mean(axis=0) if gray else scaled.transpose(1, 2, 0), cmap="gray", vmin=0, vmax=1)
        undress(axes, theme, title=f"{shares[place]:.1%}")
    return to_png(sheet)


def draw_tiles(similarity: Numbers, theme: Theme) -> bytes:
    """Draw for each patch the cosines of its position with all others, at its own place (Fig. 7 centre)."""
    rows, cols, high, wide = similarity.shape
    whole = _mosaic(similarity)
    step = max(-(-high // rows), 1)  # from one patch with a tile to the next
    width = WIDEST * 0.62
    sheet = new_sheet(width + 0.9, width * whole.shape[0] / whole.shape[1] + 0.7, theme)
    axes = sheet.add_subplot()
    shown = axes.imshow(whole, cmap=COSINE, vmin=float(similarity.min()), vmax=1, interpolation="nearest")
    dress(axes, theme, "column of the patch", "row of the patch")
    for set_ticks, count, side in ((axes.set_xticks, cols, wide), (axes.set_yticks, rows, high)):
        places = range(0, count, max(1, -(-count // 12)))
        set_ticks([_middle(place, side) for place in places], [str(place * step + 1) for place in places])
    add_bar(shown, theme, "cosine similarity", shrink=0.7, pad=0.02)
    return to_png(sheet)


def draw_axes(rows: Numbers, cols: Numbers, theme: Theme) -> bytes:
    """Draw the cosines among the rows' positions and among the columns'."""
    sheet = new_sheet(WIDEST * 0.8, WIDEST * 0.38, theme)
    for place, (name, values) in enumerate((("row", rows), ("column", cols))):
        axes = sheet.add_subplot(1, 2, place + 1)
        shown = axes.imshow(values, cmap=COSINE, vmin=-1, vmax=1, interpolation="nearest")
        dress(axes, theme, name, name, title=f"{name} with {name}")
        add_bar(shown, theme)
    return to_png(sheet)


def draw_relative(similarity: Numbers, theme: Theme) -> bytes:
    """Draw for each head the cosines among the keys of all offsets (h M M)."""
    heads, offsets = similarity.shape[:2]
    cols = min(heads, 6)
    rows, reach = -(-heads // cols), (offsets - 1) / 2
    sheet = new_sheet(WIDEST, 0.3 + rows * (WIDEST / cols + 0.25), theme)
    for head in range(heads):
        axes = sheet.add_subplot(rows, cols, head + 1)
        axes.imshow(similarity[head], cmap=COSINE, vmin=-1, vmax=1, extent=(-reach, reach, reach, -reach))
        dress(axes, theme, title=f"head {head + 1}")
        axes.set_xticks([-reach, 0, reach])
        axes.set_yticks([-reach, 0, reach])
    return to_png(sheet)


def draw_offsets(biases: Numbers, theme: Theme) -> bytes:
    """Draw for each head what is added for every offset in rows and columns (h R C), on one scale for all."""
    heads, high, wide = biases.shape
    cols = min(heads, 6)
    rows, most = -(-heads // cols), max(float(np.abs(biases).max()), 1e-12)
    sheet = new_sheet(WIDEST, 0.3 + rows * (WIDEST / cols + 0.25), theme)
    reach = ((wide - 1) / 2, (high - 1) / 2)
    for head in range(heads):
        axes = sheet.add_subplot(rows, cols, head + 1)
        axes.imshow(biases[head], cmap=COSINE, vmin=-most, vmax=most, extent=(-reach[0], reach[0], reach[1], -reach[1]))
        dress(axes, theme, title=f"head {head + 1}")
        axes.set_xticks([-reach[0], 0, reach[0]])
        axes.set_yticks([-reach[1], 0, reach[1]])
    return to_png(sheet)


def light_up(image: Picture, values: Numbers) -> Picture:
    """Light an image from where a map of its size is least, nearly dark, to where it is most."""
    light = (values - values.min()) / max(float(values.max() - values.min()), 1e-12)
    return (image * (0.12 + 0.88 * light[:, :, None])).round().clip(0, 255).astype(np.uint8)


def draw_overlays(images: Sequence[Picture], maps: Sequence[Numbers], names: Sequence[str], theme: Theme) -> bytes:
    """Draw images in pairs: as they are, and lit from where the map is least to where it is most (Figs. 6 and 14)."""
    pairs = 4 if len(images) > 3 else len(images)
    rows = -(-len(images) // pairs)
    side = WIDEST / (2 * pairs)
    sheet = new_sheet(WIDEST, rows * (side * images[0].shape[0] / images[0].shape[1] + 0.28) + 0.1, theme)
    for place, (image, values, name) in enumerate(zip(images, maps, names, strict=True)):
        for half, picture in enumerate((image, light_up(image, values))):
            axes = sheet.add_subplot(rows, 2 * pairs, 2 * place + half + 1)
            axes.imshow(picture, interpolation="nearest" if image.shape[0] < 100 else "antialiased")
            undress(axes, theme, title=name if half == 0 else "attention")
    return to_png(sheet)


def draw_rows(pictures: Sequence[Sequence[Picture]], heads: Sequence[str], theme: Theme) -> bytes:
    """Draw pictures in columns with a head each, a row for what belongs together; from four on two abreast."""
    beside = 2 if len(pictures) > 3 else 1
    columns, lines = beside * len(heads), -(-len(pictures) // beside)
    height, width = pictures[0][0].shape[:2]
    side = WIDEST / max(columns, 4)
    sheet = new_sheet(columns * side, lines * side * height / width + 0.35, theme)
    for place, row in enumerate(pictures):
        for column, picture in enumerate(row):
            axes = sheet.add_subplot(lines, columns, place * len(heads) + column + 1)
            axes.imshow(picture, interpolation="nearest" if height < 100 else "antialiased")
            undress(axes, theme, title=heads[column] if place < beside else "")
    return to_png(sheet)


def draw_heads(maps: Numbers, theme: Theme) -> bytes:
    """Draw a map for each head of each layer (L h rows cols), each scaled to its own largest value."""
    layers, heads, rows, cols = maps.shape
    whole = _mosaic(maps / maps.max(axis=(2, 3), keepdims=True).clip(min=1e-12))
    width = min(WIDEST, 0.8 + heads * 0.7)
    sheet = new_sheet(width, 0.6 + (width - 0.6) * whole.shape[0] / whole.shape[1], theme)
    axes = sheet.add_subplot()
    axes.imshow(whole, cmap=HEAT, vmin=0, vmax=1, interpolation="nearest")
    dress(axes, theme, "head", "layer")
    for set_ticks, count, side in ((axes.set_xticks, heads, cols), (axes.set_yticks, layers, rows)):
        set_ticks([_middle(place, side) for place in range(count)], [str(place + 1) for place in range(count)])
    return to_png(sheet)


def _mosaic(tiles: Numbers) -> Numbers:
    """Lay tiles (r c rows cols) out as one picture, with a gap between them."""
    padded = np.pad(tiles.astype(np.float64), ((0, 0), (0, 0), (0, GAP), (0, GAP)), constant_values=np.nan)
    return np.concatenate(np.concatenate(padded, axis=1), axis=1)[:-GAP, :-GAP]


def _middle(place: int, side: int) -> float:
    """Say where the middle of a tile lies in the mosaic."""
    return place * (side + GAP) + (side - 1) / 2
