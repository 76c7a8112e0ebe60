"""What heads of pixels and objects have, compute and hold, from the configuration alone."""

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from vitrail.config import ViTConfig
from vitrail.config.dense import DenseHead, LinearHead, QueryHead
from vitrail.ops.cost.convolutions import FULL, Stretch
from vitrail.ops.cost.parts import joined_tokens

if TYPE_CHECKING:
    from vitrail.ops.cost.counts import Step

FINEST = 1 << 17  # pixels of an image that predicted masks are compared on, at most
NARROWEST = 16  # features of an upscaled map
TAPS = 9  # of the convolution of one
INDEX = 8  # bytes of a class as training compares it
PAIR = 20 * FULL  # bytes of an object and a query that are compared, boxes and costs
NEAR = 8 * FULL  # bytes of an object and a patch


def compared_at(size: tuple[int, int], least: tuple[int, int]) -> tuple[int, int]:
    """Give the size at which masks of a size are compared: their own, or halves of it where that is much."""
    while size[0] * size[1] > FINEST and min(size[0] // 2 - least[0], size[1] // 2 - least[1]) >= 0:
        size = size[0] // 2, size[1] // 2
    return size


def _widths(config: ViTConfig, head: QueryHead) -> list[int]:
    """List the features of the map of patches, and of each that is twice as fine."""
    found = [config.width]
    for _ in range(head.upscale.bit_length() - 1):
        found.append(max(found[-1] // 2, NARROWEST))
    return found


def _layers(config: ViTConfig, head: DenseHead) -> Iterator[tuple[int, int, int]]:
    """List the linear layers of a head: what they read, what they write, and of how many tokens of an image."""
    width, classes = config.width, config.classes or 0
    patches = config.grid[0] * config.grid[1]
    match head:
        case LinearHead():
            yield width, classes, patches
        case QueryHead(task="segment"):
            yield width, classes + 1, head.queries
            yield from _drawing(config, head)
            yield width, classes, patches
        case QueryHead():
            for count in (patches, head.queries):
                yield from [(width, classes + 1, count), *[(width, width, count)] * 2, (width, 4, count)]
            if head.masks:
                yield from _drawing(config, head)


def _drawing(config: ViTConfig, head: QueryHead) -> Iterator[tuple[int, int, int]]:
    """List the linear layers that masks are drawn with."""
    width, widths, patches = config.width, _widths(config, head), config.grid[0] * config.grid[1]
    yield from [(width, width, head.queries)] * 2
    yield width, widths[-1], head.queries
    yield from ((big, 4 * small, patches * 4**level) for level, (big, small) in enumerate(pairwise(widths)))


def dense_parameters(config: ViTConfig) -> int:
    """Count the parameters of a head; equal to those of the built one."""
    assert config.head is not None
    found = sum((inward + 1) * outward for inward, outward, _ in _layers(config, config.head))
    if isinstance(config.head, QueryHead):
        found += config.head.queries * config.width
        maps = _widths(config, config.head)[1:] if config.head.draws else []
        found += sum((TAPS + 2) * width for width in maps)  # a filter of each feature, and a norm
    return found


def dense_macs(config: ViTConfig) -> int:
    """Count the multiply-accumulates of a head that reads one image once."""
    assert config.head is not None
    found = sum(inward * outward * count for inward, outward, count in _layers(config, config.head))
    if isinstance(config.head, QueryHead) and config.head.draws:
        widths, patches = _widths(config, config.head), config.grid[0] * config.grid[1]
        found += sum(TAPS * width * patches * 4**level for level, width in enumerate(widths[1:], start=1))
        found += config.head.queries * widths[-1] * patches * config.head.upscale**2
    return found


def read_stretch(config: ViTConfig, step: "Step") -> Stretch:
    """Say what one reading of queries and patches holds: before each block that queries join, and after the last."""
    head, item, batch = config.head, step.item, step.batch
    patches, width = config.grid[0] * config.grid[1], config.width
    rates = 2 * FULL * batch * (config.tokens + joined_tokens(config))
    line = FULL * batch * (config.tokens + joined_tokens(config)) * width
    if not isinstance(head, QueryHead):
        return Stretch(weights=0, kept=rates + batch * patches * width * item, forward=2 * line, backward=2 * line)
    # Of a query: what the class and three layers read, and what two activations read.
    queries = 6 * batch * head.queries * width * item
    if not head.draws:
        return Stretch(weights=0, kept=rates + queries, forward=2 * line, backward=2 * line)
    queries += 4 * batch * head.queries * width * item if head.shapes else 0  # what three layers more read
    kept, finest = rates + queries + batch * patches * width * item, 0
    for level, features in enumerate(_widths(config, head)[1:], start=1):
        finest = batch * patches * 4**level * features
        # Before the activation, before the convolution, before the norm and after it.
        kept += (
            finest * (3 * item + step.norm + (0 if step.norm == item else step.copy)) + 2 * FULL * finest // features
        )
    return Stretch(weights=0, kept=kept, forward=2 * line + 3 * finest * item, backward=line + 2 * finest * item)


def guess_stretch(config: ViTConfig, step: "Step") -> Stretch:
    """Say what the guess of every patch holds, before objects are looked for: its norm, its class and its box."""
    patch = step.batch * config.grid[0] * config.grid[1] * config.width
    return Stretch(weights=0, kept=patch * (FULL + 5 * step.item), forward=3 * patch * FULL, backward=2 * patch * FULL)


def loss_stretch(config: ViTConfig, step: "Step", weights: int) -> Stretch:
    """Say what is held where predictions of all stages are compared with what is there; with the head's weights."""
    head, batch, classes = config.head, step.batch, config.classes or 0
    height, width = config.image_size
    image = batch * height * width
    # What the last norm reads.
    kept, backward = FULL * batch * (config.tokens + joined_tokens(config)) * config.width, 0
    if head is not None and head.task == "segment":  # of every pixel: its class, whether it counts, probabilities
        kept += image * (INDEX + 2 + FULL * classes)
        backward += 2 * image * FULL * classes
    if isinstance(head, QueryHead):
        seen = batch * (head.blocks + 1)
        objects = step.objects or most_objects(config)
        rows, cols = (side * head.upscale for side in config.grid)
        if head.task == "segment":
            said = seen * head.queries * rows * cols
            tall, wide = compared_at((height, width), (rows, cols))
            each, pixels = FULL * seen * objects * tall * wide, FULL * seen * tall * wide
            again = 0 if step.item == FULL else step.item
            kept += said * (FULL + again) + 4 * each + pixels + (each + pixels) // (head.blocks + 1)
            # Matching, before the masks at full size; or their gradients.
            backward = max(backward, 2 * each, 4 * FULL * said - 3 * each)
        else:
            backward += max(
                seen * objects * head.queries * PAIR, batch * objects * config.grid[0] * config.grid[1] * NEAR
            )
        if head.shapes:
            said, each = seen * head.queries * rows * cols, FULL * seen * objects * rows * cols
            kept += said * (FULL + (0 if step.item == FULL else step.item)) + 4 * each + image * objects
            backward = max(backward, 2 * each, 4 * FULL * said - 3 * each, FULL * image * objects)
    return Stretch(weights=weights, cast=weights, kept=kept, forward=backward, backward=backward)


def most_objects(config: ViTConfig) -> int:
    """Give the objects that an image may have where nobody says it: half of the queries, and no more than classes."""
    half = max(joined_tokens(config) // 2, 1)
    return min(half, config.classes or half) if config.head is not None and config.head.task == "segment" else half
