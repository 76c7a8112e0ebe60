"""A GPU shared by processes: the service is started, told to them, and ended, whatever happens."""

import os
from pathlib import Path

import pytest

from vitrail.runtime.sharing import CONTROL, LOGS, PIPES, shared_gpu


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in that writes down what it is asked."""
    told = tmp_path / "told"
    (tmp_path / CONTROL).write_text(
        f'#!/bin/sh\nif [ "$1" = -d ]; then echo "start $CUDA_MPS_PIPE_DIRECTORY" >> {told}; exit ${{FAILS:-0}}; fi\n'
        f"cat >> {told}\n"
    )
    (tmp_path / CONTROL).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv(PIPES, raising=False)
    return told


def test_it_is_started_and_ended_also_where_something_fails(service: Path) -> None:
    folder = ""

    def fail() -> None:
        nonlocal folder
        with shared_gpu() as shared:
            assert shared
            folder = os.environ[PIPES]
            assert Path(folder).is_dir()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert service.read_text().splitlines() == [f"start {folder}", "quit"]
    assert PIPES not in os.environ
    assert LOGS not in os.environ
    assert not Path(folder).exists()


def test_where_it_cannot_start_processes_take_turns(service: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAILS", "1")
    with shared_gpu() as shared:
        assert not shared
        assert PIPES not in os.environ
    assert "quit" not in service.read_text()


def test_a_service_that_is_there_is_used_and_left_alone(service: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PIPES, "/somewhere")
    with shared_gpu() as shared:
        assert shared
    assert os.environ[PIPES] == "/somewhere"
    assert not service.exists()
