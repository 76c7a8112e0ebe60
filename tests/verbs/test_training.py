"""`vitrail.finetune` and `vitrail.pretrain`: one's own data, model, hooks and objective, and what the command gives."""

import json
import os
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset

import vitrail
from vitrail.cli import main
from vitrail.data.source import Batch
from vitrail.errors import ConfigError, DataError, VitrailError
from vitrail.models import Model
from vitrail.verbs.training import Run

COUNT = 30
SMALL: dict[str, Any] = {"depth": 1, "width": 24, "heads": 3, "mlp_width": 29}
FAST: dict[str, Any] = {"batch_size": 8, "log_every": 1, "workers": 0, "device": "cpu", "quiet": True}
FAST |= {"recipe": "small", "image_size": (14, 14), "warmup_steps": 1, "validation_share": 0.2}
FILES = ("weights.safetensors", "config.json", "classes.json", "preprocessing.json", "metrics.json", "summary.json")


class Shades(Dataset[tuple[Image.Image, int]]):
    """Images of three classes that can be told apart by their colour."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        pixels = np.random.default_rng(index).integers(0, 150, (14, 14, 3), dtype=np.uint8)
        pixels[..., index % 3] += 100
        return Image.fromarray(pixels), index % 3


@pytest.fixture(autouse=True)
def nowhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for all that is written where nothing else is said."""
    folder = tmp_path_factory.mktemp("nowhere")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("VITRAIL_CACHE", str(folder / "cache"))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shades")
    for index in range(COUNT):
        image, label = Shades()[index]
        (root / "abc"[label]).mkdir(exist_ok=True)
        image.save(root / "abc"[label] / f"{index}.png")
    return root


def small() -> Model:
    return vitrail.create("ViT-Ti/7", image_size=14, **SMALL)


def finetune(data: object, **more: Any) -> Run:
    return vitrail.finetune(data, **{"model": small(), "steps": 4, **FAST, **more})


def tensors(model: Model) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def left(folder: Path) -> list[str]:
    """List what is there, less what torch makes where it is first used."""
    return [path.name for path in folder.iterdir() if not path.name.startswith("torchinductor")]


def log_of(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "time"} for line in lines]


def test_a_dataset_and_a_model_in_memory_train_and_leave_nothing_behind(nowhere: Path) -> None:
    model = small()
    model.train()
    before, card = tensors(model), model.card
    run = finetune(Shades(), model=model, steps=12, learning_rate=1e-2)
    assert (run.finished, run.folder, run.step, run.steps) == (True, None, 12, 12)
    assert run.metrics["images"] == 6
    assert "kept in memory" in str(run)
    assert left(nowhere) == []
    image, label = Shades()[1]
    (found,) = vitrail.predict(run.model, image)
    assert (found.label, label) == ("1", 1)
    assert run.model.config.classes == 3
    assert same(before, tensors(model))
    assert model.training
    assert model.card == card
    assert not same(before, tensors(run.model))


@pytest.mark.parametrize("true", [1, np.True_])
def test_one_callback_needs_no_list_and_ends_the_run_by_anything_true(true: object) -> None:
    assert finetune(Shades(), steps=3, callbacks=lambda record: record["kind"] == "train" and true).step == 1
    assert finetune(Shades(), steps=1, callbacks=None).step == 1


@pytest.mark.parametrize("batch_size", [1, 5, 12])
def test_any_batch_size_trains_with_mixup(batch_size: int) -> None:
    run = finetune(Shades(), steps=2, batch_size=batch_size, mixup=0.5)
    assert (run.finished, run.step) == (True, 2)


