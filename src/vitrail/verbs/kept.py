"""What was found of image files so far, on disk until the answers are given: a command that was stopped goes on."""

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.evaluation.cached import OutputCache
from vitrail.files import fingerprint_of
from vitrail.models import Model
from vitrail.runtime.inference import InferenceOptions
from vitrail.verbs.images import ImageList
from vitrail.verbs.opening import said_passes

BATCHES = 32  # of every core, after which rows are kept; where processes decode, after a stretch, as they begin anew


class Kept(OutputCache):
    """Rows of image files, each beside what its file was; a hash of its contents would cost a second reading."""

    def marks_of(self, samples: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Give size, time of change and number of every file."""
        marks = np.empty((len(samples), 3), np.uint64)
        for place, sample in enumerate(samples.tolist()):
            try:
                said = os.stat(self.source.name(sample))
                marks[place] = said.st_size, said.st_mtime_ns % 2**64, said.st_ino % 2**64
            except (OSError, ValueError):
                marks[place] = np.frombuffer(os.urandom(24), np.uint64)  # like nothing else
        return marks.view(np.uint8)

    def remove(self) -> None:
        """Remove the rows: their answers are given."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # where others are kept
            self.folder.parent.rmdir()


def pieces_of(ranges: Iterable[range], options: InferenceOptions) -> list[range]:
    """Cut ranges where rows are kept: between two batches."""
    if options.workers:
        return [*ranges]
    most = options.batch_size * torch.get_num_threads() * BATCHES
    return [some[at : at + most] for some in ranges for at in range(0, len(some), most)]


def keep_rows(source: ImageList, model: Model, parts: Sequence[str], options: InferenceOptions) -> Kept | None:
    """Give where rows are kept; None where an image is no file, or nothing is to be kept."""
    if not options.cache or not source.are_files:
        return None
    return Kept(f"predicting-{fingerprint_of(json.dumps([*parts, said_passes(model)]))}", source, model, options)
