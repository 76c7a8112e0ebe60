"""What the ways of the bench do: the products of a model, the loop's own step, and times that are those of a clock."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import vitrail
from vitrail.config import parse
from vitrail.errors import ConfigError, VitrailError
from vitrail.ops.cost.counts import parameters
from vitrail.runtime.cpu import CPU as CPU_PATH, has_int8
from vitrail.studies.bench import forward, training
from vitrail.studies.bench.decoding import photograph
from vitrail.studies.bench.forward import check_numbers, stir
from vitrail.studies.bench.loading import open_loading
from vitrail.studies.bench.memory import predict
from vitrail.studies.bench.peers import peer, peer_model
from vitrail.studies.bench.ready import reason
from vitrail.studies.bench.table import (
    Decode,
    Forward,
    Library,
    Load,
    Precision,
    Products,
    Shape,
    StepMemory,
    TrainLoop,
    TrainStep,
    Unit,
    Work,
)
from vitrail.studies.bench.timing import Clock
from vitrail.studies.bench.work import open_work

CPU = torch.device("cpu")
CLOCK = Clock(device=CPU, unit="images/s", seconds=0.001)
TINY = Shape(model="ViT-Ti/16", batch=3, image_size=32, fields={"depth": 2})
OTHER = Shape(model="ViT-Ti/16", batch=3, image_size=32, fields={"depth": 2, "width": 24, "heads": 3, "mlp_width": 40})


class Ticking:
    """A clock that only steps move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
        self.now, self.calls, self.each = 0.0, 0, seconds
        monkeypatch.setattr("vitrail.studies.bench.timing.time", SimpleNamespace(perf_counter=lambda: self.now))

    def step(self) -> None:
        self.now += self.each[self.calls % len(self.each)]
        self.calls += 1


