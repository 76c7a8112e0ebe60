"""What a model and a run would cost, from the configuration alone."""

from dataclasses import asdict, dataclass, replace

from vitrail.config import ModelConfig, ViTConfig, encode
from vitrail.ops.cost import counts
from vitrail.ops.cost.core_days import core_days, core_rate
from vitrail.ops.cost.counts import EXA, Memory, Parts, Step
from vitrail.ops.cost.place import Place, duration
from vitrail.ops.cost.ranks import Ranks


@dataclass(frozen=True, kw_only=True)
class CostPlan:
    """The counts of a model, of a step, and of a run."""

    name: str
    config: ModelConfig
    step: Step
    images: int | None = None  # of the data set
    epochs: float | None = None
    given_steps: int | None = None  # where the run's length is said so
    recipe: str | None = None
    networks: tuple[ModelConfig, ...] = ()  # what a step runs, where it is not the model alone
    place: Place | None = None
    ranks: Ranks | None = None
    bandwidth: float = 0.0  # GB/s that a rank sends
    budget: float | None = None  # FLOPs that the shape was proposed for

    @property
    def training_flops(self) -> int:
        """Operations of one image's training step."""
        return sum(map(counts.training_flops, self.networks or (self.config,)))

    @property
    def exaflops(self) -> float | None:
        """ExaFLOPs of the run by the convention of Table 6."""
        if self.seen is None:
            return None
        return sum(counts.exaflops(network, images=self.seen) for network in self.networks or (self.config,))

    @property
    def parameters(self) -> Parts:
        """Weights by part."""
        return counts.parameters(self.config)

    @property
    def macs(self) -> Parts:
        """Multiply-accumulates of one image's forward pass, by part."""
        return counts.forward_macs(self.config)

    @property
    def tokens(self) -> int | None:
        """Length of the sequence, where there is one."""
        return self.config.tokens if isinstance(self.config, ViTConfig) else None

    @property
    def pair_share(self) -> float:
        """The share of the forward pass that grows with the square of the sequence."""
        if not isinstance(self.config, ViTConfig):
            return 0.0
        dense = self.config.layers * 4 * self.config.tokens * self.config.width**2
        return (self.macs.attention - dense) / self.macs.backbone

    @property
    def training(self) -> Memory:
        """Peak memory of a training step."""
        return counts.peak_memory(self.config, replace(self.step, kind="train"))

    @property
    def inference(self) -> Memory:
        """Peak memory of a forward pass without gradients."""
        return counts.peak_memory(self.config, replace(self.step, kind="infer"))

    @property
    def kept(self) -> int:
        """Bytes of activations that a training step keeps for its backward pass."""
        return counts.activation_bytes(self.config, self.step)

    @property
    def seen(self) -> float | None:
        """Images that the run sees."""
        if self.given_steps is not None:
            return self.given_steps * self.step.batch
        return None if self.images is None or self.epochs is None else self.images * self.epochs

    @property
    def steps(self) -> int | None:
        """Updates of the run."""
        return None if self.seen is None else int(-(-self.seen // self.step.batch))

    def document(self) -> dict[str, object]:
        """Give the plan as plain values, for JSON."""
        run = None
        if self.exaflops is not None and self.seen is not None:
            run = {
                "recipe": self.recipe,
                "images": self.images,
                "epochs": self.epochs,
                "images_seen": self.seen,
                "steps": self.steps,
                "training_flops": self.training_flops * self.seen,
                "exaflops": self.exaflops,
                "tpuv3_core_days": core_days(self.config, self.exaflops),
                "tpuv3_core_flops": core_rate(self.config),
                "budget_flops": self.budget,
            }
        return {
            "model": self.name,
            "config": encode(self.config),
            "tokens": self.tokens,
            "parameters": asdict(self.parameters) | {"total": self.parameters.total},
            "forward_macs": asdict(self.macs) | {"total": self.macs.total},
            "forward_macs_without_padding": counts.forward_macs(self.config, padding=False).total,
            "training_flops_per_image": self.training_flops,
            "step": {name: value for name, value in asdict(self.step).items() if name != "kind"},
            "memory": {
                "activations_kept": self.kept,
                "training": asdict(self.training) | {"total": self.training.total},
                "inference": asdict(self.inference) | {"total": self.inference.total},
            },
            "run": run,
            "place": None if self.place is None else self.place.document(),
            "ranks": None if self.ranks is None else self._ranks_document(self.ranks),
        }

    def _ranks_document(self, ranks: Ranks) -> dict[str, object]:
        return {
            "world_size": ranks.world,
            "gradient_bytes": ranks.gradient_bytes,
            "bandwidth": self.bandwidth * 1e9,
            **{
                kind: {
                    "memory": memory,
                    "traffic": traffic,
                    "seconds": traffic / (self.bandwidth * 1e9),
                    "run_seconds": self._run_seconds(traffic),
                }
                for kind, memory, traffic in _kinds(ranks)
            },
        }

    def _run_seconds(self, traffic: float) -> float | None:
        """Give the seconds of a run whose ranks send after they have computed; None where its steps are not known."""
        place = self.place
        if place is None or place.seconds is None or place.steps is None:
            return None
        return place.seconds + place.steps * traffic / (self.bandwidth * 1e9)

    def lines(self) -> dict[tuple[str, str], str]:
        """Give the plan as words for people, by section and label; what a model does not have is empty."""
        config, train = self.config, self.training
        rows = {
            ("image", ""): f"{config.image_size[0]} x {config.image_size[1]}",
            ("tokens", ""): f"{self.tokens:,}" if self.tokens else "",
            ("parameters", ""): f"{self.parameters.total:,}",
            **{("parameters", part): f"{count:,}" if count else "" for part, count in asdict(self.parameters).items()},
            ("forward GMACs", ""): f"{self.macs.backbone / 1e9:,.2f}",
            **{("forward GMACs", part): _giga(count) for part, count in asdict(self.macs).items() if part != "head"},
            ("forward GMACs", "token against token"): f"{self.pair_share:.1%}" if self.pair_share else "",
            ("head GMACs", ""): f"{self.macs.head / 1e9:,.3f}",
            ("training GFLOPs", ""): f"{self.training_flops / 1e9:,.1f}",
            ("training step", ""): gibibytes(train.total),
            ("training step", "weights and moments"): gibibytes(train.weights + train.moments),
            ("training step", "gradients at the peak"): gibibytes(train.gradients),
            ("training step", "activations at the peak"): gibibytes(train.activations),
            ("training step", "images"): gibibytes(train.batch),
            ("inference", ""): gibibytes(self.inference.total),
        }
        if self.exaflops is not None and self.seen is not None:
            rows |= {
                ("run", ""): f"{self.seen:,.0f} images",
                ("run", "steps"): f"{self.steps:,}",
                ("run", "exaFLOPs"): _exa(self.training_flops * self.seen / EXA),
                ("run", "by Table 6"): _exa(self.exaflops),
                ("run", "TPUv3-core-days"): _exa(core_days(config, self.exaflops)),
                ("run", "TFLOP/s a core"): f"{core_rate(config) / 1e12:,.1f}",
            }
        if self.place is not None:
            rows |= {(self.place.name, label): text for label, text in self.place.lines().items()}
        if self.ranks is not None:
            rows["ranks", ""] = f"{self.ranks.world:,}"
            for kind, memory, traffic in _kinds(self.ranks):
                rows["ranks", f"{kind}, memory of each"] = gibibytes(memory)
                rows["ranks", f"{kind}, each sends a step"] = gibibytes(int(traffic))
                rows["ranks", f"{kind}, at {self.bandwidth:g} GB/s"] = duration(traffic / (self.bandwidth * 1e9))
                if (seconds := self._run_seconds(traffic)) is not None:
                    rows["ranks", f"{kind}, time of the run"] = duration(seconds)
        return rows


def _kinds(ranks: Ranks) -> tuple[tuple[str, int, float], ...]:
    """Name, memory and traffic of a rank."""
    return (
        ("DDP", ranks.ddp_memory(), ranks.ddp_traffic()),
        ("FSDP", ranks.fsdp_memory(), ranks.fsdp_traffic()),
    )


def gibibytes(size: int) -> str:
    """Write a number of bytes for people."""
    return f"{size / 2**30:,.2f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:,.1f} MiB"


def _exa(count: float) -> str:
    return f"{count:,.0f}" if count >= 10_000 else f"{count:,.4g}"


def _giga(count: int) -> str:
    return f"{count / 1e9:,.2f}" if count >= 5e6 else ""
