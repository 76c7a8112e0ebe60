"""Where processes meet: torchrun keeps one store for all its attempts, in which lies what killed processes had said.

A process that reads there an address of an attempt before would knock at a door that nobody opens. So the processes
first agree on a word that is this meeting's alone, and all that is said afterwards has it in front.
"""

import secrets
import time
from collections.abc import Collection
from datetime import timedelta
from typing import NamedTuple

from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.rendezvous import rendezvous

from vitrail.files.progress import say
from vitrail.runtime.watch import ProcessError, name_of_process

PAUSE = 0.02  # seconds between looks
SILENT = 60.0  # seconds after which the first process says whom it waits for
NAMED = 4  # of those


class Meeting(NamedTuple):
    """A store that is this meeting's alone, this process's number, how many there are, and the word of the meeting."""

    store: Store
    rank: int
    ranks: int
    word: str


def meet(patience: timedelta) -> Meeting:
    """Meet the processes that torchrun started with this one."""
    store, rank, ranks = next(rendezvous("env://", timeout=patience))
    word = agree(store, rank, ranks, patience.total_seconds())
    return Meeting(PrefixStore(word, store), rank, ranks, word)


def agree(store: Store, rank: int, ranks: int, patience: float) -> str:
    """Agree on a word with those who are here now, whatever others left in the store."""
    own = secrets.token_hex(8)
    return _ask(store, rank, ranks, own, patience) if rank else _answer(store, ranks, own, patience)


def _ask(store: Store, rank: int, ranks: int, own: str, patience: float) -> str:
    """Say that this process is here, and wait for the word that the first one answers."""
    until, answer = time.monotonic() + patience, f"vitrail-word/{rank}"
    store.set(f"vitrail-here/{rank}", own)
    while time.monotonic() < until:
        # What was answered to somebody else was answered before this process began.
        if store.check([answer]) and (said := store.get(answer).decode().split())[0] == own:
            store.set(f"vitrail-came/{said[1]}/{rank}", "")
            return said[1]
        time.sleep(PAUSE)
    raise ProcessError(f"{name_of_process(0, ranks)} did not come within {patience:.0f} s. See what it says.")


def _answer(store: Store, ranks: int, word: str, patience: float) -> str:
    """Give the word to whoever says that it is here, until all have it."""
    begin, told = time.monotonic(), False
    missing, answered = set(range(1, ranks)), dict[int, bytes]()
    while missing:
        for other in sorted(missing):
            here = f"vitrail-here/{other}"
            if store.check([here]) and (its := store.get(here)) != answered.get(other):
                answered[other] = its
                store.set(f"vitrail-word/{other}", f"{its.decode()} {word}")
            if store.check([f"vitrail-came/{word}/{other}"]):
                missing.remove(other)
        passed = time.monotonic() - begin
        if missing and passed > patience:
            raise ProcessError(f"{_named(missing, ranks)} did not come within {patience:.0f} s. See what they say.")
        if missing and passed > SILENT and not told:
            say(f"waiting for {_named(missing, ranks)}")
            told = True
        time.sleep(PAUSE if missing else 0)
    return word


def _named(missing: Collection[int], ranks: int) -> str:
    names = ", ".join(name_of_process(rank, ranks) for rank in sorted(missing)[:NAMED])
    return names + (f" and {len(missing) - NAMED:,} others" if len(missing) > NAMED else "")
