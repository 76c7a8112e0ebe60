"""The folder of a run: what was asked, who trains in it, its checkpoints and its log, and how it ended."""

import errno
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import IO, Any, get_args

import numpy as np
import torch
from torch import Tensor

from vitrail.checkpoint.archives.base import read_safetensors, write_safetensors
from vitrail.checkpoint.run_folder import (
    BEGUN,
    RUN_FILES,
    SAVED,
    WEIGHTS,
    Predictor,
    checkpoints_of,
    read_document,
    read_predictor,
    write_documents,
    write_run,
)
from vitrail.config import ViTConfig
from vitrail.config.check import one_of, whole
from vitrail.config.fields import complete, encode, meant
from vitrail.config.objective import Objective
from vitrail.config.recipe import Result
from vitrail.data.near import LARGEST
from vitrail.data.source import Source, Subset
from vitrail.data.sources.remote import RemoteShards
from vitrail.data.splits import content_hashes
from vitrail.errors import CheckpointError, ConfigError, VitrailError
from vitrail.files import fingerprint_of, new_folder, verify_sums, write_sums, writing
from vitrail.files.atomic import HINTS, open_to_append
from vitrail.runtime.reporter import Reporter
from vitrail.train.loop import Plan
from vitrail.train.sharded import is_sharded, read_shards
from vitrail.train.state import DAMAGE, State
from vitrail.train.task import CUT, Task, training_split, will_cut

DONE, RESOLVED, LEFT_OUT, PACE, LOCK = "summary.json", "resolved.json", "left_out.json", "pace.json", ".lock"
# What may change when a run is resumed: nothing of it changes the training.
FREE = {"micro_batch", "keep", "save_every", "probe_every", "compile", "parallel", "augment_on"}
FREE |= {"bad_image_limit", "result"}
LOOKED_AT = 4096  # images of a split whose contents are compared: all of a small one
# What a killed run leaves of a file that it was writing.
STEMS = "|".join(Path(name).stem for name in (*RUN_FILES, BEGUN, DONE, CUT, RESOLVED, LEFT_OUT, PACE))
HALF = re.compile(rf"\.({STEMS})\.[0-9a-f]{{12}}(\.\w+)?")
PATIENCE = 10.0  # seconds until a run that was killed is gone
STATE, TENSORS = "state.json", "training.safetensors"
HIDDEN = re.compile(r"\.step-\d{9,}\.[0-9a-f]+")


def begin(task: Task) -> None:
    """Write down what was asked; or refuse where something else was asked, and trained, before."""
    asked = {"command": task.command, "data": task.data, "model": task.model, "changes": encode(task.changes)}
    asked |= {"fingerprints": {name: source.fingerprint for name, source in task.splits.items()}}
    cut = training_split(task.splits) if will_cut(task.splits, task.training.validation_share) else None
    asked |= {"contents": {name: contents_of(source, cut=source is cut) for name, source in task.splits.items()}}
    asked |= {"weights": None if task.start is None else task.start.sha256, "training": encode(task.training)}
    if task.preprocessing:
        asked["preprocessing"] = dict(task.preprocessing)
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


def contents_of(source: Source, *, cut: bool = False) -> str | None:
    """Give a digest of what the images are, all of them or many, spread over the source; None for a stream.

    Where a validation split is `cut` from them later, what that needs is made from the same read.
    """
    if isinstance(source, RemoteShards) or not len(source):
        return None
    some = np.unique(np.linspace(0, len(source) - 1, min(LOOKED_AT, len(source))).astype(np.int64))
    return fingerprint_of(content_hashes(Subset(source, some), reuse=True, thumbnails=cut and len(source) <= LARGEST))


def differences(begun: Mapping[str, Any], asked: Mapping[str, Any], where: str = "") -> list[str]:
    """Name what differs between two documents, fields that may change aside."""
    found: list[str] = []
    for name in {**begun, **asked}:
        path, old, new = f"{where}{name}", begun.get(name), asked.get(name)
        if path == "command" or path.removeprefix("training.") in FREE or old == new:
            continue
        if where in ("fingerprints.", "contents."):
            found.append(f"the images of {name} have changed")
        elif path == "weights":
            found.append(f"the weights of {asked['model']} have changed")
        elif isinstance(old, dict) and isinstance(new, dict):
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


@contextmanager
def staying(out: Path) -> Iterator[None]:
    """Say of a folder that vanished under its run that it did, whatever was to be read or written there."""
    try:
        yield
    except (VitrailError, OSError) as error:
        if not _is_gone(out):
            raise
        reason = str(error).removesuffix(HINTS[errno.ENOENT]).rstrip(" .")
        raise CheckpointError(
            f"{reason}. The folder of the run, {out}, was removed or renamed while it trained. Put it back under its "
            "name and ask for the same again, which resumes; without it, the same begins anew."
        ) from error


