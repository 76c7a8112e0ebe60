"""`vitrail.load` and the open checkpoint under it: from whatever holds weights to a model, adapted on the way."""

import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple
from weakref import finalize

import torch

from vitrail.checkpoint.adapt import Weights, adapt
from vitrail.checkpoint.cards import read_card
from vitrail.checkpoint.layouts.base import FileHints
from vitrail.checkpoint.reading import Recognized, compare, open_archive, read_weights, recognize
from vitrail.checkpoint.request import Request
from vitrail.checkpoint.run_folder import RUN_FILES, WEIGHTS, locate, read_run_card
from vitrail.config import Card, Grid, ModelConfig, Provenance
from vitrail.errors import CheckpointError
from vitrail.files import fingerprint_of, sha256_of, verify_sums
from vitrail.models import Model, find_device, skeleton

logger = logging.getLogger("vitrail")


def load(
    path: str | os.PathLike[str] | Model,
    *,
    image_size: int | tuple[int, int] | None = None,
    classes: int | None = None,
    patch: int | None = None,
    channels: int | None = None,
    grid: Grid | None = None,
    keep_pre_logits: bool = False,
    device: torch.device | str | None = None,
    **fields: object,
) -> Model:
    """Load a ViT, hybrid or BiT from a file or folder in any layout, an https:// address or hf:OWNER/NAME, to evaluate.

    A model in memory is copied, with the same changes.

    `image_size` resamples the positions; `classes` gives a new zero head and drops a pre-training layer unless
    `keep_pre_logits`; `patch` and `channels` resize the first layer; `grid` is the (rows, cols) of the file's position
    table; other fields are those of `CHANGEABLE`. `model.card` says what was recognised, inferred and left out.
    """
    changes: dict[str, Any] = {"image_size": image_size, "classes": classes, "patch": patch, "channels": channels}
    changes |= {"grid": grid, "keep_pre_logits": keep_pre_logits, **fields}
    if isinstance(path, Model):
        return ModelInMemory(path).model(device=device, **changes)
    request = Request.of(changes)
    with open_checkpoint(path) as checkpoint:
        return checkpoint.build(request, device)


def config_of(path: str | os.PathLike[str], **changes: object) -> ModelConfig:
    """Say what model a checkpoint is, or what `load` makes of it with these changes; without its weights."""
    request = Request.of(changes)
    with open_checkpoint(path) as checkpoint:
        return checkpoint.target(request)


def open_checkpoint(path: str | os.PathLike[str]) -> "Checkpoint":
    """Open a checkpoint once, for all that is wanted of it; `vitrail.load` is this and `.model(...)`.

    with open_checkpoint("vitrail-ti8") as checkpoint:
        checkpoint.config  # of the file, from its headers alone
        checkpoint.configure(classes=3)  # of what `model` makes with these changes, from the headers alone
        checkpoint.sha256  # of the weights file, which is hashed once; a run folder's sums are verified by it
        checkpoint.model(classes=3)  # the arguments and fields of `vitrail.load`
    """
    return Checkpoint(path)


class ModelParts(NamedTuple):
    """A model's configuration, its weights in our names, and what belongs to them."""

    config: ModelConfig
    weights: Weights
    card: Card
    came: Provenance  # what was opened, and what was done to it now


