"""Who keeps the others waiting: every process of a run says that it lives and how far it is, and is looked after.

Each has a thread that beats in the store where torchrun's processes meet. Where a process waits for long, or what
carries its messages fails, it reads there who is gone, hangs or has failed, and says so in one line.
"""

import contextlib
import json
import os
import platform
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any, NamedTuple

from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from vitrail.config.check import whole
from vitrail.errors import VitrailError, one_line, shortened
from vitrail.files.progress import say

BEAT = 1.0  # seconds
GONE = 30.0  # seconds without a beat
SURE = 5.0  # the same once the transport says that somebody is gone
WORDS = 20.0  # seconds that a process which fails has to say why; torchrun gives 30
PATIENT = 7200.0  # seconds that a process may keep the others waiting: it may be reading the data's hashes
TRAINING = 600.0  # the same between the steps of a training
PATIENCE = "VITRAIL_PATIENCE"  # the variable that says otherwise
# What transports say; other errors are a process's own.
TRANSPORT = re.compile(r"gloo|NCCL|Connection (closed|reset)|Broken pipe|[Tt]imed out|recv(Bytes|Value)|store", re.I)
ENDED, AS = "it ended", "ended as "  # what is said of a process that left; the second where another is the reason
LONGEST = 300  # signs of a reason


class ProcessError(VitrailError):
    """Another process of the run failed, hangs, or is gone."""


class Seen(NamedTuple):
    """What a process says of itself."""

    beats: int
    turns: int
    host: str
    reason: str | None = None  # why it left


def name_of_process(rank: int, ranks: int, host: str = "") -> str:
    """Name a process for people, from 0 on as torchrun does."""
    return f"rank {rank} of {ranks}" + (f" ({host})" if host else "")


