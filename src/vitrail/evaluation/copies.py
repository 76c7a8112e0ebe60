"""Images to measure on that a model has all but seen: those with a copy or a near-copy among its training images."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrail.data.near import LARGEST
from vitrail.data.source import Source
from vitrail.data.sources.remote import RemoteShards
from vitrail.data.splits import Progress, contents
from vitrail.models import Model
from vitrail.ops.near import near_pairs
from vitrail.train.task import kept_back, without_held_out


def training_images(splits: Mapping[str, Source], chosen: str, run: Path | Model | None) -> Source | None:
    """Find what a model was trained on, beside the split that is measured: None where that is not known.

    A run knows which images of a split it trained on, where it kept some back; else those of `train` are meant.
    """
    whole = splits.get("train", splits.get("all"))
    if whole is None or isinstance(whole, RemoteShards):
        return None
    cut = None if run is None else kept_back(run, without_held_out(run, whole))
    if cut is not None:
        return cut[0]
    return None if chosen in ("train", "all") else whole


def can_compare(train: Source, source: Source) -> bool:
    """Tell whether there are few enough images to look for copies unasked."""
    return len(train) + len(source) <= LARGEST and not isinstance(source, RemoteShards)


def have_copies(source: Source, train: Source, progress: Progress | None = None) -> NDArray[np.bool_]:
    """Tell which samples of a source have a copy or a near-copy among training images."""
    count = len(train)

    def show(done: int, _: int) -> None:
        if progress is not None:
            progress(done, count + len(source))

    known, thumbnails = contents(train, progress=show)
    hashes, small = contents(source, progress=lambda done, _: show(count + done, 0))
    seen = {row.tobytes() for row in known}
    found = np.array([row.tobytes() in seen for row in hashes], dtype=np.bool_)
    pairs = near_pairs(np.concatenate([thumbnails, small]))
    found[pairs[(pairs[:, 0] < count) & (pairs[:, 1] >= count), 1] - count] = True
    return found
