"""Running a bench: ways in turns, gaps instead of ends, what was measured is kept; its tables, page and plots."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import vitrail
from vitrail.cli import main
from vitrail.errors import CheckpointError, ConfigError, VitrailError
from vitrail.runtime.reporter import SILENT
from vitrail.studies.bench import ready, run, runner
from vitrail.studies.bench.report import BenchReport, markdown, tables
from vitrail.studies.bench.runner import Part, Place, call, give_up, prepare, run_cases
from vitrail.studies.bench.table import Case, Decode, Forward, Found, Opened, Shape, TrainStep, Way, Work, row_document
from vitrail.studies.pool import open_workers

HERE = Place(device="cpu", repeats=3, seconds=0.001, jobs=0)
TINY = Shape(model="ViT-Ti/16", batch=2, image_size=32, fields={"depth": 1})
UNKNOWN = Shape(model="ViT-Ti/32", batch=2, image_size=32, fields={"depth": 1})
MACHINE = {
    "kind": "cpu",
    "device": "CPU",
    "processor": "Panes 3000",
    "features": [],
    "cores": 2,
    "threads": 2,
    "torch": "2.13.0",
    "python": "3.11",
    "peers": {"timm": "1.0", "transformers": None, "torchvision": None},
    "version": "0.1.0",
}


def way(name: str, work: Work, **fields: Any) -> Way:
    return Way(name=name, work=work, **fields)


def eager(by: Any = "vitrail", shape: Shape = TINY) -> Forward:
    return Forward(shape=shape, precision="float32", by=by, how="eager")


def make_case(name: str, *ways: Way, group: str = "forward", **fields: Any) -> Case:
    said: dict[str, Any] = {"title": f"the row {name}", "unit": "images/s", "base": ways[0].name, **fields}
    return Case(name=name, group=group, ways=ways, **said)


CASES = (
    make_case("forward-tiny", way("timm", eager("timm")), way("Vitrail", eager(), ceiling="timm")),
    make_case(
        "growth-tiny",
        *(way(f"a {batch}", eager(), series="a", at=float(batch)) for batch in (1, 2)),
        unit="ms an image",
        x_label="images in a batch",
    ),
    make_case("training-tiny", way("Vitrail", TrainStep(shape=TINY)), group="training"),
)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a bench have few rows, measured in this process."""
    monkeypatch.setattr(run, "cases_for", lambda kind: CASES)
    monkeypatch.setattr(run, "place_of", lambda *given: HERE)


def test_ways_are_measured_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[str] = []

    def opens(work: Decode, clock: object) -> Opened:
        return Opened(once=lambda: turns.append(work.by) or {"value": 2.0, "memory": len(turns)}, about={"engine": "x"})

    monkeypatch.setattr(ready, "open_work", opens)
    works = [Decode(height=1, width=1, count=1, by=by) for by in ("Pillow", "vitrail")]
    case = make_case("a", *(way(work.by, work) for work in works))
    ((_, found),) = run_cases([case], HERE)
    assert turns == ["Pillow", "vitrail"] * 3
    assert found["vitrail"] == Found(values=[2.0] * 3, about={"engine": "x", "memory": 6})


def test_what_cannot_be_measured_is_a_gap_and_the_rest_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    def breaks() -> dict[str, float]:
        raise VitrailError("it broke.")

    def opens(work: Forward, clock: object) -> Opened:
        if work.by == "timm":
            raise ImportError("timm is damaged")
        once = breaks if work.by == "torchvision" else lambda: {"value": 5.0}
        return Opened(once=once, close=lambda: closed.append(work.by))

    monkeypatch.setattr(ready, "open_work", opens)
    case = make_case("a", *(way(by, eager(by)) for by in ("timm", "torchvision", "vitrail")))
    ((_, found),) = run_cases([case], HERE)
    assert (found["timm"].gap, found["torchvision"].gap) == ("ImportError: timm is damaged", "it broke.")
    assert found["vitrail"].values == [5.0] * 3
    assert closed == ["torchvision", "vitrail"]
    report = BenchReport(machine=MACHINE, rows=[row_document(case, found, 1.0)])
    assert "not measured: the row a: timm: ImportError: timm is damaged" in str(report)
    assert "- the row a: torchvision: it broke." in markdown(report.document(), "figures/")


