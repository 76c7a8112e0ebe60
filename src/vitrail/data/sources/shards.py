"""Tar files on a server and what the cache holds of them: every index for good, and of the files a bounded number."""

import contextlib
import os
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.decode import ImageError
from vitrail.data.source import Names
from vitrail.data.sources.tar import Identity, index_of, kept_index, numbered, read_member, used_samples
from vitrail.errors import DataError
from vitrail.files import cache_folder, fetch_patiently, place_of, recorded_sum
from vitrail.files.transfer import shown

SPAN = 1 << 32  # numbers of samples that a shard has for itself
OPEN = 4  # shards whose members a process holds in memory
TRIES = 5  # to read a shard that another process removes


class Shard:
    """What the index of one tar file says: where its samples lie in it, their names and the numbers of their labels."""

    def __init__(self, index: dict[str, Any], classes: tuple[str, ...], url: str, *, unlabeled: bool) -> None:
        used, self.problems = used_samples(index, unlabeled=unlabeled)
        self.sha256: str = index["sha256"]
        self.names = Names([sample[0] for sample in used])
        self.members = np.array([sample[1:3] for sample in used], dtype=np.int64).reshape(-1, 2)  # offset, size
        self.labels, _ = numbered([sample[3] for sample in used], classes, shown(url))


