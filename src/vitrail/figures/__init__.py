"""PICTURES: the only code that draws. Arrays in, PNG bytes out; nothing is shown, and no global state is touched."""

from vitrail.figures.canvas import Theme
from vitrail.figures.curves import Curve, draw_curves, draw_distances, draw_matrix
from vitrail.figures.tiles import (
    draw_axes,
    draw_filters,
    draw_heads,
    draw_overlays,
    draw_relative,
    draw_rows,
    draw_tiles,
)

__all__ = [
    "Curve",
    "Theme",
    "draw_axes",
    "draw_curves",
    "draw_distances",
    "draw_filters",
    "draw_heads",
    "draw_matrix",
    "draw_overlays",
    "draw_relative",
    "draw_rows",
    "draw_tiles",
]
