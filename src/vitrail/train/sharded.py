"""Checkpoints of models that are shared out: every rank writes its parts in the background, and any number reads them.

The files are those of torch's distributed checkpoint, with the run's own documents and checksums beside them.
"""

import json
import secrets
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import filesystem, state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.tensor import DTensor

from vitrail.errors import CheckpointError
from vitrail.files import write_sums, writing
from vitrail.files.atomic import sync
from vitrail.models.lora import MARK
from vitrail.runtime.joining import all_or_none
from vitrail.runtime.machine import Group, gather_over_ranks
from vitrail.train.state import WORDS, State, moments, trainable_names

FROM = 4 << 30  # bytes of weights, moments and average, from which on ranks save what they hold
INDEX, STATE = ".metadata", "state.json"  # the first is torch's name


def is_sharded(path: Path) -> bool:
    """Tell a checkpoint whose tensors are in parts."""
    return (path / INDEX).is_file()


def parts_of(state: State) -> dict[str, Tensor]:
    """Give all that is saved of a state as it is held, by its kind and name."""
    named = list(trainable_names(state.module))
    found = {f"model/{name}": parameter.detach() for name, parameter in named} | moments(state.optimizer, named)
    averaged = {} if state.average is None else state.average.weights
    return found | {f"average/{name}": tensor for name, tensor in averaged.items()}


def saves_shards(state: State, group: Group) -> bool:
    """Tell whether ranks save what they hold: of large models that are shared out, and have no low-rank changes."""
    parts = parts_of(state)
    shared = any(isinstance(tensor, DTensor) for tensor in parts.values())
    size = sum(tensor.numel() * tensor.element_size() for tensor in parts.values())
    return group.world_size > 1 and shared and size >= FROM and not any(MARK in name for name in parts)


class ShardWriter:
    """Writes one checkpoint at a time while the training goes on."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.thread: Thread | None = None
        self.error: Exception | None = None
        self.between: Any = dist.new_group(backend="gloo")  # for the thread alone
        self.path: Path | None = None
        # What is copied is copied into pinned memory, which is kept: from a GPU that takes a tenth of the time.
        self.stager = BlockingAsyncStager(cache_staged_state_dict=group.device.type == "cuda")

    def begin(self, state: State, path: Path, extra: Mapping[str, Any]) -> None:
        """Copy what this rank holds, and write it from then on; waits for the one before."""
        self.wait()
        tally = gather_over_ranks(state.tally).sum(dim=0).tolist()
        document = {**state.document(), **extra, "tally": tally}

        def make() -> Path:
            hidden = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
            with writing(path):
                path.parent.mkdir(exist_ok=True)
                hidden.mkdir()
            return hidden

        hidden = self.group.on_main(make)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what torch will change
            coming: Any = state_dict_saver.async_save(
                parts_of(state), checkpoint_id=hidden, process_group=self.between, async_stager=self.stager
            )

        def write() -> None:
            try:
                coming.result()
                if self.group.is_main:
                    keep(hidden, path, document)
            except Exception as error:
                self.error = error
                if self.group.is_main:
                    shutil.rmtree(hidden, ignore_errors=True)

        self.path, self.thread = path, Thread(target=write, name="vitrail-save")
        self.thread.start()

    def wait(self) -> Path | None:
        """Wait for what is being written and give its path; what failed on any rank fails on all."""
        if self.thread is None:
            return None
        self.thread.join()
        self.thread, path, error = None, self.path, self.error
        self.error = None

        def tell() -> None:
            if error is not None:
                raise CheckpointError(f"cannot save {path}: {' '.join(str(error).split())}. Check the disk.") from error

        all_or_none(self.group, tell)
        return path


def keep(hidden: Path, path: Path, document: Mapping[str, Any]) -> None:
    """Put the documents beside the parts, and give the folder its name, last of all."""
    with writing(path):
        (hidden / STATE).write_text(json.dumps(document) + "\n", encoding="utf-8")
        write_sums(hidden)
        for file in (*hidden.iterdir(), hidden):
            sync(file)
        if path.exists():  # a step has one state
            shutil.rmtree(hidden)
            return
        hidden.rename(path)
        sync(path.parent)


@torch.no_grad()
def read_shards(state: State, path: Path, document: Mapping[str, Any]) -> None:
    """Become what a checkpoint of any number of ranks holds; each reads its own part. A collective."""
    reader = filesystem.FileSystemReader(path)
    there = reader.read_metadata().state_dict_metadata
    wanted: dict[str, Any] = {}
    memories: list[tuple[Tensor, dict[str, Tensor]]] = []
    for name, parameter in trainable_names(state.module):
        wanted[f"model/{name}"] = parameter.detach()
        memory = {word: torch.zeros_like(parameter.detach()) for word in WORDS if f"{word}/{name}" in there}
        wanted |= {f"{word}/{name}": value for word, value in memory.items()}
        memories.append((parameter, memory))
    if state.average is not None:
        wanted |= {f"average/{name}": tensor for name, tensor in state.average.weights.items()}
    if missing := sorted(wanted.keys() - there.keys()):
        raise KeyError(missing[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state_dict_loader.load(wanted, storage_reader=reader, no_dist=not dist.is_initialized())
    tally = torch.tensor(document["tally"], dtype=state.tally.dtype)
    first = not dist.is_initialized() or dist.get_rank() == 0
    state.tally.copy_(tally if first else torch.zeros_like(tally))
    state.take_document(document)
    for parameter, memory in memories:
        if "exp_avg" in memory:
            memory["step"] = torch.tensor(float(state.step), dtype=torch.float32, device=parameter.device)
        if memory:
            state.optimizer.state[parameter] = memory
