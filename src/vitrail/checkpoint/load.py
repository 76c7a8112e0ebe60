"""`vitrail.load` and the open checkpoint under it: weights recognised by their names, read strictly, and adapted."""

import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple
from weakref import finalize

import torch

from vitrail.checkpoint.adapt import ModelInMemory, Request, Weights, adapt, assemble, compare
from vitrail.checkpoint.archives.base import Archive, Headers, open_archive, refusing
from vitrail.checkpoint.archives.foreign import ALTERED, MODELS, name_model
from vitrail.checkpoint.cards import find_normalization, normalized, read_card
from vitrail.checkpoint.layouts import google, hf, lucidrains, openclip, timm, torch_encoder, torchvision
from vitrail.checkpoint.layouts.base import Found, Layout, Row
from vitrail.checkpoint.layouts.named import layout_of
from vitrail.checkpoint.rows import read_weights
from vitrail.checkpoint.run_folder import (
    ADAPTER,
    OPTIMIZED,
    OWN,
    RUN_FILES,
    WEIGHTS,
    Location,
    locate,
    read_run_card,
)
from vitrail.config import Card, Grid, ModelConfig, Provenance
from vitrail.config.name_tables import UNCHECKED
from vitrail.errors import CheckpointError, ConfigError, ShapeError, one_line
from vitrail.files import verify_sums
from vitrail.models import Model, find_device

logger = logging.getLogger("vitrail")
OTHERS = (google, timm, hf, torchvision, openclip, lucidrains, torch_encoder)
LAYOUTS = {layout.name: layout for layout in (OWN, *(each.LAYOUT for each in OTHERS))}


def of_run(model: Any) -> Any:  # noqa: ANN401
    """Take the model of a `vitrail.Run` that is in memory alone; one on disk is the path of its folder."""
    return getattr(model, "held", None) or model


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
    base: str | os.PathLike[str] | Model | None = None,
    **fields: object,
) -> Model:
    """Load a ViT, hybrid or BiT from a file or folder in any layout, an https:// address or hf:OWNER/NAME, to evaluate.

    A model in memory is copied, with the same changes.

    `image_size` resamples the positions; `classes` gives a new zero head and drops a pre-training layer unless
    `keep_pre_logits`; `patch` and `channels` resize the first layer; `grid` is the (rows, cols) of the file's position
    table; `names` a table that `vitrail.describe` proposed; other fields are those of `CHANGEABLE`. What a file does
    not say of its images is assumed, and said, unless you give it: `preprocessing="imagenet"` (a name, a Preprocessing
    or its fields), `mean`, `deviation`, `resize`, `crop_share`, `interpolation`. `model.card` says what was done.
    `base` is where the base of a file of LoRA is (lora.safetensors of a run), if not where that says.
    """
    changes: dict[str, Any] = {"image_size": image_size, "classes": classes, "patch": patch, "channels": channels}
    changes |= {"grid": grid, "keep_pre_logits": keep_pre_logits, **fields}
    path = of_run(path)
    if isinstance(path, Model):
        if changes.pop("names", None) is not None:
            raise ConfigError("the model is in memory, and its parameters have our names. Leave names out.")
        return ModelInMemory(path).model(device=device, **changes)
    request = Request.of(changes)
    with open_checkpoint(path, of_run(base)) as checkpoint:
        return checkpoint.build(request, device)


class ModelParts(NamedTuple):
    """A model's configuration, its weights in our names, and what belongs to them."""

    config: ModelConfig
    weights: Weights
    card: Card
    came: Provenance  # what was opened, and what was done to it now


