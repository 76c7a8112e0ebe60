"""What a model and a run would cost, from the configuration alone."""

from dataclasses import asdict, dataclass, replace

from vitrail.config import ModelConfig, ViTConfig, encode
from vitrail.ops.cost import counts
from vitrail.ops.cost.counts import EXA, Memory, Parts, Step


@dataclass(frozen=True, kw_only=True)
class CostPlan:
    """The counts of a model, of a step, and of a run."""

    name: str
    config: ModelConfig
    step: Step
    images: int | None = None  # of the data set
    epochs: float | None = None

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
        return None if self.images is None or self.epochs is None else self.images * self.epochs

    def document(self) -> dict[str, object]:
        """Give the plan as plain values, for JSON."""
        run = None
        if self.seen is not None:
            run = {
                "images": self.images,
                "epochs": self.epochs,
                "images_seen": self.seen,
                "steps": int(-(-self.seen // self.step.batch)),
                "training_flops": counts.training_flops(self.config) * self.seen,
                "exaflops": counts.exaflops(self.config, images=self.seen),
            }
        return {
            "model": self.name,
            "config": encode(self.config),
            "tokens": self.tokens,
            "parameters": asdict(self.parameters) | {"total": self.parameters.total},
            "forward_macs": asdict(self.macs) | {"total": self.macs.total},
            "forward_macs_without_padding": counts.forward_macs(self.config, padding=False).total,
            "training_flops_per_image": counts.training_flops(self.config),
            "step": {name: value for name, value in asdict(self.step).items() if name != "kind"},
            "memory": {
                "activations_kept": self.kept,
                "training": asdict(self.training) | {"total": self.training.total},
                "inference": asdict(self.inference) | {"total": self.inference.total},
            },
            "run": run,
        }

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
            ("training GFLOPs", ""): f"{counts.training_flops(config) / 1e9:,.1f}",
            ("training step", ""): gibibytes(train.total),
            ("training step", "weights and moments"): gibibytes(train.weights + train.moments),
            ("training step", "gradients at the peak"): gibibytes(train.gradients),
            ("training step", "activations at the peak"): gibibytes(train.activations),
            ("training step", "images"): gibibytes(train.batch),
            ("inference", ""): gibibytes(self.inference.total),
        }
        if self.seen is not None:
            rows |= {
                ("run", ""): f"{self.seen:,.0f} images",
                ("run", "steps"): f"{-(-self.seen // self.step.batch):,.0f}",
                ("run", "exaFLOPs"): f"{counts.training_flops(config) * self.seen / EXA:,.4g}",
                ("run", "by Table 6"): f"{counts.exaflops(config, images=self.seen):,.4g}",
            }
        return rows


def gibibytes(size: int) -> str:
    """Write a number of bytes for people."""
    return f"{size / 2**30:,.2f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:,.1f} MiB"


def _giga(count: int) -> str:
    return f"{count / 1e9:,.2f}" if count >= 5e6 else ""
