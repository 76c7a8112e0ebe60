"""Passes captured as graphs beside passes launched one by one; recorded operations stand in for CUDA's graphs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import vitrail
from vitrail.config.objective import MaskedAutoencoder, MaskedPatches, NextPixels
from vitrail.config.recipe import EMA, SGD, Adam, Augmentation, Muon, Schedule, Training
from vitrail.data.sources.memory import MemorySource
from vitrail.errors import ConfigError
from vitrail.runtime.machine import Group
from vitrail.runtime.reporter import SILENT
from vitrail.train.loop import train_step
from vitrail.train.objective import Classification, MaskedAutoencoding
from vitrail.train.prepare import Ready, prepare
from vitrail.train.step_graphs import StepGraphs, check_graphs
from vitrail.train.task import Parts, Task

SMALL = {"depth": 2, "width": 24, "heads": 3, "mlp_width": 40, "dropout": 0.2, "stochastic_depth": 0.3}
CPU = torch.device("cpu")


class Recording(TorchDispatchMode):
    """Notes every operation with the tensors that it reads and writes, all of which stay where they are."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[Any, Any, Any, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.noted.append((func, args, kwargs or {}, tree_flatten(made)[0]))
        return made

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, places in self.noted:
                for place, fresh in zip(places, tree_flatten(func(*args, **kwargs))[0], strict=True):
                    if isinstance(place, Tensor) and place is not fresh:
                        place.copy_(fresh)


@dataclass
class Recorder:
    """What stands in for CUDA's graphs: what was launched is launched again, on the same memory."""

    graphs: StepGraphs | None = None
    captures: int = 0
    replays: int = 0
    recordings: list[Recording] = field(default_factory=list)

    def __call__(self, run: Callable[[], Any]) -> tuple[Callable[[], object], Any]:
        self.captures += 1
        assert self.graphs is not None
        before = [place.clone() for place in self.graphs.gradients.values()]
        with Recording() as recording:
            result = run()
        for place, value in zip(self.graphs.gradients.values(), before, strict=True):
            place.copy_(value)  # as a capture computes nothing

        def replay() -> None:
            self.replays += 1
            recording.replay()

        return replay, result


def ready(
    out: Path, *, graphs: bool, count: int = 24, model: str = "ViT-Ti/4", **fields: Any
) -> tuple[Ready, Recorder]:
    """A run about to take its first step."""
    random = np.random.default_rng(3)
    pixels = random.integers(0, 256, (count, 8, 12, 3), dtype=np.uint8)
    images = MemorySource(pixels, np.arange(count) % 5, tuple("abcde"))
    usual: dict[str, Any] = {
        "batch_size": 12,
        "image_size": (8, 12),
        "steps": 9,
        "schedule": Schedule(curve="constant"),
        "optimizer": Adam(learning_rate=1e-2, weight_decay=0.1),
        "validation_share": 0.0,
        "augmentation": Augmentation(mixup=0.4 if "objective" not in fields else 0.0),
        "clip_norm": 1.0,
    }
    training = Training(**(usual | fields))
    task = Task(
        command="pytest",
        data="memory",
        splits={"train": images},
        model=model,
        training=training,
        out=out,
        changes=SMALL,
        device="cpu",
    )
    made, recorder = prepare(task, Parts(train=images, val=None, test=None), Group(device=CPU), SILENT), Recorder()
    if graphs:
        made.plan.graphs = recorder.graphs = StepGraphs(made.state.optimizer, recorder)
    for batch in islice(made.plan.feed.stream(), 9):
        train_step(made.plan, made.state, batch)
    return made, recorder


@pytest.mark.parametrize(
    "fields",
    [
        {"micro_batch": 5, "optimizer": SGD(learning_rate=0.1)},
        {"objective": MaskedAutoencoder(decoder_depth=1, decoder_width=24, decoder_head_width=8)},
        pytest.param({"ema": EMA(decay=0.7), "label_smoothing": 0.1}, marks=pytest.mark.slow),
        pytest.param({"micro_batch": 4, "optimizer": Muon(learning_rate=1e-2)}, marks=pytest.mark.slow),
        pytest.param({"objective": MaskedPatches()}, marks=pytest.mark.slow),
        pytest.param({"objective": NextPixels(colors=8), "model": "ViT-Ti/1"}, marks=pytest.mark.slow),
    ],
    ids=["parts", "mae", "labels", "muon", "masked-patch", "next-pixel"],
)
def test_passes_as_graphs_give_the_bits_of_passes_launched_one_by_one(fields: dict[str, Any], tmp_path: Path) -> None:
    plain, _ = ready(tmp_path / "plain", graphs=False, **fields)
    graphed, recorder = ready(tmp_path / "graphs", graphs=True, **fields)
    assert recorder.captures
    assert recorder.replays >= 7
    found, wanted = (dict(made.state.module.named_parameters()) for made in (graphed, plain))
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []
    assert torch.equal(graphed.state.tally, plain.state.tally)
    assert torch.equal(torch.as_tensor(graphed.state.norm), torch.as_tensor(plain.state.norm))


def test_what_did_not_fit_gives_its_graphs_back_and_goes_on_with_smaller_ones(tmp_path: Path) -> None:
    made, recorder = ready(tmp_path, graphs=True, optimizer=SGD(learning_rate=0.1))
    plain, _ = ready(tmp_path / "plain", graphs=False, optimizer=SGD(learning_rate=0.1))
    graphs, real = made.plan.graphs, made.plan.forward
    assert graphs is not None

    def small(images: Tensor) -> Tensor:
        if len(images) > 6:
            raise torch.OutOfMemoryError
        return real(images)

    made.plan.forward = small
    graphs.forget()
    plain.plan.micro_batch = 6
    for batch in islice(made.plan.feed.stream(9), 3):
        train_step(made.plan, made.state, batch)
        train_step(plain.plan, plain.state, batch)
    assert (made.plan.micro_batch, recorder.captures) == (6, 2)
    for found, wanted in zip(made.state.model.parameters(), plain.state.model.parameters(), strict=True):
        assert torch.equal(found, wanted)


def test_graphs_are_refused_where_a_pass_cannot_be_captured(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"compile=graphs needs a GPU, and this run is on cpu\. Set compile=on\."):
        ready(tmp_path, graphs=False, compile="graphs")
    made, _ = ready(tmp_path / "other", graphs=False)
    gpu, objective = Group(device=torch.device("cuda")), made.plan.objective
    check_graphs(made.state.model, objective, gpu)
    with pytest.raises(ConfigError, match="needs one process, and these are 2"):
        check_graphs(made.state.model, objective, Group(device=torch.device("cuda"), rank=1, world_size=2))
    model = vitrail.create("ViT-Ti/16", depth=1, classes=3, attention_dropout=0.1)
    with pytest.raises(ConfigError, match="without attention_dropout and checkpointing"):
        check_graphs(model, Classification(model, made.plan.config), gpu)
    hidden = vitrail.create("ViT-Ti/16", depth=1, attention_dropout=0.1)
    objective = MaskedAutoencoding(hidden, MaskedAutoencoder(decoder_depth=1), seed=0)  # which only holds the model
    with pytest.raises(ConfigError, match="without attention_dropout and checkpointing"):
        check_graphs(hidden, objective, gpu)
