"""Parameters, multiply-accumulates and peak memory of a model, from its configuration alone.

For the memory of a training or inference step the network is a list of stretches. Each says what autograd keeps of it
for the backward pass, how much more is alive while it runs, forward and backward, and its weights. The peak is the most
that is held at any moment of the step.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal, assert_never

from vitrail.config import BiTConfig, HybridStem, ModelConfig, PatchStem, ViTConfig
from vitrail.ops.cost.convolutions import FULL, Convolution, Stretch, bit_stretches, convolutions, hybrid_stretches
from vitrail.ops.cost.parts import (
    MASK,
    alone,
    block_stretch,
    expanded,
    joined_blocks,
    joined_tokens,
    norms_around,
    norms_of_block,
    position_parameters,
    readout,
    readout_macs,
    relative_layers,
)

Precision = Literal["float32", "bfloat16"]
Optimizer = Literal["adam", "sgd", "muon"]
Device = Literal["cpu", "cuda"]

EXA = 10**18
# That an optimiser holds for every weight; Muon one for those that are in the matrices of blocks.
MOMENTS = {"adam": 2, "sgd": 1, "muon": 2}


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A number for every part of a model."""

    convolutions: int = 0
    embedding: int = 0
    positions: int = 0
    attention: int = 0
    mlp: int = 0
    norms: int = 0
    head: int = 0

    @property
    def total(self) -> int:
        """All parts together."""
        return sum(getattr(self, field.name) for field in fields(self))

    @property
    def backbone(self) -> int:
        """All parts but the head: what the paper's Table 6 counts."""
        return self.total - self.head


def parameters(config: ModelConfig) -> Parts:
    """Count the parameters; equal to those of the built model."""
    convs = _convolutions(config)
    weights = sum(conv.parameters for conv in convs)
    if isinstance(config, BiTConfig):
        # In v2 units a norm reads what the convolution reads; the shortcut and the root have none, the end has one.
        norms = sum(2 * conv.inward for conv in convs if conv.part not in ("root", "shortcut"))
        last = config.representation
        return Parts(convolutions=weights, norms=norms + 2 * last, head=_classifier(config))
    width, layers = config.width, config.layers
    mixed, first = config.head_width * config.heads, expanded(config)
    return Parts(
        convolutions=weights,
        embedding=(_patch_values(config) + 1) * width + config.leading * width,
        positions=position_parameters(config),
        attention=layers * (4 * width * mixed + width + (3 * mixed if config.qkv_bias else 0)),
        mlp=layers * ((width + 1) * first + (config.mlp_width + 1) * width),
        norms=layers * norms_of_block(config) + norms_around(config) + sum(2 * conv.outward for conv in convs),
        head=_head(config) + sum(readout(config).values()),
    )


def forward_macs(config: ModelConfig, *, padding: bool = True) -> Parts:
    """Count the multiply-accumulates of one image's forward pass; norms, activations and softmax have none.

    With `padding=False`, taps of a convolution that fall on zero padding are not counted, as in the paper's Table 6.
    """
    convs = sum(conv.macs if padding else conv.real_macs for conv in _convolutions(config))
    if isinstance(config, BiTConfig):
        return Parts(convolutions=convs, head=config.representation * (config.classes or 0))
    (rows, cols), tokens, width = config.grid, config.tokens, config.width
    reached = config.depth * (rows + cols) if config.attention == "axial" else config.depth * tokens
    joined, queries = joined_blocks(config), joined_tokens(config)
    passed = config.layers * tokens + joined * queries  # tokens through all layers
    pairs = reached * tokens + joined * ((tokens + queries) ** 2 - tokens**2)
    offsets = relative_layers(config) * (2 * tokens - 1)
    mixed = config.head_width * config.heads
    return Parts(
        convolutions=convs,
        embedding=rows * cols * _patch_values(config) * width,
        attention=passed * 4 * width * mixed + (2 * pairs + offsets * tokens) * mixed,
        mlp=passed * width * (expanded(config) + config.mlp_width),
        head=_head_macs(config) + readout_macs(config),
    )


