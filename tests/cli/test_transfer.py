"""`vitrail transfer`: what it chooses, says, refuses and leaves, and how it goes on after Ctrl-C."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from sweeps import NAMES, Noted

import vitrail
from vitrail.cli import main
from vitrail.config import BiTConfig, parse
from vitrail.config.recipes import recipe
from vitrail.models import build
from vitrail.train.chores import Log
from vitrail.train.state import State
from vitrail.verbs.transfer import rates_for

TINY = ("--model", "ViT-Ti/14", "--set", "model.depth=1", "--set", "model.width=24", "--set", "model.heads=3")
FAST = (*TINY, "--set", "model.mlp_width=29", "--set", "image_size=28", "--batch", "64", "--workers", "0")
FEW = ("--steps", "2", "--set", "evaluate_every=2", "--set", "save_every=2", "--device", "cpu")


def transfer(out: Path, *more: str) -> int:
    return main(["transfer", "sample", "--out", str(out), *FAST, *FEW, *more])


def test_a_transfer_shows_the_grid_the_seeds_and_their_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert transfer(tmp_path / "out", "--recipe", "finetune/pets", "--rates", "0.03,0.003", "--seeds", "1,4") == 0
    shown = capsys.readouterr()
    document = json.loads((tmp_path / "out" / "transfer.json").read_text())
    assert "the recipe finetune/pets: Table 4" in shown.err
    assert "rate 0.003, 1,800 images" in shown.err
    assert "seed 4, rate" in shown.err
    assert "Chosen by 200 images kept back" in shown.out
    for accuracy in [one["accuracy"] for one in (*document["grid"], *document["runs"])]:
        assert f"{accuracy:.2%}" in shown.out
    mean, spread = (100 * document["results"][0][name] for name in ("value", "spread"))
    assert f"{mean:.2f} ± {spread:.2f} % of 1,000 test images, 2 seeds" in shown.out
    assert vitrail.load(tmp_path / "out" / "final" / "seed-4").config.classes == 10


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fields: dict[str, Any] = {"depth": 1, "width": 24, "heads": 3, "mlp_width": 29}
    path = tmp_path_factory.mktemp("models") / "vit"
    vitrail.save(vitrail.create("ViT-Ti/14", image_size=28, classes=3, **fields), path)
    return path


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "bit"
    vitrail.save(build(BiTConfig(units=(1, 1), width=32, classes=3, image_size=(28, 28)), seed=0), path)
    return path


def grid_of(out: Path) -> set[str]:
    return {path.name for path in (out / "grid").glob("*")}


def test_a_checkpoint_has_the_rates_of_table_4_by_the_number_of_images(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["transfer", "sample", "--model", str(checkpoint), "--out", str(tmp_path / "out"), "--seeds", "0"]
    assert main([*command, *FEW, "--batch", "64", "--workers", "0", "--json"]) == 0
    shown = capsys.readouterr()
    assert "10% of them kept back to choose by" in shown.err
    assert "Table 4's SGD, cosine" in shown.err
    found = json.loads(shown.out)
    assert [tried["rate"] for tried in found["grid"]] == [0.001, 0.003, 0.01, 0.03]
    assert grid_of(tmp_path / "out") == {f"rate-{rate}" for rate in (0.001, 0.003, 0.01, 0.03)}
    assert found == json.loads((tmp_path / "out" / "transfer.json").read_text())


def test_a_resnet_has_one_rate_and_no_grid(resnet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["transfer", "sample", "--model", str(resnet), "--out", str(tmp_path / "out"), "--seeds", "0"]
    assert main([*command, "--steps", "1", "--batch", "16", "--workers", "0", "--device", "cpu"]) == 0
    shown = capsys.readouterr()
    assert "BiT's HyperRule" in shown.err
    assert "Rate 0.003, all training images" in shown.out
    assert grid_of(tmp_path / "out") == set()
    assert "seeds" not in shown.out.splitlines()[-2]


@pytest.mark.parametrize("verb", ["transfer", "vtab"])
def test_ctrl_c_between_two_runs_says_that_the_same_command_resumes(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"vitrail.verbs.transfer.{verb}", interrupt)
    assert main([verb, "sample", "--model", "ViT-Ti/16"]) == 130
    assert "The same command resumes: " in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_ends_with_130_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("--rates", "0.003,0.03", "--seeds", "0", "--set", "log_every=1", "--recipe", "small", "--steps", "3")
    assert transfer(tmp_path / "whole", *command, "--quiet") == 0
    plain, places = Log.__call__, [("rate-0.03", 3), ("seed-0", 1)]

    def interrupting(self: Log, state: State, *, ends: bool, interrupted: bool) -> None:
        plain(self, state, ends=ends, interrupted=interrupted)
        if places and places[0] == (self.journal.path.parent.name, state.step):
            places.pop(0)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Log, "__call__", interrupting)
    for words in (
        "interrupted once {}/grid/rate-0.03 was finished.",
        "interrupted at step 2 of 3 in {}/final/seed-0, a",
    ):
        capsys.readouterr()
        assert transfer(tmp_path / "part", *command, "--quiet") == 130
        shown = capsys.readouterr()
        assert words.format(tmp_path / "part") in shown.err
        assert "The same command resumes: " in shown.err
        assert shown.out == ""
    assert transfer(tmp_path / "part", *command) == 0
    assert "resuming from step 2 of 3" in capsys.readouterr().err
    ends = [json.loads((tmp_path / name / "transfer.json").read_text()) for name in ("whole", "part")]
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sample", "--rates", "0.1,high"], "--rates must be numbers with commas between them; got '0.1,high'"),
        (["sample", "--seeds", "0.5"], "--seeds must be numbers"),
        (["sample", "--rates", "0.1,0.1"], "rates, each once"),
        (["sample", "--set", "rate=0.1"], "learning_rate is not taken here: the rate is chosen among rates"),
        (["sample", "--set", "optimiser.rate=0.1"], "the rate is chosen among rates"),
        (["sample", "--set", "seed=3"], "Give seeds"),
        (["sample", "--set", "patience=3"], "Leave patience out"),
        (["sample", "--set", "dev=0", "--rates", "0.1,0.2"], "2 rates need images to choose by"),
        (["sample", "--recipe", "finetune/pet"], "Did you mean 'finetune/pets'?"),
        (["nowhere"], "there is no data at 'nowhere'"),
        (["photos"], "photos has no test split to report on; there is only all"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_computed(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.fromarray(Noted(name, 1).read(0)).save(tmp_path / "photos" / name / "1.png")
    assert main(["transfer", *arguments, *FAST]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_the_highest_rate_of_imagenet_is_not_for_plain_vits() -> None:
    rates = recipe("finetune/imagenet").rates
    assert (
        rates_for(parse("R50+ViT-B/16"), rates)
        == rates_for(parse("BiT-R50x1"), rates)
        == rates
        == (0.003, 0.01, 0.03, 0.06)
    )
    assert rates_for(parse("ViT-B/16"), rates) == (0.003, 0.01, 0.03)
