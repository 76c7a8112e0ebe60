"""What was asked of a run, written down when it begins; and whether the same is asked when it goes on."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from vitrail.checkpoint.run_folder import BEGUN, checkpoints_of, locate, read_document, write_documents
from vitrail.config.codec import complete, encode
from vitrail.data.source import Source, Subset
from vitrail.data.sources.remote import RemoteShards
from vitrail.data.splits import content_hashes
from vitrail.errors import ConfigError
from vitrail.files import fingerprint_of, sha256_of
from vitrail.train.task import DONE, Task, is_checkpoint

# What may change when a run goes on: nothing of it changes the result.
FREE = ("micro_batch", "keep", "save_every", "probe_every", "compile", "parallel", "augment_on", "bad_image_limit")
LOOKED_AT = 4096  # images of a split whose contents are compared: all of a small one


def begin(task: Task) -> None:
    """Write down what was asked; or refuse where something else was asked, and trained, before."""
    asked = {"command": task.command, "data": task.data, "model": task.model, "changes": dict(task.changes)}
    asked |= {"fingerprints": {name: source.fingerprint for name, source in task.splits.items()}}
    asked |= {"contents": {name: contents_of(source) for name, source in task.splits.items()}}
    asked |= {"weights": weights_of(task.model), "training": encode(task.training)}
    if not checkpoints_of(task.out) and not (task.out / DONE).exists():  # nothing was trained yet: nothing is lost
        write_documents(task.out, {BEGUN: asked})
        return
    begun = read_document(task.out / BEGUN)
    begun["training"] = complete(begun.get("training"))
    asked |= {name: begun.get(name) for name in ("contents", "weights") if name not in begun}  # of an older run
    if differing := sorted(differences(begun, json.loads(json.dumps(asked)))):
        raise ConfigError(
            f"{task.out} was begun otherwise: {'; '.join(differing[:6])}. Say the same again to go on, "
            "or give another --out."
        )


def contents_of(source: Source) -> str | None:
    """Give a digest of what the images are, all of them or many, spread over the source; None for a stream."""
    if isinstance(source, RemoteShards) or not len(source):
        return None
    some = np.unique(np.linspace(0, len(source) - 1, min(LOOKED_AT, len(source))).astype(np.int64))
    return fingerprint_of(content_hashes(Subset(source, some), reuse=True))


def weights_of(model: str) -> str | None:
    """Give a digest of the weights that a run begins with; None for fresh ones."""
    return sha256_of(locate(model).weights) if is_checkpoint(model) else None


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