def training_flops(config: ModelConfig) -> int:
    """Floating-point operations of one image's training step: forward, twice that back, and what is made again."""
    macs = forward_macs(config)
    root = sum(conv.macs for conv in _convolutions(config) if conv.part == "root")
    again = macs.backbone - macs.embedding - root if config.checkpointing else 0  # blocks and units run twice
    return 2 * (3 * macs.total + again)


def exaflops(config: ModelConfig, *, images: float) -> float:
    """ExaFLOPs of pre-training on so many images, by the convention of the paper's Table 6: six a real tap."""
    return 6 * forward_macs(config, padding=False).backbone * images / EXA


def _head(config: ViTConfig) -> int:
    if config.head is None:
        return _classifier(config)
    from vitrail.ops.cost.dense import dense_parameters  # which few models have

    return dense_parameters(config)


def _head_macs(config: ViTConfig) -> int:
    if config.head is None:
        return config.representation * (config.classes or 0)
    from vitrail.ops.cost.dense import dense_macs

    return dense_macs(config)


def _classifier(config: ModelConfig) -> int:
    """Count the classifier's weights and, where it is linear, its biases."""
    heads = 2 if isinstance(config, ViTConfig) and config.pooling == "distilled" else 1
    biases = heads if config.cosine_scale is None else 0
    return (config.representation + biases) * (config.classes or 0)


def _patch_values(config: ViTConfig) -> int:
    match config.stem:
        case PatchStem(patch=patch):
            return patch**2 * config.channels
        case HybridStem() as stem:
            return stem.patch**2 * stem.channels
        case _:
            assert_never(config.stem)


def _convolutions(config: ModelConfig) -> list[Convolution]:
    plain = isinstance(config, ViTConfig) and isinstance(config.stem, PatchStem)
    return [] if plain else list(convolutions(config))


@dataclass(frozen=True, kw_only=True)
class Step:
    """What is run: a training step or a forward pass, in float32 or under bfloat16 autocast, fused optimiser."""

    kind: Literal["train", "infer"]
    batch: int
    precision: Precision = "float32"
    optimizer: Optimizer = "adam"
    device: Device = "cuda"
    compiled: bool = False  # for a GPU, as training does
    objects: int = 0  # that an image has at most, of heads of pixels and objects; 0: as many as their queries are for
    class_token_alone: bool = False  # the last block gives the class token alone, where nothing else of it is read

    @property
    def item(self) -> int:
        """Bytes of an activation."""
        return FULL if self.precision == "float32" else 2

    @property
    def norm(self) -> int:
        """Bytes of what a GroupNorm reads and writes: autocast widens them on a GPU, unless they are compiled."""
        return FULL if self.device == "cuda" and not self.compiled else self.item

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
    moments = MOMENTS[step.optimizer] * weights - (FULL * block_matrices(config) if step.optimizer == "muon" else 0)
    gradients, activations = _backward_peak(stretches, step, checkpointing=config.checkpointing)
    return Memory(**held, moments=moments, gradients=gradients, activations=activations)


def block_matrices(config: ModelConfig) -> int:
    """Count the weights in the matrices of a Vision Transformer's blocks: those that Muon updates."""
    if isinstance(config, BiTConfig):
        return 0
    mlp = config.width * (expanded(config) + config.mlp_width)
    return config.layers * (4 * config.width * config.head_width * config.heads + mlp)


def heaviest_part(config: ModelConfig) -> int:
    """Count the weights of the largest block, unit or head: what FSDP gathers at once."""
    return max(stretch.weights for stretch in _stretches(config, Step(kind="train", batch=1)))


def activation_bytes(config: ModelConfig, step: Step) -> int:
    """Count what autograd keeps of the forward pass, copies of weights too."""
    return sum(_kept(stretch, step, checkpointing=config.checkpointing) for stretch in _stretches(config, step))


