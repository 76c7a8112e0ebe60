"""The forward and backward pass of a part of a batch: launched kernel by kernel, or as a graph that was captured."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from vitrail.data.source import Batch
from vitrail.errors import ConfigError
from vitrail.models import Model
from vitrail.runtime.graphs import Replay, capture
from vitrail.runtime.machine import Group
from vitrail.train.dense import DensePrediction
from vitrail.train.objective import BuiltObjective, OwnObjective

WARM = 2  # passes of a kind before its graph is captured: kernels are compiled, and constants made
MOST = 4  # graphs, each of which holds all that its passes keep
ROWS = ("images", "labels", "targets")  # of a batch, that a loss on the device reads
Capture = Callable[[Callable[[], tuple[Tensor, Tensor]]], tuple[Replay, tuple[Tensor, Tensor]]]


class Given(NamedTuple):
    """What a pass reads: part of a batch, what the objective made of it, and the keys of its dropout masks."""

    part: Batch
    inputs: tuple[Tensor, ...]
    keys: Tensor


Run = Callable[[Given], tuple[Tensor, Tensor]]  # adds to the gradients; gives the loss, and sums for the log


class Captured(NamedTuple):
    """A graph: the places that it reads and writes."""

    places: list[Tensor]
    replay: Replay
    result: tuple[Tensor, Tensor]


def launch(run: Run, given: Given, kind: object) -> tuple[Tensor, Tensor]:
    """Launch a pass kernel by kernel, whatever its kind."""
    return run(given)


class StepGraphs:
    """Launches a pass as one graph, where one of its kind was seen before: for models that wait for the host.

    A kind is all that a pass reads but its tensors. Gradients stay in their places from the first graph on.
    """

    def __init__(self, optimizer: Optimizer, capture: Capture = capture) -> None:
        self.parameters = [item for group in optimizer.param_groups for item in group["params"]]
        self.capture = capture
        self.seen: Counter[object] = Counter()
        self.captured: dict[object, Captured] = {}
        self.learning: list[Tensor] = []  # the parameters that passes give a gradient
        self.gradients: dict[Tensor, Tensor] = {}  # its place

    def __call__(self, run: Run, given: Given, kind: object) -> tuple[Tensor, Tensor]:
        """Add to the gradients; the result is there until the next pass."""
        tensors = list(tensors_of(given))
        kind = (kind, *((tensor.shape, tensor.dtype) for tensor in tensors))
        if kind not in self.captured:
            self.seen[kind] += 1
            if self.seen[kind] <= WARM or len(self.captured) >= MOST:
                result = run(given)
                self.learning = [item for item in self.parameters if item.grad is not None]
                return result
            self.captured[kind] = self._capture(run, given, tensors)
        found = self.captured[kind]
        for place, tensor in zip(found.places, tensors, strict=True):
            place.copy_(tensor)
        self._place_gradients()
        found.replay()
        return found.result

    def forget(self) -> None:
        """Give all graphs and their memory back."""
        self.seen.clear()
        self.captured.clear()
        self.gradients.clear()

    def _capture(self, run: Run, given: Given, tensors: list[Tensor]) -> Captured:
        if not self.gradients:
            self.gradients = {item: torch.zeros_like(item) for item in self.learning}
        self._place_gradients()
        places = [tensor.clone() for tensor in tensors]
        held = replaced(given, places)
        replay, result = self.capture(lambda: run(held))
        return Captured(places, replay, result)

    def _place_gradients(self) -> None:
        """Have all gradients in their places: what is none is zero there."""
        fresh = []
        for item, place in self.gradients.items():
            if item.grad is None:
                fresh.append(place)
            elif item.grad is not place:  # of a pass that was no graph
                place.copy_(item.grad)
            item.grad = place
        if fresh:
            torch._foreach_zero_(fresh)  # pyright: ignore[reportPrivateImportUsage]


def tensors_of(given: Given) -> Iterator[Tensor]:
    """Give each tensor that a pass reads once: inputs may be the batch's own."""
    rows = (getattr(given.part, name) for name in ROWS)
    seen: set[int] = set()
    for tensor in (*rows, *given.inputs, given.keys):
        if tensor is not None and id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor


def replaced(given: Given, places: list[Tensor]) -> Given:
    """Give the same with other tensors in the places of its own."""
    known = {id(tensor): place for tensor, place in zip(tensors_of(given), places, strict=True)}
    rows = {name: known[id(row)] for name in ROWS if (row := getattr(given.part, name)) is not None}
    inputs = tuple(known[id(tensor)] for tensor in given.inputs)
    return Given(given.part._replace(**rows), inputs, known[id(given.keys)])


def check_graphs(model: Model, objective: BuiltObjective | DensePrediction, group: Group) -> None:
    """Refuse graphs where a pass waits for the host, or draws from what a graph does not renew."""
    lacking = ""
    if group.device.type != "cuda":
        lacking = f"a GPU, and this run is on {group.device}"
    elif group.world_size > 1:
        lacking = f"one process, and these are {group.world_size}"
    elif isinstance(objective, DensePrediction | OwnObjective):
        lacking = "an objective whose loss is the device's alone: classes, numbers, or one without labels"
    elif getattr(model.config, "attention_dropout", 0.0) or model.config.checkpointing:
        lacking = "a model without attention_dropout and checkpointing"
    if lacking:
        raise ConfigError(f"compile=graphs needs {lacking}. Set compile=on.")
