"""The units of a ResNet, by stage and place."""

from collections.abc import Iterator
from itertools import groupby

from vitrail.ops.cost.counts import Convolution


def units_of(convs: list[Convolution]) -> Iterator[tuple[int, int, dict[str, Convolution]]]:
    """Give stage, place in the stage, and convolutions of every unit; a stage begins with a shortcut that projects."""
    stage, index = -1, 0
    for _, group in groupby(convs, key=lambda conv: conv.unit):
        unit = {conv.part: conv for conv in group}
        stage, index = (stage + 1, 0) if "shortcut" in unit else (stage, index + 1)
        yield stage, index, unit
