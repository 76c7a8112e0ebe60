"""The folder of a run: what was asked, who trains in it, and how it ended."""

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from vitrail.checkpoint.run_folder import BEGUN, RUN_FILES, checkpoints_of, read_document, write_documents
from vitrail.config import ViTConfig
from vitrail.config.codec import complete, encode
from vitrail.config.fields import meant
from vitrail.data.source import Source, Subset
from vitrail.data.sources.remote import RemoteShards
from vitrail.data.splits import content_hashes
from vitrail.errors import CheckpointError, ConfigError
from vitrail.files import fingerprint_of, writing
from vitrail.runtime.reporter import Reporter
from vitrail.train.parts import CUT
from vitrail.train.task import Task

DONE, RESOLVED, LEFT_OUT, LOCK = "summary.json", "resolved.json", "left_out.json", ".lock"
# What may change when a run is resumed: nothing of it changes the result.
FREE = ("micro_batch", "keep", "save_every", "probe_every", "compile", "parallel", "augment_on", "bad_image_limit")
LOOKED_AT = 4096  # images of a split whose contents are compared: all of a small one
# What a killed run leaves of a file that it was writing.
STEMS = "|".join(Path(name).stem for name in (*RUN_FILES, BEGUN, DONE, CUT, RESOLVED, LEFT_OUT))
HALF = re.compile(rf"\.({STEMS})\.[0-9a-f]{{12}}(\.\w+)?")
PATIENCE = 10.0  # seconds until a run that was killed is gone


def begin(task: Task) -> None:
    """Write down what was asked; or refuse where something else was asked, and trained, before."""
    asked = {"command": task.command, "data": task.data, "model": task.model, "changes": dict(task.changes)}
    asked |= {"fingerprints": {name: source.fingerprint for name, source in task.splits.items()}}
    asked |= {"contents": {name: contents_of(source) for name, source in task.splits.items()}}
    asked |= {"weights": None if task.start is None else task.start.sha256, "training": encode(task.training)}
    if task.objective is not None:
        asked["objective"] = type(task.objective).__qualname__
    if not checkpoints_of(task.out) and not (task.out / DONE).exists():  # nothing was trained yet: nothing is lost
        write_documents(task.out, {BEGUN: asked})
        return
    begun = read_document(task.out / BEGUN)
    begun["training"] = complete(begun.get("training"))
    begun["changes"] = meant(ViTConfig, {}, begun.get("changes") or {})
    asked |= {name: begun.get(name) for name in ("contents", "weights") if name not in begun}  # of an older run
    if differing := sorted(differences(begun, json.loads(json.dumps(asked)))):
        raise ConfigError(
            f"{task.out} was begun otherwise: {'; '.join(differing[:6])}. Ask for the same again to resume it, "
            "or give another folder."
        )


def contents_of(source: Source) -> str | None:
    """Give a digest of what the images are, all of them or many, spread over the source; None for a stream."""
    if isinstance(source, RemoteShards) or not len(source):
        return None
    some = np.unique(np.linspace(0, len(source) - 1, min(LOOKED_AT, len(source))).astype(np.int64))
    return fingerprint_of(content_hashes(Subset(source, some), reuse=True))


def differences(begun: Mapping[str, Any], asked: Mapping[str, Any], where: str = "") -> list[str]:
    """Name what differs between two documents, fields that may change aside."""
    found: list[str] = []
    for name in {**begun, **asked}:
        path, old, new = f"{where}{name}", begun.get(name), asked.get(name)
        if where in ("fingerprints.", "contents.") and old != new:
            found.append(f"the images of {name} have changed")
            continue
        if path == "weights" and old != new:
            found.append(f"the weights of {asked['model']} have changed")
            continue
        if path == "command" or path.removeprefix("training.") in FREE or old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, f"{path}.")
        else:
            found.append(f"{path} was {old!r}, is {new!r}")
    return found


def make_folder(out: Path) -> None:
    """Make the run's folder; or refuse one that is somebody else's."""
    ours = not out.exists() or (out.is_dir() and ((out / BEGUN).exists() or all(map(is_half, out.iterdir()))))
    if not ours:
        raise CheckpointError(f"{out} exists and is no run. Give another folder.")
    if not out.exists():
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)


def is_half(path: Path) -> bool:
    """Tell what a killed run leaves before it has begun, or of a file that it was writing."""
    return path.name == LOCK or HALF.fullmatch(path.name) is not None


@contextmanager
def run_lock(out: Path, report: Reporter) -> Iterator[None]:
    """Have the folder for this process, which removes what killed ones left; refuses one where a run goes on."""
    with ExitStack() as stack:
        with writing(out):
            file = stack.enter_context((out / LOCK).open("a"))
            patience, waited = time.monotonic() + PATIENCE, False
            while not lock(file):
                if not waited:
                    report.note(f"another process trains in {out}: waiting for it to end")
                waited = True
                if time.monotonic() > patience:
                    raise CheckpointError(
                        f"another process trains in {out}. Wait for it or end it, or give another folder."
                    )
                time.sleep(0.1)
            for path in out.iterdir():
                if HALF.fullmatch(path.name):
                    path.unlink(missing_ok=True)
        yield


def lock(file: IO[str]) -> bool:
    """Lock a file until it is closed or the process ends, however it ends; tells whether nobody else has."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of this process alone: not of the workers that it forks
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks
        return True
    return True


def read_done(out: Path) -> dict[str, Any] | None:
    """Read how a run ended that is finished: step, steps, metrics."""
    if not (out / DONE).is_file():
        return None
    said = read_document(out / DONE)
    try:
        return {"step": said["step"], "steps": said["steps"], "metrics": dict(said["metrics"])}
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{out / DONE} is damaged. Remove it: the same request then finishes anew.") from error
