"""The convolutions of a hybrid's stem and of a BiT, and what a step holds of them, from the configuration alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from vitrail.config import BiTConfig, HybridStem, ModelConfig, ViTConfig

if TYPE_CHECKING:
    from vitrail.ops.cost.counts import Step

FULL = 4  # bytes of a float32: weights, gradients, moments, norms and the residual stream
INDEX = 8  # bytes of an index that a max-pool keeps


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A part of the network, in bytes but for the weights."""

    weights: int  # numbers
    cast: int = 0  # weights that autocast copies to bfloat16
    kept: int = 0  # by autograd, until the part's backward pass
    forward: int = 0  # alive at once in a forward pass without autograd
    backward: int = 0  # alive in the backward pass beside what is kept
    entry: int = 0  # the part's input, which is all that checkpointing keeps
    copies: int = 0  # of weights, kept by autograd: standardised filters


@dataclass(frozen=True)
class Convolution:
    """One standardised convolution, with the feature map that it reads."""

    unit: int  # of the network, from 1; the root block is 0
    part: str  # root, first, second, third or shortcut
    inward: int
    outward: int
    kernel: int
    stride: int
    height: int
    width: int
    same: bool  # SAME padding, or kernel // 2 on every side

    @property
    def out(self) -> tuple[int, int]:
        """Height and width of the map that it writes."""
        return -(-self.height // self.stride), -(-self.width // self.stride)

    @property
    def parameters(self) -> int:
        """Weights; there is no bias."""
        return self.inward * self.outward * self.kernel**2

    @property
    def macs(self) -> int:
        """Multiply-accumulates with every tap, also those on padding."""
        return self.parameters * self.out[0] * self.out[1]

    @property
    def real_macs(self) -> int:
        """Multiply-accumulates whose tap falls on the image and not on zero padding."""
        return self.inward * self.outward * self._taps(self.height) * self._taps(self.width)

    def _taps(self, side: int) -> int:
        total = max(self.kernel - (side % self.stride or self.stride), 0) if self.same else 2 * (self.kernel // 2)
        first = -(total // 2)
        starts = range(first, first + -(-side // self.stride) * self.stride, self.stride)
        return sum(min(start + self.kernel, side) - max(start, 0) for start in starts)


def convolutions(config: ModelConfig) -> Iterator[Convolution]:
    """List the convolutions of a hybrid's stem or of a BiT, in order; a plain ViT has none."""
    if isinstance(config, BiTConfig):
        units, root, same = config.units, config.width, False
    elif isinstance(config.stem, HybridStem):
        units, root, same = config.stem.units, config.stem.width, True
    else:
        return
    height, width = config.image_size

    def conv(part: str, unit: int, inward: int, outward: int, kernel: int, stride: int) -> Convolution:
        return Convolution(unit, part, inward, outward, kernel, stride, height, width, same)

    first = conv("root", 0, config.channels, root, 7, 2)
    yield first
    height, width = (-(-side // 2) for side in first.out)  # the max-pool
    inward, unit = root, 0
    for stage, count in enumerate(units):
        narrow = root * 2**stage
        for index in range(count):
            unit += 1
            stride = 2 if stage > 0 and index == 0 else 1
            if index == 0:
                yield conv("shortcut", unit, inward, 4 * narrow, 1, stride)
            yield conv("first", unit, inward, narrow, 1, 1)
            second = conv("second", unit, narrow, narrow, 3, stride)
            yield second
            height, width = second.out
            yield conv("third", unit, narrow, 4 * narrow, 1, 1)
            inward = 4 * narrow


def bit_stretches(config: BiTConfig, step: "Step", head: int, directions: int) -> Iterator[Stretch]:
    """List the parts of a BiT; its head has so many weights, of which so many are directions of classes."""
    item, norm, copy = step.item, step.norm, step.copy
    root, *others = convolutions(config)
    padded = _map(step, root.outward, (root.out[0] + 2, root.out[1] + 2))
    pooled = _map(step, root.outward, _halved(root.out))
    whole = _map(step, root.outward, root.out)
    yield Stretch(
        weights=root.parameters,
        kept=_map(step, root.inward, config.image_size) * (0 if item == FULL else item)
        + padded * item
        + pooled * INDEX,
        forward=(whole + padded + pooled) * item + pooled * INDEX,
        backward=(whole + padded) * item,
        copies=_copies([root], step),
    )
    for _, unit in groupby(others, key=lambda conv: conv.unit):
        convs = list(unit)
        first, second, third = convs[-3:]  # a shortcut that projects comes before them
        inward, narrow, reduced, outward = _unit_maps(convs, step)
        readers = len(convs) - 2  # of the first activation: the first convolution, and the shortcut
        yield Stretch(
            weights=sum(conv.parameters for conv in convs) + 2 * (first.inward + second.inward + third.inward),
            kept=(inward + narrow + reduced) * 2 * norm + (inward * readers + narrow + reduced) * copy,
            forward=inward * (item + norm)
            + max(
                narrow * (item + 2 * norm),
                reduced * (item + 2 * norm),
                reduced * (item + norm + copy) + outward * item + step.scratch(reduced, outward),
                outward * item * (3 if len(convs) > 3 else 2),
            ),
            backward=outward * item + max(inward, narrow, outward) * 2 * norm,
            entry=inward * item,
            copies=_copies(convs, step),
        )
    features = _map(step, config.representation, others[-1].out)
    logits = step.batch * (config.classes or 0)
    yield Stretch(
        weights=head + 2 * config.representation,
        cast=head - directions,
        copies=2 * FULL * directions,
        kept=features * 2 * norm + logits * (item + 2 * FULL),
        forward=features * 3 * norm + logits * item,
        backward=features * 2 * norm + logits * FULL,
    )


def hybrid_stretches(config: ViTConfig, stem: HybridStem, step: "Step") -> Iterator[Stretch]:
    """List the parts of a hybrid's stem."""
    item, norm, copy = step.item, step.norm, step.copy
    root, *others = convolutions(config)
    images = _map(step, root.inward, (config.image_size[0] + 5, config.image_size[1] + 5))
    whole = _map(step, root.outward, root.out)
    padded = _map(step, root.outward, (root.out[0] + 1, root.out[1] + 1))
    pooled = _map(step, root.outward, _halved(root.out))
    last = not stem.units
    readers = 1 if last else 2
    yield Stretch(
        weights=root.parameters + 2 * root.outward,
        kept=images * item + (2 * whole + padded) * norm + pooled * (INDEX + (readers * copy or (0 if last else norm))),
        forward=(whole + padded + pooled) * norm + pooled * INDEX,
        backward=(whole + padded) * norm,
        copies=_copies([root], step),
    )
    units = [list(unit) for _, unit in groupby(others, key=lambda conv: conv.unit)]
    for index, convs in enumerate(units):
        first, second, _ = convs[-3:]  # a shortcut that projects comes before them
        inward, narrow, reduced, outward = _unit_maps(convs, step)
        projected = outward * norm if len(convs) > 3 else 0
        uneven = second.stride == 2 and not (second.height % 2 and second.width % 2)
        padded = _map(step, first.outward, (second.height + 1, second.width + 1))
        readers = len(units[index + 1]) - 2 if index + 1 < len(units) else 0
        middle = narrow * 2 * norm + (padded * item if uneven else narrow * copy)
        yield Stretch(
            weights=sum(conv.parameters + 2 * conv.outward for conv in convs),
            kept=middle + reduced * (2 * norm + copy) + outward * (2 * norm + readers * copy) + projected,
            forward=(inward + 2 * outward + reduced) * norm + outward * copy + projected,
            backward=outward * 3 * norm,
            entry=inward * norm,
            copies=_copies(convs, step),
        )


def _map(step: "Step", channels: int, size: tuple[int, int]) -> int:
    """Numbers in a batch of feature maps."""
    return step.batch * channels * size[0] * size[1]


def _unit_maps(convs: list[Convolution], step: "Step") -> tuple[int, int, int, int]:
    """Numbers in what a unit reads, and in what its three convolutions write."""
    first = convs[-3]
    read = _map(step, first.inward, (first.height, first.width))
    narrow, reduced, outward = (_map(step, conv.outward, conv.out) for conv in convs[-3:])
    return read, narrow, reduced, outward


def _copies(convs: list[Convolution], step: "Step") -> int:
    """What standardising filters keeps: the centred one, and the one convolved with."""
    return sum(conv.parameters for conv in convs) * (FULL + step.item)


def _halved(size: tuple[int, int]) -> tuple[int, int]:
    return -(-size[0] // 2), -(-size[1] // 2)
