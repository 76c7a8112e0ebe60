"""What a file that no layout recognises may be: a table of names, with what is open; or why it is no ViT of ours."""

from collections.abc import Mapping
from pathlib import Path

import torch

from vitrail.checkpoint.archives.base import Entry, Shape
from vitrail.checkpoint.description import Proposal
from vitrail.checkpoint.proposing.inside import Found, Misfit, likely_widths, read_block
from vitrail.checkpoint.proposing.outside import read_outside
from vitrail.checkpoint.proposing.repeats import Repeat, find_blocks
from vitrail.config.name_tables import Choices, NamesTable

ACTIVATIONS = ("gelu", "relu", "gelu-tanh", "silu", "quick-gelu")
EPSILONS = (1e-5, 1e-6, 1e-12)
MOST_TENSORS = 10_000
TITLE = 'what the tensors of {} are, as Vitrail proposes; what begins with "?" is open: put one of its choices there'


def propose(entries: Mapping[str, Entry]) -> Proposal:
    """Propose which tensor is what, from names, shapes and order alone; nothing is guessed that is not said."""
    shapes: dict[str, Shape] = {}
    strange: list[str] = []
    for name, entry in entries.items():
        if isinstance(entry.dtype, torch.dtype):
            shapes[name] = entry.shape
        else:
            strange.append(name)
    if braced := next((name for name in shapes if "{" in name), None):
        return Proposal(table=None, why={}, reason=f"a name has braces: {braced!r}")
    blocks = find_blocks(shapes)
    if not blocks:
        return Proposal(table=None, why={}, reason="nothing in its names repeats as the blocks of an encoder do")
    reasons: list[str] = []
    for repeat in blocks:
        for width in likely_widths(repeat.tensors):
            try:
                return _propose(repeat, shapes, width, strange)
            except Misfit as misfit:
                reasons.append(str(misfit))
    return Proposal(table=None, why={}, reason=reasons[0] if reasons else "its blocks hold no vectors")


def _propose(repeat: Repeat, shapes: Mapping[str, Shape], width: int, strange: list[str]) -> Proposal:
    found = read_block(repeat.tensors, width)
    turned = found.reading.get("linear") == "in out"
    outside = {name: shape for name, shape in shapes.items() if name not in repeat.held}
    left = read_outside(found, outside, width, turned=turned)
    _numerics(found)
    table = NamesTable(names=found.names, model=found.model, reading=found.reading, left_out=(*left, *strange))
    return Proposal(table=table, why=found.why)


def _numerics(found: Found) -> None:
    final = "norm.weight" in found.names
    found.model["activation"] = Choices(ACTIVATIONS)
    found.model["epsilon"] = Choices(EPSILONS)
    found.model["norm"] = Choices(("pre", "post") if final else ("post", "pre"))
    found.why["activation"] = found.why["epsilon"] = "no tensor says it"
    found.why["norm"] = "before attention and MLP, or after the residual sum"


def title_of(path: str | Path) -> str:
    """Give the first line of a table's file."""
    return TITLE.format(path)
