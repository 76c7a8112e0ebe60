"""How a model is trained, and its learning rate at a step: checked, without torch. The rows are in `recipes`."""

from dataclasses import dataclass
from math import cos, pi
from typing import Literal, assert_never

from vitrail.config.check import (
    Checked,
    bounded,
    image_size,
    needs,
    not_negative,
    number,
    positive,
    rate,
    rising,
    several,
    whole,
    word_or_numbers,
)
from vitrail.config.dense import DenseTask
from vitrail.config.objective import Adapt, Distillation, Full, Labels, LoRA, Objective, word_of
from vitrail.config.task import Classify, Detect, ImageTask, Segment, check_task, task_word
from vitrail.errors import ConfigError

# How sizes change: antialiased (the default); as the authors' vision_transformer (bilinear, half-pixel centers, not
# antialiased); as big_vision (the same, and by area where it makes the shorter side smaller).
Resizing = Literal["antialias", "gvt", "bv"]
# What of an image is taken in training: an Inception crop, or all of it resized, whole or by its middle.
Crop = Literal["inception", "squash", "middle"]
Adjust = Literal["match_rms_adamw", "original"]  # of Muon: updates as large as AdamW's, or as Jordan et al. have them
Decay = Literal["kernels", "all"]  # what weight decay shrinks: matrices and filters, or every parameter
Curve = Literal["constant", "linear", "cosine", "staircase"]
Loss = Literal["softmax", "sigmoid", "squared", "huber"]
Precision = Literal["auto", "float32", "bfloat16"]
Compile = Literal["auto", "on", "off", "graphs"]  # graphs: compiled, and each pass launched at once
Parallel = Literal["ddp", "fsdp"]
Result = Literal["best", "last"]
Sampling = Literal["shuffled", "balanced"]  # every image once an epoch, or every class as often as any other
Weighting = Literal["balanced", "effective"]  # of classes: by 1 / images, or by their effective number (Cui et al.)
AugmentOn = Literal["auto", "workers", "device"]
MOST_STEPS = 10**12
LABELS = Labels()
ONE_CLASS = Classify()
ALL = Full()
OF_IMAGES = ("mixup", "cutmix", "randaugment", "random_erasing")  # what masks and boxes cannot follow
LEAST_LAYER_DECAY = 0.5  # under which lower layers hardly learn


@dataclass(frozen=True, kw_only=True)
class RandAugment(Checked, word="randaugment"):
    """Random operations one after the other (Cubuk et al., 2020), as AugReg states them: layers and magnitude."""

    layers: int = needs(whole, 2, most=16)
    magnitude: float = needs(bounded("from 0 to 30", lambda found: 0 <= found <= 30), 10.0)


@dataclass(frozen=True, kw_only=True)
class Augmentation(Checked, word="augmentation"):
    """Everything that is random about an image in training; the defaults are the paper's: Inception crop and flip."""

    crop: Crop = "inception"
    crop_area: tuple[float, float] = needs(rising, (0.05, 1.0), most=1.0)  # share of the image that a crop may take
    aspect: tuple[float, float] = needs(rising, (3 / 4, 4 / 3))
    resizing: Resizing = "antialias"
    flip: bool = True
    randaugment: RandAugment | None = None
    three_augment: bool = False  # grayscale, solarization or blur, one of them (Touvron et al., 2022)
    jitter: float = needs(not_negative, 0.0)  # strength of brightness, contrast, saturation
    random_erasing: float = needs(rate, 0.0)  # probability of a rectangle of noise (Zhong et al., 2020)
    mixup: float = needs(not_negative, 0.0)  # alpha of the Beta distribution; 0: none
    cutmix: float = needs(not_negative, 0.0)
    mix_block: int = needs(whole, 8, least=2)  # samples of the global order among which partners are found


@dataclass(frozen=True, kw_only=True)
class Adam(Checked, word="adam"):
    """Adam with decoupled weight decay: each step takes learning_rate x weight_decay of a weight (AdamW)."""

    learning_rate: float = needs(positive, 1e-3)
    betas: tuple[float, float] = needs(several, (0.9, 0.999), what="two numbers", each=rate, count=2)
    epsilon: float = needs(positive, 1e-8)
    weight_decay: float = needs(not_negative, 0.0)
    decay_on: Decay = "kernels"


@dataclass(frozen=True, kw_only=True)
class SGD(Checked, word="sgd"):
    """Stochastic gradient descent with momentum: the buffer is momentum x buffer + gradient.

    The gradient of a kernel has weight_decay x kernel added to it (BiT pre-trains with 1e-4).
    """

    learning_rate: float = needs(positive, 0.003)
    momentum: float = needs(rate, 0.9)
    weight_decay: float = needs(not_negative, 0.0)


