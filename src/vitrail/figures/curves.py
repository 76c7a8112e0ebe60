"""Pictures of numbers: distances by layer, curves, matrices."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vitrail.figures.canvas import COLORS, FAINT, INK, Numbers, Theme, add_bar, as_text, dress, new_sheet, to_png


class Curve(NamedTuple):
    """A line with a name; marks are places on the x axis worth a line of their own."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def draw_distances(models: Sequence[tuple[str, Numbers]], theme: Theme = "light") -> bytes:
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
        dress(axes, theme, title=name)
        axes.set_xlim(0.5, layers + 0.5)
        axes.set_ylim(0, top)
        axes.set_xticks(range(1, layers + 1, max(1, layers // 8)))
        axes.set_xlabel("layer")
        axes.set_ylabel("mean attention distance, pixels")
    return to_png(sheet)


def draw_curves(
    panels: Sequence[tuple[str, Sequence[Curve]]],
    x_label: str,
    theme: Theme = "light",
    *,
    marks: Sequence[float] = (),
    percent: bool = False,
) -> bytes:
    """Draw panels of curves between 0 and 1; `marks` are lines at places worth one."""
    sheet = new_sheet(9.0, 3.2, theme)
    lowest = min(min(curve.y) for _, curves in panels for curve in curves)
    for place, (title, curves) in enumerate(panels):
        axes = sheet.add_subplot(1, len(panels), place + 1)
        for mark in marks:
            axes.axvline(mark, color=FAINT[theme], linewidth=0.6, linestyle=":", zorder=0)
        for number, curve in enumerate(curves):
            color = COLORS[theme][number % len(COLORS[theme])]
            axes.plot(curve.x, curve.y, color=color, linewidth=1.6, marker="o", markersize=3, label=as_text(curve.name))
        dress(axes, theme, title=title)
        axes.set_ylim(min(lowest, 0.0) - 0.02, 1.03)
        axes.set_xlabel(x_label)
        if percent:
            axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
        if len(curves) > 1:
            axes.legend(fontsize=8, frameon=False, labelcolor=INK[theme])
    return to_png(sheet)


def draw_matrix(values: Numbers, x_label: str, y_label: str, theme: Theme = "light") -> bytes:
    """Draw a matrix of similarities from 0 to 1, first row at the bottom."""
    rows, cols = values.shape
    sheet = new_sheet(4.6, 0.9 + 3.4 * min(max(rows / cols, 0.4), 1.6), theme)
    axes = sheet.add_subplot()
    shown = axes.imshow(values, cmap="viridis", vmin=0, vmax=1, origin="lower", interpolation="nearest", aspect="auto")
    dress(axes, theme)
    for set_ticks, count in ((axes.set_xticks, cols), (axes.set_yticks, rows)):
        places = range(0, count, max(1, count // 12))
        set_ticks(places, [str(place + 1) for place in places])
    axes.set_xlabel(as_text(x_label))
    axes.set_ylabel(as_text(y_label))
    add_bar(shown, theme, "CKA")
    return to_png(sheet)
