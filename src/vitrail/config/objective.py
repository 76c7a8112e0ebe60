"""What a model learns from images, their labels, a teacher or the images themselves; and which of its weights do."""

import re
from dataclasses import dataclass
from typing import Literal, assert_never

from vitrail.config.check import DEEPEST, Checked, needs, positive, several, share, text, whole
from vitrail.config.model import ModelConfig, PatchStem, ViTConfig
from vitrail.config.positions import PairPositions
from vitrail.errors import ConfigError

STEP = 64  # of a decoder's width, where it is not said
Target = Literal["mean-color", "small-colors", "pixels"]


@dataclass(frozen=True, kw_only=True)
class Labels(Checked, word="labels"):
    """The classes of the images."""


@dataclass(frozen=True, kw_only=True)
class MaskedPatches(Checked, word="masked-patch"):
    """What is under corrupted patches (Appendix B.1.2): their mean color, 4 x 4 colors, or all pixels."""

    target: Target = "mean-color"
    corrupted: float = needs(share, 0.5)  # share of the patches, exactly
    masked: float = needs(share, 0.8)  # of those: the learned mask in their place
    replaced: float = needs(share, 0.1)  # another patch's embedding; the rest is kept

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.corrupted:
            raise ConfigError("corrupted must be more than 0: nothing else is predicted.")
        if self.masked + self.replaced > 1:
            raise ConfigError(
                f"masked and replaced are shares of one whole; got {self.masked} and {self.replaced}. "
                "Set masked=0.8 and replaced=0.1."
            )


@dataclass(frozen=True, kw_only=True)
class MaskedAutoencoder(Checked, word="mae"):
    """The pixels of hidden patches, from the visible ones alone (He et al., 2022)."""

    masked: float = needs(share, 0.75)  # share of the patches, exactly
    normalized: bool = True  # each patch by the mean and deviation of its own pixels
    decoder_depth: int = needs(whole, 4, most=DEEPEST)  # the authors' 8 are no better once fine-tuned, and slower
    decoder_width: int | None = None  # None: two thirds of the encoder's in steps of 64, 512 at most
    decoder_head_width: int = 64  # as of an encoder; the authors' 32 make attention slower

    def __post_init__(self) -> None:
        super().__post_init__()
        width = STEP if self.decoder_width is None else self.decoder_width
        if width % self.decoder_head_width:
            raise ConfigError(
                f"decoder_head_width={self.decoder_head_width} does not divide the decoder's width, "
                f"a multiple of {width}. Set decoder_width to a multiple of it."
            )


@dataclass(frozen=True, kw_only=True)
class NextPixels(Checked, word="next-pixel"):
    """Every pixel's color from those before it, row by row (iGPT, Chen et al., 2020); the model is causal."""

    colors: int = needs(whole, 512, least=2, most=65_536)  # of a palette that is made from the training images


def count_of(share: float, patches: int) -> int:
    """Round a share of the patches to whole ones, a half up; shares are what they are written as."""
    from decimal import ROUND_HALF_UP, Decimal  # few runs need it, and it costs every start

    return int((Decimal(str(share)) * patches).to_integral_value(ROUND_HALF_UP))


Objective = Labels | MaskedPatches | MaskedAutoencoder | NextPixels


def check_suitable(config: ModelConfig, objective: Objective) -> None:
    """Refuse a model that cannot learn what is asked."""
    if isinstance(objective, Labels):
        return
    if not isinstance(config, ViTConfig):
        raise ConfigError(
            "patches and pixels are hidden from a Vision Transformer; a BiT has none. Take another model."
        )
    if config.pre_logits is not None:
        raise ConfigError(
            "the tanh layer before the head is of labels: nothing would train it. Set model.pre_logits=none, "
            "or take a checkpoint without it."
        )
    match objective:
        case MaskedPatches():
            if config.channels != 3 and objective.target != "pixels":
                raise ConfigError(
                    f"colours are of images with 3 channels; the model has {config.channels}. Set target=pixels."
                )
            _check_share(config, "corrupted", objective.corrupted, usual=0.5)
        case MaskedAutoencoder():
            _check_alone(config)
            _check_share(config, "masked", objective.masked, usual=0.75, leaves=1)
        case NextPixels():
            if config.stem != PatchStem(patch=1):
                raise ConfigError(
                    "next-pixel prediction needs a token for every pixel: patches of side 1, as of ViT-Ti/1. "
                    "Take such a model."
                )
            if not config.causal:
                raise ConfigError(
                    "next-pixel prediction needs a causal model. Take a name such as ViT-Ti/1, or a run of it."
                )
        case _:
            assert_never(objective)


def _check_share(config: ViTConfig, name: str, share: float, *, usual: float, leaves: int = 0) -> None:
    """Refuse a share of the patches that is none of them, or leaves fewer than it must; and a single patch."""
    rows, cols = config.grid
    if rows * cols < 2:
        raise ConfigError("an image is one patch, and nothing is left to predict it from. Give larger images.")
    allowed = range(1, rows * cols - leaves + 1)
    if (count := count_of(share, rows * cols)) not in allowed:
        cure = usual if count_of(usual, rows * cols) in allowed else 0.5
        raise ConfigError(
            f"{name}={share:g} of {rows} x {cols} patches is {count}; expected 1 to {allowed[-1]}. "
            f"Set {name}={cure:g}, or give larger images."
        )


