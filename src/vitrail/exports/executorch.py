"""ExecuTorch: a program for phones and small boards (.pte), whose products are XNNPACK's."""

import contextlib
import logging
import math
import mmap
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from vitrail.runtime.engines import NOTES, need, notes_text

ATEN = torch.ops.aten
ROOM = 4096  # bytes for what is found of a file after it was written


def write_executorch(program: ExportedProgram, path: Path, *, notes: Mapping[str, Any]) -> None:
    """Lower a program: what XNNPACK takes is computed by it, the rest by ExecuTorch's own kernels.

    What the program says of itself is what its method `vitrail` gives, with room for what will be found of it.
    """
    with _quietly():
        exir = need("executorch", "executorch.exir")
        partition = need("executorch", "executorch.backends.xnnpack.partition.xnnpack_partitioner")
        lowered = exir.to_edge_transform_and_lower(
            program.run_decompositions({ATEN.scaled_dot_product_attention.default: attend, ATEN.gelu.default: gelu}),
            partitioner=[partition.XnnpackPartitioner()],
            constant_methods={NOTES: _padded(notes, len(notes_text(notes)) + ROOM)},
            compile_config=exir.EdgeCompileConfig(_check_ir_validity=False),  # which knows no free sizes
        ).to_executorch()
    with path.open("wb") as file:
        lowered.write_to_file(file)


def note_executorch(path: Path, notes: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Write what was found of a file into the room that was left for it."""
    room = len(notes_text(before)) + ROOM
    old, new = _padded(before, room).encode(), _padded(notes, room).encode()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as held:
        place = held.find(old)
        assert place >= 0
        held[place : place + len(old)] = new


def _padded(notes: Mapping[str, Any], room: int) -> str:
    """Give notes as JSON, with spaces after it."""
    return notes_text(notes).ljust(room)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002 -- torch's own signature
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: FBT001, FBT002
) -> Tensor:
    """Mix the values, in operators that XNNPACK has: torch's own form looks for rows that are masked wholly."""
    assert dropout_p == 0
    assert not enable_gqa
    logits = (query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)) @ key.transpose(-2, -1)
    if is_causal:
        after = torch.full((query.shape[-2], key.shape[-2]), -math.inf, dtype=query.dtype).triu(1)
        logits = logits + after
    if attn_mask is not None:
        logits = logits + attn_mask
    return logits.softmax(dim=-1) @ value


def gelu(values: Tensor, approximate: str = "none") -> Tensor:
    """GELU's tanh form, written out: XNNPACK takes it for the exact one."""
    if approximate != "tanh":
        return NotImplemented
    return 0.5 * values * (1 + torch.tanh(math.sqrt(2 / math.pi) * (values + 0.044715 * values * values * values)))


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep the workings of other packages off the terminal."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
