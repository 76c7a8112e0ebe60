"""Runs of `vitrail finetune` to kill: forked from one warm process, which imports torch once for them all."""

import io
import itertools
import json
import multiprocessing.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

LIMIT = 120.0  # seconds after which a run hangs
STEPS, EVALUATE, SAVE, LOG = 12, 7, 5, 3  # that do not align
CLASSES, EACH, BROKEN, TEST = 3, 37, 2, 13
# Everything that is random or has a memory. 109 images less 11 kept back are 4 steps of 24 an epoch.
SETTINGS = (
    *(
        "model.depth=2",
        "model.width=24",
        "model.heads=3",
        "model.mlp_width=29",
        "image_size=14",
        "warmup=2",
        "rate=3e-3",
    ),
    *(f"evaluate_every={EVALUATE}", f"save_every={SAVE}", f"log_every={LOG}", "limit=0.1", "dropout=0.1"),
    *("stochastic_depth=0.2", "average.decay=0.99", "mix_block=4"),
)


@dataclass(frozen=True)
class Ended:
    """How a run ended: its exit status (less than 0: the signal), and what it said."""

    status: int
    said: str


def make_data(root: Path, *, broken: int = BROKEN) -> Path:
    """Write a folder of small images of a few classes that can be told apart, some of which cannot be decoded."""
    from PIL import Image

    random = np.random.default_rng(0)
    for split, count in (("train", EACH), ("test", TEST)):
        for label, name in enumerate(("ant", "bee", "cat")[:CLASSES]):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count + label):
                pixels = random.integers(0, 200, (17, 19, 3), dtype=np.uint8)
                pixels[..., label] += 17
                Image.fromarray(pixels).save(folder / f"{number}.png")
    for number in range(broken):
        (root / "train" / "bee" / f"broken-{number}.png").write_bytes(b"no image")
    return root


def arguments(
    data: Path, out: Path, *more: str, steps: int = STEPS, batch: int = 24, changed: Mapping[str, object] | None = None
) -> list[str]:
    """Give the command line of a run, some of its settings changed."""
    settings: dict[str, object] = {**dict(setting.split("=") for setting in SETTINGS), **(changed or {})}
    command = ["finetune", str(data), "--model", "ViT-Ti/7", "--out", str(out), "--device", "cpu"]
    command += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    return [*command, "--steps", str(steps), "--batch", str(batch), *more]


def result(out: Path) -> dict[str, Any]:
    """Give all that a finished run must give again: bytes of the weights, numbers, and the log without times."""
    files = ("weights.safetensors", "metrics.json", "summary.json", "SHA256SUMS", "classes.json", "preprocessing.json")
    return {name: (out / name).read_bytes() for name in files} | {"log": log(out)}


def log(out: Path) -> list[dict[str, Any]]:
    """Read the log, times aside."""
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "time"} for line in lines]


def steps_of(out: Path) -> list[int]:
    """List the steps that there are checkpoints of."""
    return sorted(int(path.name[5:]) for path in (out / "checkpoints").glob("step-*") if path.name[5:].isdigit())


def leftovers(out: Path) -> list[str]:
    """List what a killed run left behind."""
    return sorted(str(path.relative_to(out)) for path in out.rglob(".*") if path.name != ".lock")