def _is_gone(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        return isinstance(error, FileNotFoundError)  # others: it may be there, and not be ours to look at
    return False


def is_half(path: Path) -> bool:
    """Tell what a killed run leaves before it has begun, or of a file that it was writing."""
    return path.name == LOCK or HALF.fullmatch(path.name) is not None


@contextmanager
def run_lock(out: Path, report: Reporter) -> Iterator[None]:
    """Have the folder for this process, which removes what killed ones left; refuses one where a run goes on."""
    with ExitStack() as stack:
        with writing(out):
            file = stack.enter_context(open_to_append(out / LOCK))
            patience, words = time.monotonic() + PATIENCE, f"another process trains in {out}"
            if not (free := lock(file)):
                report.note(f"{words}: waiting for it to end")
            while not free and time.monotonic() <= patience:
                time.sleep(0.1)
                free = lock(file)
            if not free:
                raise CheckpointError(f"{words}. Wait for it or end it, or give another folder.")
            for path in out.iterdir():
                if HALF.fullmatch(path.name):
                    path.unlink(missing_ok=True)
        yield


def lock(file: IO[bytes]) -> bool:
    """Lock a file until it is closed or the process ends, however it ends; tells whether nobody else has."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of this process alone: not of the workers that it forks
    except OSError as error:  # others than these: a file system without locks
        return not isinstance(error, BlockingIOError | PermissionError)
    return True


def read_done(out: Path) -> dict[str, Any] | None:
    """Read how a run ended that is finished, as `Outcome` has it."""
    if not (out / DONE).is_file():
        return None
    said = read_document(out / DONE)
    try:
        steps = {"step": said["step"], "steps": said["steps"], "result_step": said.get("result_step", said["step"])}
        found: dict[str, Any] = {name: whole(name, value, least=0) for name, value in steps.items()}
        metrics = {name: float(value) for name, value in said["metrics"].items()}
        return {**found, "result": one_of("result", said.get("result", "last"), get_args(Result)), "metrics": metrics}
    except DAMAGE as error:
        raise CheckpointError(f"{out / DONE} is damaged. Remove it: the same request then finishes anew.") from error


class Checkpoints:
    """The checkpoints of one run folder: the newest few, and the best."""

    def __init__(self, run: Path, *, keep: int, objective: Objective) -> None:
        self.run, self.folder, self.objective = run, run / SAVED, objective
        self.keep = max(keep, 2)  # so that there is one before a damaged one

    def write(self, state: State, tensors: tuple[dict[str, Tensor], ...], extra: Mapping[str, Any]) -> Path:
        """Write a checkpoint of a state's tensors beside the others; those that are not kept go once it is there."""
        path, (weights, own, others) = self.at(state.step), tensors
        if path.exists():
            return path  # a step has one state
        with writing(path):
            self.folder.mkdir(exist_ok=True)  # and not its parents: a run that was removed is not begun again here
        with new_folder(path, overwrite=False) as temporary:
            write_run(temporary, state.model.config, weights, state.card(), self.predictor(own))
            write_safetensors(temporary / TENSORS, others, {})
            (temporary / STATE).write_text(json.dumps({**state.document(), **extra}) + "\n", encoding="utf-8")
            write_sums(temporary)
        self.prune(state)
        return path

    def predictor(self, own: Mapping[str, Tensor]) -> Predictor | None:
        """Give the objective's own tensors with its word, where it has any."""
        return Predictor(self.objective, own) if own else None

    def newest(self, report: Reporter) -> Path | None:
        """Find the newest checkpoint that is whole; those that are damaged are moved aside, and said."""
        if self.folder.is_dir():
            for path in self.folder.iterdir():
                if HIDDEN.fullmatch(path.name):  # what a run left that was killed while it saved
                    shutil.rmtree(path, ignore_errors=True)
        paths = checkpoints_of(self.run)
        for path in reversed(paths):
            try:
                check(path)
            except CheckpointError as error:
                names = (path.with_name(f"{path.name}.damaged-{number}") for number in count(1))
                aside = next(name for name in names if not name.exists())
                with writing(path):
                    os.rename(path, aside)
                report.note(f"{path.name} is damaged and now {aside.name}: {error}")
            else:
                return path
        if paths:
            report.note("no checkpoint is left: beginning anew")
        return None

    def at(self, step: int) -> Path:
        """Give the folder of a step's checkpoint."""
        return self.folder / f"step-{step:09d}"

    def prune(self, state: State) -> None:
        """Remove all but the newest few and the best."""
        best = None if state.best is None else self.at(state.best.step)
        for path in checkpoints_of(self.run)[: -self.keep]:
            if path != best:
                hidden = path.with_name(f".{path.name}.0")  # out of sight first, so that half of it is never found
                with writing(path):
                    os.rename(path, hidden)
                shutil.rmtree(hidden, ignore_errors=True)


def check(path: Path) -> None:
    """Refuse a checkpoint that is not as it was written."""
    verify_sums(path, known=(*RUN_FILES, STATE, TENSORS))


def numeric_environment(plan: Plan) -> dict[str, Any]:
    """Give what changes a result in its last digits."""
    return {
        "threads": torch.get_num_threads(),
        "processes": plan.group.world_size,
        "images at a time": plan.micro_batch,
        "device": plan.group.device.type,
        "compiled": plan.pad_to_micro_batch,
        "shared out": plan.group.world_size > 1 and plan.config.parallel == "fsdp",
        "torch": torch.__version__,
    }


def _read_parts(state: State, path: Path, document: dict[str, Any]) -> None:
    try:
        for name, least in (("journal", 0), ("images at a time", 1)):
            document[name] = whole(name, document[name], least=least)
        read_shards(state, path, document)
    except (*DAMAGE, RuntimeError, OSError) as error:
        raise CheckpointError(f"{path} is not of this run: {error!r}. Give another folder.") from None


def read_into(state: State, path: Path) -> dict[str, Any]:
    """Make a state what a checkpoint holds."""
    document = read_document(path / STATE)
    if is_sharded(path):
        _read_parts(state, path, document)
        return document
    weights, others = (read_safetensors(path / name)[0] for name in (WEIGHTS, TENSORS))
    own = read_predictor(path)
    try:
        for name, least in (("journal", 0), ("images at a time", 1)):
            document[name] = whole(name, document[name], least=least)
        state.restore(document, weights, others if own is None else {**others, **own.tensors})
    except DAMAGE as error:
        raise CheckpointError(f"{path} is not of this run: {error!r}. Give another folder.") from None
    return document
