"""`predict` and `evaluate` by several processes: the files of one, written once, and one failure for all."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluating import NAMES, Pictures, guessing, write_folder
from killed_runs import Runs

import vitrail
from vitrail.runtime.joining import share
from vitrail.runtime.machine import Group

IMAGES = 53  # four batches of 16, the last of 5


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, images, and some that cannot be read."""
    root = tmp_path_factory.mktemp("home")
    write_folder(root / "photos", Pictures(IMAGES))
    vitrail.save(guessing(names=NAMES), root / "run")
    for name in ("0-bad.png", "z-bad.png"):
        (root / "photos" / name).write_bytes(b"no image")
    return root


def commands(home: Path, out: Path) -> list[list[str]]:
    run, photos = str(home / "run"), str(home / "photos")
    how = ["--device", "cpu", "--engine", "plain", "--quiet"]
    return [
        ["predict", run, photos, "--csv", str(out / "answers.csv"), "--embed", str(out / "both.npy"), *how],
        ["predict", run, photos, "--embed", str(out / "features.npy"), *how],
    ]


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_several_processes_write_the_bytes_of_one(ranks: int, runs: Runs, home: Path, tmp_path: Path) -> None:
    one, several = tmp_path / "one", tmp_path / "several"
    for folder in (one, several):
        folder.mkdir()
    asked = slice(None if ranks > 2 else 1)
    for command, same in zip(commands(home, one)[asked], commands(home, several)[asked], strict=True):
        alone = runs(command)
        ended = runs.all(same, ranks=ranks)
        assert alone.status == 1
        assert "2 of 55 images could not be read" in alone.said
        assert [each.status for each in ended] == [1, *[0] * (ranks - 1)], ended  # the first one's is the answer
        assert ended[0].said.replace(str(several), str(one)) == alone.said  # in the order of the images
        assert [each.said for each in ended[1:]] == [""] * (ranks - 1)
    files = sorted(path.name for path in one.iterdir())
    assert files == ["answers.csv", "both.npy", "features.npy"][: 2 if ranks == 2 else 3]
    assert all((one / name).read_bytes() == (several / name).read_bytes() for name in files)
    assert len(np.load(several / files[-1])) == IMAGES


@pytest.mark.slow
def test_evaluate_gives_what_one_process_gives(runs: Runs, home: Path, tmp_path: Path) -> None:
    from PIL import Image

    random = np.random.default_rng(3)
    for name in NAMES:
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(7):
            pixels = random.integers(0, 255, (9, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / name / f"{number}.png")
    command = ["evaluate", str(home / "run"), str(tmp_path / "data"), "--device", "cpu", "--fresh", "--quiet", "--out"]
    assert runs([*command, str(tmp_path / "one")]).status == 0
    ended = runs.all([*command, str(tmp_path / "two")], ranks=2)
    assert [each.status for each in ended] == [0, 0], ended
    assert ended[1].said == ""
    one, two = (tmp_path / name / "predictions.csv" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    documents = [json.loads((tmp_path / name / "evaluation.json").read_text()) for name in ("one", "two")]
    assert documents[0]["results"] == documents[1]["results"]


def test_a_process_that_fails_is_named_by_the_others(runs: Runs, home: Path, tmp_path: Path) -> None:
    command = commands(home, tmp_path)[0]
    ended = runs.all(command, ranks=2, trick=["no model"], limit=60)
    assert [each.status for each in ended] == [1, 1], ended
    assert ended[0].said.startswith("error: the disk of this machine is gone")
    said = " ".join(ended[1].said.split())
    assert said.startswith("error: rank 0 of 2 (")
    assert said.endswith("failed: the disk of this machine is gone")
    assert not any(tmp_path.iterdir())


def test_a_wrong_path_ends_all(runs: Runs, home: Path) -> None:
    ended = runs.all(["predict", str(home / "run"), str(home / "none"), "--device", "cpu"], ranks=2, limit=60)
    assert [each.status for each in ended] == [1, 1], ended
    assert all("there is no image at" in each.said for each in ended)


@pytest.mark.parametrize(("count", "block", "stretch"), [(0, 3, 7), (1, 3, 7), (29, 3, 7), (28, 7, 7), (5, 16, 11)])
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_shares_are_whole_blocks_of_one_process_and_together_all(
    count: int, block: int, stretch: int, ranks: int
) -> None:
    cut: list[range] = []
    for begin in range(0, count, stretch):
        end = min(begin + stretch, count)
        cut += [range(start, min(start + block, end)) for start in range(begin, end, block)]
    found: list[range] = []
    for rank in range(ranks):
        group = Group(device=torch.device("cpu"), rank=rank, world_size=ranks)
        for some in share(group, count, block, stretch):
            assert len(some)
            found += [range(start, min(start + block, some.stop)) for start in range(some.start, some.stop, block)]
    assert found == cut