class Runs:
    """A warm process that forks runs, on request."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.names = folder, itertools.count()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "VITRAIL_CACHE": str(folder / "cache")}
        environment |= {"PYTHONWARNINGS": "ignore"}
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __call__(
        self,
        arguments: Sequence[str],
        *,
        trick: Sequence[object] = (),
        signals: Sequence[tuple[float | str, int]] = (),
        ranks: int = 1,
        threads: int = 1,
        limit: float = LIMIT,
    ) -> Ended:
        """Run a command, with a trick played on it and signals sent to its group: after seconds, or once it says so."""
        return self.all(arguments, trick=trick, signals=signals, ranks=ranks, threads=threads, limit=limit)[0]

    def all(self, arguments: Sequence[str], **options: Any) -> list[Ended]:
        """Run a command on several ranks; give how each ended."""
        said = [str(self.folder / f"said-{next(self.names)}") for _ in range(options.get("ranks", 1))]
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"arguments": list(arguments), "said": said, **options}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the warm process is gone"
        texts = [Path(path).read_text() for path in said]
        statuses = json.loads(answer)
        assert None not in statuses, f"hangs: {texts}"
        return [Ended(status, text) for status, text in zip(statuses, texts, strict=True)]

    def close(self) -> None:
        """End the process."""
        with self.process:  # which closes its pipes
            pass


@contextmanager
def warm(folder: Path) -> Iterator[Runs]:
    """Give runs from a warm process."""
    runs = Runs(folder)
    try:
        yield runs
    finally:
        runs.close()


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


# From here on: inside the warm process.


def serve() -> None:
    """Fork a run for each line that comes in; answer with its exit statuses."""
    import torch._dynamo  # noqa: F401, which the first step of each run would import

    import vitrail.verbs.training  # noqa: F401
    from vitrail.cli import main

    warm_up(main)
    for line in sys.stdin:
        asked = json.loads(line)
        ranks, port = asked.get("ranks", 1), free_port()
        children = []
        for rank in range(ranks):
            if not (child := os.fork()):
                environment = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
                environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                os.environ.update({name: str(value) for name, value in environment.items()} if ranks > 1 else {})
                begin(main, asked, asked["said"][rank], rank)
            children.append(child)
        sys.stdout.write(json.dumps(watch(children, asked)) + "\n")
        sys.stdout.flush()


def warm_up(main: Callable[..., Any]) -> None:
    """Train for a step, on images of its own: what a first run imports and sets up, no fork does again."""
    quiet = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(quiet), redirect_stderr(quiet):
        status = main(arguments(make_data(Path(folder) / "images"), Path(folder) / "run", steps=1))
    assert status == 0, quiet.getvalue()


def begin(main: Callable[..., Any], asked: dict[str, Any], said: str, rank: int) -> None:
    """Become a run, in a process group of its own."""
    import torch

    os.setsid()
    file = os.open(said, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for number in (1, 2):
        os.dup2(file, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    torch.set_num_threads(asked.get("threads", 1))
    sys.argv = ["vitrail", *asked["arguments"]]
    status = 70
    try:
        name, *values = asked.get("trick") or ["nothing"]
        if asked.get("quick"):
            watch_quickly()
        if "shards" in asked:
            from vitrail.train import sharded

            sharded.FROM = asked["shards"]
        TRICKS[name](*values) if rank == asked.get("on", 0) else None
        status = main(asked["arguments"])
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        vars(multiprocessing.util)["_exit_function"]()  # as at the end of any process
        os._exit(status)


def watch(children: list[int], asked: dict[str, Any]) -> list[int | None]:
    """Wait for processes, send their groups what is due, and end those that hang; None for those."""
    start, signals = time.monotonic(), list(asked.get("signals", ()))
    statuses: dict[int, int | None] = {}
    while len(statuses) < len(children):
        for child in children:
            if child not in statuses and (found := os.waitpid(child, os.WNOHANG))[0]:
                statuses[child] = os.waitstatus_to_exitcode(found[1])
        passed = time.monotonic() - start
        while signals and is_due(signals[0][0], passed, asked["said"][0]):
            number = signals.pop(0)[1]
            for child in children:
                if child not in statuses:
                    os.killpg(child, number)
            start = time.monotonic()  # each counts from the one before it
        if passed > asked.get("limit", LIMIT) or (statuses and any(statuses.values()) and passed > LIMIT / 2):
            for child in children:
                if child not in statuses:
                    os.killpg(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    statuses[child] = None
        time.sleep(0.002)
    return [statuses[child] for child in children]


def is_due(when: float | str, passed: float, said: str) -> bool:
    """Tell whether the time has come, or the word has been said."""
    return passed >= when if isinstance(when, int | float) else when in Path(said).read_text()


def touching(out: str) -> Callable[[Callable[[str], None]], None]:
    """Have a function called before every change to files of a folder."""
    main = os.getpid()

    def hook(tell: Callable[[str], None]) -> None:
        def audit(event: str, values: tuple[Any, ...]) -> None:
            changes = event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate")
            writes = event == "open" and isinstance(values[2], int) and values[2] & (os.O_WRONLY | os.O_RDWR)
            if (changes or writes) and os.getpid() == main and str(values[0]).startswith(out):
                tell(f"{event} {values[0]}")

        sys.addaudithook(audit)
        real = os.fsync

        def fsync(number: int) -> None:
            if (path := os.readlink(f"/proc/self/fd/{number}")).startswith(out):
                tell(f"fsync {path}")
            real(number)

        os.fsync = fsync

    return hook


def count_changes(out: str, into: str) -> None:
    """List every change to the run's files."""
    file = os.open(into, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def tell(what: str) -> None:
        os.write(file, f"{what}\n".encode())

    touching(out)(tell)


def kill_at_change(out: str, number: int) -> None:
    """Kill the process right before a change to the run's files."""
    left = itertools.count()

    def tell(what: str) -> None:
        if next(left) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    touching(out)(tell)


def kill_in_tensors(number: int) -> None:
    """Kill the process in the middle of a file of tensors."""
    from vitrail.files import atomic

    real, left = atomic.sync, itertools.count()

    def sync(path: Path) -> None:
        if path.name.startswith((".weights.", ".training.")) and path.suffix == ".safetensors" and next(left) == number:
            os.truncate(path, path.stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        real(path)

    atomic.sync = sync


def fail_at_change(out: str, number: int, code: int) -> None:
    """Refuse a change to the run's files, and all after it, as a disk does."""
    left = itertools.count()

    def tell(what: str) -> None:
        if what.startswith(("os.remove", "os.rmdir")):
            return
        if next(left) >= number:
            raise OSError(code, os.strerror(code), what.split(" ", 1)[1])

    touching(out)(tell)


def small_files(size: int, step: int) -> None:
    """Let no file grow past a size, from a step on; the disk's own refusal."""
    import resource

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    _at_step(step, limit)


def shell_at_step(step: int, command: str) -> None:
    """Do something in a shell once, before a step."""
    _at_step(step, lambda: subprocess.run(command, shell=True, check=True) and None)


def become_nobody(step: int) -> None:
    """Lose every permission, before a step."""
    _at_step(step, lambda: os.setuid(65534))


def signal_at_step(step: int, number: int, times: int = 1, pause: float = 0.0) -> None:
    """Send the process group signals in a step."""

    def send() -> None:
        for _ in range(times):
            os.killpg(os.getpid(), number)
            time.sleep(pause)

    _at_step(step, send)


def watch_quickly() -> None:
    """Find soon who is gone or hangs, as other processes do after many seconds."""
    from vitrail.runtime import watch

    watch.BEAT, watch.SURE, watch.GONE = 0.1, 1.0, 2.0
    os.environ[watch.PATIENCE] = "3"


def fail_at_step(step: int) -> None:
    """Fail in a way of one's own, in a step."""

    def fail() -> None:
        raise ValueError("this memory is damaged")

    _at_step(step, fail)


def spoil_step(step: int) -> None:
    """Have a loss that is no number, in a step."""
    from vitrail.train import loop

    def spoil() -> None:
        real = loop.micro_step
        loop.__dict__.update(micro_step=lambda *given: real(*given) * float("nan"))

    _at_step(step, spoil)


def refuse_models() -> None:
    """Fail where a model is to be opened."""
    from vitrail.errors import DataError
    from vitrail.verbs import predict

    def fail(*args: object) -> None:
        raise DataError("the disk of this machine is gone")

    predict.__dict__["open_model"] = fail


def _at_step(step: int, do: Callable[[], None]) -> None:
    from vitrail.train import loop

    real = loop.train_step

    def train_step(plan: Any, state: Any, batch: Any) -> bool:
        if state.step == step:
            do()
        return real(plan, state, batch)

    loop.train_step = train_step


TRICKS: dict[str, Callable[..., None]] = {
    "nothing": lambda: None,
    "count changes": count_changes,
    "kill at change": kill_at_change,
    "kill in tensors": kill_in_tensors,
    "fail at change": fail_at_change,
    "small files": small_files,
    "shell": shell_at_step,
    "nobody": become_nobody,
    "signal": signal_at_step,
    "no model": refuse_models,
    "fail": fail_at_step,
    "nan": spoil_step,
    "sleep": lambda step: _at_step(step, lambda: time.sleep(100)),
    "kill": lambda step, number: _at_step(step, lambda: os.kill(os.getpid(), number)),
}

if __name__ == "__main__":
    serve()