def _check_alone(config: ViTConfig) -> None:
    """Refuse what cannot read some patches without the others."""
    if not isinstance(config.stem, PatchStem):
        raise ConfigError(
            "a masked autoencoder reads visible patches alone, and a hybrid's ResNet sees them all. "
            "Take a ViT, or objective=masked-patch."
        )
    if config.attention != "full" or isinstance(config.positions, PairPositions) or config.causal:
        raise ConfigError(
            "a masked autoencoder leaves patches out, so that rows, columns and offsets of tokens mean nothing; got "
            f"attention={config.attention}, positions={type(config.positions).__name__}, causal={config.causal}. "
            "Set model.attention=full, model.positions=sinusoidal-2d and model.causal=false."
        )


@dataclass(frozen=True, kw_only=True)
class Full(Checked, word="full"):
    """All weights."""


MATRICES = ("query", "key", "value", "out", "expand", "contract")  # of a block
GROUPS = {"all": MATRICES, "attention": MATRICES[:4], "mlp": MATRICES[4:], "qkv": MATRICES[:3]}


def _matrices(name: str, value: object) -> tuple[str, ...]:
    """Read matrices of a block by their names, or groups of them, into their own order."""
    words = (*MATRICES, *GROUPS)
    said = several(name, [value] if isinstance(value, str) else value, f"some of {', '.join(words)}", text)
    if unknown := [word for word in said if word not in words]:
        raise ConfigError(f"{name} must be some of {', '.join(words)}; got {unknown[0]!r}.")
    named = {matrix for word in said for matrix in GROUPS.get(word, (word,))}
    return tuple(matrix for matrix in MATRICES if matrix in named)


@dataclass(frozen=True, kw_only=True)
class LoRA(Checked, word="lora"):
    """A low-rank change of matrices in every block, W + alpha / rank * B A (Hu et al., 2022), and the classifier."""

    rank: int = needs(whole, 8, most=DEEPEST)
    alpha: float = needs(positive, 16.0)
    matrices: tuple[str, ...] = needs(_matrices, MATRICES)  # query, key, value, out, expand, contract; all


@dataclass(frozen=True, kw_only=True)
class HeadAlone(Checked, word="head"):
    """The classifier alone: a linear probe of features that stay as they are."""


@dataclass(frozen=True, kw_only=True)
class Norms(Checked, word="norms"):
    """The scales and shifts of every norm, and the classifier."""


@dataclass(frozen=True, kw_only=True)
class LastBlocks(Checked, word="last"):
    """The last blocks (of a BiT the last stages), all that comes after them, and the classifier."""

    blocks: int = needs(whole, 1, most=DEEPEST)


Adapt = Full | LoRA | HeadAlone | Norms | LastBlocks
LAST = re.compile(r"last[-_ ]?(\d+)")


def read_word(value: object) -> object:
    """Read last-3 as the last three blocks; anything else stays as it is."""
    found = LAST.fullmatch(value) if isinstance(value, str) else None
    return value if found is None else LastBlocks(blocks=int(found[1]))


def word_of(adapt: Adapt) -> str:
    """Write a way of adapting as people type it."""
    match adapt:
        case Full():
            return "full"
        case LoRA():
            return "lora"
        case HeadAlone():
            return "head"
        case Norms():
            return "norms"
        case LastBlocks(blocks=blocks):
            return f"last-{blocks}"


def check_adapt(config: ModelConfig, adapt: Adapt, *, fresh: bool) -> None:
    """Refuse a way of adapting that this model has no parts for, or that would leave weights as they were drawn."""
    if isinstance(adapt, Full):
        return
    if fresh:
        raise ConfigError(
            f"adapt={word_of(adapt)} keeps weights that were trained before, and a fresh model has none. "
            "Begin with a checkpoint, model=FILE; or set adapt=full."
        )
    if isinstance(adapt, LoRA) and not isinstance(config, ViTConfig):
        raise ConfigError(
            "adapt=lora changes the matrices of a Transformer's blocks, and a BiT has none. Set adapt=norms or last-1."
        )
    if isinstance(adapt, LoRA) and adapt.rank > config.width:
        raise ConfigError(
            f"rank={adapt.rank} is more than the model's width, {config.width}. Set rank=8, or adapt=full."
        )
    if isinstance(adapt, LastBlocks):
        count, what = (config.layers, "blocks") if isinstance(config, ViTConfig) else (len(config.units), "stages")
        if adapt.blocks > count:
            raise ConfigError(
                f"adapt=last-{adapt.blocks}: the model has {count} {what}. Set adapt=last-{max(count // 2, 1)}, "
                "or adapt=full for all of it."
            )


def _teacher(name: str, value: object) -> str:
    return text(name, value).strip()


@dataclass(frozen=True, kw_only=True)
class SoftDistillation(Checked, word="soft"):
    """The teacher's probabilities, of logits over a temperature (Hinton et al., 2015)."""

    teacher: str | None = needs(_teacher, None)  # a checkpoint
    temperature: float = needs(positive, 3.0)
    share: float = needs(share, 0.9)  # of the loss that is the teacher's; the labels have the rest
    token: bool = False  # a second token and classifier learn from the teacher alone


@dataclass(frozen=True, kw_only=True)
class HardDistillation(Checked, word="hard"):
    """The teacher's answer, as if it were a label."""

    teacher: str | None = needs(_teacher, None)
    share: float = needs(share, 0.5)
    token: bool = False


Distillation = SoftDistillation | HardDistillation
