"""LoRA adapters of peft, merged with the weights that they were trained on, tensor by tensor as these are read."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import isfinite, prod, sqrt
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.checkpoint.archives.base import Archive, Entry, Shape, open_archive
from vitrail.checkpoint.layouts import hf
from vitrail.checkpoint.layouts.hf_families import FAMILIES
from vitrail.checkpoint.layouts.vit_rows import TorchNames
from vitrail.checkpoint.run_folder import ADAPTER, Location, locate
from vitrail.errors import CheckpointError, one_line, shortened
from vitrail.models import Model

BEFORE = "base_model.model."
PAIR = re.compile(r"(.+)\.lora_(A|B|magnitude_vector)(?:\.default)?(?:\.(weight|bias))?")
# Of what adapter_config.json says: what changes nothing in how an adapter is merged, and what is read here. Anything
# else, if it says something, changes what the adapter means.
KNOWN = {
    *("task_type", "auto_mapping", "peft_version", "inference_mode", "r", "target_modules", "exclude_modules"),
    *("lora_dropout", "modules_to_save", "layers_to_transform", "layers_pattern", "megatron_core", "eva_config"),
    *("qalora_group_size", "runtime_config", "rank_pattern", "base_model_name_or_path", "revision", "lora_alpha"),
    *("alpha_pattern", "use_rslora", "use_dora", "lora_bias", "peft_type", "bias", "init_lora_weights"),
}
# How the matrices began; others (pissa, olora, corda, loftq ...) also change the base that they are added to.
BEGINNINGS = (None, True, False, "gaussian", "eva", "orthogonal")
# Patterns that are quick to match, whoever wrote them: names, alternatives, and a few dots with a star.
QUICK = re.compile(r"(?:[\w\-^$|]|\\\.|\.(?!\*)|\.\*){1,200}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Change:
    """What an adapter changes of a weight or a bias: the names of its tensors, and the factor of their product."""

    first: str = ""  # of rank rows
    second: str = ""  # of rank columns; of a bias alone
    scale: float = 1.0
    magnitude: str = ""  # DoRA's, the length of each row

    def applied(self, tensor: Tensor, read: Callable[[str], Tensor]) -> Tensor:
        """Add the change to a weight or bias of the base."""
        change = read(self.second).float()
        if self.first:
            change = (change.flatten(1) @ read(self.first).float().flatten(1)).reshape(tensor.shape)
        found = tensor.float() + self.scale * change
        if self.magnitude:
            lengths = found.flatten(1).norm(dim=1)
            factors = read(self.magnitude).float().flatten() / lengths
            found = found * factors.reshape(-1, *[1] * (found.ndim - 1))
        return found.to(tensor.dtype)


class MergedArchive(Archive):
    """A file of weights with an adapter's changes added to each as it is read."""

    kind = "merged"

    def __init__(
        self, base: Archive, adapter: Archive, changes: Mapping[str, Change], saved: Mapping[str, str]
    ) -> None:
        entries = {**base.entries, **{name: adapter.entries[theirs] for name, theirs in saved.items()}}
        super().__init__(base.path, base._file, entries, strangers=base.strangers, notes=base.notes)
        self.kind, self.paths = base.kind, (*base.paths, *adapter.paths)
        self._base, self._adapter, self._changes, self._saved = base, adapter, changes, saved

    def read(self, name: str) -> Tensor:
        """Read one tensor, with what the adapter adds to it, or in its place."""
        tensor = self._adapter.read(self._saved[name]) if name in self._saved else self._base.read(name)
        change = self._changes.get(name)
        return tensor if change is None else change.applied(tensor, self._adapter.read)

    def sha256(self) -> str:
        """Hash the base file."""
        return self._base.sha256()

    def close(self) -> None:
        """Close both files."""
        self._base.close()
        self._adapter.close()