@pytest.mark.parametrize(("unit", "value"), [("images/s", 160.0), ("ms an image", 6.25), ("ms", 25.0)])
def test_a_step_is_timed_by_the_clock(unit: Unit, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    ticking = Ticking(monkeypatch, 0.025)
    once = Clock(device=CPU, unit=unit, seconds=1.0).times(ticking.step, 4)
    assert once() == {"value": pytest.approx(value)}
    assert ticking.calls == 41


def test_latency_is_the_median_of_single_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    ticking = Ticking(monkeypatch, 0.5, 0.01, 0.01, 0.07)
    once = Clock(device=CPU, unit="ms", seconds=1.5).times(ticking.step, 1)
    assert once() == {"value": pytest.approx(10.0)}  # of 0.01, 0.01, 0.07


def test_a_step_that_takes_long_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ticking = Ticking(monkeypatch, 2.0)
    assert Clock(device=CPU, unit="images/s", seconds=0.5).times(ticking.step, 4)() == {"value": 2.0}
    assert ticking.calls == 1


@pytest.mark.parametrize(("train", "times"), [(False, 1), (True, 3)])
def test_the_products_are_those_of_every_block(train: bool, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Any] = []
    monkeypatch.setattr(Clock, "times", lambda self, step, batch: steps.append(step) or (lambda: {"value": 1.0}))
    open_work(Products(shape=OTHER, precision="float32", training=train), CLOCK)
    monkeypatch.setattr("vitrail.studies.bench.products.can_pack", lambda: False)
    open_work(Products(shape=OTHER, precision="float32", training=train), CLOCK)
    with FlopCounterMode(display=False) as counter:
        steps[1]()
    tokens, width, wide = 3 * (4 + 1), 24, 40
    one = tokens * width * (3 * width + width + wide) + tokens * wide * width
    assert counter.get_total_flops() == 2 * 2 * times * one


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_products_run_in_the_precisions_of_a_cpu(precision: Precision) -> None:
    assert open_work(Products(shape=TINY, precision=precision), CLOCK).once()["value"] > 0
    with pytest.raises(ConfigError, match="products in float8 are of GPUs"):
        open_work(Products(shape=TINY, precision="float8"), CLOCK)
    with pytest.raises(ConfigError, match="blocks"):
        open_work(Products(shape=replace(TINY, model="BiT-R50x1", fields={}), precision="float32"), CLOCK)


@pytest.mark.parametrize("by", ["timm", "transformers", "torchvision"])
def test_the_models_of_others_have_the_same_shape(by: Library) -> None:
    shape = TINY if by == "timm" else OTHER
    ours = vitrail.create(shape.model, classes=1000, image_size=32, **shape.fields)
    theirs = peer_model(by, shape)
    assert sum(map(torch.numel, theirs.parameters())) == sum(map(torch.numel, ours.parameters()))
    assert theirs.eval()(torch.randn(2, 3, 32, 32)).shape == (2, 1000)
    assert open_work(Forward(shape=shape, precision="bfloat16", by=by, how="eager"), CLOCK).once()["value"] > 0


@pytest.mark.parametrize("model", ["R50+ViT-B/16", "BiT-R50x1"])
def test_timms_hybrid_and_bit_have_as_many_parameters(model: str) -> None:
    shape = Shape(model=model, batch=1)
    with torch.device("meta"):
        theirs = peer_model("timm", shape)
    assert sum(map(torch.numel, theirs.parameters())) == parameters(parse(model, {"classes": 1000})).total


def test_what_others_lack_is_refused() -> None:
    with pytest.raises(ConfigError, match="timm's name of ViT-H/16 is not known here"):
        peer_model("timm", replace(TINY, model="ViT-H/16"))
    with pytest.raises(ConfigError, match="it has no such model"):
        peer_model("torchvision", replace(TINY, model="BiT-R50x1", fields={}))
    with pytest.raises(ConfigError, match=r"nothere is not installed\. pip install nothere"):
        peer("nothere")


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_fast_pass_says_what_it_runs_in(precision: Precision) -> None:
    if precision == "int8" and not has_int8():
        pytest.skip("this processor has no products in int8")
    opened = open_work(Forward(shape=TINY, precision=precision), CLOCK)
    assert (opened.about["engine"], opened.about["precision"]) == (CPU_PATH.engine(), precision)
    assert opened.once()["value"] > 0


def test_no_parameter_is_left_at_zero_and_others_stay() -> None:
    one, two = nn.Linear(3, 5), nn.Linear(5, 2)
    nn.init.zeros_(two.weight)
    before = one.weight.clone()
    assert all(parameter.any() for parameter in stir(nn.Sequential(one, two)).parameters())
    assert torch.equal(one.weight, before)


def test_numbers_that_are_not_finite_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(VitrailError, match="not finite"):
        check_numbers(torch.tensor([1.0, math.nan]))
    monkeypatch.setattr(forward, "draw_images", lambda shape, device: torch.full((3, 3, 32, 32), math.inf))
    with pytest.raises(VitrailError, match="not finite"):
        open_work(Forward(shape=TINY, precision="float32", how="eager"), CLOCK)


def test_the_training_step_is_the_loops_own(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    real = training.train_step
    monkeypatch.setattr(training, "train_step", lambda *given: taken.append(given) or real(*given))
    opened = open_work(TrainStep(shape=TINY), CLOCK)
    (plan, state, batch), count = taken[0], len(taken)
    assert (len(batch.images), plan.micro_batch, plan.config.optimizer.weight_decay) == (3, 3, 0.1)
    assert state.model.config.depth == 2
    assert opened.once()["value"] > 0
    assert state.step == len(taken) > count
    opened.close()


@pytest.mark.slow
def test_a_batch_that_was_halved_for_want_of_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "train_step", lambda plan, state, batch: setattr(plan, "micro_batch", 2))
    with pytest.raises(VitrailError, match="3 images do not fit at once"):
        open_work(TrainStep(shape=TINY), CLOCK)


@pytest.mark.parametrize("by", ["timm", "torchvision"])
def test_the_step_of_others_changes_their_weights(by: Library) -> None:
    opened = open_work(TrainStep(shape=TINY, by=by), CLOCK)
    assert opened.once()["value"] > 0


@pytest.mark.slow
def test_whole_runs_give_the_rate_of_their_logs() -> None:
    shape = Shape(model="ViT-Ti/16", batch=4, image_size=32, fields={"depth": 1})
    opened = open_work(TrainLoop(shape=shape, steps=6, images=16, training={"workers": 0}), CLOCK)
    assert 0 < opened.once()["value"] < 1e5
    opened.close()


@pytest.mark.parametrize("kind", ["train", "infer"])
def test_memory_is_predicted_as_by_a_plan(kind: Any) -> None:
    plan: Any = vitrail.plan("BiT-R50x1", batch_size=8, precision="float32", device="cuda")
    expected = plan.document()["memory"]["training" if kind == "train" else "inference"]["total"]
    work = StepMemory(shape=Shape(model="BiT-R50x1", batch=8), kind=kind, predicted=True)
    assert predict(work, torch.device("cuda")) == expected
    assert open_work(work, CLOCK).once()["value"] > expected / 2**20 * 0.9  # what a process keeps beside, on a CPU


def test_photographs_are_decoded_by_each_way() -> None:
    work = Decode(height=90, width=120, count=2, by="Pillow")
    every: list[Work] = [work, replace(work, by="vitrail"), replace(work, by="simplejpeg")]
    values = [open_work(each, CLOCK).once()["value"] for each in every]
    assert all(0 < value < 1000 for value in values)
    pixels = np.asarray(vitrail.create("ViT-Ti/16", image_size=32).preprocess(photograph(90, 120, 0)))
    assert pixels.std() > 0.2


@pytest.mark.slow
def test_a_file_is_loaded_in_a_process_of_its_own() -> None:
    for by, layout in (("vitrail", "google"), ("timm", "timm")):
        opened = open_loading(Load(model="ViT-Ti/16", layout=layout, by=by))  # pyright: ignore[reportArgumentType]
        try:
            found = opened.once()
        finally:
            opened.close()
        assert opened.about["file"] > 20e6
        assert found["value"] > 0
        assert 0.5 < found["memory"] / opened.about["file"] < 20


def test_a_reason_is_one_line_that_says_what_failed() -> None:
    assert reason(VitrailError("too large.")) == "too large."
    assert reason(RuntimeError("CUDA error:\n  stuck")) == "RuntimeError: CUDA error: stuck"
    assert len(reason(ValueError("x" * 10_000))) < 400