class Checkpoint:
    """An open checkpoint: opened once for headers and tensors, hashed at most once. `open_checkpoint` shows its use."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.location = locate(path)
        with self.named():
            self.archive = open_archive(self.location.weights)
        self.close = finalize(self, self.archive.close)

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def config(self) -> ModelConfig:
        """The model that the file holds."""
        return self.target(Request())

    def configure(self, **changes: object) -> ModelConfig:
        """Give the configuration of what `model` makes with these changes."""
        return self.target(Request.of(changes))

    def model(self, *, device: torch.device | str | None = None, **changes: object) -> Model:
        """Make the model with these changes: the arguments and fields of `vitrail.load`."""
        return self.build(Request.of(changes), device)

    @property
    def parameters(self) -> int:
        """How many numbers the file holds."""
        return sum(prod(entry.shape) for entry in self.archive.entries.values())

    @cached_property
    def sha256(self) -> str:
        """The checksum of the weights file; in a run folder, every file is verified with it."""
        run = self.location.run
        return sha256_of(self.location.weights) if run is None else verify_sums(run, known=RUN_FILES)[WEIGHTS]

    def target(self, request: Request) -> ModelConfig:
        """Give the configuration of what is requested."""
        with self.named():
            return request.target(self.recognize(request.hints).found.config)

    def build(self, request: Request, device: torch.device | str | None) -> Model:
        """Make the model that is requested, to evaluate."""
        target = find_device(device)
        config, weights, card, _ = self.read(request, torch.float32)
        model = assemble(config, weights).to(target).eval()
        model.card = card
        if card.provenance is not None:
            _log(card.provenance)
        return model

    def recognize(self, hints: FileHints) -> Recognized:
        """Find layout and model by the headers; `hints` say what the file leaves open."""
        layout, found = recognize(self.archive, hints, self.location.documents)
        return Recognized(location=self.location, archive=self.archive, layout=layout, found=found)

    def card(self, opened: Recognized) -> Card:
        """Read what belongs to the weights; a part that cannot be read is refused in a run folder of ours."""
        run = self.location.run
        return read_card(opened) if run is None else read_run_card(run, opened.found.config.classes)

    def read(
        self,
        request: Request,
        dtype: torch.dtype | None,
        check: Callable[[ModelConfig, Card], object] = lambda config, card: None,
    ) -> ModelParts:
        """Read the weights in this precision, or their own, and adapt them to what is requested.

        `check` sees the model that it will be, before any weight is read.
        """
        if not self.close.alive:
            raise CheckpointError(f"{self.location.weights} is closed: its weights can be read no more. Open it again.")
        with self.named():
            opened = self.recognize(request.hints)
            with self.verifying():
                old, new = opened.found.config, request.target(opened.found.config)
                card = self.card(opened)
                if request.classes is not None:  # those of the old head are no longer the model's
                    card = card.without_names()
                check(new, card)
                weights = read_weights(opened, dtype)
                weights, changes = adapt(weights, old, new, new_head=request.classes is not None)
        changes = (*changes, *request.settings(old, new))
        if old.channels != new.channels:
            card = replace(card, preprocessing=card.preprocessing.for_channels(new.channels))
        provenance = card.provenance or opened.provenance
        card = replace(card, provenance=replace(provenance, changes=(*provenance.changes, *changes)))
        came = replace(opened.provenance, inferred=provenance.inferred, changes=changes)
        return ModelParts(new, weights, replace(card, metrics={}) if changes else card, came)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Put the file's name before a refusal that lacks it."""
        try:
            yield
        except CheckpointError as error:
            if any(str(path) in str(error) for path in (self.location.weights, self.location.run) if path):
                raise
            raise CheckpointError(f"{self.location.weights}: {error}") from error

    @contextmanager
    def verifying(self) -> Iterator[None]:
        """Check a run folder's sums while its weights are read; a refusal of the sums comes before any other."""
        if self.location.run is None:
            yield
            return
        with ThreadPoolExecutor(1) as side:
            sums = side.submit(lambda: self.sha256)
            try:
                yield
            finally:
                sums.result()


class ModelInMemory:
    """A model as the checkpoint that it would be: what is made of it is a copy, and it stays as it is."""

    def __init__(self, model: Model) -> None:
        self.source, self.config = model, model.config

    def configure(self, **changes: object) -> ModelConfig:
        """Give the configuration of what `model` makes with these changes."""
        return Request.of(changes).target(self.config)

    def model(self, *, device: torch.device | str | None = None, **changes: object) -> Model:
        """Make a copy with these changes: the arguments and fields of `vitrail.load`."""
        request = Request.of(changes)
        config, card = request.target(self.config), self.source.card
        weights = {name: tensor.detach().cpu().float().clone() for name, tensor in self.source.state_dict().items()}
        weights, said = adapt(weights, self.config, config, new_head=request.classes is not None)
        copy = assemble(config, weights).to(find_device(device)).eval()
        preprocessing = card.preprocessing.for_channels(config.channels)
        card = replace(card if request.classes is None else card.without_names(), preprocessing=preprocessing)
        copy.card = replace(card, metrics={}) if said else card
        return copy

    @property
    def parameters(self) -> int:
        """How many numbers the model holds."""
        return sum(tensor.numel() for tensor in self.source.state_dict().values())

    @cached_property
    def sha256(self) -> str:
        """A digest of the weights."""
        held = {name: tensor.detach().cpu() for name, tensor in self.source.state_dict().items()}
        return fingerprint_of("\0".join(held), *(part.reshape(-1).view(torch.uint8).numpy() for part in held.values()))


def assemble(config: ModelConfig, weights: Weights) -> Model:
    """Make the model and give it exactly these weights."""
    model = skeleton(config)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if difference := compare(wanted, {name: tuple(tensor.shape) for name, tensor in weights.items()}):
        raise CheckpointError(f"the weights do not fit the model asked for: {difference}.")
    model.load_state_dict(weights, strict=True, assign=True)
    return model


def _log(provenance: Provenance) -> None:
    """Say what was recognised and inferred; what was left out more loudly."""
    logger.info("%s: %s, %s", provenance.source, provenance.layout, provenance.container)
    for note in (*provenance.inferred, *provenance.changes):
        logger.info("%s: %s", provenance.source, note)
    if left_out := provenance.left_out:
        some = ", ".join(left_out[:4]) + (", ..." if len(left_out) > 4 else "")
        logger.warning("%s: left out, since the model has no place for it: %s", provenance.source, some)
