"""The process of one tracker: follows the log in a run's folder and hands on what is new until the run is over.

It notes in `trackers/NAME.json` which run of the service the folder is, and how far that has been told: a run that
goes on from a checkpoint repeats steps, and nothing is told twice.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event, Thread
from typing import Any, Protocol

LOG, SETTINGS = "log.jsonl", "resolved.json"
PROJECT = "vitrail"
PAUSE = 0.5  # seconds between two looks at the log
RETRY = 20.0  # seconds until a service that failed is tried again
LAST = 100.0  # seconds after the run, at which this process ends whatever the service does
TOGETHER = 200  # records that are handed on at once


class Sink(Protocol):
    """A service."""

    def open(self, name: str, known: str | None, folder: Path) -> str:
        """Begin a run of that name, or go on with the known one; give what it is known by."""
        ...

    def send(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Hand records on."""
        ...

    def close(self, *, finished: bool) -> None:
        """End the run there."""
        ...


class WandB:
    """Weights & Biases, as its own variables say: WANDB_PROJECT, WANDB_MODE, WANDB_BASE_URL and all others."""

    def open(self, name: str, known: str | None, folder: Path) -> str:
        """Begin a run in the folder, or go on with it."""
        import wandb

        settings = wandb.Settings(silent=True, console="off", init_timeout=RETRY)
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self.run = wandb.init(
            project=project,
            name=name,
            id=known,
            resume="allow",
            dir=folder,
            config=settings_of(folder),
            settings=settings,
        )
        self.run.define_metric("*", step_metric="step")
        return str(self.run.id)

    def send(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Log the numbers of each record beside its step."""
        for record in records:
            self.run.log({**numbers_of(record), "step": record["step"]})

    def close(self, *, finished: bool) -> None:
        """Wait until all was taken."""
        self.run.finish(exit_code=0 if finished else 1)


class MLflow:
    """MLflow, as its own variables say: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME; else files in the run's folder."""

    def open(self, name: str, known: str | None, folder: Path) -> str:
        """Begin a run of the experiment, or go on with it."""
        os.environ.setdefault("MLFLOW_TRACKING_URI", (folder / "mlruns").resolve().as_uri())
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        from mlflow import MlflowClient

        self.client = MlflowClient()
        if known is not None:
            self.client.update_run(known, status="RUNNING")
            self.id = known
            return known
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self.client.get_experiment_by_name(experiment)
        number = self.client.create_experiment(experiment) if found is None else found.experiment_id
        self.id = self.client.create_run(number, run_name=name).info.run_id
        for each, value in flat(settings_of(folder)):
            with contextlib.suppress(Exception):  # one that the service does not like is in the folder all the same
                self.client.log_param(self.id, each, str(value)[:500])
        return self.id

    def send(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Log the numbers of each record at its step."""
        from mlflow.entities import Metric

        metrics = []
        for record in records:
            moment = int(1000 * record.get("time", {}).get("clock", time.time()))
            metrics += [Metric(name, value, moment, record["step"]) for name, value in numbers_of(record).items()]
        for start in range(0, len(metrics), 1000):  # what one request may hold
            self.client.log_batch(self.id, metrics=metrics[start : start + 1000])

    def close(self, *, finished: bool) -> None:
        """Say how the run ended."""
        self.client.set_terminated(self.id, "FINISHED" if finished else "KILLED")


SINKS: Mapping[str, type[WandB] | type[MLflow]] = {"wandb": WandB, "mlflow": MLflow}


def numbers_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Give the numbers of a record by their names, such as train/loss, as TensorBoard has them."""
    every = {**record, **record.get("time", {})}
    return {
        f"{record['kind']}/{name}": float(value)
        for name, value in every.items()
        if isinstance(value, int | float) and name != "step"
    }


def settings_of(folder: Path) -> dict[str, Any]:
    """Give every value that the run uses."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads((folder / SETTINGS).read_text())
    return {}


def flat(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    """Give settings by their full names."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


class Follower:
    """Hands a log on to a service."""

    def __init__(self, sink: Sink, name: str, folder: Path) -> None:
        self.sink, self.folder = sink, folder
        self.kept = folder / "trackers" / f"{name}.json"
        self.known: str | None = None
        self.told: dict[str, int] = {}  # by kind of record: the last step that was handed on
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            held = json.loads(self.kept.read_text())
            self.known, self.told = held["run"], {str(kind): int(step) for kind, step in held["told"].items()}
        self.opened = False
        self._at = 0
        self._pending: list[dict[str, Any]] = []

    def hand_on(self) -> bool:
        """Hand on what is new, some of it; tells whether there was any."""
        self._read()
        if not self._pending:
            return False
        if not self.opened:
            self.known = self.sink.open(self.folder.resolve().name, self.known, self.folder)
            self.opened = True
            self._keep()
        some = self._pending[:TOGETHER]
        self.sink.send(some)
        del self._pending[:TOGETHER]
        for record in some:
            self.told[record["kind"]] = record["step"]
        self._keep()
        return True

    def close(self, *, finished: bool) -> None:
        """End the run there, where it was begun."""
        if self.opened:
            self.sink.close(finished=finished)

    def _read(self) -> None:
        """Read the lines that are whole, but for those that were told before."""
        with contextlib.suppress(FileNotFoundError), (self.folder / LOG).open("rb") as file:
            file.seek(self._at)
            data = file.read()
            whole = data.rfind(b"\n") + 1
            self._at += whole
            for line in data[:whole].splitlines():
                record = json.loads(line)
                if record["step"] > self.told.get(record["kind"], -1):
                    self._pending.append(record)

    def _keep(self) -> None:
        self.kept.parent.mkdir(exist_ok=True)
        half = self.kept.with_suffix(".part")
        half.write_text(json.dumps({"run": self.known, "told": self.told}))
        os.replace(half, self.kept)


def follow(follower: Follower, over: Event, say: Any) -> bool:  # noqa: ANN401
    """Hand on until the run is over; tells whether all was taken. A failure is said once, and tried again."""
    said = False
    while True:
        ends = over.is_set()  # before the log is read, which then is whole
        try:
            if not follower.hand_on():
                if ends:
                    return True
                over.wait(PAUSE)
        except Exception as error:  # whatever a service's library raises
            if not said:
                say(f"{str(error) or type(error).__name__} (the run goes on without it)")
            said = True
            if ends:
                return False
            over.wait(RETRY)


def main(name: str, folder: str) -> int:
    """Follow the log of a run; its end comes over standard input, or with the end of the run's process."""
    words = os.fdopen(os.dup(1), "w", buffering=1)
    path = Path(folder) / "trackers" / f"{name}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)  # what libraries print is no word of ours
    os.dup2(log, 2)
    over, how = Event(), bytearray()

    def wait() -> None:
        while heard := os.read(0, 64):
            how.extend(heard)
        over.set()
        time.sleep(LAST)
        os._exit(1)

    Thread(target=wait, daemon=True).start()

    def say(text: str) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more
            words.write(" ".join(text.split())[:500] + "\n")

    follower = Follower(SINKS[name](), name, Path(folder))
    took = follow(follower, over, say)
    try:
        follower.close(finished=how == b"finished")
    except Exception as error:
        say(str(error))
        took = False
    return 0 if took else 1


if __name__ == "__main__":
    code = main(sys.argv[1], sys.argv[2])
    sys.stdout.flush()
    os._exit(code)  # a library's own farewell may wait for a service that is down
