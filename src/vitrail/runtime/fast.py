"""A model made fast for what this machine has: called alike, its card kept, the plain model inside it."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.config.check import whole
from vitrail.config.engine import EIGHT, read_precision
from vitrail.errors import ConfigError
from vitrail.files import fingerprint_of
from vitrail.models import Model
from vitrail.models.base import check_images
from vitrail.runtime.optimized import FORMAT, OPTIMIZED, eight_bits, read_optimized
from vitrail.runtime.rebuilt import FastPath, Forward, Outputs
from vitrail.runtime.scales import Scales


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a model runs in, and why."""

    engine: str
    precision: str
    device: str
    why: str
    calibrated_on: int = 0  # images; 0: none are needed
    ratio: float | None = None  # how many times as fast as the plain model in float32; None: not measured
    batch_size: int | None = None  # at which that was measured

    def document(self) -> dict[str, Any]:
        """Give it as plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        fitted = f", calibrated on {self.calibrated_on:,} images" if self.calibrated_on else ""
        measured = "" if self.ratio is None else f"; {self.ratio:.2f} times the plain model at batch {self.batch_size}"
        return f"{self.precision} in {self.engine} on {self.device}{fitted}: {self.why}{measured}"


class _Once:
    """What is made when it is first asked for, once for all copies of a model and all threads."""

    def __init__(self, make: Callable[[], Forward]) -> None:
        self.make, self.made, self.lock = make, None, threading.Lock()

    def __call__(self) -> Forward:
        if self.made is None:
            with self.lock, torch.inference_mode(mode=False):
                self.made = self.made or self.make()
        return self.made

    def __deepcopy__(self, memo: object) -> "_Once":
        return self


class FastModel(Model):
    """A model whose passes are those of a faster path, made at the first one; the plain model stands inside it.

    Whatever looks inside asks the plain model, whose weights must stay as they are.
    """

    def __init__(self, plain: Model, make: Callable[[], Forward], choice: Choice, scales: Scales | None = None) -> None:
        super().__init__()
        self.model, self.choice, self.scales = plain, choice, scales or Scales()
        self.config, self.card, self.layers = plain.config, plain.card, plain.layers
        self.head, self.trained_on = plain.head, plain.trained_on
        self._run = _Once(make)
        self.eval()

    @property
    def plain(self) -> Model:
        """The model that it was made of."""
        return self.model

    @property
    def made_as(self) -> str:
        """Tell apart what is computed otherwise than by the plain model: engine, precision and scales."""
        held = [part.cpu().numpy() for found in (self.scales.read, self.scales.weight) for part in found.values()]
        return f"{self.choice.engine} {self.choice.precision} {fingerprint_of('scales', *held)}"

    def forward(self, images: Tensor) -> Tensor:
        """Logits; of a model without a classifier, its representation."""
        features, logits = self.outputs(images)
        return features if logits is None else logits

    def represent(self, images: Tensor) -> Tensor:
        """What the linear classifier reads."""
        return self.outputs(images)[0]

    def outputs(self, images: Tensor) -> Outputs:
        """Representation and logits, by the faster path, without gradients; in the precision of the images."""
        check_images(images, self.config.channels, next(self.model.parameters()), self.card.preprocessing)
        with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
            features, logits = self._run()(images)
            return features.to(images.dtype), None if logits is None else logits.to(images.dtype)

    def prepare(self) -> None:
        """Make the faster path now, rather than at the first pass."""
        self._run()

    def tokens(self, images: Tensor) -> Tensor:
        """Every token after the last layer, by the plain model."""
        return self.model.tokens(images)

    def maps_after(self, images: Tensor, wanted: list[int]) -> dict[int, Tensor]:
        """Features on their grid, by the plain model."""
        return self.model.maps_after(images, wanted)

    def attention_maps(
        self, images: Tensor, layers: int | Sequence[int] | None = None, queries: slice = slice(None)
    ) -> list[Tensor]:
        """Attention weights, by the plain model."""
        return self.model.attention_maps(images, layers, queries)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401
        """Give the weights of the plain model."""
        return self.model.state_dict(*args, **kwargs)

    def chosen(self, **said: Any) -> "FastModel":  # noqa: ANN401
        """Say more of why it runs so."""
        self.choice = replace(self.choice, **said)
        return self

    def own_files(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Give the tensors and documents of its folder; refused where the plain model's weights are all there is."""
        if self.choice.precision not in EIGHT:
            raise ConfigError(
                f"a fast model in {self.choice.precision} has the weights of its plain one: save that, vitrail.save("
                "model.plain, ...), and vitrail.optimize(path, precision=...) makes it fast again."
            )
        document = {"format": FORMAT, "precision": self.choice.precision, "calibrated_on": self.choice.calibrated_on}
        return eight_bits(self.model, self.choice.precision, self.scales), {OPTIMIZED: document}

    def extra_repr(self) -> str:
        """Say what it runs in."""
        return str(self.choice)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "FastModel":  # noqa: FBT001, FBT002
        raise ConfigError(
            "a fast model stays where and as it was made. Move or convert the plain one, and make that fast: "
            "vitrail.optimize(model.plain.to(...))."
        )


