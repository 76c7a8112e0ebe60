"""LoRA as a small file: the changes and the classifier, with the digest of the base that they are of; read on that."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import finalize

import torch
from torch import Tensor

from vitrail.checkpoint.adapt import CHANGEABLE, ModelInMemory, Request, Weights, adapt, assemble
from vitrail.checkpoint.archives.base import write_safetensors
from vitrail.checkpoint.load import LORA as NOTE, Checkpoint, ModelParts
from vitrail.config import Card, ModelConfig, Preprocessing, Provenance, ViTConfig, decode, encode
from vitrail.config.check import text, texts
from vitrail.config.fields import reach
from vitrail.config.objective import Adapt, LoRA
from vitrail.config.outputs import Outputs
from vitrail.errors import CheckpointError, ConfigError
from vitrail.files import fingerprint_of, parse_json
from vitrail.models import Model, skeleton
from vitrail.models.lora import MARK, add_lora, merge

LORA_FILE = "lora.safetensors"  # of a run folder
FORMAT = "vitrail lora 1"
HEAD = ("head.", "hidden.")  # what is as new as the changes
AnyBase = str | os.PathLike[str] | Model


def base_digest(weights: Mapping[str, Tensor]) -> str:
    """Give a digest of the weights that stay as they are: all but the classifier and the changes."""
    kept = sorted(name for name in weights if not name.startswith(HEAD) and MARK not in name)
    bits = [weights[name].detach().cpu().float().reshape(-1).view(torch.uint8).numpy() for name in kept]
    return fingerprint_of("\0".join(kept), *bits)


def write_lora(path: Path, model: Model, weights: Mapping[str, Tensor], adapt: LoRA, card: Card, source: str) -> None:
    """Write the changes and the classifier among the weights of an adapted model, and which base they are of."""
    small = {name: value.detach().cpu().contiguous() for name, value in weights.items() if MARK in name}
    small |= {name: value.detach().cpu().contiguous() for name, value in weights.items() if name.startswith(HEAD)}
    said: dict[str, Any] = {"format": FORMAT, "base": source, "digest": base_digest(weights), "adapt": encode(adapt)}
    said |= {"model": encode(model.config), "preprocessing": encode(card.preprocessing), "seen": list(card.seen)}
    said |= {"class_names": None if card.class_names is None else list(card.class_names)}
    said |= {"outputs": None if card.outputs is None else encode(card.outputs), "metrics": dict(card.metrics)}
    write_safetensors(path, small, {NOTE: json.dumps(said)})


@dataclass(frozen=True)
class Said:
    """What a file of LoRA says of itself."""

    base: str
    digest: str
    adapt: LoRA
    config: ModelConfig
    card: Card


def read_said(path: Path, note: str) -> Said:
    """Read it, strictly."""
    try:
        said = parse_json(note)
        if said["format"] != FORMAT:
            raise ValueError(f"its format is {said['format']!r:.40}, not {FORMAT!r}")
        names, outputs = said["class_names"], said["outputs"]
        how: Any = decode(said["adapt"], Adapt, "adapt")
        if not isinstance(how, LoRA):
            raise ValueError("it is of another way of adapting")
        card = Card(
            class_names=None if names is None else texts("class_names", names),
            seen=texts("seen", said["seen"]),
            preprocessing=decode(said["preprocessing"], Preprocessing),
            outputs=None if outputs is None else decode(outputs, Outputs, "outputs"),
            metrics=said["metrics"],
        )
        config = decode(said["model"])
        if not isinstance(config, ViTConfig) or how.rank > config.width:
            raise ValueError("its changes are of no Vitrail model of that width")
        return Said(text("base", said["base"]), text("digest", said["digest"]), how, config, card)
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise CheckpointError(f"{path} says wrongly which changes it holds: {error!r}. Copy the file again.") from error


class LoRACheckpoint(Checkpoint):
    """A file of LoRA with its base: a checkpoint of the model that both make."""

    def __init__(self, small: Checkpoint, base: AnyBase | None, above: tuple[Path, ...] = ()) -> None:
        self.small, self.above = small, (*above, small.location.weights.resolve())
        self.said = read_said(small.location.weights, small.archive.notes[NOTE])
        self.base = ModelInMemory(base) if isinstance(base, Model) else self._open(base)
        self.location, self.archive = small.location, small.archive
        self.close = finalize(self, self._close_both, small, self.base)

    @staticmethod
    def _close_both(small: Checkpoint, base: Checkpoint | ModelInMemory) -> None:
        small.close()
        if isinstance(base, Checkpoint):
            base.close()

    def _open(self, base: str | os.PathLike[str] | None) -> Checkpoint:
        """Open the base that is given, or the one that the file names: as it is written, or beside the file."""
        folder = self.small.location.weights.parent
        named = self.said.base
        beside = [str(path) for path in (folder / named, folder.parent / named) if path.exists()]
        wanted = base if base is not None else next(iter([] if Path(named).exists() else beside), named)
        try:
            found = Checkpoint(wanted)
            if NOTE not in found.archive.notes:
                return found
            if found.location.weights.resolve() in self.above:
                raise CheckpointError("it names itself as its base.")
            return LoRACheckpoint(found, None, self.above)  # changes of what was changed
        except CheckpointError as error:
            raise CheckpointError(
                f"{self.small.location.weights} holds changes of a base, {named} (digest {self.said.digest}), which "
                f"cannot be opened: {error} Give it: vitrail.load(FILE, base=...), or convert --base."
            ) from error

    def configure(self, **changes: object) -> ModelConfig:
        """Give the configuration of what `model` makes with these changes."""
        return Request.of(changes).target(self.said.config)

    def card(self, **hints: object) -> Card:
        """Give what belongs to the weights, of which none is read."""
        return replace(self.said.card, provenance=self._provenance())

    @property
    def parameters(self) -> int:
        """How many numbers the base holds."""
        return self.base.parameters

    @cached_property
    def sha256(self) -> str:
        """A digest of both files."""
        return hashlib.sha256(f"{self.small.sha256} {self.base.sha256}".encode()).hexdigest()

    def read(
        self,
        request: Request,
        dtype: torch.dtype | None,
        check: Callable[[ModelConfig, Card], object] = lambda config, card: None,
    ) -> ModelParts:
        """Read the base as the changes are of, refuse another, add them, and adapt the sum to what is requested."""
        if request.grid is not None or request.names is not None:
            raise ConfigError("grid and names are of the base, which a file of LoRA names. Leave them out.")
        config, card = self.said.config, self.card()
        new = request.target(config)
        if request.classes is not None:
            card = card.without_names()
        card = card.for_channels(new.channels).prepared(request.preprocessing, new.channels)
        check(new, card)
        weights = self._merged()
        weights, changes = adapt(weights, config, new, new_head=request.classes is not None)
        weights = weights if dtype is None else {name: tensor.to(dtype) for name, tensor in weights.items()}
        came = card.provenance or self._provenance()
        card = replace(card, provenance=replace(came, changes=(*came.changes, *changes)))
        return ModelParts(new, weights, replace(card, metrics={}) if changes else card, came)

    def _merged(self) -> Weights:
        """Give the weights of the base with the changes added, and with the classifier of the changes."""
        wanted, held = self.said.config, self.base.configure()
        request = Request.of(self._changes(held))
        if _target(request, held) != wanted:
            raise self._another("its model is another, by its configuration")
        weights = self._read_base(request)
        if (found := base_digest(weights)) != self.said.digest:
            raise self._another(f"digest {found}, where the changes are of {self.said.digest}")
        model = assemble(wanted, weights)
        add_lora(model, self.said.adapt, seed=0)
        names = {name: tuple(value.shape) for name, value in model.named_parameters()}
        own = {name: shape for name, shape in names.items() if MARK in name or name.startswith(HEAD)}
        archive = self.small.archive
        if {name: entry.shape for name, entry in archive.entries.items()} != own:
            raise CheckpointError(f"{archive.path} does not hold the changes that it says. Copy the file again.")
        whole = {name: value.detach() for name, value in model.named_parameters()}
        small = {name: archive.read(name).float() for name in own}
        plain = merge(model, {**whole, **small})
        return {name: plain.get(name, weights[name]) for name in skeleton(wanted).state_dict()}

    def _read_base(self, request: Request) -> Weights:
        if isinstance(self.base, Checkpoint):
            return self.base.read(request, torch.float32).weights
        made = self.base.model(**self._changes(self.base.configure()))
        return {name: value.detach() for name, value in made.state_dict().items()}

    def _changes(self, held: ModelConfig) -> dict[str, Any]:
        """Say what is changed of the base before it is what the changes are of."""
        wanted = self.said.config
        changes: dict[str, Any] = {"classes": wanted.classes, "image_size": wanted.image_size}
        try:
            if held.channels != wanted.channels:
                changes["channels"] = wanted.channels
            patches = [reach(config, "stem.patch") for config in (held, wanted)]
            if patches[0] != patches[1]:
                changes["patch"] = patches[1]
            for name in CHANGEABLE:
                if name == "resampling":  # that of the positions, by its short name
                    continue
                before, after = (_reached(config, name) for config in (held, wanted))
                if before != after and after is not None:
                    changes[name] = after
            return changes
        except ConfigError as error:
            raise self._another("its model is another, by its configuration") from error

    def _another(self, why: str) -> CheckpointError:
        base = self.base.location.source if isinstance(self.base, Checkpoint) else "the model in memory"
        return CheckpointError(
            f"{self.small.location.weights} holds changes of {self.said.base}, and {base} is another base: {why}. "
            "Give the one that they were trained on, base=..., or adapt this one anew: vitrail finetune --adapt lora."
        )

    def _provenance(self) -> Provenance:
        came = self.base.card().provenance
        source = f"{self.small.location.source} on {self.said.base}"
        how = f"LoRA of rank {self.said.adapt.rank} added to {', '.join(self.said.adapt.matrices)}"
        if came is None:
            return Provenance(source=source, layout="vitrail", container="memory", changes=(how,))
        return replace(came, source=source, changes=(*came.changes, how), assumed=())


def _target(request: Request, held: ModelConfig) -> ModelConfig | None:
    """Give what a base becomes; None where it cannot."""
    try:
        return request.target(held)
    except (ConfigError, CheckpointError):
        return None


def _reached(config: ModelConfig, name: str) -> object:
    try:
        return reach(config, name)
    except ConfigError:
        return None
