"""The tensors of a part put together as layers: matrices with their bias, norms, single vectors; and their words."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from vitrail.checkpoint.archives.base import Shape

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
SLOTS = re.compile(r"\{[^}]*\}")
LEAVES = {"weight", "bias", "kernel", "gamma", "beta", "scale", "g", "b", "w", "a_2", "b_2", "offset", "alpha"}
# Letters of a layer's two tensors, as in w_mlp and b_mlp, or ln1_g and ln1_b.
PAIRS = [(one, "b", "weight") for one in ("W", "w", "g")] + [("b", one, "bias") for one in ("W", "w", "g")]
SHIFTS = {"bias", "beta", "b", "b_2", "offset"}
NORMS = {"norm", "ln", "layernorm", "norms", "gamma", "beta", "lnorm", "rmsnorm", "normalization", "layernormalization"}


@dataclass(frozen=True)
class Unit:
    """A layer: its matrix or its vector of factors, and its bias, by the names of their tensors."""

    module: str
    weight: str
    shape: Shape
    bias: str = ""
    bias_shape: Shape = ()
    order: int = 0  # of the file

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The words of its name, in small letters."""
        return words_of(self.weight)

    @property
    def is_norm(self) -> bool:
        """Whether it has factors and a bias, or is called a norm."""
        return len(self.shape) == 1 and (bool(self.bias) or bool(NORMS & {*self.words}))

    def near(self, other: "Unit") -> int:
        """Count the parts of their names that both begin with."""
        mine, theirs = (re.split(r"[./]", unit.weight) for unit in (self, other))
        same = [one == two for one, two in zip(mine, theirs, strict=False)]
        return same.index(False) if False in same else len(same)


def words_of(name: str) -> tuple[str, ...]:
    """Take a name apart: attn.qkvProj_1 is attn, qkv, proj, 1."""
    return tuple(word.lower() for word in WORD.findall(SLOTS.sub(" ", name)))


def find_units(tensors: Mapping[str, Shape]) -> list[Unit]:
    """Put tensors together that are one layer."""
    modules: dict[str, dict[str, str]] = {}
    for name in tensors:
        module, leaf = _split(name, tensors)
        modules.setdefault(module, {})[leaf] = name
    order = {name: place for place, name in enumerate(tensors)}
    found: list[Unit] = []
    for module, leaves in modules.items():
        names = list(leaves.values())
        shifts = [name for leaf, name in leaves.items() if leaf in SHIFTS]
        if len(names) == 2 and len(shifts) == 1:
            weight, bias = next(name for name in names if name not in shifts), shifts[0]
            found.append(Unit(module, weight, tensors[weight], bias, tensors[bias], order[weight]))
        else:
            found += [Unit(module, name, tensors[name], order=order[name]) for name in names]
    return sorted(found, key=lambda unit: unit.order)


def _split(name: str, tensors: Collection[str]) -> tuple[str, str]:
    """Give the layer that a tensor belongs to, and what it is of it."""
    head, dot, leaf = name.rpartition("." if "." in name else "/")
    if leaf in LEAVES and (leaf != "b_2" or f"{head}{dot}a_2" in tensors):
        return head, leaf
    for end in ("weight", "bias", "kernel", "gamma", "beta"):
        if leaf.endswith(f"_{end}"):
            return f"{head}{dot}{leaf.removesuffix(f'_{end}')}", end
    for mine, theirs, kind in PAIRS:
        for start in (len(head + dot), len(head + dot) + leaf.rfind("_") + 1):  # w_mlp and b_mlp, or layer1_w, layer1_b
            if name[start:].startswith(mine) and f"{name[:start]}{theirs}{name[start + 1 :]}" in tensors:
                return f"{name[:start]}~{name[start + 1 :]}", kind
    return name, "weight"


def numbers(words: Iterable[str]) -> list[int]:
    """Take the numbers among words."""
    return [int(word) for word in words if word.isdecimal() and len(word) < 6]