def make_fast(
    model: Model,
    *,
    precision: str = "auto",
    batch_size: int | None = None,
    images: Tensor | None = None,
    scales: Scales | None = None,
) -> FastModel:
    """Give the model made fast where it is, for batches of this size.

    float8 and int8 need images that it reads, to calibrate with, or scales that were found before. What this machine
    has not is refused with what it has.
    """
    path, model = path_for(model), model.plain
    left_open, precision = precision == "auto", check_precision(model, precision)
    if batch_size is not None:
        whole("batch_size", batch_size)
    if precision in EIGHT and scales is None:
        if images is None:
            raise ConfigError(f"{precision} needs images to calibrate with. Give calibrate=..., a folder of images.")
        scales = path.find_scales(model, images)
    choice = Choice(
        engine=path.engine(),
        precision=precision,
        device=str(next(model.parameters()).device),
        why=path.why(precision) if left_open else "as asked",
        calibrated_on=0 if images is None or precision not in EIGHT else len(images),
    )
    found = scales if precision in EIGHT and scales is not None else Scales()
    return FastModel(model, lambda: path.make(model, precision, batch_size, found), choice, found)


def check_precision(model: Model, precision: str) -> str:
    """Choose a precision where it is left open; refuse one that the machine or the model has not."""
    path, like, word = path_for(model), next(model.plain.parameters()), read_precision(precision, ("auto",))
    if like.dtype != torch.float32:
        raise ConfigError(f"a model is made fast of weights in float32; got {like.dtype}. Convert it: model.float().")
    return path.check(model.plain, word)


def path_for(model: Model) -> FastPath:
    """Find what makes models fast where this one is."""
    device = next(model.plain.parameters()).device
    match device.type:
        case "cuda":
            from vitrail.runtime.gpu import GPU

            return GPU
        case "cpu":
            from vitrail.runtime.cpu import CPU

            return CPU
        case _:
            raise ConfigError(
                f"a model is made fast on a CPU or an NVIDIA GPU; this one is on {device}. Move it: model.to(...)."
            )


def open_fast(path: Path, device: torch.device | str | None = None) -> FastModel:
    """Open a folder of a model in eight bits; what this machine has not is refused with what to do."""
    model, scales, said = read_optimized(path, device)
    try:
        fast = make_fast(model, precision=said["precision"], scales=scales)
    except ConfigError as error:
        raise ConfigError(
            f"{path} is of another machine: {error} Then optimize the checkpoint that it came from."
        ) from error
    return fast.chosen(calibrated_on=said["calibrated_on"], why="as it was saved")
