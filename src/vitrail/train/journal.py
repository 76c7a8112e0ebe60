"""The log of a run: a JSON object a line, as it would be without interruptions; and the same for TensorBoard."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.errors import ConfigError
from vitrail.files import writing
from vitrail.files.atomic import sync

NAME = "log.jsonl"


class Journal:
    """Appends lines; a run that goes on from a checkpoint goes on from the lines of that time."""

    def __init__(self, folder: Path, *, tensorboard: bool = False) -> None:
        self.path = folder / NAME
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