@dataclass(frozen=True, kw_only=True)
class Recognized:
    """An open file whose layout and model are known."""

    location: Location
    archive: Archive
    layout: Layout
    found: Found
    before: tuple[str, str] | tuple[()] = ()  # a layer's mean and deviation, in front of the model

    def check(self) -> list[Row]:
        """Give the layout's rows of this model, of which the file must have every tensor and no other."""
        if self.location.run is not None and (self.location.run / OPTIMIZED).is_file():
            raise CheckpointError(
                f"{self.location.run} holds a model in eight bits, which vitrail.optimize made. Open it with "
                "vitrail.optimize(path), or give the path to predict, embed, evaluate, fewshot or serve."
            )
        rows = list(self.layout.rows(self.found.config, self.found.dialect))
        shapes = [(row.theirs, (row.shape, *(row.others or len(row.theirs) * (row.shape,)))) for row in rows]
        wanted = {name: shape for names, each in shapes for name, shape in zip(names, each, strict=False)}
        ignored = {*self.found.left_out, *self.before}
        given = {name: entry.shape for name, entry in self.archive.entries.items() if name not in ignored}
        if difference := compare(wanted, given):
            if what := name_model((*given, *self.archive.strangers), ALTERED):
                raise CheckpointError(f"the file is {what}.")
            raise CheckpointError(f"the file does not fit its own architecture: {difference}.")
        for name in wanted:
            if isinstance(self.archive.entries[name].dtype, str):
                raise CheckpointError(
                    f"expected floating-point weights; {name!r} is {self.archive.entries[name].dtype}."
                )
        return rows

    @property
    def provenance(self) -> Provenance:
        """Where the weights come from, and what was inferred and left out."""
        return Provenance(
            source=self.location.source,
            layout=self.layout.name,
            container=self.archive.kind,
            dialect=self.found.dialect,
            inferred=self.found.inferred,
            left_out=(*self.found.left_out, *self.archive.strangers),
        )

    def card(self) -> Card:
        """Read what belongs to the weights; a part that cannot be read is refused in a run folder of ours."""
        config, location = self.found.config, self.location
        if location.run is not None:
            return read_run_card(location.run, config.classes).for_channels(config.channels)
        documents = {**location.documents, "notes": self.archive.notes}
        card, came = read_card(self.layout.name, config, documents, self.provenance), self.provenance
        if self.before:
            unused = replace(came, left_out=(*self.before, *came.left_out), assumed=card.assumed)
            card = normalized(card, self.before, self.archive.read) or replace(card, provenance=unused)
        return card.for_channels(config.channels)


def recognize(location: Location, archive: Archive, hints: Request) -> Recognized:
    """Find layout and model by the headers and the documents beside them; `hints` say what these leave open."""
    before = (location.run is None and find_normalization(archive.entries)) or ()
    entries = {name: entry for name, entry in archive.entries.items() if name not in before}
    documents = {**location.documents, "notes": archive.notes}
    names = (*entries, *archive.strangers)
    for layout in LAYOUTS.values() if hints.names is None else (layout_of(hints.names),):
        prefix = layout.recognize(entries)
        if prefix is None:
            continue
        try:
            found = layout.infer(Headers(entries, prefix), hints, documents)
        except (ConfigError, ShapeError) as error:
            raise CheckpointError(f"the file's shapes make no model: {error}") from error
        except CheckpointError as error:
            if what := name_model(names, ALTERED):
                raise CheckpointError(f"the file is {what}.") from error
            raise
        return Recognized(location=location, archive=archive, layout=layout, found=found, before=before)
    some, titles = ", ".join(sorted(entries)[:4]), ", ".join(layout.title for layout in LAYOUTS.values())
    what = f" It looks like {what}." if (what := name_model(names, ALTERED | MODELS)) else ""
    raise CheckpointError(
        f"the file is no ViT, hybrid or BiT in any layout that is known: {titles}; got {len(entries)} tensors such "
        f"as {some}.{what}"
    )