def test_a_peer_that_has_no_such_model_does_not_end_the_bench() -> None:
    case = make_case("a", way("timm", eager("timm", UNKNOWN)), way("Vitrail", eager(shape=UNKNOWN)))
    ((_, found),) = run_cases([case], HERE)
    assert found["timm"].gap == "timm's name of ViT-Ti/32 is not known here."
    assert min(found["Vitrail"].values) > 0


def test_a_process_that_is_killed_or_takes_too_long_is_a_gap() -> None:
    with open_workers(2, [{}]) as workers:
        parts = [Part(CASES[0], ("timm",), 0, worker) for worker in workers]
        assert "ended without an answer" in call(parts[0], signal.raise_signal, signal.SIGKILL)
        assert isinstance(call(parts[0], abs, -1), str)
        assert call(parts[1], abs, -1) == 1
        assert give_up(parts[1], 300.0) == "it took over 300 seconds."


def test_parts_are_made_ready_as_they_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[str, ...]] = []
    together: list[int] = []

    def end(busy: dict[Part, float]) -> Iterator[tuple[Part, Any]]:
        together.append(len(busy))
        yield next(iter(busy)), {"gaps": {}, "about": {}, "held": 0}

    monkeypatch.setattr(runner, "CONTEXT", 0)
    monkeypatch.setattr(runner, "ask", lambda worker, job: begun.append(job.given.ways))
    monkeypatch.setattr(runner, "ended", end)
    worker: Any = object()
    case = make_case("a", *(way(name, eager()) for name in "abcd"))
    parts = [Part(case, (name,), need, worker) for name, need in zip("abcd", (1, 6, 5, 3), strict=True)]
    place = Place(device="cuda", repeats=1, seconds=1.0, jobs=3, room=10)
    prepare(parts, place, {"a": {name: Found() for name in "abcd"}}, SILENT)
    assert begun == [("b",), ("d",), ("a",), ("c",)]  # the largest first; 5 do not fit beside 6
    assert max(together) == 3