@dataclass(frozen=True, kw_only=True)
class Muon(Adam, word="muon"):
    """Muon (Jordan et al., 2024) for the matrices inside the blocks; everything else has AdamW, with Adam's fields.

    A matrix's momentum is made orthogonal by some Newton-Schulz steps, and taken times the rate: times 0.2 sqrt(longer
    side) too with `match_rms_adamw` (Liu et al., 2025), so that rates of AdamW hold; times sqrt(rows / columns), where
    that is over 1, with `original`, whose rates are about 0.02.
    """

    weight_decay: float = needs(not_negative, 0.1)
    momentum: float = needs(rate, 0.95)
    nesterov: bool = True
    newton_schulz_steps: int = needs(whole, 5, most=99)
    adjust: Adjust = "match_rms_adamw"
    adam_share: float = needs(positive, 1.0)  # the rate of what is no such matrix, as a share of learning_rate


@dataclass(frozen=True, kw_only=True)
class Schedule(Checked, word="schedule"):
    """The learning rate over the steps: a linear warm-up from 0, times a curve from the base rate to the final one."""

    curve: Curve = "cosine"
    warmup_steps: int = needs(whole, 0, least=0)
    warmup_epochs: float | None = needs(not_negative, None)  # instead of warmup_steps
    final_learning_rate: float = needs(not_negative, 0.0)  # at the last step, of linear and cosine
    milestones: tuple[int, ...] = needs(several, (), what="rising steps", each=whole, empty=True)  # of a staircase
    drop: float = needs(positive, 0.1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ConfigError(f"milestones must be rising steps; got {self.milestones!r}.")
        if bool(self.milestones) != (self.curve == "staircase"):
            cure = "Set milestones=3000,6000, or whichever steps." if self.curve == "staircase" else "Leave them out."
            raise ConfigError(f"milestones belong to curve=staircase; got {self.milestones} with {self.curve}. {cure}")
        if self.warmup_epochs is not None and self.warmup_steps:
            raise ConfigError(
                f"warm-up is given twice: warmup_steps={self.warmup_steps} and warmup_epochs={self.warmup_epochs:g}. "
                "Set one of them; warmup_steps=0 leaves it to warmup_epochs."
            )


@dataclass(frozen=True, kw_only=True)
class EMA(Checked, word="ema"):
    """An exponential moving average of the weights (Polyak): ema = decay x ema + (1 - decay) x weights, every step."""

    decay: float = needs(rate, 0.9999)
    ramp: bool = False  # start at a decay of 0.1 and grow as (1 + step) / (10 + step), for runs of few steps


@dataclass(frozen=True, kw_only=True)
class Mimetic(Checked, word="mimetic"):
    """Attention that begins as trained attention looks (Trockman and Kolter, 2023).

    Of every head, query' key is nearest to a Z + b I; of every layer, value' output' is nearest to a Z - b I; Z is
    normal, of variance 1 / width. Made for sinusoidal-2d positions.
    """

    query_key: tuple[float, float] = needs(several, (0.7, 0.7), what="two numbers, a and b", each=not_negative, count=2)
    value_output: tuple[float, float] = needs(
        several, (0.4, 0.4), what="two numbers, a and b", each=not_negative, count=2
    )


def _layer_decay(name: str, value: object) -> float:
    """Refuse more than 1, and so little that lower layers do not learn."""
    if (found := positive(name, value)) > 1:
        raise ConfigError(f"layer_decay must be at most 1; got {found}.")
    if found < LEAST_LAYER_DECAY:
        raise ConfigError(
            f"layer_decay={found:g} makes each block learn at {found:g} of the next one's rate, so that the lower ones "
            f"stay as they are. Expected {LEAST_LAYER_DECAY:g} to 1 (0.75 is usual). For weight decay, set "
            f"weight_decay={found:g}."
        )
    return found


_steps = {"most": MOST_STEPS}


@dataclass(frozen=True, kw_only=True)
class Training(Checked, word="training"):
    """Everything that decides a run beside the model it begins with and the data."""

    recipe: str = "custom"
    optimizer: Adam | SGD | Muon = SGD()
    schedule: Schedule = Schedule()
    steps: int | None = needs(whole, None, **_steps)  # one of steps and epochs
    epochs: float | None = needs(positive, None)
    batch_size: int = needs(whole, 512, **_steps)  # of all ranks together, whatever fits into memory at once
    micro_batch: int | None = needs(whole, None, **_steps)  # images that go through at once; None: as many as fit
    image_size: tuple[int, int] | None = needs(image_size, None)  # None: the model's own
    clip_norm: float | None = needs(positive, None)  # the largest norm of all gradients together
    objective: Objective = LABELS
    task: ImageTask = ONE_CLASS  # what is asked of labelled images
    loss: Loss = "softmax"
    label_smoothing: float = needs(rate, 0.0)  # share of every target that is spread over all classes
    # What a class counts for in the loss; None: as much as any other.
    class_weights: tuple[float, ...] | Weighting | None = needs(
        word_or_numbers, None, words=("balanced", "effective"), what="a number for each class"
    )
    sampling: Sampling = "shuffled"
    logit_adjustment: float = needs(not_negative, 0.0)  # times the log of a class's share, in the loss (Menon et al.)
    focal: float = needs(not_negative, 0.0)  # power of the focal loss (Lin et al., 2017); 0: none
    distill: Distillation | None = None  # a teacher, beside the labels
    ema: EMA | None = None
    augmentation: Augmentation = Augmentation()
    dropout: float | None = needs(rate, None)  # None: the model's own
    stochastic_depth: float | None = needs(rate, None)
    initialization: Mimetic | None = None  # of a new model's attention; None: the authors', as everything else
    pre_logits: bool = False  # a tanh layer before the head, as the paper pre-trains
    head_bias: float = needs(number, 0.0)
    adapt: Adapt = ALL  # which weights of the checkpoint are trained
    layer_decay: float | None = needs(_layer_decay, None)  # each block's learning rate is this much of the next one's
    margin: float | None = needs(not_negative, None)  # radians by which an image must be nearer to its class (ArcFace)
    held_out: float = needs(rate, 0.0)  # share of the classes that are kept out of training whole, by their names
    validation_share: float = needs(rate, 0.1)  # of the training images, where the data has no val split
    patience: int | None = needs(whole, None, **_steps)  # evaluations without a better one; then the best is taken
    result: Result = "best"  # of the evaluations on val images, or the last weights; the last where there is none
    evaluate_every: int | None = needs(whole, None, **_steps)  # steps; None: ten times a run
    save_every: int | None = needs(whole, None, **_steps)
    probe_every: int | None = needs(whole, None, **_steps)  # None: as often as evaluations
    log_every: int = needs(whole, 10, **_steps)
    keep: int = needs(whole, 2, **_steps)  # newest checkpoints that stay, beside the best
    seed: int = needs(whole, 0, least=0)
    precision: Precision = "auto"  # bfloat16 where the device has it in hardware
    compile: Compile = "auto"  # on a GPU
    deterministic: bool = False  # a GPU gives the same bits again, and is slower
    parallel: Parallel = "ddp"
    augment_on: AugmentOn = "auto"  # where images are augmented, with the same result
    bad_image_limit: float = needs(rate, 0.01)  # share of images that may be unreadable

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.steps is None) == (self.epochs is None):
            raise ConfigError(f"give steps or epochs, one of them; got steps={self.steps}, epochs={self.epochs}.")
        self._check_margin()
        self._check_weights()
        self._check_objective()
        self._check_distill()
        object.__setattr__(self, "loss", check_task(self.task, vars(self)))
        self._check_dense()
        if isinstance(self.adapt, LoRA) and self.parallel == "fsdp":
            raise ConfigError("adapt=lora leaves little to share out. Set parallel=ddp.")
        if isinstance(self.optimizer, Muon) and self.parallel == "fsdp":
            raise ConfigError("optimizer=muon needs whole matrices, which fsdp shares out. Set parallel=ddp.")

    @property
    def corrections(self) -> list[str]:
        """What is asked for against uneven classes."""
        asked = {"class_weights": self.class_weights in ("balanced", "effective")}
        asked |= {"sampling": self.sampling == "balanced", "logit_adjustment": self.logit_adjustment > 0}
        return [f"{name}={getattr(self, name)}" for name, said in asked.items() if said]

    def _check_weights(self) -> None:
        if isinstance(self.class_weights, tuple) and not any(self.class_weights):
            raise ConfigError("class_weights are all 0: no image would count. Give one at least that is more.")

    def _check_objective(self) -> None:
        if isinstance(self.objective, Labels):
            return
        changing = [name for name in ("mixup", "cutmix", "random_erasing") if getattr(self.augmentation, name)]
        if changing:
            cure = " and ".join(f"{name}=0" for name in changing)
            raise ConfigError(
                f"images are to be predicted as they are, not changed by {' and '.join(changing)}. Set {cure}."
            )
        if not isinstance(self.adapt, Full):
            raise ConfigError(
                f"an objective without labels trains all weights; got adapt={word_of(self.adapt)}. Set adapt=full."
            )
        if not isinstance(self.task, Classify):
            raise ConfigError(
                f"task={task_word(self.task)} is of labels, and the objective learns without. Leave it out."
            )
        usual = {"margin": None, "held_out": 0.0, "label_smoothing": 0.0, "loss": "softmax", "head_bias": 0.0}
        usual |= {"class_weights": None, "sampling": "shuffled", "logit_adjustment": 0.0, "focal": 0.0}
        if said := [name for name, value in usual.items() if getattr(self, name) != value]:
            cure = " and ".join(f"{name}={'none' if usual[name] is None else usual[name]}" for name in said)
            raise ConfigError(f"only labels have {' and '.join(said)}, and the objective learns without. Set {cure}.")

    @property
    def dense_task(self) -> DenseTask | None:
        """What is learned of pixels or objects; None where it is of images."""
        return "segment" if isinstance(self.task, Segment) else "detect" if isinstance(self.task, Detect) else None

    def _check_dense(self) -> None:
        if self.dense_task is None:
            return
        moving = [name for name in OF_IMAGES if getattr(self.augmentation, name)]
        if moving:
            off = " and ".join(f"{name}={'none' if name == 'randaugment' else 0}" for name in moving)
            raise ConfigError(
                f"task={self.dense_task} moves masks and boxes with their images, by crops and flips alone; "
                f"got {' and '.join(moving)}. Set {off}."
            )
        usual = {"margin": None, "held_out": 0.0, "label_smoothing": 0.0, "loss": "softmax", "head_bias": 0.0}
        usual |= {"class_weights": None, "sampling": "shuffled", "logit_adjustment": 0.0, "focal": 0.0}
        if said := [name for name, value in usual.items() if getattr(self, name) != value]:
            cure = " and ".join(f"{name}={'none' if usual[name] is None else usual[name]}" for name in said)
            raise ConfigError(
                f"{' and '.join(said)}: of images with one class each, and task={self.dense_task} has none. Set {cure}."
            )

    def _check_distill(self) -> None:
        if self.distill is None:
            return
        if not self.distill.teacher:
            raise ConfigError("distill needs a teacher, a checkpoint that knows the classes. Set teacher=FILE.")
        if not isinstance(self.objective, Labels) or not isinstance(self.task, Classify):
            raise ConfigError("a teacher tells classes: distill goes with task=classify alone. Set distill=none.")
        if self.distill.token and self.margin is not None:
            raise ConfigError("margin is of one classifier, and a distillation token has its own. Set token=false.")

    def _check_margin(self) -> None:
        if self.margin is None:
            return
        if self.margin >= pi:
            raise ConfigError(f"margin is an angle in radians, under {pi:.2f}; got {self.margin}. Take margin=0.5.")
        if self.loss != "softmax":
            raise ConfigError(f"margin belongs to loss=softmax; got loss={self.loss}. Set loss=softmax.")
        if mixing := [name for name in ("mixup", "cutmix") if getattr(self.augmentation, name)]:
            cure = " and ".join(f"{name}=0" for name in mixing)
            raise ConfigError(f"margin needs images of one class each; {' and '.join(mixing)} mix them. Set {cure}.")


def rate_at(schedule: Schedule, base: float, step: float, steps: int) -> float:
    """Give the rate of the update that makes step `step` into step `step` + 1, of `steps`.

    A run that was planned anew is at a fraction of a step of its first plan.
    """
    warm = min(1.0, step / schedule.warmup_steps) if schedule.warmup_steps else 1.0
    progress = min(max((step - schedule.warmup_steps) / max(steps - schedule.warmup_steps, 1), 0.0), 1.0)
    final = schedule.final_learning_rate
    match schedule.curve:
        case "constant":
            return base * warm
        case "linear":
            return (final + (base - final) * (1 - progress)) * warm
        case "cosine":
            return (final + (base - final) * 0.5 * (1 + cos(pi * progress))) * warm
        case "staircase":
            return base * schedule.drop ** sum(milestone < step for milestone in schedule.milestones) * warm
        case _:
            assert_never(schedule.curve)


def decay_at(average: EMA, step: int) -> float:
    """Give how much of a running average stays at an update, the first of which is step 0."""
    return min(average.decay, (1 + step) / (10 + step)) if average.ramp else average.decay
