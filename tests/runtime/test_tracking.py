"""Trackers: all receive the curve that the log has, each record once, and none can stop or change a run."""

import json
import os
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from vitrail.cli import main
from vitrail.config.trackers import check_trackers
from vitrail.errors import ConfigError
from vitrail.runtime import tracking
from vitrail.runtime.reporter import Reporter
from vitrail.runtime.tracking_process import Follower, follow
from vitrail.train.journal import LOG, Journal

Curve = dict[str, list[tuple[int, float]]]
RECORDS = [
    {"kind": kind, "step": step, "loss": 2.5 / step, "note": "no number", "time": {"clock": 1.7e9 + step}}
    for step in range(2, 12, 2)
    for kind in ("train", "evaluation")
]
WANTED = {f"{kind}/loss": [(step, 2.5 / step) for step in range(2, 12, 2)] for kind in ("train", "evaluation")}
DEAD = "http://127.0.0.1:9"


class Heard(Reporter):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class Memory:
    """A service that remembers, and is down as often as it is told to be."""

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.opened, self.got, self.closed = failures, [], [], None

    def open(self, name: str, known: str | None, folder: Path) -> str:
        self.opened.append((name, known))
        return known or "number 7"

    def send(self, records: Sequence[Mapping[str, Any]]) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("nobody at home")
        self.got += [(record["kind"], record["step"]) for record in records]

    def close(self, *, finished: bool) -> None:
        self.closed = finished


@pytest.fixture
def quiet_services(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_"))]:
        monkeypatch.delenv(name)


def write(folder: Path, records: Sequence[Mapping[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    with (folder / LOG).open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def over() -> Event:
    event = Event()
    event.set()
    return event


def wandb_records(path: Path) -> Iterator[Any]:
    """Read the file of an offline run: LevelDB's log format, of protocol buffers."""
    proto: Any = import_module("wandb.proto.wandb_internal_pb2")
    data, at, held = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        held = (b"" if kind in (1, 2) else held) + data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            record = proto.Record()
            record.ParseFromString(held)
            yield record


def wandb_curve(folder: Path) -> Curve:
    found: Curve = defaultdict(list)
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        for record in wandb_records(path):
            if record.HasField("history"):
                items = {
                    item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
                }
                for name, value in items.items():
                    if "/" in name:
                        found[name].append((items["step"], value))
    return found


def mlflow_curve(folder: Path) -> Curve:
    found: Curve = defaultdict(list)
    for path in folder.glob("mlruns/*/*/metrics/**/*"):
        if path.is_file():
            rows = [line.split() for line in path.read_text().splitlines()]
            found[str(path).rpartition("/metrics/")[2]] += [(int(step), float(value)) for _, value, step in rows]
    return found


def board_curve(folder: Path) -> Curve:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}


@pytest.mark.usefixtures("quiet_services")
def test_three_trackers_receive_the_curve_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    heard = Heard()
    (tmp_path / "resolved.json").write_text(json.dumps({"training": {"seed": 7}}))
    journal = Journal(tmp_path, track=("wandb", "mlflow", "tensorboard"), report=heard)
    journal.cut(0, 0)
    for record in RECORDS:
        journal.write(record)
    journal.finished = True
    journal.close()
    assert [text for text in heard.notes if "waiting" not in text] == []
    for curve in (wandb_curve(tmp_path), mlflow_curve(tmp_path)):
        assert {name: curve[name] for name in WANTED} == WANTED
    board = board_curve(tmp_path)
    assert {name: [(step, pytest.approx(value)) for step, value in board[name]] for name in WANTED} == WANTED
    assert [path.read_text() for path in tmp_path.glob("mlruns/*/*/params/training.seed")] == ["7"]
    kept = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("trackers/*.json")}
    assert {name: held["told"] for name, held in kept.items()} == {
        name: {"train": 10, "evaluation": 10} for name in ("wandb", "mlflow")
    }


@pytest.mark.usefixtures("quiet_services")
def test_services_that_are_down_are_noted_and_nothing_else_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("WANDB_BASE_URL", DEAD), ("WANDB_API_KEY", "0" * 40), ("MLFLOW_TRACKING_URI", DEAD)):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tracking, "WAIT", 0.3)
    monkeypatch.setattr(tracking, "QUICK", 0.1)
    heard = Heard()
    journal = Journal(tmp_path, track=("wandb", "mlflow"), report=heard)
    journal.cut(0, 0)
    for record in RECORDS:
        journal.write(record)
    journal.close()
    assert len((tmp_path / LOG).read_text().splitlines()) == len(RECORDS)
    for name in ("wandb", "mlflow"):
        assert any(text.startswith(f"{name} did not take all of the log") for text in heard.notes)


