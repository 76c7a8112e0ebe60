"""A cache of its own for every test, no waiting between tries, and a server to ask."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from files.servers import Server

from vitrail.files import transfer

SETTINGS = ("VITRAIL_OFFLINE", "HF_HUB_OFFLINE", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_ENDPOINT")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(transfer, "PAUSES", (0.0, 0.0, 0.0))
    return tmp_path / "cache"


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    with made.running():
        yield made
