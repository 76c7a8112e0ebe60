"""Masks and boxes drawn over images, for people to look at: one color a class, the same in masks, boxes and keys."""

import colorsys
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from vitrail.data.decode import OpenImage, Pixels
from vitrail.data.pixels import to_picture
from vitrail.data.transforms.resize import resize, to_tensor
from vitrail.ops.shapes import Shape

GOLDEN = 0.381966  # of the circle of hues, from a class to the next: no two near numbers look alike
BACKGROUND = "background"  # the class that is no object, by its name; where none is named so, a first one called 0
VOID_COLOR = (224, 224, 192)  # of 255, as Pascal VOC's masks have it
SMALLEST = 11  # pixels of letters
EDGED = 220  # pixels of the shorter side from which on lines have a dark edge
LETTERS = 26  # of them on the shorter side of an image
NOBODY = 255  # in a map of objects by their place
COVERED = 0.25  # share of an image that names may cover; where they would cover more, boxes have none


@cache
def palette() -> NDArray[np.uint8]:
    """Give 256 colors: black, then strong ones, neighbors far apart in hue; of 255, which is void, a pale one."""
    made = [(0, 0, 0)]
    for number in range(255):
        turn = number // 8
        shade = 0.95 - 0.18 * (turn % 3), 1.0 - 0.22 * (turn // 3 % 3)  # saturation and value
        red, green, blue = colorsys.hsv_to_rgb(number * GOLDEN % 1, *shade)
        made.append((round(255 * red), round(255 * green), round(255 * blue)))
    made[255] = VOID_COLOR
    found = np.array(made, dtype=np.uint8)
    found.setflags(write=False)
    return found


def colors_of(names: Sequence[str]) -> NDArray[np.uint8]:
    """Give the colors of classes by their numbers: a background is black, which tints nothing; nothing else is."""
    plain = [name.lower() for name in names]
    empty = plain.index(BACKGROUND) if BACKGROUND in plain else 0 if plain[:1] == ["0"] else 254
    order = [*range(1, empty + 1), 0, *range(empty + 1, 256)]
    return palette()[order]


def picture_of(data: bytes | Pixels) -> Pixels:
    """Show an image to people: gray, or three colors of 8 bits; of images of more channels or bits as much as that."""
    return OpenImage(data).picture() if isinstance(data, bytes) else to_picture(data)


def scaled(pixels: Pixels, least: int, most: int) -> Pixels:
    """Give an image as it is shown: its shorter side no less than `least`, in whole steps, or its longer `most`."""
    height, width = pixels.shape[:2]
    if (times := -(-least // min(height, width))) > 1:
        times = min(times, max(most // max(height, width), 1))
        return pixels.repeat(times, axis=0).repeat(times, axis=1)
    factor = min(most / max(height, width), 1.0)
    if factor == 1:
        return pixels
    size = max(round(height * factor), 1), max(round(width * factor), 1)
    return np.ascontiguousarray(resize(to_tensor(pixels, 3), size, "antialias").permute(1, 2, 0).numpy())


def nearest(mask: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Give a mask at another size: of every pixel the class of the nearest one."""
    rows, cols = (
        ((np.arange(new) + 0.5) * old / new).astype(np.int64) for old, new in zip(mask.shape, size, strict=True)
    )
    return mask[rows[:, None], cols]


def lay_over(pixels: Pixels, mask: NDArray[np.uint8], colors: NDArray[np.uint8], strength: float = 0.55) -> Pixels:
    """Tint the pixels of an image by their classes, black ones not at all; edges between classes are marked.

    An image that is shown at another size takes of the mask the nearest pixels.
    """
    if mask.shape != pixels.shape[:2]:
        mask = nearest(mask, pixels.shape[:2])
    rgb = _rgb(pixels)
    tint = colors[mask]
    share = np.where(tint.any(axis=2), strength, 0.0)[:, :, None]
    made = rgb * (1 - share) + tint * share
    edge = np.zeros(mask.shape, dtype=np.bool_)
    edge[1:] |= mask[1:] != mask[:-1]
    edge[:, 1:] |= mask[:, 1:] != mask[:, :-1]
    made[edge] = 255
    return np.rint(made).astype(np.uint8)


def lay_shapes_over(
    pixels: Pixels, shapes: Sequence[Shape], numbers: NDArray[np.integer], colors: NDArray[np.uint8]
) -> Pixels:
    """Tint the pixels of objects in the colors of their classes; the first ones lie on top, and edges are marked."""
    if not shapes:
        return pixels
    owners = np.full(shapes[0].size, NOBODY, dtype=np.uint8)
    for place in reversed(range(min(len(shapes), NOBODY))):
        owners[shapes[place].pixels()] = place
    tints = np.zeros((NOBODY + 1, 3), dtype=np.uint8)
    shown = numbers[:NOBODY]
    tints[: len(shown)] = colors[shown % 254]  # as boxes
    return lay_over(pixels, owners, tints)


def draw_boxes(
    pixels: Pixels,
    boxes: NDArray[np.floating],
    numbers: NDArray[np.integer],
    colors: NDArray[np.uint8],
    texts: Sequence[str] = (),
) -> Pixels:
    """Draw boxes (left, top, right, bottom) in the colors of their classes, each with a text above its corner.

    The first lie on top. Where texts would cover much of the image there are none.
    """
    image = Image.fromarray(np.ascontiguousarray(_rgb(pixels)))
    drawing, least = ImageDraw.Draw(image), min(image.size)
    thick, letters = max(2, round(least / 160)), max(SMALLEST, round(least / LETTERS))
    font = ImageFont.load_default(letters)
    said = [drawable(text, number, font) for text, number in zip(texts, numbers, strict=True)] if texts else []
    sizes = [(int(font.getlength(text)) + letters // 2, letters + letters // 3) for text in said]
    named = sum(width * height for width, height in sizes) <= COVERED * image.width * image.height
    for place in reversed(range(len(boxes))):
        red, green, blue = color = tuple(colors[int(numbers[place]) % 254].tolist())
        left, top, right, bottom = boxes[place].tolist()
        right, bottom = max(right - 1, left), max(bottom - 1, top)
        if least >= EDGED:  # a dark edge, for lines on their own color
            drawing.rectangle([left - 1, top - 1, right + 1, bottom + 1], outline=(0, 0, 0), width=thick + 2)
        drawing.rectangle([left, top, right, bottom], outline=color, width=thick)
        if not said or not named:
            continue
        width, height = sizes[place]
        x = min(max(left, 0), max(image.width - width, 0))
        y = top - height if top >= height else top
        drawing.rectangle([x, y, x + width, y + height], fill=color)
        ink = (0, 0, 0) if 0.3 * red + 0.59 * green + 0.11 * blue > 110 else (255, 255, 255)
        drawing.text((x + letters / 4, y + height / 2), said[place], fill=ink, font=font, anchor="lm")
    return np.asarray(image)


def drawable(text: str, number: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """Give a text that the font can draw: the number of the class for words in letters that it lacks."""
    lacking = {sign for sign in set(text) if not sign.isascii() and _alone(sign, font) == _alone("\uffff", font)}
    words = [f"#{number}" if lacking & set(word) else word for word in text.split(" ")]
    return " ".join(dict.fromkeys(words))


def _alone(sign: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> bytes:
    image = Image.new("L", (64, 64))
    ImageDraw.Draw(image).text((0, 0), sign, fill=255, font=font)
    return image.tobytes()


def _rgb(pixels: Pixels) -> Pixels:
    return np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
