"""What a block of a Vision Transformer holds in a step, from the configuration alone."""

from dataclasses import replace
from typing import TYPE_CHECKING

from vitrail.config import PatchStem, ViTConfig, positions as kinds
from vitrail.ops.attention_chunks import CHUNK
from vitrail.ops.cost.convolutions import FULL, Stretch
from vitrail.ops.cost.parts import expanded, norms_of_block

if TYPE_CHECKING:
    from vitrail.ops.cost.counts import Step

MASK = 1  # bytes of a dropped number's mask where samples have keys; torch's own dropout keeps a factor on the CPU


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