@pytest.mark.slow
@pytest.mark.usefixtures("quiet_services")
def test_a_run_whose_trackers_are_down_ends_as_one_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("WANDB_BASE_URL", DEAD), ("WANDB_API_KEY", "0" * 40), ("MLFLOW_TRACKING_URI", DEAD)):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tracking, "WAIT", 5.0)
    small = "--model ViT-Ti/14 --set model.depth=1 --set model.width=24 --set model.heads=3 --set model.mlp_width=29"
    command = f"finetune sample {small} --set image_size=28 --batch 64 --workers 0 --steps 4 --set log_every=2".split()
    assert main([*command, "--out", str(tmp_path / "plain")]) == 0
    capsys.readouterr()
    assert main([*command, "--out", str(tmp_path / "down"), "--track", "wandb,mlflow"]) == 0
    assert "the run goes on without it" in capsys.readouterr().err
    plain, down = ((tmp_path / name / "weights.safetensors").read_bytes() for name in ("plain", "down"))
    assert plain == down
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert main([*command, "--out", str(tmp_path / "down"), "--track", "wandb,mlflow"]) == 0  # finished: sends the rest
    lines = [json.loads(line) for line in (tmp_path / "down" / LOG).read_text().splitlines()]
    losses = [(line["step"], line["loss"]) for line in lines if line["kind"] == "train"]
    assert len(losses) == 2
    assert wandb_curve(tmp_path / "down")["train/loss"] == mlflow_curve(tmp_path / "down")["train/loss"] == losses


def test_each_record_is_told_once_also_where_a_run_repeats_steps(tmp_path: Path) -> None:
    write(tmp_path, RECORDS[:6])
    first = Memory()
    assert follow(Follower(first, "some", tmp_path), over(), print)
    (tmp_path / LOG).write_text("")  # a checkpoint of step 2 is gone on with
    write(tmp_path, RECORDS)
    second = Memory()
    follower = Follower(second, "some", tmp_path)
    assert follow(follower, over(), print)
    follower.close(finished=True)
    assert first.got + second.got == [(record["kind"], record["step"]) for record in RECORDS]
    assert (first.opened, second.opened) == ([(tmp_path.name, None)], [(tmp_path.name, "number 7")])
    assert (first.closed, second.closed) == (None, True)


def test_a_line_that_is_half_written_waits(tmp_path: Path) -> None:
    sink = Memory()
    follower = Follower(sink, "some", tmp_path)
    assert not follower.hand_on()  # there is no log yet
    line = json.dumps(RECORDS[0]) + "\n"
    (tmp_path / LOG).write_text(line[:20])
    assert not follower.hand_on()
    (tmp_path / LOG).write_text(line)
    assert follower.hand_on()
    assert sink.got == [("train", 2)]


def test_a_service_that_comes_back_gets_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.runtime.tracking_process.RETRY", 0.0)
    monkeypatch.setattr("vitrail.runtime.tracking_process.PAUSE", 0.0)
    write(tmp_path, RECORDS)
    sink, said, ends = Memory(failures=3), [], Event()

    class Ending(Follower):
        def hand_on(self) -> bool:
            found = super().hand_on()
            if found:
                ends.set()
            return found

    assert follow(Ending(sink, "some", tmp_path), ends, said.append)
    assert sink.got == [(record["kind"], record["step"]) for record in RECORDS]
    assert said == ["nobody at home (the run goes on without it)"]
    assert not follow(Follower(Memory(failures=9), "other", tmp_path), over(), said.append)


def test_unknown_trackers_and_missing_libraries_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_trackers("wandb, mlflow,wandb", tensorboard=True) == ("wandb", "mlflow", "tensorboard")
    assert check_trackers(()) == ()
    with pytest.raises(ConfigError, match=r"there is no tracker 'wanb'\. Did you mean 'wandb'"):
        check_trackers("wanb")
    monkeypatch.setattr("vitrail.config.trackers.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"mlflow is not installed\. pip install 'vitrail\[mlflow\]'"):
        check_trackers(["mlflow"])
