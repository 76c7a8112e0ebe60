"""Names of repositories of models, and what of their files is of use: the small ones and one kind of weights."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from vitrail.errors import CheckpointError
from vitrail.files.hashes import SUMS

NAME = re.compile(r"([\w.-]+/[\w.-]+)(?:@(refs/pr/\d+|refs/convert/parquet|\w[\w.+-]*))?(?:/(.+))?", re.ASCII)
# Kinds of weights, the preferred first: one alone is fetched.
KINDS = ((".safetensors",), (".npz",), (".bin", ".pth", ".pt"))
# Where a repository has one of these, its other files of weights are of other models or other precisions.
WHOLE = ("model.safetensors", "pytorch_model.bin")
# What training leaves behind under the suffixes of weights.
LEFTOVERS = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state.*)\.(bin|pth|pt)")


@dataclass(frozen=True)
class Wanted:
    """What a name such as OWNER/NAME@REVISION/FILE asks for."""

    repository: str
    revision: str | None
    file: str | None
    kind: Literal["model", "dataset"] = "model"

    def __str__(self) -> str:
        return f"{self.repository}@{self.revision}" if self.revision else self.repository


def parse(name: str) -> Wanted:
    """Read OWNER/NAME[@REVISION][/FILE]."""
    match = NAME.fullmatch(name)
    if match is None or (match[3] and not {"", ".", ".."}.isdisjoint(re.split(r"[/\\]", match[3]))):
        raise CheckpointError(f"expected OWNER/NAME, OWNER/NAME@REVISION, or either with /FILE; got {name!r}.")
    return Wanted(match[1], match[2], match[3])


def useful(listed: Iterable[str], wanted: Wanted) -> list[str]:
    """Choose the small files and one kind of weights; where a file is asked for, it and the small files beside it."""
    listed = sorted(listed)
    if wanted.kind == "dataset":
        return _tables(listed, wanted)
    held = ", ".join(listed[:10] + ["..."] * (len(listed) > 10)) or "nothing"
    if wanted.file is not None and wanted.file not in listed:
        raise CheckpointError(f"{wanted} has no file {wanted.file}. It has {held}.")
    place = PurePosixPath(wanted.file or "x").parent
    beside = [name for name in listed if PurePosixPath(name).parent == place]
    small = [name for name in beside if PurePosixPath(name).name == SUMS or name.endswith(".json")]
    weights = [wanted.file] if wanted.file else _weights(beside)
    if not weights:
        kinds = ", ".join(suffix for kind in KINDS for suffix in kind)
        raise CheckpointError(
            f"expected a repository with weights ({kinds}) at its top; {wanted} has {held}. "
            "Check the name, or name a file: OWNER/NAME/FILE."
        )
    # An index tells which shard holds what: of no use without its shards.
    shards = tuple({f"{PurePosixPath(name).suffix}.index.json" for name in weights if name not in WHOLE})
    small = [name for name in small if not name.endswith(".index.json") or name.endswith(shards)]
    return sorted({*small, *weights})


def _tables(listed: list[str], wanted: Wanted) -> list[str]:
    """Choose the parquet files: all of them, or the one that is asked for, or those of a folder."""
    found = [name for name in listed if name.endswith(".parquet")]
    if wanted.file is not None:
        found = [name for name in found if name == wanted.file or name.startswith(f"{wanted.file.rstrip('/')}/")]
    if not found:
        raise CheckpointError(
            f"expected parquet files in {wanted}{f'/{wanted.file}' if wanted.file else ''}; it has "
            f"{', '.join(listed[:10]) or 'nothing'}. Check the name; the Hub keeps a parquet copy of many sets under "
            "@refs/convert/parquet."
        )
    return found


def _weights(names: list[str]) -> list[str]:
    for kind in KINDS:
        found = [name for name in names if name.endswith(kind) and not LEFTOVERS.fullmatch(name)]
        if found:
            return [name for name in found if name in WHOLE] or found
    return []
