"""How the axes of anybody's tensors become ours, as a table of names says; exact both ways."""

from math import sqrt
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoint.archives.base import Shape
from vitrail.checkpoint.layouts.base import Codec, Row
from vitrail.config import ViTConfig
from vitrail.config.name_tables import NamesTable
from vitrail.errors import CheckpointError

AXES = {"channel": 2, "row": 0, "column": 1}  # of our flat patches: row, column, channel
# Factors of queries and of values by what the products are divided by, where ours divide by the root of a head's width;
# "after": the weights are divided, after the softmax.
SCALES = {
    "head": lambda head, width: (1.0, 1.0),
    "width": lambda head, width: (sqrt(head / width), 1.0),
    "none": lambda head, width: (sqrt(head), 1.0),
    "after head": lambda head, width: (sqrt(head), 1 / sqrt(head)),
    "after width": lambda head, width: (sqrt(head), 1 / sqrt(width)),
}
NOT_CONSTANT = "the table of names has no tensor for {}, and training has moved it. Take layout=vitrail."


def constant(ours: str, shape: Shape) -> Codec:
    """Make the codec of a parameter that the file lacks: a bias of zeros, a norm's ones, an output of one."""
    if ours.endswith(".bias"):
        value = torch.zeros(shape)
    elif "norm" in ours or "_scale" in ours:
        value = torch.ones(shape)
    elif ours.endswith("attention.out.weight") and shape[0] == shape[1]:
        value = torch.eye(shape[0])
    else:
        raise CheckpointError(f"the table of names has no tensor for {ours}, which is no constant. Name it.")

    def write(given: Tensor, _: Shape) -> tuple[Tensor, ...]:
        if not torch.equal(given, value.to(given)):
            raise CheckpointError(NOT_CONSTANT.format(ours))
        return ()

    return Codec(value.clone, write)


def copying(row: Row) -> Row:
    """Give a row whose tensors another row has too, so that two parameters never share their memory."""
    return row._replace(codec=row.codec._replace(read=lambda *theirs: row.codec.read(*theirs).clone()))


def flat_patches(order: str, side: int, channels: int, *, turned: bool) -> Codec:
    """Make the codec of a linear layer of flat patches, whose values are in this order."""
    to_ours, to_theirs = _patch_order(order, side, channels)

    def read(theirs: Tensor) -> Tensor:
        return (theirs.T if turned else theirs)[:, to_ours]

    def write(ours: Tensor, _: Shape) -> tuple[Tensor, ...]:
        found = ours[:, to_theirs]
        return (found.T if turned else found,)

    return Codec(read, write)


def swapped_patches(order: str, side: int, channels: int) -> Codec:
    """Make the codec of a vector of a flat patch's values."""
    to_ours, to_theirs = _patch_order(order, side, channels)
    return Codec(lambda theirs: theirs[to_ours], lambda ours, shape: (ours[to_theirs],))


def _patch_order(order: str, side: int, channels: int) -> tuple[Tensor, Tensor]:
    """Give the places of our values among theirs, and of theirs among ours."""
    axes = [AXES[word] for word in order.split()]
    ours = torch.arange(side * side * channels).reshape(side, side, channels)
    to_theirs = ours.permute(axes).reshape(-1)
    return torch.argsort(to_theirs), to_theirs


def places(entry: str, leading: int) -> Codec:
    """Make the codec of positions whose class entry is first, last or none; any axes of one before."""

    def read(theirs: Tensor) -> Tensor:
        table = theirs.reshape(theirs.shape[-2:])
        if entry == "none":
            return torch.cat([table.new_zeros(leading, table.shape[1]), table])
        return torch.cat([table[-leading:], table[:-leading]]) if entry == "last" and leading else table

    def write(ours: Tensor, shape: Shape) -> tuple[Tensor, ...]:
        if entry == "none":
            ours = ours[leading:]
        elif entry == "last" and leading:
            ours = torch.cat([ours[leading:], ours[:leading]])
        return (ours.reshape(shape),)

    return Codec(read, write)


