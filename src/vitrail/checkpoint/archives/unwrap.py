"""The weights in what torch.save wrote: a state dict, a trainer's checkpoint around one, or a whole module."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitrail.checkpoint.archives.base import LONGEST_NAME
from vitrail.checkpoint.archives.pickles import Global, Opaque, Refused, TensorRecord
from vitrail.errors import CheckpointError

Tensors = dict[str, TensorRecord]
# Where trainers put the weights, best first: averaged ones, DINO's teacher, then the plain ones.
WRAPPERS = (
    *("model_ema", "state_dict_ema", "ema_state_dict", "ema", "teacher", "state_dict", "model_state_dict"),
    *("model_state", "model", "module", "net", "network", "weights", "student", "backbone", "encoder"),
)
DEEPEST = 8  # of wrappers
MOST_LOOKS = 200_000  # at parts of what was saved, however often they are named in it


def unwrap(path: Path, loaded: object) -> tuple[Tensors, tuple[str, ...]]:
    """Find the weights in what was saved; give them by name, and the names of what lies beside them."""
    listed = enumerate(loaded) if isinstance(loaded, list | tuple) else ()  # as (model.state_dict(), epoch)
    numbered = {f"[{index}]": part for index, part in listed if isinstance(part, dict | Opaque)}
    found = _Search().find(numbered or loaded, DEEPEST)
    if found is not None:
        return found
    parts = [loaded, *(loaded.values() if isinstance(loaded, dict) else ())]
    if stranger := next((part for part in parts if isinstance(part, Global | Opaque)), None):
        raise Refused(stranger.name)
    saved = f"a {type(loaded).__name__}"
    if isinstance(loaded, dict):
        saved += f" of {', '.join(str(name)[:40] for name in list(loaded)[:5])}"
    raise CheckpointError(
        f"{path} holds no state dict: expected tensors by name, bare or under one of {', '.join(WRAPPERS)}; "
        f"got {saved}."
    )


class _Search:
    """A walk through what was saved, which looks at each part once and at so many at most."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.left = MOST_LOOKS

    def find(self, value: object, depth: int) -> tuple[Tensors, tuple[str, ...]] | None:
        """Find weights in a part: its own, those under the names that trainers give, or the only ones that it has."""
        if not depth or id(value) in self.seen or (held := self.parts_of(value)) is None:
            return None
        self.seen.add(id(value))
        tensors = {name: part for name, part in self.look(held) if isinstance(part, TensorRecord)}
        inside = self.inside(held, depth - 1)
        if inside is not None and len(inside[0]) > len(tensors):  # beside a metric or a seed, say
            return inside
        if not tensors or not all(isinstance(name, str) for name in tensors):
            return None
        beside = {name: part for name, part in held.items() if name not in tensors}
        if odd := next((part for part in beside.values() if isinstance(part, Opaque) and part.is_tensor), None):
            raise Refused(odd.name)
        return tensors, tuple(map(str, beside))

    def inside(self, held: dict[Any, Any], depth: int) -> tuple[Tensors, tuple[str, ...]] | None:
        """Find weights one level down: under the names that trainers give, best first, or by far the most there."""
        named = [name for name in WRAPPERS if name in held]
        for name in named:
            if (found := self.find(held[name], depth)) is not None:
                return found[0], (*(str(other) for other in held if other != name), *found[1])
        others = [(name, self.find(held[name], depth)) for name in held if isinstance(name, str) and name not in named]
        several = [(name, found) for name, found in others if found is not None]
        several.sort(key=lambda each: -len(each[1][0]))
        if not several or (len(several) > 1 and len(several[0][1][0]) <= 2 * len(several[1][1][0])):
            return None  # two models, of which nothing says the one
        name, (weights, beside) = several[0]
        return weights, (*(str(other) for other in held if other != name), *beside)

    def look(self, held: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
        """Go through a dictionary, within the bounds."""
        self.left -= 1 + len(held)
        if self.left < 0:
            raise Refused("a checkpoint of far too many parts")
        yield from held.items()

    def parts_of(self, value: object) -> dict[Any, Any] | None:
        """Give what a dictionary or a module holds by name; nothing of anything else."""
        if isinstance(value, dict):
            return value
        if not isinstance(value, Opaque):
            return None
        if {"_parameters", "_modules"} <= value.attributes.keys():
            return self.module_tensors(value)
        dictionaries = (part for part in value.given if isinstance(part, dict))
        return next((part for part in dictionaries if any(_is_tensor(each) for _, each in self.look(part))), None)

    def module_tensors(self, module: Opaque) -> Tensors:
        """Give the tensors of a module that was saved whole, by the names of its state dict; its code is not run."""
        found: Tensors = {}
        waiting = [("", module)]
        while waiting:
            prefix, part = waiting.pop()
            held = part.attributes
            passing = _texts(held.get("_non_persistent_buffers_set"))
            for kind in ("_parameters", "_buffers", "_modules"):
                inside = held.get(kind)
                for name, value in self.look(inside if isinstance(inside, dict) else {}):
                    path = f"{prefix}{name}"
                    if len(path) > LONGEST_NAME:
                        raise Refused("a module with names without end")
                    if _is_tensor(value) and not (kind == "_buffers" and name in passing):
                        found[path] = value
                    elif isinstance(value, Opaque):
                        waiting.append((f"{path}.", value))
        return found


def _is_tensor(part: object) -> bool:
    return isinstance(part, TensorRecord)


def _texts(value: object) -> set[str]:
    """List the texts of a set, which came as a call with a list."""
    given = value.given[:1] if isinstance(value, Opaque) else []
    lists = [part[0] if isinstance(part, tuple) and part else part for part in given]
    return {text for part in lists if isinstance(part, list) for text in part[:100] if isinstance(text, str)}
