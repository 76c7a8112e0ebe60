"""How a model is trained: frozen dataclasses, checked once, without torch. The paper's rows are in `recipes`."""

from dataclasses import dataclass
from math import pi
from typing import Literal, get_args

from vitrail.config.augment import Augmentation
from vitrail.config.check import as_size, not_negative, number, one_of, positive, rate, truth, whole
from vitrail.config.objective import Labels, Objective
from vitrail.errors import ConfigError

Decay = Literal["kernels", "all"]  # what weight decay shrinks: matrices and filters, or every parameter
Curve = Literal["constant", "linear", "cosine", "staircase"]
Loss = Literal["softmax", "sigmoid"]
Precision = Literal["auto", "float32", "bfloat16"]
Compile = Literal["auto", "on", "off"]
Parallel = Literal["ddp", "fsdp"]
Augmenting = Literal["auto", "workers", "device"]
MOST_STEPS = 10**12
PAPER_AUGMENTATION = Augmentation()
LABELS = Labels()


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam with decoupled weight decay: each step takes rate x decay of a weight, so decay follows the schedule."""

    rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    decay: float = 0.0
    decay_on: Decay = "kernels"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", positive("rate", self.rate))
        if not isinstance(self.betas, tuple | list) or len(self.betas) != 2:
            raise ConfigError(f"betas must be two numbers; got {self.betas!r}.")
        object.__setattr__(self, "betas", tuple(rate("betas", beta) for beta in self.betas))
        object.__setattr__(self, "epsilon", positive("epsilon", self.epsilon))
        object.__setattr__(self, "decay", not_negative("decay", self.decay))
        one_of("decay_on", self.decay_on, get_args(Decay))


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Stochastic gradient descent with momentum: the buffer is momentum x buffer + gradient, the step rate x buffer."""

    rate: float = 0.003
    momentum: float = 0.9

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", positive("rate", self.rate))
        object.__setattr__(self, "momentum", rate("momentum", self.momentum))


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The learning rate over the steps: a linear warm-up from 0, times a curve from the base rate to `end`."""

    curve: Curve = "cosine"
    warmup: int = 0  # steps
    end: float = 0.0  # the rate at the last step, of linear and cosine
    milestones: tuple[int, ...] = ()  # steps after which a staircase drops
    drop: float = 0.1

    def __post_init__(self) -> None:
        one_of("curve", self.curve, get_args(Curve))
        object.__setattr__(self, "warmup", whole("warmup", self.warmup, least=0))
        object.__setattr__(self, "end", not_negative("end", self.end))
        if not isinstance(self.milestones, tuple | list) or list(self.milestones) != sorted(set(self.milestones)):
            raise ConfigError(f"milestones must be rising steps; got {self.milestones!r}.")
        object.__setattr__(self, "milestones", tuple(whole("milestones", item) for item in self.milestones))
        object.__setattr__(self, "drop", positive("drop", self.drop))
        if bool(self.milestones) != (self.curve == "staircase"):
            raise ConfigError(f"milestones belong to curve=staircase; got {self.milestones} with {self.curve}.")


@dataclass(frozen=True, kw_only=True)
class Average:
    """A running average of the weights (Polyak): average = decay x average + (1 - decay) x weights, every step."""

    decay: float = 0.9999
    ramp: bool = False  # start at a decay of 0.1 and grow as (1 + step) / (10 + step), for runs of few steps

    def __post_init__(self) -> None:
        object.__setattr__(self, "decay", rate("decay", self.decay))
        truth("ramp", self.ramp)


@dataclass(frozen=True, kw_only=True)
class Training:
    """Everything that decides a run beside the model it begins with and the data."""

    recipe: str = "custom"
    optimiser: Adam | SGD = SGD()
    schedule: Schedule = Schedule()
    steps: int | None = None  # one of steps and epochs
    epochs: float | None = None
    batch: int = 512  # of all ranks together, whatever fits into memory at once
    micro_batch: int | None = None  # images that go through at once; None: as many as fit
    image_size: tuple[int, int] | None = None  # None: the model's own
    clip: float | None = None  # the largest norm of all gradients together
    objective: Objective = LABELS
    loss: Loss = "softmax"
    smoothing: float = 0.0  # share of every target that is spread over all classes
    average: Average | None = None
    augmentation: Augmentation = PAPER_AUGMENTATION
    dropout: float | None = None  # None: the model's own
    stochastic_depth: float | None = None
    hidden: bool = False  # a tanh layer before the head, as the paper pre-trains
    head_bias: float = 0.0
    layer_decay: float | None = None  # each block's rate is this much of the next one's
    margin: float | None = None  # radians by which an image must be nearer to its class (ArcFace): 0.5; None: none
    held_out: float = 0.0  # share of the classes that are kept out of training whole, by their names
    dev: float = 0.1  # share of the training images to choose by where the data has no val split
    patience: int | None = None  # evaluations without a better one, after which the run ends and the best is taken
    evaluate_every: int | None = None  # steps; None: ten times a run
    save_every: int | None = None
    probe_every: int | None = None  # None: as often as evaluations
    log_every: int = 10
    keep: int = 2  # newest checkpoints that stay, beside the best
    seed: int = 0
    precision: Precision = "auto"  # bfloat16 where the device has it in hardware
    compile: Compile = "auto"  # on a GPU
    deterministic: bool = False  # a GPU gives the same bits again, and is slower
    parallel: Parallel = "ddp"
    augmenting: Augmenting = "auto"  # where images are augmented, with the same result
    limit: float = 0.01  # share of images that may be unreadable

    def __post_init__(self) -> None:
        self._check_parts()
        if (self.steps is None) == (self.epochs is None):
            raise ConfigError(f"give steps or epochs, one of them; got steps={self.steps}, epochs={self.epochs}.")
        chores = ("evaluate_every", "save_every", "probe_every", "log_every")
        for name in ("steps", "micro_batch", "patience", *chores, "batch", "keep"):
            if (value := getattr(self, name)) is not None:
                self._settle(name, whole(name, value, most=MOST_STEPS))
        for name in ("epochs", "clip", "layer_decay"):
            if (value := getattr(self, name)) is not None:
                self._settle(name, positive(name, value))
        for name in ("dropout", "stochastic_depth"):
            if (value := getattr(self, name)) is not None:
                self._settle(name, rate(name, value))
        for name in ("smoothing", "held_out", "dev", "limit"):
            self._settle(name, rate(name, getattr(self, name)))
        if self.image_size is not None:
            self._settle("image_size", as_size(self.image_size))
        self._settle("head_bias", number("head_bias", self.head_bias))
        self._settle("seed", whole("seed", self.seed, least=0))
        truth("hidden", self.hidden)
        truth("deterministic", self.deterministic)
        if self.layer_decay is not None and self.layer_decay > 1:
            raise ConfigError(f"layer_decay must be at most 1; got {self.layer_decay}.")
        words = {"loss": Loss, "precision": Precision, "compile": Compile, "parallel": Parallel}
        for name, choices in (*words.items(), ("augmenting", Augmenting)):
            one_of(name, getattr(self, name), get_args(choices))

        self._check_margin()
        self._check_objective()

    def _check_objective(self) -> None:
        if isinstance(self.objective, Labels):
            return
        changing = [name for name in ("mixup", "cutmix", "erasing") if getattr(self.augmentation, name)]
        if changing:
            cure = " and ".join(f"{name}=0" for name in changing)
            raise ConfigError(
                f"images are to be predicted as they are, not changed by {' and '.join(changing)}. Set {cure}."
            )
        usual = {"margin": None, "held_out": 0.0, "smoothing": 0.0, "loss": "softmax", "head_bias": 0.0}
        if said := [name for name, value in usual.items() if getattr(self, name) != value]:
            cure = " and ".join(f"{name}={'none' if usual[name] is None else usual[name]}" for name in said)
            raise ConfigError(f"{' and '.join(said)} are of classes, and the objective has none. Set {cure}.")

    def _check_margin(self) -> None:
        if self.margin is None:
            return
        self._settle("margin", not_negative("margin", self.margin))
        if self.margin >= pi:
            raise ConfigError(f"margin is an angle in radians, under {pi:.2f}; got {self.margin}. Take margin=0.5.")
        if self.loss != "softmax":
            raise ConfigError(f"margin belongs to loss=softmax; got loss={self.loss}. Set loss=softmax.")
        if mixing := [name for name in ("mixup", "cutmix") if getattr(self.augmentation, name)]:
            cure = " and ".join(f"{name}=0" for name in mixing)
            raise ConfigError(f"margin needs images of one class each; {' and '.join(mixing)} mix them. Set {cure}.")

    def _check_parts(self) -> None:
        kinds = {"optimiser": (Adam, SGD), "schedule": (Schedule,), "augmentation": (Augmentation,)}
        kinds |= {"objective": get_args(Objective)}
        for name, allowed in (*kinds.items(), ("average", (Average, type(None)))):
            if not isinstance(getattr(self, name), allowed):
                wanted = " or ".join(kind.__name__ for kind in allowed)
                raise ConfigError(f"{name} must be {wanted}; got {getattr(self, name)!r}.")
        if not isinstance(self.recipe, str):
            raise ConfigError(f"recipe must be a name; got {self.recipe!r}.")

    def _settle(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
