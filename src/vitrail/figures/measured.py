"""Pictures of what was measured: confusions, reliability, how a run learned, and what data hold."""

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, PowerNorm

from vitrail.figures import (
    COLORS,
    FAINT,
    INK,
    PAPER,
    WIDEST,
    Curve,
    Numbers,
    Picture,
    Theme,
    add_bar,
    as_text,
    dress,
    new_sheet,
    to_png,
    undress,
)

NAMED = 60  # classes of a matrix up to which they are named
WRAPPED = 22  # signs of a line of a name
SMALLEST = 4.5  # points of a name that can be read
MARKED = 40  # points of a line up to which each has a mark
BAR = 5  # points of the width of a row's color
CELL, TITLES = 0.64, 1.7  # inches of a picture and of the titles of a contact sheet
NARROW = 14  # signs of a line under a picture
SIDE = 6.4  # inches of a matrix of classes


def label_size(names: Sequence[str]) -> float | None:
    """Give the points in which classes' names fit beside a matrix, wrapped and whole; None where they do not."""
    lines = max(len(wrapped(name)) for name in names)
    size = min(8.0, SIDE * 72 / len(names) / lines * 0.85)
    return size if len(names) <= NAMED and lines <= 3 and size >= SMALLEST else None


def wrapped(name: str) -> list[str]:
    """Part a long name into lines; words that are longer than a line too."""
    return textwrap.wrap(as_text(name), WRAPPED) or [""]


def draw_confusion(counts: Numbers, names: Sequence[str], theme: Theme) -> bytes:
    """Draw the share of each class's images (rows) that is given each answer (columns), with names where they fit."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size = label_size(names)
    side = min(3.2 + 0.45 * len(names), WIDEST * 0.88)
    sheet = new_sheet(side / 0.88, side, theme)
    axes = sheet.add_subplot()
    fading = LinearSegmentedColormap.from_list("", (PAPER[theme], COLORS[theme][0], INK[theme]))
    shown = axes.imshow(shares, cmap=fading, norm=PowerNorm(0.5, 0, 1), interpolation="nearest")  # so that few are seen
    dress(axes, theme, "answer", "class")
    if size is None:
        places = range(0, len(names), max(1, len(names) // 10))
        labels, turn = [str(place + 1) for place in places], 0
    else:
        places, labels, turn = range(len(names)), ["\n".join(wrapped(name)) for name in names], 90 * (len(names) > 4)
    axes.set_xticks(places, labels, rotation=turn)
    axes.set_yticks(places, labels)
    axes.tick_params(labelsize=size or 8, length=0 if size else 3)
    if len(names) <= 12:
        for row, col in np.ndindex(shares.shape):
            ink = PAPER[theme] if shares[row, col] > 0.1 else INK[theme]
            axes.text(col, row, f"{counts[row, col]:.0f}", ha="center", va="center", fontsize=8, color=ink)
    add_bar(shown, theme, "share of the class", shrink=0.6)
    return to_png(sheet)


def draw_reliability(
    points: Sequence[tuple[float, float, int]], ends: Sequence[tuple[float, float]], theme: Theme
) -> bytes:
    """Draw accuracy by confidence (mean confidence, accuracy, images of each bin) with intervals, and the images."""
    sheet = new_sheet(5.4, 5.0, theme)
    above, below = sheet.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    sure, right, images = (np.asarray(part, dtype=np.float64) for part in zip(*points, strict=True))
    low, high = np.asarray(ends, dtype=np.float64).T
    above.plot([0, 1], [0, 1], color=FAINT[theme], linewidth=1, linestyle="--", zorder=0)
    bars = np.stack([right - low, high - right]).clip(min=0)
    color = COLORS[theme][0]
    above.errorbar(sure, right, bars, color=color, linewidth=1.4, marker="o", markersize=4, capsize=2, elinewidth=0.9)
    dress(above, theme, "", "accuracy")
    above.set_ylim(-0.02, 1.02)
    below.bar(sure, images, width=0.045, color=color)
    dress(below, theme, "confidence", "images")
    below.set_xlim(0, 1.02)
    return to_png(sheet)


def draw_learning(panels: Sequence[tuple[str, Sequence[Curve]]], theme: Theme) -> bytes:
    """Draw a run by its steps: a panel for each quantity, a line for each set of images; few points have marks."""
    sheet = new_sheet(WIDEST, 3.0, theme)
    for place, (title, curves) in enumerate(panels):
        axes = sheet.add_subplot(1, len(panels), place + 1)
        for number, curve in enumerate(curves):
            mark = "o" if len(curve.x) <= MARKED else None
            color = COLORS[theme][number]
            axes.plot(
                curve.x, curve.y, color=color, linewidth=1.3, marker=mark, markersize=3, label=as_text(curve.name)
            )
        dress(axes, theme, "step", title=title)
        axes.margins(y=0.08)
        if len(curves) > 1:
            axes.legend(fontsize=8, frameon=False, labelcolor=INK[theme])
    return to_png(sheet)


class SheetRow(NamedTuple):
    """A row of a contact sheet: what it shows, pictures of one size, and a name for each where that matters."""

    title: str
    pictures: Sequence[Picture]
    names: Sequence[str] = ()
    color: tuple[float, float, float] | None = None  # of what the row shows, where it has one: a bar beside its title


def draw_sheet(rows: Sequence[SheetRow], theme: Theme = "light", cell: float = CELL) -> bytes:
    """Draw a contact sheet: a row of pictures with its title beside it, whole, and names below where there are any."""
    columns = max((len(row.pictures) for row in rows), default=1)
    heights = [cell + (0.3 if row.names else 0.06) for row in rows]
    sheet = new_sheet(TITLES + columns * (cell + 0.04), sum(heights, 0.1), theme)
    grid = sheet.add_gridspec(max(len(rows), 1), columns, height_ratios=heights or None, wspace=0.02, hspace=0.02)
    for top, row in enumerate(rows):
        for left, picture in enumerate(row.pictures):
            axes = sheet.add_subplot(grid[top, left])
            axes.imshow(picture)
            undress(axes, theme)
            if left == 0:
                title = "\n".join(wrapped(row.title))
                axes.set_ylabel(title, rotation=0, ha="right", va="center", fontsize=7, color=INK[theme])
                if row.color is not None:
                    axes.spines["left"].set(visible=True, color=row.color, linewidth=BAR)
            if row.names:
                name = as_text(row.names[left])
                axes.set_xlabel("\n".join(textwrap.wrap(name[-2 * NARROW :], NARROW)), fontsize=5, color=INK[theme])
    return to_png(sheet)
