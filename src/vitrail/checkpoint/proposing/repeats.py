"""What repeats in the names of a file: the blocks of an encoder, and the heads of a block."""

import re
from collections.abc import Iterable, Mapping
from math import prod
from typing import NamedTuple

from vitrail.checkpoint.archives.base import Shape
from vitrail.config.check import DEEPEST

NUMBER = re.compile(r"\d+")
LONGEST_NUMBER = 5  # digits


class Repeat(NamedTuple):
    """Parts that are alike: how many, and the tensors of one by their template."""

    depth: int
    tensors: Mapping[str, Shape]  # by the template, in the file's order
    held: frozenset[str]  # names of all of them

    @property
    def size(self) -> int:
        """How many numbers all of them hold."""
        return self.depth * sum(prod(shape) for shape in self.tensors.values())


Groups = dict[str, dict[int, dict[str, Shape]]]  # by what stands before the number, the number, what stands after


def find_blocks(shapes: Mapping[str, Shape]) -> list[Repeat]:
    """Find what may be the blocks, the largest first: one list, or several of the same length side by side."""
    found: list[tuple[str, Repeat]] = []
    for prefix, parts in _groups(shapes).items():
        for period in (1, 2):
            if (repeat := _repeat(prefix, parts, period)) is not None:
                found.append((prefix, repeat))
                break
    found.sort(key=lambda each: (-each[1].size, len(each[0])))
    blocks = [repeat for _, repeat in found]
    return [*blocks[:4], *_side_by_side(blocks)]


def find_heads(tensors: Mapping[str, Shape], width: int) -> tuple[dict[str, Shape], int]:
    """Put the tensors of heads that have their own under one template; give how many heads there are."""
    for prefix, parts in _groups(tensors).items():
        repeat = _repeat(prefix, parts, 1, "head")
        if repeat is None or repeat.depth < 2:
            continue
        heads = repeat.depth
        matrices = [shape for shape in repeat.tensors.values() if len(shape) == 2]
        if not matrices or not all(_is_head(shape, heads, width) for shape in matrices):
            continue
        kept: dict[str, Shape] = {}
        first = min(repeat.held, key=list(tensors).index)
        for name, shape in tensors.items():
            if name == first:
                kept |= repeat.tensors
            if name not in repeat.held:
                kept[name] = shape
        again, more = find_heads(kept, width)  # query, key and value each have a list
        return (again, heads) if more in (1, heads) else (dict(tensors), 1)
    return dict(tensors), 1


def _is_head(shape: Shape, heads: int, width: int) -> bool:
    """Tell whether a matrix is that of one head: from all features or its own to its own, or to three times these."""
    head = width // heads
    wide, narrow = max(shape), min(shape)
    return width % heads == 0 and (shape == (head, head) or (wide == width and narrow in (head, 3 * head)))


def _groups(shapes: Mapping[str, Shape]) -> Groups:
    groups: Groups = {}
    for name, shape in shapes.items():
        for number in NUMBER.finditer(name):
            if "{" in name[: number.start()].rsplit("}", 1)[-1] or number.end() - number.start() > LONGEST_NUMBER:
                continue  # inside of a slot
            parts = groups.setdefault(name[: number.start()], {})
            parts.setdefault(int(number[0]), {})[name[number.end() :]] = shape
    return groups


def _repeat(prefix: str, parts: Mapping[int, Mapping[str, Shape]], period: int, slot: str = "layer") -> Repeat | None:
    """Give what repeats after a prefix, every `period` parts; nothing where the parts are not alike."""
    start = min(parts)
    count = len(parts)
    if start > 1 or [*sorted(parts)] != [*range(start, start + count)] or count % period or count > DEEPEST:
        return None
    if period > 1 and count < 2 * period:
        return None
    for number, tensors in parts.items():
        first = parts[start + (number - start) % period]
        if tensors.keys() != first.keys() or any(tensors[name] != shape for name, shape in first.items()):
            return None
    found: dict[str, Shape] = {}
    for place in range(period):
        times, plus = f"*{period}" if period > 1 else "", start + place
        name = "{" + slot + times + (f"+{plus}" if plus else "") + "}"
        found |= {f"{prefix}{name}{suffix}": shape for suffix, shape in parts[start + place].items()}
    held = frozenset(f"{prefix}{number}{suffix}" for number, tensors in parts.items() for suffix in tensors)
    return Repeat(count // period, found, held)


def _side_by_side(blocks: Iterable[Repeat]) -> list[Repeat]:
    """Put lists of the same length together, as of norms, attentions and MLPs apart."""
    by_depth: dict[int, Repeat] = {}
    several: set[int] = set()
    for repeat in blocks:
        known = by_depth.get(repeat.depth)
        if known is None:
            by_depth[repeat.depth] = repeat
        elif not known.held & repeat.held:
            by_depth[repeat.depth] = Repeat(repeat.depth, {**known.tensors, **repeat.tensors}, known.held | repeat.held)
            several.add(repeat.depth)
    return sorted((by_depth[depth] for depth in several), key=lambda each: -each.size)[:2]
