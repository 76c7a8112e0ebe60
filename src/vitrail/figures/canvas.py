"""A sheet to draw on, light or dark, and its bytes."""

import io
import struct
import warnings
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

Numbers = NDArray[np.floating]
Theme = Literal["light", "dark"]
PAPER = {"light": "#fbfaf7", "dark": "#14151a"}
INK = {"light": "#22252b", "dark": "#e7e9ee"}
FAINT = {"light": "#9aa0aa", "dark": "#6b7280"}
COLORS = {  # of a window: blue, red, amber, green, violet
    "light": ("#2456a6", "#b3344a", "#b07a12", "#2f7d5b", "#6d4aa3"),
    "dark": ("#7fb0ff", "#ff8fa0", "#f2bf5e", "#7fd1ab", "#c3a5f5"),
}
DPI = 150
LAYOUT: Literal["constrained"] | None = "constrained"


def new_sheet(width: float, height: float, theme: Theme) -> Figure:
    """Give an empty sheet of so many inches."""
    sheet = Figure(figsize=(width, height), dpi=DPI, facecolor=PAPER[theme], layout=LAYOUT)
    FigureCanvasAgg(sheet)
    return sheet


def dress(axes: Axes, theme: Theme, *, title: str = "") -> None:
    """Give axes the theme's colours, and no more lines than they need."""
    axes.set_facecolor(PAPER[theme])
    axes.tick_params(colors=INK[theme], labelsize=8, length=3)
    for side, line in axes.spines.items():
        line.set_color(FAINT[theme])
        line.set_visible(side in ("left", "bottom"))
    for text in (axes.xaxis.label, axes.yaxis.label):
        text.set_color(INK[theme])
        text.set_fontsize(9)
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
    """Give a name that is drawn as it is: no mathematics, nothing that cannot be encoded, nothing that hides it."""
    clean = text.encode("utf-8", "replace").decode().replace("$", r"\$")
    return f" {clean}" if clean.startswith("_") else clean


def size_of_png(png: bytes) -> tuple[int, int]:
    """Read width and height off the first bytes of a PNG."""
    width, height = struct.unpack(">II", png[16:24])
    return width, height