class Checkpoint:
    """A checkpoint, opened once for all that is wanted of it and hashed at most once; `load` is this and `.model(...)`.

    with open_checkpoint("vitrail-ti8") as checkpoint:
        checkpoint.config  # of the file, from its headers alone
        checkpoint.configure(classes=3)  # of what `model` makes with these changes, from the headers alone
        checkpoint.sha256  # of the weights file; a run folder's sums are verified by it
        checkpoint.model(classes=3)  # the arguments and fields of `vitrail.load`
    """

    def __init__(self, path: str | os.PathLike[str], base: str | os.PathLike[str] | Model | None = None) -> None:
        self.location = locate(path)
        self.merged = ADAPTER in self.location.documents  # an adapter of peft's, with its base
        with self.named(), ExitStack() as opened:
            self.archive = opened.enter_context(open_archive(self.location.weights))
            if self.merged:
                from vitrail.checkpoint.lora import merge_adapter  # few files need it

                self.location, self.archive = merge_adapter(self.location, self.archive, base)
            opened.pop_all()  # the checkpoint closes it
        self.close = finalize(self, self.archive.close)

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def config(self) -> ModelConfig:
        """The model that the file holds."""
        return self.configure()

    def configure(self, **changes: object) -> ModelConfig:
        """Give the configuration of what `model` makes with these changes."""
        request = Request.of(changes)
        with self.named():
            return request.target(recognize(self.location, self.archive, request).found.config)

    def card(self, **hints: object) -> Card:
        """Give what belongs to the weights, of which none is read; `hints` say what the file leaves open."""
        with self.named():
            return recognize(self.location, self.archive, Request.of(hints)).card()

    def model(self, *, device: torch.device | str | None = None, **changes: object) -> Model:
        """Make the model with these changes: the arguments and fields of `vitrail.load`."""
        return self.build(Request.of(changes), device)

    @property
    def parameters(self) -> int:
        """How many numbers the file holds."""
        return sum(prod(entry.shape) for entry in self.archive.entries.values())

    @cached_property
    def sha256(self) -> str:
        """The checksum of the weights as they are open; in a run folder, every file is verified with it."""
        self._check_open()
        found = self.archive.sha256()
        if self.location.run is not None:
            verify_sums(self.location.run, known=RUN_FILES, hashed={WEIGHTS: found})
        return found

    def build(self, request: Request, device: torch.device | str | None) -> Model:
        """Make the model that is requested, to evaluate."""
        target = find_device(device)
        config, weights, card, _ = self.read(request, torch.float32)
        model = assemble(config, weights).to(target).eval()
        model.card = card
        if card.provenance is not None:
            _log(card.provenance, card.assumption(config.image_size))
        return model

    def read(
        self,
        request: Request,
        dtype: torch.dtype | None,
        check: Callable[[ModelConfig, Card], object] = lambda config, card: None,
    ) -> ModelParts:
        """Read the weights in this precision, or their own, and adapt them to what is requested.

        `check` sees the model that it will be, before any weight is read.
        """
        self._check_open()
        with self.named():
            opened = recognize(self.location, self.archive, request)
            with self.verifying():
                old, new = opened.found.config, request.target(opened.found.config)
                card = opened.card()
                provenance = card.provenance or opened.provenance
                card = replace(card, provenance=provenance)
                if request.classes is not None:  # those of the old head are no longer the model's
                    card = card.without_names()
                card = card.for_channels(new.channels).prepared(request.preprocessing, new.channels)
                check(new, card)
                weights = read_weights(opened.check(), opened.archive, dtype)
                weights, changes = adapt(weights, old, new, new_head=request.classes is not None)
        changes = (*changes, *request.settings(old, new))
        assert card.provenance is not None
        every = (*card.provenance.changes, *changes)
        done, before = every[len(provenance.changes) :], provenance.inferred
        card = replace(card, provenance=replace(card.provenance, changes=every))
        came = replace(opened.provenance, inferred=before, changes=done, assumed=card.assumed)
        return ModelParts(new, weights, replace(card, metrics={}) if changes else card, came)

    def _check_open(self) -> None:
        if not self.close.alive:
            raise CheckpointError(f"{self.location.weights} is closed: its weights can be read no more. Open it again.")

    @contextmanager
    def named(self) -> Iterator[None]:
        """Put the file's name before a refusal that lacks it."""
        try:
            with refusing(self.location.weights):
                yield
        except CheckpointError as error:
            known = (self.location.weights, self.location.run)
            if any(one_line(str(path)) in str(error) for path in known if path):
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


LORA = "vitrail_lora"  # the note of a file that holds changes of a base alone


def open_checkpoint(path: str | os.PathLike[str], base: str | os.PathLike[str] | Model | None = None) -> Checkpoint:
    """Open a checkpoint; of a file of LoRA with its base, the one that it names or another path to it."""
    found = Checkpoint(path, base)
    if LORA in found.archive.notes:
        from vitrail.checkpoint.lora_files import LoRACheckpoint  # few files need it

        return LoRACheckpoint(found, base)
    if base is not None and not found.merged:
        found.close()
        raise ConfigError(f"{os.fspath(path)} is a whole model, and no changes of a base. Leave base out.")
    return found


def _log(provenance: Provenance, assumption: str | None) -> None:
    """Say what was recognised and inferred; what was assumed of the images and what was left out more loudly."""
    source = provenance.source
    for note in (f"{provenance.layout}, {provenance.container}", *provenance.inferred, *provenance.changes):
        logger.log(logging.WARNING if UNCHECKED in note else logging.INFO, "%s", one_line(f"{source}: {note}"))
    if assumption is not None:
        logger.warning("%s", one_line(f"{source}: {assumption}"))
    if left_out := provenance.left_out:
        some = ", ".join(left_out[:4]) + (", ..." if len(left_out) > 4 else "")
        logger.warning("%s", one_line(f"{source}: left out, since the model has no place for it: {some}"))