def test_a_bench_is_written_and_the_same_again_measures_nothing(
    few: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert main(["bench", "all", "--out", str(out), "--json", "--quiet"]) == 0
    shown = json.loads(capsys.readouterr().out)
    kept = json.loads((out / "bench.json").read_text())
    assert shown == kept
    assert [row["name"] for row in kept["rows"]] == [case.name for case in CASES]
    first = kept["rows"][0]["ways"]
    assert first[1]["ratio"]["median"] == pytest.approx(first[1]["share"])
    page = (out / "performance.md").read_text()
    for name in ("forward", "growth"):
        assert f"(figures/{name}.png)" in page
        with Image.open(out / "figures" / f"{name}.png") as picture:
            assert picture.size[0] > 700
    assert "| row | way | images a second |" in page
    monkeypatch.setattr(run, "run_cases", lambda cases, *rest: iter([]) if not cases else pytest.fail("measured again"))
    assert main(["bench", "all", "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert "3 of 3 rows are measured and kept" in told.err
    assert "the row forward-tiny" in told.out


def test_ctrl_c_keeps_what_was_measured_and_the_same_again_goes_on(
    few: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = run.run_cases, list[str]()

    def interrupted(cases: list[Case], *rest: Any) -> Iterator[Any]:
        asked.extend(case.name for case in cases)
        yield from real(cases[:1], *rest)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run_cases", interrupted)
    assert main(["bench", "all", "--out", str(tmp_path), "--quiet"]) == 130
    told = capsys.readouterr().err
    assert f"1 rows are measured and kept in {tmp_path}, 2 are not" in " ".join(told.split())
    kept = json.loads((tmp_path / "bench.json").read_text())
    assert [row["name"] for row in kept["rows"]] == ["forward-tiny"]
    assert kept["unfinished"] == ["the row growth-tiny", "the row training-tiny"]
    asked.clear()
    assert main(["bench", "all", "--out", str(tmp_path), "--quiet"]) == 130
    assert asked == ["growth-tiny", "training-tiny"]


@pytest.mark.slow
def test_a_row_of_another_version_is_measured_again(few: None, tmp_path: Path) -> None:
    vitrail.bench("training", out=tmp_path)
    kept = json.loads((tmp_path / "bench.json").read_text())
    before, kept["rows"][0]["digest"] = kept["rows"][0]["digest"], "other"
    kept["rows"][0]["ways"] = []
    (tmp_path / "bench.json").write_text(json.dumps(kept))
    (row,) = vitrail.bench("training", out=tmp_path).rows
    assert (row["digest"], len(row["ways"])) == (before, 1)


def test_a_folder_of_another_machine_or_document_is_refused(few: None, tmp_path: Path) -> None:
    vitrail.bench("training", out=tmp_path)
    kept = json.loads((tmp_path / "bench.json").read_text())
    kept["machine"]["processor"] = "another"
    (tmp_path / "bench.json").write_text(json.dumps(kept))
    with pytest.raises(ConfigError, match="holds a bench of another processor"):
        vitrail.bench("training", out=tmp_path)
    (tmp_path / "bench.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"is no document of vitrail bench\. Give another folder"):
        vitrail.bench("training", out=tmp_path)


def test_wrong_words_are_refused_before_anything_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "nothing"]) == 1
    assert "what must be one of 'forward', 'training'" in capsys.readouterr().err
    assert main(["bench", "data", "--rows", "nothing"]) == 1
    assert "no row has 'nothing' in its name" in capsys.readouterr().err
    assert main(["bench", "data", "--repeats", "0"]) == 1


def test_the_rows_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--device", "cpu"]) == 0
    assert "latency-B16" in capsys.readouterr().out
    assert main(["bench", "--device", "cpu", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {row["name"]: row["all"] for row in listed}["loading-ViT-L16"] is False


def test_decoding_is_compared_with_pillow(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    works = {by: Decode(height=40, width=50, count=2, by=by) for by in ("Pillow", "vitrail")}
    case = make_case("data-50x40", *(way(by, work) for by, work in works.items()), group="data", unit="ms an image")
    monkeypatch.setattr(run, "cases_for", lambda kind: (case,))
    monkeypatch.setattr(run, "place_of", lambda *given: HERE)
    assert main(["bench", "data", "--json", "--quiet"]) == 0
    ways = json.loads(capsys.readouterr().out)["rows"][0]["ways"]
    assert ways[0]["ratio"]["median"] == 1.0
    assert ways[1]["ratio"]["median"] > 0


def test_memory_and_its_ratio_stand_beside_the_speed() -> None:
    case = make_case("a", way("timm", eager("timm")), way("Vitrail", eager()), way("limit", eager()))
    found = {
        "timm": Found(values=[1000.0], about={"memory": 8 << 30}),
        "Vitrail": Found(values=[1500.0], about={"memory": 6 << 30, "engine": "graph"}),
        "limit": Found(values=[2000.0]),
    }
    ((title, heads, rows),) = tables([row_document(case, found, 1.0)])
    assert title == "Forward passes"
    assert heads == ["row", "way", "images a second", "times the base", "memory", "times the base's"]
    assert rows[1] == ["", "Vitrail (graph)", "1,500", "1.50", "6.00 GiB", "0.75"]
    assert rows[2][3:] == ["2.00", "", ""]


@pytest.mark.slow
def test_a_way_is_measured_in_a_process_of_its_own() -> None:
    place = Place(device="cpu", repeats=2, seconds=0.001, jobs=2, apart=True)
    ((_, found),) = run_cases(CASES[:1], place)
    assert all(len(found[name].values) == 2 for name in ("timm", "Vitrail"))