class Shards:
    """Tar files by number: fetched when they are needed, looked through once, and removed when many are there.

    A process that misses a file which another has removed fetches it again, so no lock is held while one is read.
    """

    def __init__(self, urls: Sequence[str], classes: tuple[str, ...], *, unlabeled: bool, keep: int) -> None:
        self.counts: dict[int, int] = {}  # samples of the shards whose indices have been seen
        self.problems: dict[int, list[tuple[str, str]]] = {}  # of those
        self.keep, self.remembered = keep, OPEN
        self.told: dict[int, int] = {}  # samples of each, by whoever made them
        self._urls, self._classes, self._unlabeled = Names(list(urls)), classes, unlabeled
        self._recent: OrderedDict[int, Shard] = OrderedDict()
        self._sums: dict[int, str] = {}  # of the files that the counts are of
        self._checked: set[int] = set()  # shards whose files this process has compared with their sums
        self._stamps: dict[int, tuple[int, ...]] = {}  # of files last read
        self._numbers: dict[str, int] = {}  # of names in the cache
        self._held = False  # whether all are wanted at once

    def __len__(self) -> int:
        return len(self._urls)

    def known(self) -> bool:
        """Whether the index of every shard is in the cache, so that the number of samples is known."""
        return all(number in self.counts or self._find(number) is not None for number in range(len(self)))

    def tell(self, sizes: Mapping[str, int]) -> None:
        """Take the counts of shards by their names, where every one is told."""
        found = {number: sizes.get(self.name(number), -1) for number in range(len(self))}
        if min(found.values()) >= 0:
            self.told = found
            self.counts |= found

    def count(self, number: int) -> int:
        """How many samples a shard holds; it is fetched only where its index is not in the cache."""
        if number not in self.counts:
            self.shard(number)
        return self.counts[number]

    def shard(self, number: int) -> Shard:
        """Give what a shard's index says; it is fetched only where its index is not in the cache."""
        found = self._find(number)
        return self._remember(number, self.bring(number)) if found is None else found

    def bring(self, number: int, *, quiet: bool = False) -> dict[str, Any]:
        """Fetch a shard and look through it, once."""
        return index_of(self.local(number, quiet=quiet), self._identity(number))

    def local(self, number: int, *, quiet: bool = False) -> Path:
        """Give the path of a shard in the cache, fetched where it is not there; this is its latest use."""
        file, mark = self._file(number), self._mark(number)
        with contextlib.suppress(OSError):
            if not file.is_file() and not self._held:
                mark.parent.mkdir(parents=True, exist_ok=True)
                mark.touch()
            if mark.exists():
                now = time.time_ns()  # finer than the clock of many file systems
                os.utime(mark, ns=(now, now))
        if number not in self._checked or not file.is_file():
            fetch_patiently(self._urls[number], quiet=quiet)
            self._check_sum(number, self._sums.get(number))
            self._checked.add(number)
        return file

    def evict(self, used: Collection[int]) -> None:
        """Remove the files used longest ago, all but `keep` and those in use; only what streaming has brought."""
        if not self._numbers:
            self._numbers = {self._file(number).name: number for number in range(len(self))}
        times: list[tuple[int, int]] = []
        with contextlib.suppress(OSError), os.scandir(self._mark(0).parent) as marks:
            for mark in marks:
                number = self._numbers.get(mark.name)
                if number is not None and number not in used:
                    times.append((mark.stat().st_mtime_ns, number))
        for _, number in sorted(times, reverse=True)[self.keep :]:
            with contextlib.suppress(OSError):
                self._file(number).unlink(missing_ok=True)  # its record stays, and says which index is its
                self._mark(number).unlink(missing_ok=True)

    def hold(self) -> None:
        """Know every shard, for questions about any sample; no stream removes a file from here on."""
        if self._held:
            return
        self._held = True
        for number in range(len(self)):
            with contextlib.suppress(OSError):
                self._mark(number).unlink(missing_ok=True)
            self.shard(number)

    def read(self, number: int, member: int) -> bytes:
        """Read a member where it lies; a file that is not there any more is fetched again."""
        shard = self.shard(number)
        offset, size = shard.members[member].tolist()

        def check(found: os.stat_result) -> None:
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
            if self._stamps.get(number) != stamp:  # another file than last time: fetched again, perhaps changed
                self._check_sum(number, shard.sha256)
                self._stamps[number] = stamp

        for _ in range(TRIES):
            try:
                return read_member(self._file(number), offset, size, check)
            except ImageError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                self.local(number)
        raise DataError(
            f"{self._file(number)} was removed {TRIES} times while it was to be read. "
            "Let fewer runs share a cache, or let each keep more shards (keep=...)."
        )

    def name(self, number: int) -> str:
        """Name a shard as its server does."""
        return shown(self._urls[number]).rpartition("/")[2]

    def _find(self, number: int) -> Shard | None:
        if number in self._recent:
            self._recent.move_to_end(number)
            return self._recent[number]
        identity = self._identity(number)
        index = kept_index(identity) if identity["sha256"] else None
        return None if index is None else self._remember(number, index)

    def _remember(self, number: int, index: dict[str, Any]) -> Shard:
        self._check_sum(number, self._sums.setdefault(number, index["sha256"]))
        shard = Shard(index, self._classes, self._urls[number], unlabeled=self._unlabeled)
        self._recent[number] = shard
        if len(self._recent) > self.remembered and not self._held:
            self._recent.popitem(last=False)
        self.counts[number] = len(shard.members)
        if self.told.get(number, len(shard.members)) != len(shard.members):
            raise DataError(
                f"{shown(self._urls[number])} holds {len(shard.members):,} samples, where sizes.json beside it says "
                f"{self.told[number]:,}. Correct sizes.json, or remove it."
            )
        self.problems[number] = [(self.name(number), reason) for reason in shard.problems]
        return shard

    def _check_sum(self, number: int, expected: str | None) -> None:
        got = self._identity(number)["sha256"]
        if expected not in (got, None):
            raise DataError(
                f"{shown(self._urls[number])} has changed on its server while it was in use: expected sha256 "
                f"{expected}, got {got or 'none'}. Start the run again to use it as it is now."
            )

    def _identity(self, number: int) -> Identity:
        file = self._file(number)
        return {"name": file.name, "sha256": recorded_sum(file) or ""}

    def _file(self, number: int) -> Path:
        return place_of(self._urls[number])

    def _mark(self, number: int) -> Path:
        """Where it is noted that streaming has brought a file, and when it was last used."""
        return cache_folder() / "streamed" / self._file(number).name