def pieces(table: NamesTable, config: ViTConfig, templates: tuple[str, ...]) -> list[tuple[str, int, int]]:
    """List the tensors of query, key and value: each one's template, its head, and how many rows it has."""
    mixed = config.heads * config.head_width
    sizes = {1: (3 * mixed,), 2: (mixed, 2 * mixed), 3: (mixed,) * 3}.get(len(templates))
    if sizes is None:
        raise CheckpointError(f"query, key and value are one tensor, two or three; the table has {len(templates)}.")
    found: list[tuple[str, int, int]] = []
    for template, size in zip(templates, sizes, strict=True):
        heads = config.heads if "{head" in template else 1
        found += [(template, head, size // heads) for head in range(heads)]
    return found


def packed(
    table: NamesTable, config: ViTConfig, names: list[str], sizes: list[int], *, weight: bool, turned: bool
) -> tuple[list[Shape], Codec]:
    """Make the codec of query, key and value, and give the shapes of their tensors; one without a name is zero."""
    heads, head, width = config.heads, config.head_width, config.width
    slices = table.get("head_input") == "slice"
    mixed, columns = heads * head, head if slices else width
    order = _row_order(table, heads, head)
    back = torch.argsort(order)
    before, after = SCALES[table.get("scale")](head, width)
    exact = before == after == 1.0
    factors = torch.ones(3 * mixed)
    factors[:mixed], factors[2 * mixed :] = before, after
    factors = factors[:, None] if weight else factors
    shapes: list[Any] = [(size, columns) if weight else (size,) for size in sizes]
    if turned and weight:
        shapes = [shape[::-1] for shape in shapes]
    held = [place for place, name in enumerate(names) if name]
    if not held:
        raise CheckpointError("the table of names has no tensor for query, key and value. Name them.")

    def spread(place: int, part: Tensor) -> Tensor:
        """Put what reads a head's own features beside zeros for those of the others."""
        if not (slices and weight):
            return part
        start = (place % heads) * head
        whole = part.new_zeros(part.shape[0], width)
        whole[:, start : start + head] = part
        return whole

    def read(*given: Tensor) -> Tensor:
        parts = {place: part.T if turned and weight else part for place, part in zip(held, given, strict=True)}
        like, shape = given[0], (width,) if weight else ()
        rows = [
            spread(place, parts[place]) if place in parts else like.new_zeros(size, *shape)
            for place, size in enumerate(sizes)
        ]
        found = torch.cat(rows)[order]
        return found if exact else found * factors.to(found)

    def write(ours: Tensor, _: Shape) -> tuple[Tensor, ...]:
        ours = ours if exact else ours / factors.to(ours)
        parts = list(ours[back].split(sizes))
        for place, part in enumerate(parts):
            if slices and weight:
                start = (place % heads) * head
                inside = part[:, start : start + head].clone()
                if not torch.equal(spread(place, inside), part):
                    raise CheckpointError(NOT_CONSTANT.format("what a head reads of the features of another"))
                parts[place] = inside
            if place not in held and part.any():
                raise CheckpointError(NOT_CONSTANT.format("a bias of query, key or value"))
        return tuple((parts[place].T if turned and weight else parts[place]).contiguous() for place in held)

    return [shapes[place] for place in held], Codec(read, write)


def _row_order(table: NamesTable, heads: int, head: int) -> Tensor:
    """Give the place of each of our rows (query, key, value; head; feature) among theirs."""
    rows = torch.arange(3 * heads * head)
    match table.get("qkv"):
        case "head part feature":
            grid = rows.reshape(heads, 3, head).permute(1, 0, 2)
        case "head feature part":
            grid = rows.reshape(heads, head, 3).permute(2, 0, 1)
        case _:
            grid = rows.reshape(3, heads, head)
    order = table.get("order").split()
    return grid[[order.index(part) for part in ("query", "key", "value")]].reshape(-1)
