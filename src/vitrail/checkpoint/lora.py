"""LoRA adapters of peft, merged with the weights that they were trained on, tensor by tensor as these are read."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.checkpoint.archives.base import Archive, Entry, open_archive
from vitrail.checkpoint.layouts import hf
from vitrail.checkpoint.layouts.hf_families import FAMILIES
from vitrail.checkpoint.layouts.vit_rows import TorchNames
from vitrail.checkpoint.run_folder import ADAPTER, Location, locate
from vitrail.errors import CheckpointError

BEFORE = "base_model.model."
PAIR = re.compile(r"(.+)\.lora_([AB])\.(?:default\.)?weight")
# What changes how an adapter is merged, each with the value that means nothing special.
PLAIN = {"peft_type": "LORA", "use_dora": False, "fan_in_fan_out": False, "bias": "none", "lora_bias": False}


class MergedArchive(Archive):
    """A file of weights with an adapter's changes added to each as it is read."""

    kind = "merged"

    def __init__(self, base: Archive, adapter: Archive, pairs: Mapping[str, tuple[str, str, float]]) -> None:
        saved = {_inside(name): name for name in adapter.entries if PAIR.fullmatch(name) is None}
        entries = {**base.entries, **{name: adapter.entries[theirs] for name, theirs in saved.items()}}
        super().__init__(base.path, base._file, entries, strangers=base.strangers, notes=base.notes)
        self.kind, self.paths = base.kind, (*base.paths, *adapter.paths)
        self._base, self._adapter, self._pairs, self._saved = base, adapter, pairs, saved

    def read(self, name: str) -> Tensor:
        """Read one tensor, with what the adapter adds to it, or in its place."""
        if name in self._saved:
            return self._adapter.read(self._saved[name])
        tensor = self._base.read(name)
        if name not in self._pairs:
            return tensor
        first, second, scale = self._pairs[name]
        change = self._adapter.read(second).float() @ self._adapter.read(first).float()
        return (tensor.float() + scale * change).to(tensor.dtype)

    def sha256(self) -> str:
        """Hash the base file."""
        return self._base.sha256()

    def close(self) -> None:
        """Close both files."""
        self._base.close()
        self._adapter.close()


def merge_adapter(location: Location, adapter: Archive) -> tuple[Location, Archive]:
    """Open the weights that an adapter names, and give them with its changes."""
    said = location.documents[ADAPTER]
    for name, plain in PLAIN.items():
        if said.get(name, plain) != plain:
            raise CheckpointError(f"the adapter has {name}={said[name]!r}, and only {plain!r} is merged. {_CURE}")
    if patterns := [name for name in ("rank_pattern", "alpha_pattern") if said.get(name)]:
        raise CheckpointError(f"the adapter has {' and '.join(patterns)}, which is not merged. {_CURE}")
    base = locate(_base_of(location, said.get("base_model_name_or_path")))
    with ExitStack() as opened:
        held = opened.enter_context(open_archive(base.weights))
        pairs = dict(_pairs(held.entries, adapter.entries, said))
        opened.pop_all()  # the merged archive closes it
    source = f"{base.source} with the adapter {location.source}"
    return replace(base, source=source, run=None), MergedArchive(held, adapter, pairs)


_CURE = "Merge it with peft, model.merge_and_unload(), and save the result with save_pretrained."


def _base_of(location: Location, name: object) -> str:
    """Find the base: a path as it is, or beside the adapter, or a name on the hub."""
    if not isinstance(name, str) or not name:
        raise CheckpointError(f"the adapter does not say its base_model_name_or_path. {_CURE}")
    for path in (Path(name), location.weights.parent / name, location.weights.parent.parent / name):
        if path.exists():
            return str(path)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return f"hf:{name}"
    raise CheckpointError(f"the adapter's base {name!r} is not there. Put it beside the adapter, under that name.")


def _pairs(
    base: Mapping[str, Entry], adapter: Mapping[str, Entry], said: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[str, str, float]]]:
    """Give for each changed weight of the base the two matrices of its change, and their factor."""
    found: dict[str, dict[str, str]] = {}
    for name in adapter:
        if match := PAIR.fullmatch(name):
            found.setdefault(_inside(match[1]), {})[match[2]] = name
        elif not name.startswith(BEFORE) or "lora_" in name:
            raise CheckpointError(f"the adapter holds {name!r}, which is neither LoRA's nor a whole layer. {_CURE}")
    if not found:
        raise CheckpointError("the adapter holds no pair of matrices of LoRA.")
    for module, parts in found.items():
        if set(parts) != {"A", "B"}:
            raise CheckpointError(f"the adapter holds one of two matrices of {module!r}.")
        target = _in_base(module, base)
        inward, outward = adapter[parts["A"]].shape, adapter[parts["B"]].shape
        if len(inward) != 2 or len(outward) != 2 or (outward[0], inward[1]) != base[target].shape:
            raise CheckpointError(
                f"the adapter changes {module!r} of shape {(*outward[:1], *inward[1:])}; the base's has "
                f"{base[target].shape}: it is of another base."
            )
        rank, alpha = inward[0], float(said.get("lora_alpha", 8))
        yield target, (parts["A"], parts["B"], alpha / (sqrt(rank) if said.get("use_rslora") else rank))


def _inside(name: str) -> str:
    return name.removeprefix(BEFORE).replace(".modules_to_save.default", "").replace(".base_layer", "")


def _in_base(module: str, base: Mapping[str, Entry]) -> str:
    """Find a module's weight in the base: by its name, or by the name that transformers' files have for it."""
    names = [module, *_translated(module)]
    names += [name.partition(".")[2] for name in names]  # a base without a classifier has no name before the encoder's
    target = next((f"{name}.weight" for name in names if f"{name}.weight" in base), None)
    if target is None:
        raise CheckpointError(f"the adapter changes {module!r}, which its base does not have: it is of another base.")
    return target


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
    parts: Iterable[str] = (*(name.rstrip(".") for name in names.qkv), names.out, names.expand, names.contract)
    return list(parts)
