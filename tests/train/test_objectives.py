"""Every objective without labels alike: on several processes, in evaluation, and with what does not belong to it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from killed_runs import Runs
from safetensors.numpy import load_file

import vitrail
from vitrail.cli import main
from vitrail.config import ViTConfig
from vitrail.config.objective import Labels, MaskedAutoencoder, MaskedPatches, NextPixels, Objective
from vitrail.config.recipe import Adam, Training
from vitrail.data.feed import evaluation_feed
from vitrail.data.sources.memory import MemorySource
from vitrail.errors import ConfigError
from vitrail.models.encoder import SampleRandom
from vitrail.runtime.inference import InferenceOptions
from vitrail.runtime.machine import Group
from vitrail.runtime.reporter import SILENT
from vitrail.train.measuring import measure_objective
from vitrail.train.prepare import Ready, prepare
from vitrail.train.task import Parts, Task

OBJECTIVES: dict[str, Objective] = {
    "masked-patch": MaskedPatches(),
    "mae": MaskedAutoencoder(decoder_depth=1),
    "next-pixel": NextPixels(colors=8),
}
SHAPE = {"depth": 1, "width": 24, "heads": 3, "mlp_width": 24}


def ready(objective: Objective, *, count: int = 10, **changes: Any) -> Ready:
    """A run of a tiny model on noise, not begun."""
    levels = np.random.default_rng(0).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    source = MemorySource(levels, np.arange(count) % 2, ("a", "b"))
    said: dict[str, Any] = {"steps": 2, "batch_size": 4, "image_size": (8, 8), "validation_share": 0.0, **changes}
    training = Training(objective=objective, optimizer=Adam(learning_rate=1e-3), **said)
    model = "ViT-Ti/1" if isinstance(objective, NextPixels) else "ViT-Ti/4"
    task = Task(
        command="",
        data="noise",
        splits={"train": source},
        model=model,
        training=training,
        out=Path("nowhere"),
        changes=SHAPE,
        workers=0,
        device="cpu",
    )
    group = Group(device=torch.device("cpu"))
    return prepare(task, Parts(train=source, val=None, test=None), group, SILENT)


@pytest.mark.parametrize("word", OBJECTIVES)
def test_an_evaluation_asks_of_every_image_once_and_always_the_same(word: str) -> None:
    made = ready(OBJECTIVES[word])
    source = made.plan.feed.source
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in made.state.module.named_parameters():
            if name != "palette":
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    made.state.module.eval()
    found = measure_objective(made.plan, made.state, source, InferenceOptions(group=made.plan.group))
    losses = []
    with torch.no_grad():
        preprocessing = made.state.model.card.preprocessing
        for part in evaluation_feed(source, (8, 8), batch=1, preprocessing=preprocessing).epoch(0):
            inputs = made.plan.objective.inputs(part)
            losses.append(float(made.plan.objective.compute_loss(made.state.module(*inputs), part, inputs).losses))
    assert len(losses) == found["images"] == 10
    assert ("right" in found) == (word != "mae")
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    made.state.step, made.state.epoch = 7, 3
    made.plan.pad_to_micro_batch, made.plan.micro_batch = (
        True,
        4,
    )  # the last part is filled up by images that do not count
    assert measure_objective(made.plan, made.state, source, InferenceOptions(group=made.plan.group)) == pytest.approx(
        dict(found), rel=1e-5
    )


def test_what_is_hidden_depends_on_the_seed() -> None:
    for word in ("masked-patch", "mae"):
        one, two = (ready(OBJECTIVES[word], seed=seed) for seed in (0, 1))
        part = next(iter(one.plan.feed.epoch(0)))
        first, second = one.plan.objective.inputs(part)[1], two.plan.objective.inputs(part)[1]
        assert not torch.equal(first, second)


def test_dropout_at_the_input_is_mae_s_too() -> None:
    made = ready(OBJECTIVES["mae"], dropout=0.5)
    inputs = made.plan.objective.inputs(next(iter(made.plan.feed.epoch(0))))
    module = made.state.module.train()
    for part in made.state.model.modules():
        if isinstance(part, SampleRandom) and part is not made.state.model.get_submodule("dropout"):
            part.rate = 0.0
    assert not torch.equal(module(*inputs), module(*inputs))


def test_the_tanh_layer_is_left_out_or_refused() -> None:
    for objective in OBJECTIVES.values():
        assert getattr(ready(objective, pre_logits=True).state.model, "hidden") is None  # noqa: B009
    assert getattr(ready(Labels(), pre_logits=True).state.model, "hidden") is not None  # noqa: B009


@pytest.mark.usefixtures("untyped")
def test_what_is_of_classes_is_refused() -> None:
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        (
            {"label_smoothing": 0.1},
            r"only labels have label_smoothing.* Set label_smoothing=0\.0",
        ),
        ({"loss": "sigmoid", "margin": None}, r"only labels have loss.* Set loss=softmax"),
        ({"head_bias": -6.9, "held_out": 0.5}, r"only labels have held_out and head_bias"),
    )
    for changes, words in wrong:
        with pytest.raises(ConfigError, match=words):
            Training(objective=MaskedPatches(), steps=1, **changes)


RUN = ["--steps", "2", "--batch", "16", "--workers", "0", "--device", "cpu"]
SMALL = [word for name, value in SHAPE.items() for word in ("--set", f"model.{name}={value}")]
PIXELS = ["--objective", "next-pixel", "--set", "colours=8"]


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_two_processes_have_one_palette_and_learn_as_one_does(parallel: str, runs: Runs, tmp_path: Path) -> None:
    command = ["pretrain", "sample", *PIXELS, "--set", "image_size=8", *RUN, *SMALL, "--set", "micro_batch=5"]
    alone, both = tmp_path / "alone", tmp_path / "both"
    assert runs([*command, "--out", str(alone)]).status == 0
    ended = runs.all([*command, "--set", f"parallel={parallel}", "--out", str(both)], ranks=2)
    assert [one.status for one in ended] == [0, 0], ended
    for name in ("weights.safetensors", "objective.safetensors"):
        first, second = load_file(alone / name), load_file(both / name)
        assert first.keys() == second.keys()
        for tensor, values in first.items():
            assert np.abs(values - second[tensor]).max() < 1e-4, tensor
    assert np.array_equal(
        load_file(alone / "objective.safetensors")["objective.palette"],
        load_file(both / "objective.safetensors")["objective.palette"],
    )


@pytest.mark.slow
def test_a_run_of_pixels_is_gone_on_from_and_its_recipe_needs_no_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    small = [*RUN, "--set", "image_size=8", "--set", "colours=8"]
    assert main(["pretrain", "sample", "--recipe", "next-pixel", *small, *SMALL, "--out", str(first)]) == 0
    shown = capsys.readouterr().err
    assert "32 x 32 pixels" not in shown
    assert "making a palette of the training images" in shown
    command = ["pretrain", "sample", "--objective", "next-pixel", "--model", str(first), *small, "--out", str(second)]
    assert main(command) == 0
    one, two = (vitrail.load(run).config for run in (first, second))
    assert replace(one, stochastic_depth=0.0) == replace(two, stochastic_depth=0.0)  # which the recipes have another of
    assert isinstance(one, ViTConfig)
    assert one.causal


def test_commands_that_measure_accuracy_take_labels_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["transfer", "sample"], ["vtab", "nowhere"]):
        assert main([*command, "--model", "vitrail-ti8", "--set", "objective=mae"]) == 1
        said = " ".join(capsys.readouterr().err.split())
        assert "labels are what is learned; got objective mae. Pre-train with --set objective=mae" in said
