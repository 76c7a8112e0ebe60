"""Models that are served: opened, asked in batches, and replaced where their checkpoint changes."""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Num
from numpy.typing import NDArray
from torch import Tensor

from vitrail.checkpoint.run_folder import SUFFIXES, locate
from vitrail.config import ViTConfig
from vitrail.config.outputs import TASK_OF
from vitrail.data.decode import OpenImage
from vitrail.data.transforms.finish import scale
from vitrail.data.transforms.resize import evaluation_image
from vitrail.errors import CheckpointError, VitrailError
from vitrail.evaluation.cached import digest_of
from vitrail.inspection.page import picture_document
from vitrail.inspection.report import attention_document, in_words
from vitrail.inspection.study import Attention, look
from vitrail.inspection.views import sharper_size
from vitrail.models import Model, ViT
from vitrail.ops.metrics import bounded, first_classes, log_probabilities
from vitrail.ops.task_metrics import answers_of
from vitrail.runtime.dense import dense_task
from vitrail.runtime.engines import EXPORTED
from vitrail.runtime.inference import InferenceOptions, choose_model, computed_in
from vitrail.runtime.machine import one_thread
from vitrail.serve.metrics import Metrics
from vitrail.verbs.opening import open_model

log = logging.getLogger("vitrail.serve")
ROOM = 2_000_000  # bytes of attention maps in an answer
MANY = 1 << 30  # images that a server is expected to answer, where a faster path costs little to make
MOST_LOOKED_AT = 4  # images whose attention is followed at once
Signature = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, eq=False)
class Served:
    """A model as it was loaded; a request keeps to the one that it began with."""

    name: str
    source: str
    model: Model  # that is looked into
    passes: Model  # that images go through: the same, or it made fast
    version: str
    engine: str
    precision: str
    max_pixels: int = 50_000_000
    loaded: float = field(default_factory=time.time)

    @property
    def tokens(self) -> int:
        """How many tokens an image has."""
        config = self.model.config
        if isinstance(config, ViTConfig):
            return config.grid[0] * config.grid[1] + config.leading
        return max(config.image_size[0] * config.image_size[1] // 256, 1)  # a ResNet's work, in patches of 16 pixels

    @property
    def labels(self) -> Sequence[str]:
        """The names of the classes."""
        return self.model.card.class_names or [f"class {number}" for number in range(self.model.config.classes or 0)]

    @property
    def task(self) -> str:
        """What it says of images, as a word."""
        if (dense := dense_task(self.model)) is not None:
            return dense
        return "classify" if (outputs := self.model.card.outputs) is None else TASK_OF[type(outputs)]

    def open(self, data: bytes) -> OpenImage:
        """Read the header of an image; one that has too many pixels is refused before any is decoded."""
        return OpenImage(data, self.max_pixels)

    def decode(self, image: OpenImage) -> Num[Tensor, "C H W"]:
        """Decode and resize an image as evaluation does."""
        config = self.model.config
        return evaluation_image(image, config.image_size, self.model.card.preprocessing, None, config.channels)

    def scale(self, images: Sequence[Num[Tensor, "C H W"]]) -> Float[Tensor, "B C H W"]:
        """Make the model's input of decoded images."""
        weight = next(self.model.parameters())
        pixels = torch.stack(list(images)).to(weight.device, non_blocking=True)
        return scale(pixels, self.model.card.preprocessing).to(weight.dtype)

    def describe(self) -> dict[str, Any]:
        """Say what clients want to know of a model."""
        config = self.model.config
        return {
            "id": self.name,
            "object": "model",
            "created": int(self.loaded),
            "owned_by": "vitrail",
            "description": in_words(self.model),
            "classes": config.classes,
            "task": self.task,
            "image_size": list(config.image_size),
            "features": config.representation,
            "attention": isinstance(self.model, ViT) and dense_task(self.model) is None,
            "version": self.version,
            "engine": self.engine,
            "precision": self.precision,
        }


@dataclass(frozen=True)
class Answer:
    """What a model says of one image: classes, best first, with probabilities; and what the classifier reads."""

    order: NDArray[np.int64] | None
    probabilities: NDArray[np.float32] | None  # or numbers, of a model that answers with such
    features: NDArray[np.float32]


@dataclass(frozen=True)
class Represent:
    """Classify and embed, which are one pass."""

    served: Served
    most = 256

    @property
    def tokens(self) -> int:
        """Of an image."""
        return self.served.tokens

    def decode(self, data: bytes) -> Num[Tensor, "C H W"]:
        """Decode an image."""
        return self.served.decode(self.served.open(data))

    def compute(self, images: Sequence[Num[Tensor, "C H W"]]) -> list[Answer]:
        """Ask the model once for all."""
        model, batch = self.served.passes, self.served.scale(images)
        half = self.served.precision == "bfloat16"
        with torch.autocast(batch.device.type, torch.bfloat16, enabled=half):
            features, logits = model.outputs(batch)
        rows = features.float().cpu().numpy()
        if logits is None:
            return [Answer(None, None, row) for row in rows]
        logits = logits.float().cpu()
        order = first_classes(bounded(logits), logits.shape[1]).numpy()
        if (outputs := model.card.outputs) is None:
            shares = log_probabilities(logits, model.card.temperature).exp().numpy()
        else:
            shares = answers_of(outputs, logits).numpy()
        return [Answer(*row) for row in zip(order, shares, rows, strict=True)]


@dataclass(frozen=True)
class Looked:
    """What was seen of the attention to one image, and the picture to lay it over."""

    attention: Attention
    picture: Num[Tensor, "C h w"]

    def document(self) -> dict[str, Any]:
        """Give it as the inspector's page reads it."""
        return {**attention_document(self.attention, 0), "picture": picture_document(self.picture)}


@dataclass(frozen=True)
class Look:
    """Follow attention through all layers."""

    served: Served
    most = MOST_LOOKED_AT

    @property
    def tokens(self) -> int:
        """Of an image: twice, since the weights are computed beside the answer."""
        return 2 * self.served.tokens

    def decode(self, data: bytes) -> tuple[Tensor, Tensor]:
        """Decode an image for the model, and the same part of it to be shown."""
        image, model = self.served.open(data), self.served.model
        pixels = self.served.decode(image)
        larger = sharper_size(image, model.config.image_size, model.card.preprocessing)
        if larger is None:
            return pixels, pixels
        again = self.served.open(data)
        return pixels, evaluation_image(again, larger, model.card.preprocessing, None, model.config.channels)

    def compute(self, images: Sequence[tuple[Tensor, Tensor]]) -> list[Looked]:
        """Look at one image after the other."""
        model = self.served.model
        assert isinstance(model, ViT), "a ResNet has no attention"
        return [Looked(look(model, self.served.scale([pixels]), ROOM)[0], picture) for pixels, picture in images]


class Shelf:
    """The models of a server by name; each is replaced where its checkpoint has changed and can be read."""

    def __init__(
        self,
        checkpoints: Mapping[str, str | Model],
        metrics: Metrics,
        *,
        device: torch.device,
        passes: InferenceOptions,
        max_pixels: int = 50_000_000,
        said: Mapping[str, Any] | None = None,
    ) -> None:
        self.checkpoints, self.metrics, self.device = dict(checkpoints), metrics, device
        self._passes, self._max_pixels, self._said = passes, max_pixels, dict(said or {})
        self._image_size = self._said.pop("image_size", None)
        self.models: dict[str, Served] = {}
        self.errors: dict[str, str] = {}  # why a newer checkpoint was refused
        self._signatures: dict[str, Signature] = {}
        self._seen: dict[str, Signature] = {}
        self._looking = threading.Lock()

    def load(self) -> None:
        """Open all models; the first that cannot be is an error."""
        for name in self.checkpoints:
            self._signatures[name] = self._seen[name] = self._signature(name)
            with one_thread():  # a pool of threads that was started here would slow down those of the engine
                self.models[name] = self._open(name)

    def find(self, name: str | None) -> Served | None:
        """Give a model by its name, or the first one where none is asked for."""
        return next(iter(self.models.values())) if name is None else self.models.get(name)

    def look(self, replaced: Callable[[Served], None] = lambda old: None) -> None:
        """Take up checkpoints that have changed, and not since the last look: files may still be written to."""
        with self._looking:
            for name in self.checkpoints:
                signature = self._signature(name)
                settled, self._seen[name] = signature == self._seen[name], signature
                if not settled or signature == self._signatures[name]:
                    continue
                self._signatures[name] = signature
                try:
                    with one_thread():
                        fresh = self._open(name)
                except Exception as error:  # whatever is wrong with it, the old one goes on
                    reason = str(error) if isinstance(error, VitrailError) else f"{type(error).__name__}: {error}"
                    self.errors[name] = reason
                    self.metrics.reloads.labels(name, "refused").inc()
                    log.error("%s: the new checkpoint is refused, the old one goes on: %s", name, reason)
                    continue
                old, self.models[name] = self.models[name], fresh
                self.errors.pop(name, None)
                self.metrics.reloads.labels(name, "taken").inc()
                log.info("%s: a new checkpoint is served, version %s", name, fresh.version)
                replaced(old)

    def _open(self, name: str) -> Served:
        source = self.checkpoints[name]
        device = None if isinstance(source, Model) else self.device
        opened = open_model(source, self._image_size, device, self._said).eval().requires_grad_(requires_grad=False)
        model = opened.plain
        endless = MANY if next(model.parameters()).device.type == "cpu" else 0
        passes = opened if dense_task(model) else choose_model(opened, endless, self._passes)
        computed = computed_in(passes, self._passes)
        served = Served(
            name=name,
            source="" if isinstance(source, Model) else source,
            model=model,
            passes=passes,
            version=digest_of(model)[:16],
            engine=computed["engine"],
            precision=computed["precision"],
            max_pixels=self._max_pixels,
        )
        _try_out(served)
        return served

    def _signature(self, name: str) -> Signature:
        """Describe the files of a checkpoint, so that a change is seen; nothing where it has none on this machine."""
        source = self.checkpoints[name]
        if isinstance(source, Model) or "://" in source or source.startswith("hf:"):
            return ()
        try:
            weights = locate(source).weights
            beside = [weights, *weights.parent.glob("*.json")] if Path(source).expanduser().is_dir() else [weights]
            paths = [path for path in beside if path.suffix in (*SUFFIXES, *EXPORTED, ".json")]
            found = [(path, path.stat()) for path in sorted(paths)]
        except (OSError, VitrailError):
            return (("gone", 0, 0, 0),)
        return tuple((os.fspath(path), seen.st_ino, seen.st_size, seen.st_mtime_ns) for path, seen in found)


def _try_out(served: Served) -> None:
    """Ask a model once, so that the first request does not wait for what is done once, and refuse one that diverged."""
    height, width = served.model.config.image_size
    gray = torch.full((served.model.config.channels, height, width), 127, dtype=torch.uint8)
    with torch.inference_mode():
        (answer,) = Represent(served).compute([gray])
    if not np.isfinite(answer.features).all():
        raise CheckpointError(f"{served.name} answers with numbers that are not finite. Take another checkpoint.")
