"""`vitrail.ray` on this machine: every image once, also where a worker is killed, and stopped work goes on."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluating import NAMES, Pictures, guessing, write_folder

import vitrail
from vitrail.errors import CheckpointError, ConfigError, DataError

IMAGES = int(os.environ.get("VITRAIL_RAY_IMAGES", "120"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    ray = pytest.importorskip("ray")
    root = tmp_path_factory.mktemp("home")
    write_folder(root / "photos", Pictures(IMAGES))
    (root / "photos" / "bad.png").write_bytes(b"no image")
    vitrail.save(guessing(names=NAMES), root / "run")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield root
    ray.shutdown()


def rows(folder: Path) -> dict[str, list[float]]:
    import pyarrow.parquet

    found = [pyarrow.parquet.read_table(file).to_pylist() for file in sorted(folder.glob("part-*.parquet"))]
    every = [row for part in found for row in part]
    assert len({row["name"] for row in every}) == len(every)
    return {row["name"]: row["features"] for row in every}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_parts_hold_every_image_once_and_stopped_work_goes_on(home: Path, tmp_path: Path) -> None:
    from vitrail.ray import embed

    out, killed = tmp_path / "out", []

    def kill() -> None:
        """Kill a worker once the first part is there."""
        while not [*out.glob("part-*.parquet")]:
            time.sleep(0.01)
        for status in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if "MapWorker" in status.read_text() and not killed:
                    killed.append(int(status.parent.name))
                    os.kill(killed[0], signal.SIGKILL)
            except OSError:
                continue

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    found = embed(home / "run", home / "photos", out, workers=2, part=10, engine="plain")
    assert (found.images, found.parts, found.reused) == (IMAGES, -(-(IMAGES + 1) // 10), 0)
    assert [Path(name).name for name, _ in found.failed] == ["bad.png"]
    names = [path for path in sorted((home / "photos").rglob("*.png")) if path.name != "bad.png"]
    features = rows(out)
    thread.join(10)
    assert killed, "no worker was found to kill"
    assert sorted(features) == [str(path) for path in names]
    wanted = vitrail.embed(home / "run", [str(path) for path in names], device="cpu", engine="plain")
    here = torch.tensor(np.array([features[str(path)] for path in names]))
    assert torch.allclose(here.float(), wanted, atol=1e-5)
    (out / "part-000001.parquet").unlink()
    again = embed(home / "run", home / "photos", out, workers=2, part=10, engine="plain")
    assert again.reused == found.parts - 1
    assert rows(out) == features
    with pytest.raises(ConfigError, match="holds what was asked otherwise"):
        embed(home / "run", home / "photos", out, workers=2, part=11)


def test_what_no_other_machine_sees_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    from vitrail.ray import predict

    with pytest.raises(DataError, match="on Ray images are files"):
        predict("vitrail-ti8", [np.zeros((8, 8, 3), np.uint8)], tmp_path / "out")
    (tmp_path / "thesis.tex").write_text("ten years")
    with pytest.raises(DataError, match="no image"):
        predict("vitrail-ti8", tmp_path / "none", tmp_path / "out")


def test_what_cannot_be_is_refused_before_ray_starts(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    from vitrail.ray import embed

    (image := tmp_path / "a.png").write_bytes(b"no image")
    for options, words in (
        ({"workers": 0}, "workers must be a whole number, at least 1"),
        ({"gpus": -1}, "gpus must be at least 0"),
        ({"gpus": "one"}, "gpus must be a finite number"),
        ({"part": 0.5}, "part must be a whole number"),
        ({"wrokers": 3}, "embed has no option 'wrokers'. Did you mean 'workers'"),
        ({"top": 3}, "embed has no option 'top'"),
    ):
        with pytest.raises(ConfigError, match=words):
            embed("vitrail-ti8", [image], tmp_path / "out", **options)
    with pytest.raises(CheckpointError, match="there is no file"):
        embed("no-such-model", [image], tmp_path / "out")
    with pytest.raises(ConfigError, match="is a file; expected a folder"):
        embed("vitrail-ti8", [image], image)
    assert not (tmp_path / "out").exists()


def test_of_what_ray_says_the_workers_own_words_are_kept() -> None:
    pytest.importorskip("ray")
    from vitrail.ray import _cause

    said = "The actor died:\n  File x\nvitrail.errors.CheckpointError: a.npz is damaged.\nmore"
    assert repr(_cause(RuntimeError(said))) == repr(CheckpointError("a.npz is damaged."))
    assert repr(_cause(other := RuntimeError("no memory"))) == repr(other)
