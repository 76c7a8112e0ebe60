"""The recipes of benchmarks run to their ends, a few steps of small models, and go on where they were stopped."""

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.sources.memory import MemorySource
from vitrail.data.sources.packed import pack

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "benchmarks" / "recipes"
SETS = {"cifar10-32": (10, {"train": 8, "test": 2}), "tiny-imagenet-64": (200, {"train": 10, "val": 1})}
SETS |= {"oxford-iiit-pet-128": (37, {"train": 10, "test": 1})}


def recipes(*words: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(ROOT / "benchmarks" / "recipes.py"), *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VITRAIL_OFFLINE": "1"}
    return subprocess.run(line, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, random = tmp_path_factory.mktemp("sets"), np.random.default_rng(0)
    for name, (classes, parts) in SETS.items():
        side = int(name.rpartition("-")[2])
        for split, each in parts.items():
            images = random.integers(0, 256, (classes * each, side, side, 3), dtype=np.uint8)
            source = MemorySource(images, np.arange(len(images)) % classes, [f"class {n}" for n in range(classes)])
            (folder / name).mkdir(exist_ok=True)
            pack(source, folder / name / split, (side, side), overwrite=False, progress=lambda done, total: None)
    return folder


def test_every_command_is_shown_with_its_words_filled() -> None:
    for path in RECIPES.glob("*.txt"):
        shown = recipes(path.stem, "--data", "SETS", "--out", "OUT", "--show").stdout.splitlines()
        commands = [line for line in shown if not line.startswith("#")]
        assert commands
        assert not [line for line in commands if re.search(r"[{}]", line)]
        assert len(commands) == len({*commands})
        outs = [found[1] for line in commands if (found := re.search(r"--out (\S+)", line))]
        assert len(outs) == len({*outs}), "two commands write one folder"
    other = recipes("cifar10", "--data", "SETS", "--out", "OUT", "--show", "--word", "SIZE={LARGE}", "--word", "E32=7")
    assert "model.width=384" in other.stdout
    assert "--epochs 7 " in other.stdout
    assert (
        "cifar10.txt has no word WIDTH; it has"
        in recipes("cifar10", "--data", "a", "--out", "b", "--word", "WIDTH=3").stderr
    )
    assert "no stage dinner; there are" in recipes("box", "--data", "a", "--out", "b", "--stages", "dinner").stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in RECIPES.glob("*.txt")))
def test_a_recipe_runs_to_its_end_and_keeps_what_is_small(name: str, sets: Path, tmp_path: Path) -> None:
    given = [name, "--data", sets, "--out", tmp_path / "out", "--seeds", "0", "--smoke"]
    ran = recipes(*given, "--keep", tmp_path / "kept.tar.gz", *(["--ahead"] if name == "cifar10" else []))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("minutes,") == (RECIPES / f"{name}.txt").read_text().count("# stage")
    assert recipes(*given, "--table").stdout in ran.stdout
    with tarfile.open(tmp_path / "kept.tar.gz") as kept:
        names = kept.getnames()
        assert "recipe.json" in names
        assert [each for each in names if each.endswith("log.jsonl")]
        assert not [each for each in names if "checkpoints" in each or each.startswith("ahead/")]
        assert sum(each.size for each in kept.getmembers()) < 16 << 20
    keeps = re.findall(r"/keep/(\S+)-\{seed\} ", (RECIPES / f"{name}.txt").read_text())
    assert {path.name for path in tmp_path.glob("kept-*.tar")} == {f"kept-{each}-0.tar" for each in keeps}
    if name == "cifar10":
        again = recipes(*given)
        assert again.returncode == 0, again.stderr
        assert again.stdout.endswith(recipes(*given, "--table").stdout)


@pytest.mark.slow
def test_a_recipe_that_was_stopped_goes_on(sets: Path, tmp_path: Path) -> None:
    given = ["cifar10", "--data", sets, "--out", tmp_path, "--seeds", "3", "--stages", "mae,labels-32", "--smoke"]
    stopped = recipes(*given, "--minutes", "0.01")
    assert stopped.returncode != 0
    assert "time is over in mae; the same again goes on" in stopped.stderr
    assert not (tmp_path / "32-3").exists()
    whole = recipes(*given)
    assert whole.returncode == 0, whole.stderr
    assert json.loads((tmp_path / "32-3" / "summary.json").read_text())["steps"] == 2
    assert (tmp_path / "commands.txt").read_text().count("# mae") == 2