def _kept(stretch: Stretch, step: Step, *, checkpointing: bool) -> int:
    if checkpointing and stretch.entry:
        return stretch.entry
    return stretch.kept + stretch.copies + _cast_bytes([stretch], step)


def _cast_bytes(stretches: list[Stretch], step: Step) -> int:
    return 0 if step.precision == "float32" else 2 * sum(stretch.cast for stretch in stretches)


def _backward_peak(stretches: list[Stretch], step: Step, *, checkpointing: bool) -> tuple[int, int]:
    """Walk back through the network, and find the moment at which gradients and activations are most."""
    kept = sum(_kept(stretch, step, checkpointing=checkpointing) for stretch in stretches)
    # Autocast's copies of weights live through the forward pass, also where the block is run again later.
    most = (0, kept + (_cast_bytes(stretches, step) if checkpointing else 0))
    gradients = 0
    for stretch in reversed(stretches):
        again = _kept(stretch, step, checkpointing=False) if checkpointing and stretch.entry else 0
        gradients += FULL * stretch.weights
        most = max(most, (gradients, kept + again + stretch.backward), key=sum)
        kept -= _kept(stretch, step, checkpointing=checkpointing)
    return most


def _stretches(config: ModelConfig, step: Step) -> Iterator[Stretch]:
    if isinstance(config, BiTConfig):
        yield from bit_stretches(config, step, parameters(config).head, _directions(config))
        return
    if isinstance(config.stem, HybridStem):
        yield from hybrid_stretches(config, config.stem, step)
    yield from _vit(config, step)


def _vit(config: ViTConfig, step: Step) -> Iterator[Stretch]:
    count, item = parameters(config), step.item
    rows, cols = config.grid
    width = config.width
    line = step.batch * config.tokens * width
    rates = step.batch * config.tokens * 2 * FULL  # a norm's mean and deviation
    patch = step.batch * rows * cols
    values = _patch_values(config)
    mask = MASK if config.dropout else 0
    yield Stretch(
        weights=count.embedding + count.positions,
        cast=values * width,
        kept=patch * values * item + line * mask,
        forward=patch * values * (FULL + (item if item < FULL else 0)) + 2 * line * FULL,
        backward=2 * line * FULL,
    )
    queries = joined_tokens(config)
    plain = block_stretch(config, step, count.attention + count.mlp, config.tokens)
    if config.head is not None:
        from vitrail.ops.cost.dense import guess_stretch, loss_stretch, read_stretch

        first = config.layers - joined_blocks(config)
        yield from [plain] * first
        if queries and config.head.task == "detect":
            yield guess_stretch(config, step)
        joined = block_stretch(config, step, count.attention + count.mlp, config.tokens + queries, masked=True)
        for _ in range(first, config.layers):
            yield read_stretch(config, step)
            yield joined
        yield read_stretch(config, step)
        if step.kind == "train":
            yield loss_stretch(config, step, count.head + norms_around(config))
        return
    yield from [plain] * (config.layers - 1)
    yield alone(config, step, plain) if step.class_token_alone else plain
    logits = step.batch * (config.classes or 0)
    directions = _directions(config)
    held = config.pooling == "max" or (config.pooling == "token" and item == FULL)  # the norm's output, all of it
    yield Stretch(
        weights=count.head + norms_around(config),
        cast=count.head - directions,
        copies=2 * FULL * directions,
        kept=line * FULL + rates + (line * FULL if held else 0) + logits * (item + 2 * FULL),
        forward=2 * line * FULL + logits * item,
        backward=2 * line * FULL + logits * FULL,
    )


def _directions(config: ModelConfig) -> int:
    """Count the weights of a classifier by cosines, which are brought to length one in single precision."""
    return 0 if config.cosine_scale is None else config.representation * (config.classes or 0)
