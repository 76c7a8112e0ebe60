"""The log of a run: lines in its folder, and for those who track it elsewhere."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.files import read_regular, writing
from vitrail.files.atomic import open_to_append, sync
from vitrail.files.reading import LARGEST_DOCUMENT
from vitrail.runtime.reporter import SILENT, Reporter
from vitrail.runtime.tracking import Trackers

LOG = "log.jsonl"


class Journal:
    """Appends lines; a run that goes on from a checkpoint goes on from the lines of that time."""

    def __init__(self, folder: Path, *, track: Sequence[str] = (), report: Reporter = SILENT) -> None:
        self.path, self._report = folder / LOG, report
        self._draws, self.board = "tensorboard" in track, None
        self._trackers = Trackers(track, folder, report)
        self.finished = False

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self.path.stat().st_size if self.path.exists() else 0

    def cut(self, size: int, step: int) -> int:
        """Forget what was written past a checkpoint; give how many bytes are missing before it."""
        if self._draws:
            from torch.utils.tensorboard import SummaryWriter

            try:
                self.board = SummaryWriter(str(self.path.parent / "tensorboard"), purge_step=step + 1)
            except OSError as error:
                self._report.note(f"tensorboard: {error} (the run goes on without it)")
        missing = max(size - self.size, 0)
        with writing(self.path):
            if missing and self.size:
                held = read_regular(self.path, most=LARGEST_DOCUMENT)
                size = held.rfind(b"\n") + 1  # half a line would spoil the next
            if self.size > size:
                os.truncate(self.path, size)
        self._trackers.start()
        return missing

    def fsync(self) -> None:
        """Wait until all is on the disk, as a checkpoint is about to count on it."""
        with writing(self.path):
            if self.path.exists():
                sync(self.path)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a line; what depends on the clock is under `time`."""
        numbers = {name: value for name, value in record.items() if isinstance(value, float)}
        unsaid = {name: None for name, value in numbers.items() if not math.isfinite(value)}  # JSON has no word for it
        line = json.dumps({**record, **unsaid}, allow_nan=False) + "\n"
        with writing(self.path), open_to_append(self.path) as file:
            file.write(line.encode())
        if self.board is None:
            return
        try:
            for name, value in {**record, **record.get("time", {})}.items():
                if isinstance(value, int | float) and name != "step":
                    self.board.add_scalar(f"{record['kind']}/{name}", value, record["step"])
        except (OSError, RuntimeError) as error:  # of its own thread too, a record later
            self.board = None
            self._report.note(f"tensorboard: {error} (the run goes on without it)")

    def close(self) -> None:
        """Let those who track the run take what is left."""
        if self.board is not None:
            self.board.close()
        self._trackers.close(finished=self.finished)
