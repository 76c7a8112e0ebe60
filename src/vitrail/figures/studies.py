"""Pictures of studies: lines over a number, or dots by category, with intervals; the paper's values in panels apart."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from vitrail.figures import COLORS, FAINT, INK, Theme, as_text, dress, new_sheet, to_png

MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")  # so that series are told apart without their colors
LINES = ("-", "--", "-.", ":")
WIDE, HIGH = 3.7, 3.1  # inches of a panel
LINE = 0.24  # inches of a category
BESIDE = 2  # panels in a row
FEW = 7  # places on an axis that are all named
MOST_WHOLE = 100  # up to which whole numbers are counts, such as layers


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line with a name: places, values, and the ends of their intervals where there are any."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    joined: bool = True  # by a line


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Axes with their series; where there are categories, x is the place of one, and values go to the right."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    categories: Sequence[str] = ()
    log_x: bool = False
    log_y: bool = False
    published: bool = False  # of the paper, not measured here
    marks: Sequence[float] = field(default_factory=tuple)  # values worth a line across
    y_range: tuple[float, float] | None = None  # where panels are compared


def draw_panels(panels: Sequence[Panel], theme: Theme) -> bytes:
    """Draw panels, two in a row; filled marks were measured here, hollow ones are the paper's."""
    rows = -(-len(panels) // BESIDE)
    tall = max([HIGH, *(1.1 + LINE * len(panel.categories) * max(len(panel.series), 1) ** 0.5 for panel in panels)])
    beside = min(BESIDE, len(panels))
    sheet = new_sheet(WIDE * 2 if beside > 1 else WIDE * 1.5, rows * tall, theme)
    for place, panel in enumerate(panels):
        axes = sheet.add_subplot(rows, beside, place + 1)
        title = f"{panel.title}{' (the paper)' if panel.published else ''}"
        dress(axes, theme, panel.x_label, panel.y_label, title=title)
        axes.grid(visible=True, axis="x" if panel.categories else "both", color=FAINT[theme], alpha=0.25, linewidth=0.5)
        axes.set_axisbelow(True)
        for mark in panel.marks:
            line = axes.axvline if panel.categories else axes.axhline
            line(mark, color=INK[theme], linewidth=0.8, linestyle=":")
        for number, series in enumerate(panel.series):
            _draw(axes, panel, series, number, theme)
        _scale(axes, panel)
        if len(panel.series) > 1:
            how = {"fontsize": 7.5, "frameon": False, "labelcolor": INK[theme], "columnspacing": 1.2}
            below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2 * HIGH / tall)}  # so that it hides no mark
            axes.legend(ncols=min(len(panel.series), 3), **how, **below)
    return to_png(sheet)


def _draw(axes: Axes, panel: Panel, series: Series, number: int, theme: Theme) -> None:
    color = COLORS[theme][number % len(COLORS[theme])]
    x, y = np.asarray(series.x, dtype=np.float64), np.asarray(series.y, dtype=np.float64)
    errors = None
    if len(series.low):
        low, high = np.asarray(series.low, dtype=np.float64), np.asarray(series.high, dtype=np.float64)
        errors = np.maximum(np.stack([y - low, high - y]), 0)
    joined: Literal["none"] | str = LINES[number % len(LINES)] if series.joined and not panel.categories else "none"
    how = {"marker": MARKS[number % len(MARKS)], "markersize": 5, "color": color, "linestyle": joined, "linewidth": 1.3}
    how |= {"markerfacecolor": "none" if panel.published else color, "capsize": 2, "elinewidth": 1}
    how["label"] = as_text(series.name)
    if panel.categories:
        spread = (number - (len(panel.series) - 1) / 2) * min(0.6 / max(len(panel.series), 1), 0.25)
        axes.errorbar(y, -x - spread, xerr=errors, **how)
    else:
        axes.errorbar(x, y, yerr=errors, **how)


def _scale(axes: Axes, panel: Panel) -> None:
    """Name places and categories; on a logarithmic axis the places that there are, where they are few."""
    if panel.categories:
        axes.set_yticks(
            [-place for place in range(len(panel.categories))], [as_text(name) for name in panel.categories]
        )
        axes.set_ylim(-len(panel.categories) + 0.4, 0.6)
        return
    if panel.y_range is not None:
        axes.set_ylim(*panel.y_range)
    places = {value for series in panel.series for value in series.x}
    if not panel.log_x and places and all(value == int(value) for value in places) and max(places) <= MOST_WHOLE:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for logarithmic, axis, values in (
        (panel.log_x, axes.xaxis, [value for series in panel.series for value in series.x]),
        (panel.log_y, axes.yaxis, [value for series in panel.series for value in series.y]),
    ):
        if not logarithmic:
            continue
        (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
        axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
        axis.set_minor_formatter(NullFormatter())
        places = sorted(set(values))
        if axis is axes.xaxis and 1 < len(places) <= FEW:
            axis.set_ticks(places)
            axis.set_minor_locator(NullLocator())
        elif len(places) > 1 and places[-1] / places[0] < 100:
            narrow = places[-1] / places[0] < 5
            axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]) if narrow else LogLocator(subs=(1, 2, 5)))
            axis.set_minor_locator(NullLocator())


def _short(value: float) -> str:
    """Write a number of any size in few signs."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    if value >= 0.01 or value == 0:
        return f"{value:.3g}"
    digits, _, power = f"{value:.2e}".partition("e")
    return f"{float(digits):g}e{int(power)}"  # 2.5e-4, not 3e-04