def merge_adapter(
    location: Location, adapter: Archive, base: str | os.PathLike[str] | Model | None = None
) -> tuple[Location, Archive]:
    """Open the weights that an adapter names, or those that are given for them, and give them with its changes."""
    said = location.documents[ADAPTER]
    _check(said)
    if isinstance(base, Model):
        raise CheckpointError(
            "an adapter of peft is merged with a file of weights, not with a model. Give base's path."
        )
    found = locate(
        _base_of(location, said.get("base_model_name_or_path"), said.get("revision")) if base is None else base
    )
    with ExitStack() as opened:
        held = opened.enter_context(open_archive(found.weights))
        changes = dict(_changes(held.entries, adapter.entries, said))
        saved = {_in_base(_inside(name), held.entries) or _inside(name): name for name in _whole(adapter.entries)}
        opened.pop_all()  # the merged archive closes it
    source = f"{found.source} with the adapter {location.source}"
    return replace(found, source=source, run=None), MergedArchive(held, adapter, changes, saved)


_GIVE = "give it: vitrail.load(FILE, base=...), or convert --base."
_CURE = "Merge it with peft, model.merge_and_unload(), and save the result with save_pretrained."


def _check(said: Mapping[str, Any]) -> None:
    """Refuse an adapter that says what is not merged here."""
    for name, value in said.items():
        if value and name not in KNOWN:
            raise CheckpointError(
                f"the adapter has {shortened(one_line(f'{name}={value!r}'))}, which is not merged. {_CURE}"
            )
    if (kind := said.get("peft_type", "LORA")) != "LORA":
        raise CheckpointError(f"the adapter has peft_type={kind!r}, and only 'LORA' is merged. {_CURE}")
    if (bias := said.get("bias", "none")) not in ("none", "all", "lora_only"):
        raise CheckpointError(f"the adapter has bias={bias!r}, which peft does not have. {_CURE}")
    began = said.get("init_lora_weights")
    if not any(began is known or (isinstance(known, str) and began == known) for known in BEGINNINGS):
        raise CheckpointError(
            f"the adapter has init_lora_weights={began!r}, which changed its base before it was trained. {_CURE}"
        )


def _base_of(location: Location, name: object, revision: object) -> str:
    """Find the base: a path as it is, or beside the adapter, or a name on the hub."""
    if not isinstance(name, str) or not name:
        raise CheckpointError(f"the adapter does not say its base_model_name_or_path: {_GIVE}")
    for path in (Path(name), location.weights.parent / name, location.weights.parent.parent / name):
        if path.exists():
            return str(path)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return f"hf:{name}@{revision}" if isinstance(revision, str) and revision else f"hf:{name}"
    raise CheckpointError(f"the adapter's base {name!r} is not there. Put it beside the adapter, or {_GIVE}")


def _whole(adapter: Mapping[str, Entry]) -> Iterator[str]:
    """List the tensors of an adapter that take the place of the base's."""
    for name in adapter:
        if PAIR.fullmatch(name):
            continue
        if not name.startswith(BEFORE) or "lora_" in name:
            raise CheckpointError(f"the adapter holds {name!r}, which is neither LoRA's nor a whole layer. {_CURE}")
        yield name


