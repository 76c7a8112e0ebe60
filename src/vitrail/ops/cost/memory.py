"""Peak memory of a training or inference step, from the configuration alone.

The network is a list of stretches. Each says what autograd keeps of it for the backward pass, how much more is alive
while it runs, forward and backward, and its weights. The peak is the most that is held at any moment of the step.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from vitrail.config import BiTConfig, HybridStem, ModelConfig, RelativePositions, ViTConfig
from vitrail.ops.attention_chunks import CHUNK
from vitrail.ops.cost.counts import Convolution, convolutions, parameters

Precision = Literal["float32", "bfloat16"]
Optimizer = Literal["adam", "sgd"]
Device = Literal["cpu", "cuda"]

FULL = 4  # bytes of a float32: weights, gradients, moments, norms and the residual stream
INDEX = 8  # bytes of an index that a max-pool keeps
MASK = 1  # bytes of a dropped number's mask where samples have keys; torch's own dropout keeps a factor on the CPU
MOMENTS = {"adam": 2, "sgd": 1}  # that an optimiser holds for every weight


@dataclass(frozen=True, kw_only=True)
class Step:
    """What is run: a training step or a forward pass, in float32 or under bfloat16 autocast, fused optimiser."""

    kind: Literal["train", "infer"]
    batch: int
    precision: Precision = "float32"
    optimizer: Optimizer = "adam"
    device: Device = "cuda"

    @property
    def item(self) -> int:
        """Bytes of an activation."""
        return FULL if self.precision == "float32" else 2

    @property
    def norm(self) -> int:
        """Bytes of what a GroupNorm reads and writes: autocast widens them on a GPU, and not on the CPU."""
        return FULL if self.device == "cuda" else self.item

    @property
    def copy(self) -> int:
        """Bytes of the copy that autocast makes for a convolution after a norm; none where precisions agree."""
        return 0 if self.norm == self.item else self.item

    def scratch(self, inward: int, outward: int) -> int:
        """Bytes that a convolution holds beside what it reads and writes: other layouts of them, as was measured."""
        if self.device == "cpu":
            return outward * self.item
        return 0 if self.item == FULL else (inward + outward) * self.item


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A part of the network, in bytes but for the weights."""

    name: str
    weights: int  # numbers
    cast: int = 0  # weights that autocast copies to bfloat16
    kept: int = 0  # by autograd, until the part's backward pass
    forward: int = 0  # alive at once in a forward pass without autograd
    backward: int = 0  # alive in the backward pass beside what is kept
    entry: int = 0  # the part's input, which is all that checkpointing keeps
    copies: int = 0  # of weights, kept by autograd: standardised filters


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes at the peak of a step, by what they are."""

    weights: int
    moments: int
    gradients: int
    activations: int
    batch: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.moments + self.gradients + self.activations + self.batch


def peak_memory(config: ModelConfig, step: Step) -> Memory:
    """Predict the peak of one step, steady state: moments exist, gradients are made anew."""
    stretches = list(_stretches(config, step))
    weights = FULL * parameters(config).total
    images = FULL * step.batch * config.channels * config.image_size[0] * config.image_size[1]
    held = {"weights": weights, "batch": images}
    if step.kind == "infer":
        alive = max(stretch.forward for stretch in stretches)
        return Memory(**held, moments=0, gradients=0, activations=alive)
    moments = MOMENTS[step.optimizer] * weights
    gradients, activations = _backward_peak(stretches, step, checkpointing=config.checkpointing)
    return Memory(**held, moments=moments, gradients=gradients, activations=activations)


def activation_bytes(config: ModelConfig, step: Step) -> int:
    """Count what autograd keeps of the forward pass, copies of weights too."""
    return sum(_kept(stretch, step, config.checkpointing) for stretch in _stretches(config, step))


def _kept(stretch: Stretch, step: Step, checkpointing: bool) -> int:  # noqa: FBT001
    if checkpointing and stretch.entry:
        return stretch.entry
    return stretch.kept + stretch.copies + _cast_bytes([stretch], step)


def _cast_bytes(stretches: list[Stretch], step: Step) -> int:
    return 0 if step.precision == "float32" else 2 * sum(stretch.cast for stretch in stretches)


def _backward_peak(stretches: list[Stretch], step: Step, *, checkpointing: bool) -> tuple[int, int]:
    """Walk back through the network, and find the moment at which gradients and activations are most."""
    kept = sum(_kept(stretch, step, checkpointing) for stretch in stretches)
    # Autocast's copies of weights live through the forward pass, also where the block is run again later.
    most = (0, kept + (_cast_bytes(stretches, step) if checkpointing else 0))
    gradients = 0
    for stretch in reversed(stretches):
        again = 0
        if checkpointing and stretch.entry:
            again = stretch.kept + stretch.copies + _cast_bytes([stretch], step)
        gradients += FULL * stretch.weights
        most = max(most, (gradients, kept + again + stretch.backward), key=sum)
        kept -= _kept(stretch, step, checkpointing)
    return most


def _stretches(config: ModelConfig, step: Step) -> Iterator[Stretch]:
    if isinstance(config, BiTConfig):
        yield from _bit(config, step)
        return
    if isinstance(config.stem, HybridStem):
        yield from _hybrid(config, config.stem, step)
    yield from _vit(config, step)


def _vit(config: ViTConfig, step: Step) -> Iterator[Stretch]:
    count, item = parameters(config), step.item
    rows, cols = config.grid
    width, wide = config.width, config.mlp_width
    token = step.batch * config.tokens  # tokens of the batch
    line = token * width
    patch = step.batch * rows * cols
    values = (count.embedding - (1 + config.class_tokens) * width) // width  # of a flat patch
    mask = MASK if config.dropout else 0
    yield Stretch(
        name="embedding",
        weights=count.embedding + count.positions,
        cast=values * width,
        kept=patch * values * item + line * mask,
        forward=patch * values * (FULL + (item if item < FULL else 0)) + 2 * line * FULL,
        backward=2 * line * FULL,
    )
    rates = token * 2 * FULL  # a norm's mean and deviation
    logsumexp = token * config.heads * FULL
    inner = 1 if config.activation == "relu" else 2  # ReLU keeps its output alone, which the next layer keeps anyway
    # Relative keys form a matrix of logits, and so does dropout on the CPU; all of it, or chunks that are made again.
    pairs = step.batch * config.heads * config.tokens**2
    dropped = config.attention_dropout > 0 and step.device == "cpu"
    formed = isinstance(config.positions, RelativePositions) or dropped
    matrix = min(pairs, CHUNK) * item if formed else 0
    whole = formed and pairs <= CHUNK
    kept = (
        2 * line * FULL  # what the norms read
        + 6 * line * item  # what they write; query, key and value; the mixed values
        + inner * token * wide * item
        + 2 * rates
        + logsumexp
        + mask * (2 * line + token * wide)
        + ((2 if dropped else 1) * matrix + 3 * line * item if whole else 0)
        + (0 if config.layer_scale is None else 2 * line * item)  # branches before their factors
    )
    alive = line * ((4 if config.norm == "pre" else 3) * FULL + item) + 2 * token * wide * item
    heads = line * (3 * FULL + 5 * item) + 4 * (0 if dropped else matrix)
    branch = 0 if item == FULL else item
    for layer in range(config.layers):
        yield Stretch(
            name=f"block {layer}",
            weights=(count.attention + count.mlp) // config.layers + (4 if config.layer_scale is None else 6) * width,
            cast=(count.attention + count.mlp) // config.layers,
            kept=kept,
            forward=max(alive, heads),
            backward=max(
                line * (FULL + branch) + token * wide * item,
                line * (FULL + 4 * item) - (inner * token * wide + line) * item + 3 * matrix,
            ),
            entry=line * FULL,
        )
    logits = step.batch * (config.classes or 0)
    directions = _directions(config)
    held = config.pooling == "max" or (config.pooling == "token" and item == FULL)  # the norm's output, all of it
    yield Stretch(
        name="head",
        weights=count.head + (2 * width if config.norm == "pre" else 0),
        cast=count.head - directions,
        copies=2 * FULL * directions,
        kept=line * FULL + rates + (line * FULL if held else 0) + logits * (item + 2 * FULL),
        forward=2 * line * FULL + logits * item,
        backward=2 * line * FULL + logits * FULL,
    )


def _directions(config: ModelConfig) -> int:
    """Count the weights of a classifier by cosines, which are brought to length one in single precision."""
    return 0 if config.cosine_scale is None else config.representation * (config.classes or 0)


def _map(step: Step, channels: int, size: tuple[int, int]) -> int:
    """Numbers in a batch of feature maps."""
    return step.batch * channels * size[0] * size[1]


def _unit_maps(convs: list[Convolution], step: Step) -> tuple[int, int, int, int]:
    """Numbers in what a unit reads, and in what its three convolutions write."""
    first = convs[-3]
    read = _map(step, first.inward, (first.height, first.width))
    narrow, reduced, outward = (_map(step, conv.outward, conv.out) for conv in convs[-3:])
    return read, narrow, reduced, outward


def _filters(convs: list[Convolution], step: Step) -> dict[str, int]:
    """Weights of convolutions, and what standardising them keeps: the centred filter, and the one convolved with."""
    weights = sum(conv.parameters for conv in convs)
    return {"copies": weights * (FULL + step.item)}


def _bit(config: BiTConfig, step: Step) -> Iterator[Stretch]:
    item = step.item
    norm, copy = step.norm, step.copy
    root, *others = convolutions(config)
    padded = _map(step, root.outward, (root.out[0] + 2, root.out[1] + 2))
    pooled = _map(step, root.outward, _halved(root.out))
    whole = _map(step, root.outward, root.out)
    yield Stretch(
        name="root",
        weights=root.parameters,
        kept=_map(step, root.inward, config.image_size) * (0 if item == FULL else item)
        + padded * item
        + pooled * INDEX,
        forward=(whole + padded + pooled) * item + pooled * INDEX,
        backward=(whole + padded) * item,
        **_filters([root], step),
    )
    for _, unit in groupby(others, key=lambda conv: conv.unit):
        convs = list(unit)
        first, second, third = convs[-3:]  # a shortcut that projects comes before them
        inward, narrow, reduced, outward = _unit_maps(convs, step)
        readers = len(convs) - 2  # of the first activation: the first convolution, and the shortcut
        kept = (inward + narrow + reduced) * 2 * norm + (inward * readers + narrow + reduced) * copy
        yield Stretch(
            name=f"unit {first.unit}",
            weights=sum(conv.parameters for conv in convs) + 2 * (first.inward + second.inward + third.inward),
            kept=kept,
            forward=inward * (item + norm)
            + max(
                narrow * (item + 2 * norm),
                reduced * (item + 2 * norm),
                reduced * (item + norm + copy) + outward * item + step.scratch(reduced, outward),
                outward * item * (3 if len(convs) > 3 else 2),
            ),
            backward=outward * item + max(inward, narrow, outward) * 2 * norm,
            entry=inward * item,
            **_filters(convs, step),
        )
    last = others[-1]
    features = _map(step, config.representation, last.out)
    directions = _directions(config)
    logits = step.batch * (config.classes or 0)
    yield Stretch(
        name="head",
        weights=parameters(config).head + 2 * config.representation,
        cast=parameters(config).head - directions,
        copies=2 * FULL * directions,
        kept=features * 2 * norm + logits * (item + 2 * FULL),
        forward=features * 3 * norm + logits * item,
        backward=features * 2 * norm + logits * FULL,
    )


def _hybrid(config: ViTConfig, stem: HybridStem, step: Step) -> Iterator[Stretch]:
    item, norm, copy = step.item, step.norm, step.copy
    root, *others = convolutions(config)
    images = _map(step, root.inward, (config.image_size[0] + 5, config.image_size[1] + 5))
    whole = _map(step, root.outward, root.out)
    padded = _map(step, root.outward, (root.out[0] + 1, root.out[1] + 1))
    pooled = _map(step, root.outward, _halved(root.out))
    last = not stem.units
    readers = 1 if last else 2
    yield Stretch(
        name="root",
        weights=root.parameters + 2 * root.outward,
        kept=images * item + (2 * whole + padded) * norm + pooled * (INDEX + (readers * copy or (0 if last else norm))),
        forward=(whole + padded + pooled) * norm + pooled * INDEX,
        backward=(whole + padded) * norm,
        **_filters([root], step),
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
        kept = middle + reduced * (2 * norm + copy) + outward * (2 * norm + readers * copy) + projected
        yield Stretch(
            name=f"unit {first.unit}",
            weights=sum(conv.parameters + 2 * conv.outward for conv in convs),
            kept=kept,
            forward=(inward + 2 * outward + reduced) * norm + outward * copy + projected,
            backward=outward * 3 * norm,
            entry=inward * norm,
            **_filters(convs, step),
        )


def _halved(size: tuple[int, int]) -> tuple[int, int]:
    return -(-size[0] // 2), -(-size[1] // 2)
