"""Where the cache is, and what counts as offline."""

import sys
from pathlib import Path

import pytest

from vitrail.errors import CheckpointError
from vitrail.files.atomic import cache_folder, offline_variable


def test_the_folder_follows_the_environment_and_the_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared")
    monkeypatch.setenv("VITRAIL_CACHE", "~/own")
    assert cache_folder() == tmp_path / "own"
    monkeypatch.setenv("VITRAIL_CACHE", "")
    assert cache_folder() == Path("/shared/vitrail")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_folder() == tmp_path / "Library" / "Caches" / "vitrail"
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_folder() == tmp_path / ".cache" / "vitrail"


def test_a_machine_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", "~nobody-of-this-name/cache")
    with pytest.raises(CheckpointError, match="Set VITRAIL_CACHE to a folder"):
        cache_folder()


@pytest.mark.parametrize("name", ["VITRAIL_OFFLINE", "HF_HUB_OFFLINE"])
@pytest.mark.parametrize(("value", "offline"), [("1", True), ("True", True), ("ON", True), ("0", False), ("", False)])
def test_offline_is_a_variable_that_says_yes(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, offline: bool
) -> None:
    monkeypatch.setenv(name, value)
    assert (offline_variable() is not None) is offline