def _changes(
    base: Mapping[str, Entry], adapter: Mapping[str, Entry], said: Mapping[str, Any]
) -> Iterator[tuple[str, Change]]:
    """Give for each weight and bias of the base that is changed its change."""
    found: dict[str, dict[str, str]] = {}
    for name in adapter:
        if match := PAIR.fullmatch(name):
            kind = f"{match[2]}.bias" if match[3] == "bias" else match[2]
            found.setdefault(_inside(match[1]), {})[kind] = name
    if not found:
        raise CheckpointError("the adapter holds no pair of matrices of LoRA.")
    wanted = {"A", "B"} | ({"magnitude_vector"} if said.get("use_dora") else set())
    for module, parts in found.items():
        if set(parts) - {"B.bias"} != wanted:
            names = ", ".join(sorted(wanted))
            raise CheckpointError(f"the adapter holds {', '.join(sorted(parts))} of {module!r}; expected {names}.")
        target = _in_base(f"{module}.weight", base)
        if target is None:
            raise CheckpointError(
                f"the adapter changes {module!r}, which its base does not have: it is of another base."
            )
        _check_shapes(module, base[target].shape, {kind: adapter[name].shape for kind, name in parts.items()})
        rank = adapter[parts["A"]].shape[0]
        scale = _alpha(module, said) / (sqrt(rank) if said.get("use_rslora") else rank)
        yield (
            target,
            Change(first=parts["A"], second=parts["B"], scale=scale, magnitude=parts.get("magnitude_vector", "")),
        )
        if "B.bias" in parts:
            bias = f"{target.removesuffix('weight')}bias"
            if base.get(bias) is None or base[bias].shape != adapter[parts["B.bias"]].shape:
                raise CheckpointError(f"the adapter changes the bias of {module!r}, which its base does not have.")
            yield bias, Change(second=parts["B.bias"], scale=scale)


def _check_shapes(module: str, shape: Shape, parts: Mapping[str, Shape]) -> None:
    """Refuse matrices whose product is not of the weight's shape."""
    inward, outward = parts["A"], parts["B"]
    fits = len(inward) == len(outward) == len(shape) >= 2 and inward[0] == outward[1] > 0
    fits = fits and all(side == 1 for side in outward[2:]) and (outward[0], *inward[1:]) == shape
    if fits and prod(parts.get("magnitude_vector", shape[:1])) == shape[0]:
        return
    raise CheckpointError(
        f"the adapter changes {module!r} by {outward} times {inward}; the base's has {shape}: it is of another base."
    )


def _alpha(module: str, said: Mapping[str, Any]) -> float:
    """Give a layer's alpha: that of the first pattern that its name ends with, else that of all."""
    patterns = said.get("alpha_pattern") or {}
    alpha = said.get("lora_alpha", 8)
    for pattern, value in patterns.items() if isinstance(patterns, dict) else ():
        if not QUICK.fullmatch(pattern) or pattern.count(".*") > 3:
            raise CheckpointError(f"the adapter's alpha_pattern {shortened(one_line(pattern))!r} is not read. {_CURE}")
        if re.fullmatch(rf"(.*\.)?({pattern})", module):
            alpha = value
            break
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not isfinite(alpha):
        raise CheckpointError(f"the adapter's alpha of {module!r} must be a number; got {alpha!r}.")
    return float(alpha)


def _inside(name: str) -> str:
    return name.removeprefix(BEFORE).replace(".modules_to_save.default", "").replace(".base_layer", "")


def _in_base(name: str, base: Mapping[str, Entry]) -> str | None:
    """Find a tensor in the base: by its name, or by the name that transformers' files have for it."""
    module, dot, kind = name.rpartition(".")
    names = [module, *_translated(module)]
    names += [name.partition(".")[2] for name in names]  # a base without a classifier has no name before the encoder's
    return next((f"{name}{dot}{kind}" for name in names if f"{name}{dot}{kind}" in base), None)


def _translated(module: str) -> Iterator[str]:
    speeches = [tuple(hf.NAMES.values()), *(tuple(family.names.values()) for family in FAMILIES.values())]
    for names in speeches:
        for spoken in names:
            match = re.fullmatch(rf"(.*?){re.escape(spoken.layer)}(\d+)\.(.+)", module)
            if match is None or match[3] not in (parts := _parts(spoken)):
                continue
            for other in names:
                yield f"{match[1]}{other.layer}{match[2]}.{_parts(other)[parts.index(match[3])]}"


def _parts(names: TorchNames) -> list[str]:
    norms = names.attention_norm, names.mlp_norm
    return [*(name.rstrip(".") for name in names.qkv), names.out, names.expand, names.contract, *norms]
