"""`vitrail.ray`: predict and embed on Ray Data, over any number of machines (pip install 'vitrail[ray]').

    from vitrail.ray import embed
    embed("runs/pets", "/shared/photos", "/shared/features", workers=16, gpus=1)

Results are parts, parquet files in a folder: one for each stretch of the images, written whole or not at all by the
worker that computed it. So a worker that is killed costs its part alone, and the same call goes on where it stopped.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail import errors
from vitrail.config.check import not_negative, whole
from vitrail.config.given import check_weights
from vitrail.errors import ConfigError, DataError
from vitrail.files import fingerprint_of, home_path, write_bytes
from vitrail.runtime.reporter import SILENT
from vitrail.verbs import predict as verbs
from vitrail.verbs.images import gather_images
from vitrail.verbs.opening import check_options
from vitrail.verbs.predictions import save_features

PART = 4096  # images of a file
ASKED = "asked.json"
OF_PREDICT = ("top", "score", "windows")  # options of `predict` alone


@dataclass(frozen=True, kw_only=True)
class Written:
    """What is in the folder of a call."""

    folder: Path
    images: int  # that have an answer
    failed: tuple[tuple[str, str], ...]  # names of those that could not be read, and the reason
    parts: int
    reused: int  # parts that were there before


def embed(model: str | os.PathLike[str], images: object, out: str | os.PathLike[str], **options: Any) -> Written:  # noqa: ANN401
    """Write the features of every image; options are `workers`, `gpus`, `part` and those of `vitrail.embed`."""
    return _run("embed", model, images, out, **options)


def predict(model: str | os.PathLike[str], images: object, out: str | os.PathLike[str], **options: Any) -> Written:  # noqa: ANN401
    """Write the best class, its probability and the features of every image; options are as for `embed`."""
    return _run("predict", model, images, out, **options)


def _run(
    kind: str,
    model: str | os.PathLike[str],
    images: object,
    out: str | os.PathLike[str],
    *,
    workers: int = 2,
    gpus: float = 0,
    part: int = PART,
    **options: Any,  # noqa: ANN401
) -> Written:
    """Deal stretches of the images to workers of Ray, but for those whose files are there."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError("vitrail.ray needs Ray: pip install 'vitrail[ray]' 'ray[data]'.") from error
    whole("workers", workers)
    whole("part", part)
    not_negative("gpus", gpus)
    if not isinstance(model, str | os.PathLike):
        raise ConfigError("on Ray the model is a name, a file or a folder that every machine sees. Save it first.")
    check_weights(os.fspath(model))
    named = {name: value for name, value in options.items() if kind == "embed" or name not in OF_PREDICT}
    check_options(embed if kind == "embed" else predict, verbs.PredictOptions, named)
    source = gather_images(images, SILENT)
    paths = [source.name(number) for number in range(len(source))]
    if missing := next((path for path in paths if not os.path.isfile(path)), None):
        raise DataError(f"on Ray images are files that every machine sees; {missing!r} is none.")
    folder = home_path(out)
    asked = {"verb": kind, "model": os.fspath(model), "images": fingerprint_of("\0".join(paths)), "part": part}
    _claim(folder, {**asked, "options": {name: str(value) for name, value in sorted(options.items())}})
    count = -(-len(paths) // part)
    there = [number for number in range(count) if (folder / _name(number)).is_file()]
    tasks = [
        {"number": number, "paths": [os.path.abspath(path) for path in paths[number * part : (number + 1) * part]]}
        for number in range(count)
        if number not in set(there)
    ]
    if tasks:
        how = {"device": "cuda" if gpus else "cpu", **options}
        given = {"kind": kind, "model": os.fspath(model), "folder": str(folder), "options": how}
        worker: Any = _Worker
        data = ray.data.from_items(tasks, override_num_blocks=len(tasks))
        at_once = min(workers, len(tasks))
        try:
            data.map(worker, fn_constructor_kwargs=given, concurrency=at_once, num_gpus=gpus or None).materialize()
        except Exception as error:
            raise _cause(error) from error
    summaries = [json.loads((folder / f"{_name(number)}.json").read_bytes()) for number in range(count)]
    return Written(
        folder=folder,
        images=sum(each["images"] for each in summaries),
        failed=tuple((name, reason) for each in summaries for name, reason in each["failed"]),
        parts=count,
        reused=len(there),
    )


def _cause(error: BaseException) -> BaseException:
    """Find what a worker said itself, in what Ray says of it."""
    said = re.findall(r"^vitrail\.errors\.(\w+): (.+)$", str(error), re.MULTILINE)
    kind = getattr(errors, said[-1][0], ConfigError) if said else None
    return error if kind is None else kind(said[-1][1])


def _name(number: int) -> str:
    return f"part-{number:06d}.parquet"


def _claim(folder: Path, asked: Mapping[str, Any]) -> None:
    """Write down what was asked; refuse a folder where something else was."""
    file = folder / ASKED
    if file.is_file():
        if json.loads(file.read_bytes()) != asked:
            raise ConfigError(f"{folder} holds what was asked otherwise ({ASKED}). Give another folder.")
        return
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; expected a folder for the parts. Give another.")
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} holds other files. Give another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(file, json.dumps(asked, indent=1).encode())


class _Worker:
    """A model on one machine, opened once, that answers for stretches of images."""

    def __init__(self, kind: str, model: str, folder: str, options: dict[str, Any]) -> None:
        from vitrail.checkpoint import load

        self.kind, self.folder, self.options = kind, Path(folder), options
        self.model = load(model, device=self.options.pop("device"))

    def __call__(self, task: Mapping[str, Any]) -> dict[str, Any]:
        number, paths = int(task["number"]), [str(path) for path in task["paths"]]
        failed, images = self.answer(self.folder / _name(number), paths)
        return {"number": number, "images": images, "failed": len(failed)}

    def answer(self, file: Path, paths: Sequence[str]) -> tuple[list[list[str]], int]:
        """Write a part: its summary first, so that a part that is there has one."""
        if self.kind == "embed":
            found = verbs.embeddings(self.model, list(paths), **self.options)
        else:
            found = verbs.predict(self.model, list(paths), features=True, **self.options)
        failed = [[name, reason] for name, reason in found.failed]
        summary = {"images": len(found.names), "failed": failed}
        write_bytes(file.with_name(f"{file.name}.json"), json.dumps(summary).encode())
        save_features(file, found)
        return failed, len(found.names)
