"""What the parts of a Vision Transformer add to its counts, and what its blocks hold in a step."""

from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from vitrail.config import PatchStem, ViTConfig, positions as kinds
from vitrail.config.dense import QueryHead
from vitrail.ops.attention_chunks import CHUNK
from vitrail.ops.cost.convolutions import FULL, Stretch
from vitrail.ops.positions import count_offsets

if TYPE_CHECKING:
    from vitrail.ops.cost.counts import Step

MASK = 1  # bytes of a dropped number's mask where samples have keys; torch's own dropout keeps a factor on the CPU


def expanded(config: ViTConfig) -> int:
    """Count the features that the first layer of an MLP writes."""
    return config.mlp_width * (2 if config.mlp == "gated" else 1)


def norms_of_block(config: ViTConfig) -> int:
    """Count the weights of a layer's norms and of its layer scale."""
    found = (4 if config.layer_scale is None else 6) * config.width
    found += 4 * config.head_width if config.qk_norm else 0
    found += 2 * config.mlp_width if config.inner_norm != "none" else 0
    return found + (2 * config.head_width * config.heads if config.inner_norm == "both" else 0)


def norms_around(config: ViTConfig) -> int:
    """Count the weights of the norms before and after the layers."""
    found = 2 * config.width * (config.first_norm + (config.last_norm != "none"))
    if isinstance(config.stem, PatchStem) and config.stem.norms:
        found += 2 * (config.stem.patch**2 * config.channels + config.width)
    return found


def readout(config: ViTConfig) -> dict[str, int]:
    """Count the weights between the tokens and the classifier, by what they are."""
    width, wide = config.width, config.mlp_width
    found: dict[str, int] = {}
    if config.pooling == "attention":
        mlp = 2 * width * wide + wide + width
        found["pooling"] = width + 4 * (width + 1) * width + 2 * width + mlp  # the query, four matrices, a norm, an MLP
    if config.pre_logits:
        found["hidden"] = (config.pooled + 1) * config.pre_logits
    if config.projection:
        found["projection"] = (config.pre_logits or config.pooled) * config.projection
    return found


def readout_macs(config: ViTConfig) -> int:
    """Count the multiply-accumulates between the tokens and the classifier."""
    width, (rows, cols) = config.width, config.grid
    found = config.pooled * config.pre_logits if config.pre_logits else 0
    found += (config.pre_logits or config.pooled) * config.projection if config.projection else 0
    if config.pooling == "attention":
        # Query and output of one token; keys and values of the patches, and what the query does with them; the MLP.
        found += 2 * width**2 + rows * cols * (2 * width**2 + 2 * width) + 2 * width * config.mlp_width
    return found


def position_parameters(config: ViTConfig) -> int:
    """Count what is learned of positions."""
    (rows, cols), width = config.grid, config.width
    match config.positions:
        case kinds.NoPositions() | kinds.SinusoidalPositions() | kinds.Sinusoidal2DPositions():
            return 0
        case kinds.LearnedPositions(at=at):
            table = config.tokens * width
        case kinds.RotaryPositions(table=how):
            return config.tokens * width if how else 0
        case kinds.Learned2DPositions(at=at):
            table = (rows + cols) * (width // 2) + config.leading * width
        case kinds.RelativePositions(at=at):
            table = (2 * config.tokens - 1) * width
        case kinds.BiasPositions(at=at, table=how):
            tables = config.layers if at == "layers" else 1
            return tables * count_offsets(config.grid, config.leading) * config.heads + (
                config.tokens * width if how else 0
            )
        case _:
            assert_never(config.positions)
    return table * (config.layers if at == "layers" else 1)


def relative_layers(config: ViTConfig) -> int:
    """Count the layers whose attention has relative keys."""
    if not isinstance(config.positions, kinds.RelativePositions):
        return 0
    return 1 if config.positions.at == "stem" else config.layers


def recomputes(config: ViTConfig, step: "Step") -> bool:
    """Whether what norms and activations write is made again in the backward pass (runtime/compiled.py)."""
    return step.compiled and isinstance(config.stem, PatchStem) and not config.checkpointing


def block_stretch(config: ViTConfig, step: "Step", weights: int, tokens: int, *, masked: bool = False) -> Stretch:
    """Say what a block of so many tokens holds; all blocks have so many weights beside their norms.

    `masked`: where the images of a batch each say what attends to what.
    """
    item, width, wide = step.item, config.width, config.mlp_width
    token = step.batch * tokens  # tokens of the batch
    line = token * width
    mask = MASK if config.dropout else 0
    seen = step.batch * tokens**2 * FULL if masked and step.kind == "train" else 0  # added to the logits of all heads
    rates = token * 2 * FULL  # a norm's mean and deviation
    logsumexp = token * config.heads * FULL
    again = recomputes(config, step)
    gated = config.mlp == "gated"
    inner = 1 if config.activation == "relu" else 2  # ReLU keeps its output alone, which the next layer keeps anyway
    inner += 2 if gated else 0  # both halves, and the activation of one, before their product
    inner += 1 if config.inner_norm != "none" else 0  # what the norm reads
    inner = 1 + gated if again else inner
    mixed = config.head_width * config.heads
    turned = isinstance(config.positions, kinds.RotaryPositions)
    # Relative keys form a matrix of logits, and so does dropout on the CPU; all of it, or chunks that are made again.
    pairs = step.batch * config.heads * tokens**2
    dropped = config.attention_dropout > 0 and step.device == "cpu"
    biases = config.heads * tokens**2 * item if isinstance(config.positions, kinds.BiasPositions) else 0
    learned = biases > 0 and step.kind == "train" and step.device == "cpu"  # where biases that learn form it too
    formed = isinstance(config.positions, kinds.RelativePositions) or dropped or learned
    matrix = min(pairs, CHUNK) * item if formed else 0
    whole = formed and pairs <= CHUNK
    # A CPU mixes values in single precision (ops/attention_kernels.py), beside which the mixed ones are kept in half.
    widens = item < FULL and step.device == "cpu" and step.kind == "train"
    widened = 4 * FULL + item if widens else 4 * item
    kept = (
        2 * line * FULL  # what the norms read
        + (0 if again else 2 * line * item)  # what they write
        + widened * token * mixed  # query, key and value; the mixed values
        + (2 * token * mixed * item if config.qk_norm and not again else 0)  # queries and keys before their norms
        + (2 * token * mixed * item if turned and not again else 0)  # and before they are turned
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
    return Stretch(
        weights=weights // config.layers + norms_of_block(config),
        cast=weights // config.layers,
        kept=kept + seen,
        forward=max(alive, heads) + biases,
        backward=max(
            line * (FULL + branch) + (1 + again) * token * wide * item,
            line * (FULL + 4 * item) - (inner * token * wide + line) * item + last,
        ),
        entry=line * FULL,
    )


def alone(config: ViTConfig, step: "Step", block: Stretch) -> Stretch:
    """Say what the last block holds where it gives the class token alone: keys and values of all."""
    token = step.batch * config.tokens
    line, mixed = token * config.width, config.head_width * config.heads
    written = 0 if recomputes(config, step) else step.item
    kept = line * (FULL + written) + 2 * token * mixed * step.item + token * 2 * FULL
    return replace(block, kept=kept, backward=line * (FULL + 4 * step.item))


def joined_blocks(config: ViTConfig) -> int:
    """Count the blocks that queries join."""
    return config.head.blocks if isinstance(config.head, QueryHead) else 0


def joined_tokens(config: ViTConfig) -> int:
    """Count the queries."""
    return config.head.queries if isinstance(config.head, QueryHead) else 0
