"""Runs forked from one warm process, the images that they train on, and what a run without interruption gives."""

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from killed_runs import Runs, arguments, make_data, result, steps_of, warm

Copy = Callable[[], Path]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with warm(tmp_path_factory.mktemp("runs")) as made:
        yield made


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "images")


@pytest.fixture(scope="session")
def whole(runs: Runs, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without interruption."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert runs(arguments(images, out)).status == 0
    return out


@pytest.fixture(scope="session")
def wanted(whole: Path) -> dict[str, Any]:
    return result(whole)


@pytest.fixture(scope="session")
def begun(runs: Runs, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after 9 of its steps."""
    out = tmp_path_factory.mktemp("begun") / "run"
    assert runs(arguments(images, out), trick=["signal", 8, signal.SIGTERM]).status == 130
    assert steps_of(out) == [7, 9]
    return out


@pytest.fixture
def stopped(begun: Path, tmp_path: Path) -> Path:
    """A copy of it, to do things to."""
    return Path(shutil.copytree(begun, tmp_path / "run"))