class Watch:
    """Beats for this process, and looks after the others."""

    def __init__(self, rank: int, ranks: int, token: str) -> None:
        self.rank, self.ranks, self.patience, self.gone = rank, ranks, PATIENT, GONE
        self.beats = self.turns = 0
        self.reason: str | None = None
        self.since = time.monotonic()  # when the last turn ended, or this one began
        self.waits = False
        self.ended = threading.Event()
        self.lock = threading.Lock()  # a store answers one at a time
        self.heard: dict[int, tuple[Seen, float]] = {}  # of the others, and when it last changed
        where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(*where, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=30))
        self.store = PrefixStore(
            f"vitrail-{token}", store
        )  # of this meeting alone: torchrun keeps one store for several
        self.key, self.failed = "{}", "failed"
        self.beat()
        self.thread = threading.Thread(target=self.keep, name="vitrail-watch", daemon=True)
        self.thread.start()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Wait for all others, and count the turn."""
        self.turns, self.since, self.waits = self.turns + 1, time.monotonic(), True
        try:
            yield
        finally:
            self.waits, self.since = False, time.monotonic()

    @contextmanager
    def training(self) -> Iterator[None]:
        """Wait for less long."""
        self.patience = patience_of(os.environ)
        self.gone = min(GONE, self.patience)
        try:
            yield
        finally:
            self.patience, self.gone = PATIENT, GONE

    def beat(self) -> None:
        """Say that this process lives, and how far it is."""
        self.beats += 1
        said = json.dumps(Seen(self.beats, self.turns, platform.node(), self.reason))
        with self.lock:
            self.store.set(self.key.format(self.rank), said)

    def look(self) -> None:
        """Hear of the others; the store that nobody keeps any more raises an error."""
        for rank in range(self.ranks):
            if rank == self.rank:
                continue
            with self.lock:
                key = self.key.format(rank)
                said = self.store.get(key) if self.store.check([key]) else b'[0, 0, "", null]'
            seen = Seen(*json.loads(said))
            if rank not in self.heard or self.heard[rank][0] != seen:
                self.heard[rank] = seen, time.monotonic()

    def leave(self, reason: str | None) -> None:
        """Say that this process ends, and why."""
        self.reason = reason or ENDED
        self.ended.set()
        with contextlib.suppress(Exception):
            if reason is not None:  # read by those who wait
                name = name_of_process(self.rank, self.ranks, platform.node())
                text = reason.removeprefix(AS) if reason.startswith(AS) else f"{name} failed: {reason}"
                with self.lock:
                    self.store.set(self.failed, text)
            self.beat()

    def linger(self) -> None:
        """Keep the store until the others have read there why this process ends, but for those who are silent."""
        begin = time.monotonic()
        with contextlib.suppress(Exception):
            while self.rank == 0 and self.reason != ENDED and time.monotonic() - begin < 2 * SURE:
                self.look()
                now = time.monotonic()
                if all(seen.reason is not None or now - when > SURE for seen, when in self.heard.values()):
                    return
                time.sleep(BEAT / 4)

    def keep(self) -> None:
        """Beat until this process leaves, and look after the others where they keep it waiting."""
        each, last = max(SURE, self.ranks / 8), time.monotonic()
        while not self.ended.wait(BEAT):
            try:
                self.beat()
                now = time.monotonic()
                if self.waits and now - self.since > 2 * BEAT:
                    with self.lock:
                        told = self.store.get(self.failed).decode() if self.store.check([self.failed]) else ""
                    if told:
                        self.stop(told)
                if now - self.since < min(SURE, self.gone) or now - last < min(each, self.gone / 2):
                    continue
                last = now
                self.look()
            except Exception:  # the store is gone, and with it the process that keeps it
                if self.ended.wait(self.gone):
                    return
                self.stop(f"{name_of_process(0, self.ranks)}, where all meet, is gone. {again()}")
            else:
                self.judge(now)

    def judge(self, now: float) -> None:
        """End this process where another is gone for long, or keeps it waiting for too long."""
        lost = [rank for rank, (seen, when) in self.heard.items() if not seen.reason and now - when > self.gone]
        if lost:
            self.stop(f"{self.named(lost)} gone: nothing was heard of it for {self.gone:.0f} s. {again()}")
        if not self.waits or now - self.since < self.patience:
            return
        late = [rank for rank, (seen, _) in self.heard.items() if not seen.reason and seen.turns < self.turns]
        words = f"the others have waited {now - self.since:.0f} s for it ({PATIENCE} says how long they may)"
        self.stop(f"{self.named(late)} hanging: {words}. {again()}" if late else f"no process goes on. {again()}")

    def named(self, ranks: list[int]) -> str:
        """Name some processes, and say that they are."""
        some = [name_of_process(rank, self.ranks, self.heard[rank][0].host) for rank in ranks[:4]]
        more = f" and {len(ranks) - 4:,} others" if len(ranks) > 4 else ""
        return f"{', '.join(some)}{more} {'is' if len(ranks) == 1 else 'are'}"

    def stop(self, text: str) -> None:
        """Say it and end this process at once: its own thread waits where nothing wakes it."""
        if self.ended.is_set():
            return
        self.leave(AS + text)
        say(f"error: {text}")
        self.linger()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(1)

    def explain(self) -> str | None:
        """Say who ended or is gone, now that what carries messages has failed; None where nobody is."""
        begin = time.monotonic()
        with contextlib.suppress(Exception):
            self.look()
        told = {rank: seen.beats for rank, (seen, _) in self.heard.items()}
        while (passed := time.monotonic() - begin) < 2 * SURE:
            time.sleep(BEAT / 4)
            try:
                self.look()
            except Exception:
                return f"{name_of_process(0, self.ranks)}, where all meet, is gone. {again()}"
            left = {rank: seen.reason for rank, (seen, _) in self.heard.items() if seen.reason is not None}
            own = {rank: reason for rank, reason in left.items() if not reason.startswith(AS)}
            for rank, reason in own.items():  # that did not fail as another had
                name = name_of_process(rank, self.ranks, self.heard[rank][0].host)
                return f"{name} failed: {reason}" if reason != ENDED else f"{name} ended before the others."
            silent = [rank for rank, (seen, _) in self.heard.items() if rank not in left and seen.beats == told[rank]]
            if passed > SURE and silent:
                return f"{self.named(silent)} gone: killed, out of memory, or its machine is down. {again()}"
            if passed > SURE and left:
                return next(iter(left.values())).removeprefix(AS)
        return None


def again() -> str:
    """Say what to do."""
    return "The same command goes on from the last checkpoint."


def patience_of(environment: Mapping[str, str]) -> float:
    """Read how long a process may keep others waiting in a training, in seconds."""
    said = environment.get(PATIENCE, "")
    return float(whole(PATIENCE, int(said) if said.isdigit() else said)) if said else TRAINING


@contextmanager
def ending_in_words() -> Iterator[None]:
    """Let SIGTERM wait for a process that fails: torchrun sends it to all others at once where one was killed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hear(number: int, frame: FrameType | None) -> None:
        if isinstance(sys.exception(), VitrailError | RuntimeError):
            last = threading.Timer(WORDS, os._exit, (1,))
            last.daemon = True
            last.start()
            timers.append(last)
            return
        signal.signal(number, before)
        os.kill(os.getpid(), number)

    timers: list[threading.Timer] = []
    before = signal.signal(signal.SIGTERM, hear) or signal.SIG_DFL
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        for timer in timers:
            timer.cancel()


@contextmanager
def watched(make: Callable[[], Watch]) -> Iterator[Watch]:
    """Watch while processes are together; what another did to the transport is said as what it is."""
    with ending_in_words():
        yield from _watched(make())


def _watched(watch: Watch) -> Iterator[Watch]:
    reason: str | None = None
    try:
        yield watch
    except Exception as error:
        reason = shortened(one_line(str(error) or type(error).__name__), LONGEST)
        if isinstance(error, VitrailError):
            raise
        if not isinstance(error, RuntimeError) or TRANSPORT.search(str(error)) is None:
            reason = f"{type(error).__name__}: {reason}"
            raise
        found: Any = watch.explain()
        if found is None:
            raise
        reason = AS + found
        raise ProcessError(found) from error
    except BaseException:
        reason = "interrupted"
        raise
    finally:
        watch.leave(reason)
        watch.linger()
