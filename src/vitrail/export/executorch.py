"""ExecuTorch: a program (.pte) for phones and small machines, of one image size."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.export import ExportedProgram

from vitrail.runtime.engines import Run, need, notes_text


def write_executorch(program: ExportedProgram, path: Path) -> None:
    """Write a program for XNNPACK, which runs on every CPU."""
    exir = need("executorch", "executorch.exir")
    xnnpack = need("executorch", "executorch.backends.xnnpack.partition.xnnpack_partitioner")
    made = exir.to_edge_transform_and_lower(program, partitioner=[xnnpack.XnnpackPartitioner()]).to_executorch()
    path.write_bytes(made.buffer)


def open_executorch(path: Path) -> Run:
    """Open a program in ExecuTorch's runtime."""
    runtime = need("executorch", "executorch.runtime")
    method = runtime.Runtime.get().load_program(os.fspath(path)).load_method("forward")

    def run(images: Tensor) -> list[Tensor]:
        return [output.clone() for output in method.execute([images])]

    return run


def note_executorch(path: Path, notes: Mapping[str, Any]) -> None:
    """Write what the file says of itself into a file beside it: its own format has no place for that."""
    path.with_suffix(".json").write_text(notes_text(notes))
