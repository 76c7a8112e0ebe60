"""Every reader against one grammar of damage (fuzzing.py): an answer or an error of the library, soon, in 1 GiB."""

import sys
import time
from pathlib import Path
from typing import Any

import fuzzing
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a child's memory is limited as Linux does")


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fuzzing.make_samples(tmp_path_factory.mktemp("grammar"))


def test_a_case_is_the_same_every_time(samples: Path, tmp_path: Path) -> None:
    def made(name: str) -> list[object]:
        case = fuzzing.make_case(5, samples, tmp_path / name)
        files = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
        return [case.kind, *(path.read_bytes() for path in files)]

    assert made("one") == made("two")


def test_undamaged_samples_are_read(samples: Path, untyped: None) -> None:
    for kind in (*fuzzing.WEIGHTS, *fuzzing.SOURCES):
        path = samples / kind / fuzzing.TARGETS.get(kind, "")
        if kind == "labels":
            fuzzing.open_case(fuzzing.Case(0, kind, path), fuzzing.family("vit", image_size=(12, 12)).eval())
            continue
        if kind in fuzzing.WEIGHTS:
            asked: dict[str, Any] = {} if kind in ("npz", "hf", "run") else {"heads": 3}
            assert fuzzing.vitrail.describe(path, **asked).reason is None
        else:
            found = fuzzing.vitrail.check_data(path)
            assert found.is_clean
            assert sum(split.samples for split in found.splits.values()) == 6


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: {}["x"], "KeyError"),
        (lambda: bytearray(3 << 30), "MemoryError"),
        (lambda: (_ for _ in ()).throw(fuzzing.VitrailError("x" * 10)), None),
    ],
)
def test_what_is_wrong_is_seen(
    wrong: object, said: str | None, samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzzing.vitrail, "describe", lambda *_, **__: wrong())  # pyright: ignore
    monkeypatch.setattr(fuzzing, "SOURCES", fuzzing.WEIGHTS)
    found = fuzzing.judge([1, 2], samples, tmp_path / "case")
    assert (found == {}) if said is None else all(said in words for words in found.values()) and len(found) == 2


@pytest.mark.slow
def test_a_case_that_hangs_ends_alone(samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(case: fuzzing.Case, model: object) -> None:
        if case.number == 2:
            time.sleep(99)

    monkeypatch.setattr(fuzzing, "SECONDS", 1)
    monkeypatch.setattr(fuzzing, "open_case", hang)
    assert fuzzing.judge([1, 2, 3], samples, tmp_path / "case") == {2: "ended by SIGALRM"}


def test_some_cases_are_answered_or_refused(samples: Path, tmp_path: Path, untyped: None) -> None:
    assert fuzzing.judge(range(60), samples, tmp_path / "case") == {}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_thousands_of_cases_are_answered_or_refused(part: int, samples: Path, tmp_path: Path, untyped: None) -> None:
    first = 1000 + 1500 * part
    assert fuzzing.judge(range(first, first + 1500), samples, tmp_path / "case") == {}
