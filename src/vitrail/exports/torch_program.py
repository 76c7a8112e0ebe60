"""torch's own files: a program of torch.export, and one that AOTInductor compiles for this machine."""

import os
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from vitrail.errors import ConfigError
from vitrail.runtime.engines import PACKED_NOTES, notes_text


def write_torch(program: ExportedProgram, path: Path) -> None:
    """Write a program of torch.export: any torch of this version or later runs it, on any device."""
    torch.export.save(program, path)


def write_aotinductor(program: ExportedProgram, path: Path) -> None:
    """Compile a program for this machine: torch runs it without Python's overhead, also from C++."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own workings
            torch._inductor.aoti_compile_and_package(program, package_path=os.fspath(path))  # pyright: ignore[reportPrivateUsage]
    except Exception as error:  # of a compiler, which may be missing
        reason = str(error).strip().splitlines()[-1][:200] if str(error).strip() else type(error).__name__
        raise ConfigError(f"AOTInductor cannot compile the model: {reason}. It needs a C++ compiler (g++).") from error


def note_torch(path: Path, notes: Mapping[str, Any]) -> None:
    """Add to a file what it says of itself."""
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as packed:
        root = packed.namelist()[0].partition("/")[0]
        packed.writestr(f"{root}/{PACKED_NOTES}", notes_text(notes))