@pytest.mark.parametrize("kept", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_run_stands_for_its_model_everywhere(tmp_path: Path, *, kept: bool) -> None:
    run = finetune(Shades(), steps=1, out=tmp_path / "run" if kept else None)
    images = [Shades()[index][0] for index in range(3)]
    wanted = vitrail.predict(run.model, images).logits
    assert torch.equal(vitrail.predict(run, images).logits, wanted)
    assert torch.equal(vitrail.predict(vitrail.load(run), images).logits, wanted)
    assert vitrail.evaluate(run, Shades(), against=run, split="all", device="cpu").images == COUNT
    assert len(vitrail.fewshot(run, Shades(), shots=[1], seeds=[0], device="cpu").cells) == 1
    assert vitrail.verify(run, Shades(), everyone=True, device="cpu").document()
    assert vitrail.inspect(run, images, out=tmp_path / "page", bias=False).page.is_file()
    assert vitrail.plan(run).config == run.model.config
    assert finetune(Shades(), model=run, steps=1).finished


def test_a_run_that_took_no_step_says_so() -> None:
    run = finetune(Shades(), callbacks=lambda record: True)
    with pytest.raises(ConfigError, match="no model where it took no step"):
        vitrail.predict(run, Shades()[0][0])


def test_a_run_that_is_interrupted_has_the_metrics_of_its_last_evaluation() -> None:
    def stop(record: Mapping[str, Any]) -> None:
        if record["kind"] == "train" and record["step"] == 3:
            os.kill(os.getpid(), signal.SIGINT)

    run = finetune(Shades(), steps=9, evaluate_every=2, callbacks=stop)
    assert not run.finished
    last = [record for record in run.history if record["kind"] == "evaluation"][-1]
    measured = ("accuracy", "loss", "images", "left_out", "balanced_accuracy", "macro_f1")
    assert run.metrics == {name: last[name] for name in measured}


def test_a_callback_sees_every_record_and_ends_the_run(tmp_path: Path) -> None:
    seen: list[Mapping[str, Any]] = []

    def watch(record: Mapping[str, Any]) -> bool:
        seen.append(record)
        return record["kind"] == "train" and record["step"] == 3

    run = finetune(Shades(), out=tmp_path / "run", steps=9, evaluate_every=2, callbacks=[watch])
    assert (run.finished, run.step, run.steps) == (True, 3, 9)
    logged = tuple(json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines())
    assert [record for record in seen if record["kind"] not in ("begin", "save")] == list(logged)
    assert run.history == logged
    assert {record["kind"] for record in seen} == {"begin", "train", "evaluation", "save"}
    assert [record["step"] for record in logged if record["kind"] == "evaluation"] == [2, 3]
    assert same(tensors(run.model), tensors(vitrail.load(tmp_path / "run")))


class Brightness:
    """The mean of an image's red, from its representation."""

    def build(self, model: Model) -> nn.Module:
        return Reader(model)

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return (batch.images,)

    def compute_loss(self, outputs: Tensor, batch: Batch, inputs: tuple[Tensor, ...]) -> Tensor:
        return (outputs - inputs[0][:, 0].mean(dim=(1, 2))) ** 2


class Reader(nn.Module):
    def __init__(self, encoder: Model) -> None:
        super().__init__()
        self.encoder = encoder
        self.last = nn.Linear(24, 1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.encoder.represent(images)).squeeze(1)


def test_an_objective_of_ones_own_learns_and_its_run_resumes(tmp_path: Path) -> None:
    def stop(record: Mapping[str, Any]) -> None:
        if record["kind"] == "train" and record["step"] == 5:
            os.kill(os.getpid(), signal.SIGINT)

    fields: dict[str, Any] = {"objective": Brightness(), "steps": 30, "lr": 1e-2, "model": small(), "seed": 1}
    run = finetune(Shades(), **fields)
    assert run.metrics["loss"] < 0.3 * run.history[0]["loss"]
    assert vitrail.embed(run.model, [Shades()[0][0]]).shape == (1, 24)
    assert not finetune(Shades(), **fields, out=tmp_path / "run", callbacks=[stop]).finished
    again = finetune(Shades(), **fields, out=tmp_path / "run")
    assert (again.finished, again.step) == (True, 30)
    assert same(tensors(again.model), tensors(run.model))


class Scalar(Brightness):
    def compute_loss(self, outputs: Tensor, batch: Batch, inputs: tuple[Tensor, ...]) -> Tensor:
        return super().compute_loss(outputs, batch, inputs).mean()


def test_an_objective_that_gives_no_loss_for_each_image_is_told_to() -> None:
    with pytest.raises(VitrailError, match=r"must give a loss for each of the 8 images; got \(\)"):
        finetune(Shades(), objective=Scalar())


def test_the_command_and_the_function_give_the_same_files(folder: Path, tmp_path: Path) -> None:
    command = ["finetune", str(folder), "--model", "ViT-Ti/7", "--steps", "4", "--batch", "8", "--recipe", "small"]
    settings = {f"model.{name}": value for name, value in SMALL.items()}
    settings |= {"image_size": 14, "log_every": 1, "warmup_steps": 1, "validation_share": 0.2}
    command += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    command += ["--workers", "0", "--device", "cpu", "--quiet", "--out", str(tmp_path / "command")]
    assert main(command) == 0
    fields = {f"model.{name}": value for name, value in SMALL.items()}
    run = finetune(str(folder), model="ViT-Ti/7", out=tmp_path / "function", **fields)
    assert run.folder == tmp_path / "function"
    one, other = tmp_path / "command", tmp_path / "function"
    assert {path.name for path in one.iterdir()} == {path.name for path in other.iterdir()}
    for name in FILES:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert log_of(one) == log_of(other)
    documents = [json.loads((out / "training.json").read_text()) for out in (one, other)]
    assert [document | {"command": ""} for document in documents] == [documents[1]] * 2


def test_ctrl_c_returns_a_run_that_the_same_call_resumes_to_the_same_bits(tmp_path: Path) -> None:
    def stop(record: Mapping[str, Any]) -> None:
        if record["kind"] == "train" and record["step"] == 3:
            os.kill(os.getpid(), signal.SIGINT)

    whole = finetune(Shades(), out=tmp_path / "whole", steps=7)
    run = finetune(Shades(), out=tmp_path / "run", steps=7, callbacks=[stop])
    assert not run.finished
    assert 3 <= run.step < 7
    assert "interrupted at step" in str(run)
    assert run.model.config.classes == 3
    again = finetune(Shades(), out=tmp_path / "run", steps=7)
    assert (again.finished, again.again) == (True, False)
    assert (tmp_path / "run" / FILES[0]).read_bytes() == (tmp_path / "whole" / FILES[0]).read_bytes()
    assert log_of(tmp_path / "run") == log_of(tmp_path / "whole")
    assert again.metrics == whole.metrics
    assert finetune(Shades(), out=tmp_path / "run", steps=7).again


@pytest.mark.parametrize("given", [{"learning_rate": 1e-3}, {"lr": 1e-3}, {"settings": ["lr=1e-3"]}])
def test_a_field_has_many_names_and_is_one(given: dict[str, Any]) -> None:
    run = finetune(Shades(), steps=2, warmup_steps=0, **given)
    assert next(record for record in run.history if record["kind"] == "train")["learning_rate"] == 1e-3


UNREAD = object()  # what is no data, and would be refused where it were opened


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"learning_rate": 1e-3, "lr": 1e-3}, "learning_rate and lr are one field, learning_rate"),
        ({"lr": 1e-3, "settings": ["learning_rate=1e-3"]}, "lr and learning_rate are one field"),
        ({"lr": 1e-3, "settings": ["lr=1e-3"]}, "lr is given twice"),
        ({"lerning_rate": 1e-3}, "no field 'lerning_rate'. Did you mean 'learning_rate'?"),
        ({"num_workers": 2}, "Give workers="),
        ({"epochs": 2}, "a run's length is given twice: steps and epochs"),
        ({"model.dept": 2}, "Did you mean 'depth'?"),
        ({"num_classes": 2}, "Leave classes out"),
        ({"settings": ["momentum"]}, "a setting is FIELD=VALUE"),
        ({"objective": object()}, "build, inputs, compute_loss; got one missing build, inputs, compute_loss"),
        ({"objective": Brightness}, "got the class Brightness: call it"),
        ({"objective": "masked"}, "Did you mean 'masked-patch'?"),
        ({"model": "ViT-Ti/7.npz"}, "there is no file ViT-Ti/7.npz"),
    ],
)
def test_what_is_wrong_is_answered_before_the_data_is_opened(given: dict[str, Any], words: str, nowhere: Path) -> None:
    with pytest.raises(VitrailError) as caught:
        finetune(UNREAD, **given)
    assert words in str(caught.value)
    assert not isinstance(caught.value, DataError)
    assert left(nowhere) == []


def test_what_a_recipe_that_is_chosen_cannot_have_is_refused(nowhere: Path) -> None:
    with pytest.raises(ConfigError, match="'momentum' is a field of optimizer=sgd or muon; here optimizer is adam"):
        finetune(Shades(), recipe=None, momentum=0.8)
    assert left(nowhere) == []


def test_a_run_in_memory_is_measured_on_what_it_kept_back() -> None:
    run = finetune(Shades(), steps=1)
    found = vitrail.evaluate(run, Shades(), device="cpu")
    assert found.images == round(FAST["validation_share"] * COUNT)
    assert "that the run kept back" in str(found)
    whole = finetune(Shades(), steps=1, validation_share=0.0)
    assert "may have been trained on these images" in str(vitrail.evaluate(whole, Shades(), device="cpu"))


@pytest.mark.parametrize("callbacks", [3, [3], "watch"])
def test_callbacks_that_are_none_are_refused(callbacks: Any) -> None:
    with pytest.raises(ConfigError, match="callbacks must be functions"):
        finetune(Shades(), callbacks=callbacks)
