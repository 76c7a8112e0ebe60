"""Pictures that are many small pictures: filters, positions, maps over images."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vitrail.figures.canvas import Numbers, Theme, add_bar, dress, new_sheet, to_png, undress

Picture = NDArray[np.uint8]  # H W 3
HEAT = "magma"  # from black, for what lies on black; perceptually uniform
COSINE = "viridis"
GAP = 1  # cells between tiles
WIDEST = 9.0  # inches


def draw_filters(filters: Numbers, shares: Numbers, theme: Theme = "light") -> bytes:
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


def draw_tiles(similarity: Numbers, theme: Theme = "light") -> bytes:
    """Draw for each patch the cosines of its position with all others, at its own place (Fig. 7 centre)."""
    rows, cols, high, wide = similarity.shape
    whole = _mosaic(similarity)
    step = max(-(-high // rows), 1)  # from one patch with a tile to the next
    width = WIDEST * 0.62
    sheet = new_sheet(width + 0.9, width * whole.shape[0] / whole.shape[1] + 0.7, theme)
    axes = sheet.add_subplot()
    shown = axes.imshow(whole, cmap=COSINE, vmin=float(similarity.min()), vmax=1, interpolation="nearest")
    dress(axes, theme)
    for set_ticks, count, side in ((axes.set_xticks, cols, wide), (axes.set_yticks, rows, high)):
        places = range(0, count, max(1, -(-count // 12)))
        set_ticks([_middle(place, side) for place in places], [str(place * step + 1) for place in places])
    axes.set_xlabel("column of the patch")
    axes.set_ylabel("row of the patch")
    add_bar(shown, theme, "cosine similarity", shrink=0.7, pad=0.02)
    return to_png(sheet)


def draw_axes(rows: Numbers, cols: Numbers, theme: Theme = "light") -> bytes:
    """Draw the cosines among the rows' positions and among the columns'."""
    sheet = new_sheet(WIDEST * 0.8, WIDEST * 0.38, theme)
    for place, (name, values) in enumerate((("row", rows), ("column", cols))):
        axes = sheet.add_subplot(1, 2, place + 1)
        shown = axes.imshow(values, cmap=COSINE, vmin=-1, vmax=1, interpolation="nearest")
        dress(axes, theme, title=f"{name} with {name}")
        axes.set_xlabel(name)
        axes.set_ylabel(name)
        add_bar(shown, theme)
    return to_png(sheet)


def draw_relative(similarity: Numbers, theme: Theme = "light") -> bytes:
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


def draw_overlays(images: Sequence[Picture], maps: Sequence[Numbers], names: Sequence[str], theme: Theme) -> bytes:
    """Draw images in pairs: as they are, and lit from where the map is least to where it is most (Figs. 6 and 14)."""
    pairs = 4 if len(images) > 3 else len(images)
    rows = -(-len(images) // pairs)
    side = WIDEST / (2 * pairs)
    sheet = new_sheet(WIDEST, rows * (side * images[0].shape[0] / images[0].shape[1] + 0.28) + 0.1, theme)
    for place, (image, values, name) in enumerate(zip(images, maps, names, strict=True)):
        light = (values - values.min()) / max(float(values.max() - values.min()), 1e-12)
        lit = image * (0.12 + 0.88 * light[:, :, None])
        for half, picture in enumerate((image, lit.round().clip(0, 255).astype(np.uint8))):
            axes = sheet.add_subplot(rows, 2 * pairs, 2 * place + half + 1)
            axes.imshow(picture, interpolation="nearest" if image.shape[0] < 100 else "antialiased")
            undress(axes, theme, title=name if half == 0 else "attention")
    return to_png(sheet)


def draw_rows(pictures: Sequence[Sequence[Picture]], heads: Sequence[str], theme: Theme = "light") -> bytes:
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


def draw_heads(maps: Numbers, theme: Theme = "light") -> bytes:
    """Draw a map for each head of each layer (L h rows cols), each scaled to its own largest value."""
    layers, heads, rows, cols = maps.shape
    whole = _mosaic(maps / maps.max(axis=(2, 3), keepdims=True).clip(min=1e-12))
    width = min(WIDEST, 0.8 + heads * 0.7)
    sheet = new_sheet(width, 0.6 + (width - 0.6) * whole.shape[0] / whole.shape[1], theme)
    axes = sheet.add_subplot()
    axes.imshow(whole, cmap=HEAT, vmin=0, vmax=1, interpolation="nearest")
    dress(axes, theme)
    for set_ticks, count, side in ((axes.set_xticks, heads, cols), (axes.set_yticks, layers, rows)):
        set_ticks([_middle(place, side) for place in range(count)], [str(place + 1) for place in range(count)])
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    return to_png(sheet)


def _mosaic(tiles: Numbers) -> Numbers:
    """Lay tiles (r c rows cols) out as one picture, with a gap between them."""
    rows, cols, high, wide = tiles.shape
    whole = np.full((rows * (high + GAP) - GAP, cols * (wide + GAP) - GAP), np.nan)
    for row, col in np.ndindex(rows, cols):
        top, left = row * (high + GAP), col * (wide + GAP)
        whole[top : top + high, left : left + wide] = tiles[row, col]
    return whole


def _middle(place: int, side: int) -> float:
    """Say where the middle of a tile lies in the mosaic."""
    return place * (side + GAP) + (side - 1) / 2
