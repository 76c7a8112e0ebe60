"""Parameters, multiply-accumulates and peak memory of a model, from its configuration alone.

For the memory of a training or inference step the network is a list of stretches. Each says what autograd keeps of it
for the backward pass, how much more is alive while it runs, forward and backward, and its weights. The peak is the most
that is held at any moment of the step.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Literal, assert_never

from vitrail.config import BiTConfig, HybridStem, ModelConfig, PatchStem, ViTConfig, positions as kinds
from vitrail.ops.attention_chunks import CHUNK
from vitrail.ops.cost.convolutions import FULL, Convolution, Stretch, bit_stretches, convolutions, hybrid_stretches
from vitrail.ops.cost.parts import (
    expanded,
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
MASK = 1  # bytes of a dropped number's mask where samples have keys; torch's own dropout keeps a factor on the CPU
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
        head=_classifier(config) + sum(readout(config).values()),
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
    offsets = relative_layers(config) * (2 * tokens - 1)
    mixed = config.head_width * config.heads
    return Parts(
        convolutions=convs,
        embedding=rows * cols * _patch_values(config) * width,
        attention=config.layers * 4 * tokens * width * mixed + (2 * reached + offsets) * tokens * mixed,
        mlp=config.layers * tokens * width * (expanded(config) + config.mlp_width),
        head=config.representation * (config.classes or 0) + readout_macs(config),
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
    width, wide = config.width, config.mlp_width
    token = step.batch * config.tokens  # tokens of the batch
    line = token * width
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
    rates = token * 2 * FULL  # a norm's mean and deviation
    logsumexp = token * config.heads * FULL
    # What norms and activations write is made again in the backward pass of a compiled step (runtime/compiled.py).
    recomputes = step.compiled and isinstance(config.stem, PatchStem) and not config.checkpointing
    gated = config.mlp == "gated"
    inner = 1 if config.activation == "relu" else 2  # ReLU keeps its output alone, which the next layer keeps anyway
    inner += 2 if gated else 0  # both halves, and the activation of one, before their product
    inner += 1 if config.inner_norm != "none" else 0  # what the norm reads
    inner = 1 + gated if recomputes else inner
    mixed = config.head_width * config.heads
    turned = isinstance(config.positions, kinds.RotaryPositions)
    # Relative keys form a matrix of logits, and so does dropout on the CPU; all of it, or chunks that are made again.
    pairs = step.batch * config.heads * config.tokens**2
    dropped = config.attention_dropout > 0 and step.device == "cpu"
    biases = config.heads * config.tokens**2 * item if isinstance(config.positions, kinds.BiasPositions) else 0
    learned = biases > 0 and step.kind == "train" and step.device == "cpu"  # where biases that learn form it too
    formed = isinstance(config.positions, kinds.RelativePositions) or dropped or learned
    matrix = min(pairs, CHUNK) * item if formed else 0
    whole = formed and pairs <= CHUNK
    # A CPU mixes values in single precision (ops/attention_kernels.py), beside which the mixed ones are kept in half.
    widens = item < FULL and step.device == "cpu" and step.kind == "train"
    widened = 4 * FULL + item if widens else 4 * item
    kept = (
        2 * line * FULL  # what the norms read
        + (0 if recomputes else 2 * line * item)  # what they write
        + widened * token * mixed  # query, key and value; the mixed values
        + (2 * token * mixed * item if config.qk_norm and not recomputes else 0)  # queries and keys before their norms
        + (2 * token * mixed * item if turned and not recomputes else 0)  # and before they are turned
        + (token * mixed * item if config.inner_norm == "both" else 0)
        + inner * token * wide * item
        + 2 * rates
        + logsumexp
        + mask * (2 * line + token * wide)
        + ((2 if dropped else 1) * matrix + (0 if learned else 3) * line * item if whole else 0)
        + (0 if config.layer_scale is None else 2 * line * item)  # branches before their factors
    )
    hidden = token * expanded(config) * item + token * wide * item
    alive = line * ((4 if config.norm == "pre" else 3) * FULL + item) + hidden
    spare = 4 if turned or config.qk_norm else 0  # queries and keys before and after
    heads = line * (3 * FULL + item) + (widened + spare * item) * token * mixed + 4 * (0 if dropped else matrix)
    branch = 0 if item == FULL else item
    # Of the matrix and its gradients; a GPU's kernel gives the gradient of biases for every image before it adds them.
    last = (2 if learned else 3) * matrix + (pairs * item if biases and step.device == "cuda" else 0)
    block = Stretch(
        weights=(count.attention + count.mlp) // config.layers + norms_of_block(config),
        cast=(count.attention + count.mlp) // config.layers,
        kept=kept,
        forward=max(alive, heads) + biases,
        backward=max(
            line * (FULL + branch) + (1 + recomputes) * token * wide * item,
            line * (FULL + 4 * item) - (inner * token * wide + line) * item + last,
        ),
        entry=line * FULL,
    )
    yield from [block] * (config.layers - 1)
    # Keys and values of all tokens, and what is read for them; the rest is of one token.
    alone = line * (FULL + (0 if recomputes else item)) + 2 * token * mixed * item + rates
    yield replace(block, kept=alone, backward=line * (FULL + 4 * item)) if step.class_token_alone else block
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
