"""What a run leaves as it goes: checkpoints that `vitrail.load` opens, whole or not there, and its log."""

import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.checkpoint.archives.base import read_safetensors, write_safetensors
from vitrail.checkpoint.run_folder import (
    RUN_FILES,
    SAVED,
    WEIGHTS,
    Predictor,
    checkpoints_of,
    read_document,
    read_predictor,
    write_run,
)
from vitrail.config import Card
from vitrail.config.objective import Objective
from vitrail.errors import CheckpointError, ConfigError
from vitrail.files import new_folder, verify_sums, write_sums, writing
from vitrail.files.atomic import sync
from vitrail.runtime.reporter import Reporter
from vitrail.train.state import State

STATE, TENSORS, LOG = "state.json", "training.safetensors", "log.jsonl"
HIDDEN = re.compile(r"\.step-\d{9,}\.[0-9a-f]+")


class Checkpoints:
    """The checkpoints of one run folder: the newest few, and the best."""

    def __init__(self, run: Path, *, keep: int, objective: Objective) -> None:
        self.run, self.folder, self.objective = run, run / SAVED, objective
        self.keep = max(keep, 2)  # so that there is one before a damaged one

    def write(
        self,
        state: State,
        weights: Mapping[str, Tensor],
        own: Mapping[str, Tensor],
        others: Mapping[str, Tensor],
        card: Card,
        extra: Mapping[str, Any],
    ) -> Path:
        """Write a checkpoint of gathered tensors beside the others; those that are not kept go once it is there."""
        path = self.folder / f"step-{state.step:09d}"
        if path.exists():
            return path  # a step has one state
        with writing(path):
            self.folder.mkdir(exist_ok=True)  # and not its parents: a run that was removed is not begun again here
        with new_folder(path, overwrite=False) as temporary:
            write_run(temporary, state.model.config, weights, card, self.predictor(own))
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
        self._sweep()
        paths = checkpoints_of(self.run)
        for path in reversed(paths):
            try:
                check(path)
            except CheckpointError as error:
                aside = _aside(path)
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

    def _sweep(self) -> None:
        """Remove what a run left that was killed while it saved."""
        if self.folder.is_dir():
            for path in self.folder.iterdir():
                if HIDDEN.fullmatch(path.name):
                    shutil.rmtree(path, ignore_errors=True)


def check(path: Path) -> None:
    """Refuse a checkpoint that is not as it was written."""
    verify_sums(path, known=(*RUN_FILES, STATE, TENSORS))


def read_into(state: State, path: Path) -> dict[str, Any]:
    """Make a state what a checkpoint holds."""
    document = read_document(path / STATE)
    weights, others = (read_safetensors(path / name)[0] for name in (WEIGHTS, TENSORS))
    own = read_predictor(path)
    state.restore(document, weights, others if own is None else {**others, **own.tensors})
    return document


def _aside(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return aside


class Journal:
    """Appends lines; a run that goes on from a checkpoint goes on from the lines of that time."""

    def __init__(self, folder: Path, *, tensorboard: bool = False) -> None:
        self.path = folder / LOG
        self.tensorboard, self.board = tensorboard, None

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self.path.stat().st_size if self.path.exists() else 0

    def cut(self, size: int, step: int) -> int:
        """Forget what was written past a checkpoint; give how many bytes are missing before it."""
        if self.tensorboard:
            self.board = _board(self.path.parent, step)
        missing = max(size - self.size, 0)
        with writing(self.path):
            if missing and self.size:
                held = self.path.read_bytes()
                size = held.rfind(b"\n") + 1  # half a line would spoil the next
            if self.size > size:
                os.truncate(self.path, size)
        return missing

    def fsync(self) -> None:
        """Wait until all is on the disk, as a checkpoint is about to count on it."""
        with writing(self.path):
            if self.path.exists():
                sync(self.path)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a line; what depends on the clock is under `time`."""
        line = json.dumps({name: _plain(value) for name, value in record.items()}, allow_nan=False) + "\n"
        with writing(self.path), self.path.open("ab") as file:
            file.write(line.encode())
        if self.board is not None:
            for name, value in {**record, **record.get("time", {})}.items():
                if isinstance(value, int | float) and name != "step":
                    self.board.add_scalar(f"{record['kind']}/{name}", value, record["step"])

    def close(self) -> None:
        """Write what TensorBoard holds back."""
        if self.board is not None:
            self.board.close()


def _plain(value: object) -> object:
    """Give nothing for a number that JSON has no word for."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _board(folder: Path, step: int) -> Any:  # noqa: ANN401
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            "TensorBoard is not installed. pip install 'vitrail[tensorboard]', or leave it out."
        ) from error
    return SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
