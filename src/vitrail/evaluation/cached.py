"""What a model gives for every image of a source: a row each, computed once, cached on disk, in the source's order.

Rows are kept under a digest of the weights, the preprocessing and the source, each with the hash of its image and its
label: a pass that is interrupted resumes where it was, and the row of an image that has changed is never used again.
"""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail import __version__
from vitrail.config import encode
from vitrail.data.source import Source, Subset, check_limit
from vitrail.data.splits import content_hashes
from vitrail.errors import CheckpointError, DataError
from vitrail.files import cache_folder, fingerprint_of, read_arrays, replacing, writing
from vitrail.models import Model, eval_mode
from vitrail.runtime.fast import FastModel
from vitrail.runtime.inference import InferenceOptions, OutputFunction, Outputs, compute_outputs, join_outputs

PART = 2048  # images whose rows are kept in one file
FEW, MANY = 1024, 16_384  # images after which rows are kept: more where worker processes must start again
FORMAT = 1  # of the files; another number forgets them all


def cached_outputs(
    model: Model,
    source: Source,
    kind: str,
    compute: OutputFunction,
    options: InferenceOptions,
    samples: NDArray[np.int64] | None = None,
) -> Outputs:
    """Give the outputs of a source, or of some samples of it; `kind` names them on disk. Every process gets all."""
    start = time.perf_counter()
    wanted = np.arange(len(source)) if samples is None else np.unique(samples)
    if not len(wanted):
        raise DataError("the source holds no images. Check its path.")
    store = OutputCache(kind, source, model, options) if options.cache else None
    parts: list[Outputs] = []
    done = 0
    stretch = MANY if options.workers else FEW
    with eval_mode(model):
        for number in np.unique(wanted // stretch).tolist():
            some = wanted[wanted // stretch == number]
            shown = replace(options, progress=lambda count, _, first=done: options.progress(first + count, len(wanted)))
            parts.append(outputs_of_stretch(model, source, compute, shown, some, store))
            done += len(some)
            bad = [(skip.name, skip.reason) for part in parts for skip in part.skipped]
            check_limit(bad, len(bad), len(wanted), options.bad_image_limit)
            options.progress(done, len(wanted))
    return join_outputs(parts, time.perf_counter() - start)


def digest_of(model: Model) -> str:
    """Give a digest of all of a model that decides its rows: weights, configuration, preprocessing, what it runs in."""
    said = json.dumps([encode(model.config), encode(model.card.preprocessing)], sort_keys=True)
    tensors = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    bits = [tensor.flatten().contiguous().view(torch.uint8).numpy() for tensor in tensors.values()]
    made = (model.made_as,) if isinstance(model, FastModel) else ()
    return fingerprint_of(said, "\0".join(tensors), *bits, *made)


class OutputCache:
    """Outputs on disk: a file for each stretch of a source, each row with the hash of its image and its label."""

    def __init__(self, kind: str, source: Source, model: Model, options: InferenceOptions) -> None:
        key = fingerprint_of(f"{FORMAT} {__version__} {kind} {options.precision}", digest_of(model), source.fingerprint)
        self.source, self.folder = source, cache_folder() / "rows" / kind / key

    def take(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], Outputs | None]:
        """Give the samples without a row, and the rows of the others, whose images are as they were."""
        self.marks = self.marks_of(samples)
        missing, found = [], []
        for number in np.unique(samples // PART).tolist():
            here = samples // PART == number
            some, marks, held = samples[here], self.marks[here], self._read(number)
            if held is None:
                missing.append(some)
                continue
            places = np.searchsorted(held["samples"], some).clip(max=len(held["samples"]) - 1)
            same = (held["samples"][places] == some) & (held["hashes"][places] == marks).all(axis=1)
            missing.append(some[~same])
            found.append(self._rows(held, places[same]))
        found = [rows for rows in found if len(rows.samples)]
        return np.concatenate(missing) if missing else samples[:0], join_outputs(found, 0.0) if found else None

    def keep(self, samples: NDArray[np.int64], rows: Outputs) -> None:
        """Add rows to those that are there, in place of older ones; what the disk refuses is not kept."""
        marks = self.marks[np.isin(samples, rows.samples)]
        for number in np.unique(rows.samples // PART).tolist():
            here = rows.samples // PART == number
            found = {"samples": rows.samples[here], "hashes": marks[here]}
            found |= {name: value[here] for name, value in rows.values.items()}
            held = self._read(number)  # now, as another process may have added its own meanwhile
            if held is not None and held.keys() == found.keys():
                older = ~np.isin(held["samples"], samples)
                found = {name: np.concatenate([held[name][older], array]) for name, array in found.items()}
            order = np.argsort(found["samples"], kind="stable")
            path = self._path(number)
            with suppress(CheckpointError), writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                with replacing(path) as temporary:
                    ordered = {name: array[order] for name, array in found.items()}
                    np.savez(temporary, **ordered, digest=np.array(_digest(ordered)))  # pyright: ignore[reportArgumentType]

    def marks_of(self, samples: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Give what tells an image from what it was before: the hash of its contents, and its label."""
        labels = self.source.labels[samples].astype("<i8")[:, None].view(np.uint8)
        return np.concatenate([content_hashes(Subset(self.source, samples)), labels], axis=1)

    def _rows(self, held: dict[str, NDArray[Any]], places: NDArray[np.int64]) -> Outputs:
        samples = held["samples"][places]
        values = {name: array[places] for name, array in held.items() if name not in ("samples", "hashes")}
        return Outputs(samples=samples, labels=self.source.labels[samples], values=values, reused=len(samples))

    def _read(self, number: int) -> dict[str, NDArray[Any]] | None:
        try:
            arrays = read_arrays(self._path(number))
        except (OSError, ValueError):
            return None
        said = arrays.pop("digest", None)
        return arrays if said is not None and str(said) == _digest(arrays) else None

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.npz"


def _digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Give a digest of rows as they are kept: those of another are none of ours."""
    said = [f"{name} {array.dtype} {array.shape}" for name, array in arrays.items()]
    return fingerprint_of("\0".join(said), *arrays.values())


def outputs_of_stretch(
    model: Model,
    source: Source,
    compute: OutputFunction,
    options: InferenceOptions,
    samples: NDArray[np.int64],
    store: OutputCache | None,
) -> Outputs:
    """Take the rows of a stretch from disk, compute those that are not there, and keep them."""
    if store is None:
        return compute_outputs(model, source, samples, compute, options)
    missing, held = options.group.on_main(lambda: store.take(samples))
    if not len(missing) and held is not None:
        return held
    fresh = compute_outputs(model, source, missing, compute, options)
    found = fresh if held is None else join_outputs([held, fresh], 0.0)
    options.group.on_main(lambda: store.keep(samples, found))
    return found
