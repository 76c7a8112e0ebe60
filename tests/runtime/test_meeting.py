"""Processes that meet agree on a word of their own, whatever those of an attempt before left in torchrun's store."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore, Store  # pyright: ignore[reportPrivateImportUsage]

from vitrail.runtime import meeting
from vitrail.runtime.meeting import agree
from vitrail.runtime.watch import ProcessError

RANKS = 5


def meet_all(store: Store, ranks: int) -> list[str]:
    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(lambda rank: agree(store, rank, ranks, 60.0), reversed(range(ranks))))


@pytest.fixture
def store() -> Store:
    made = HashStore()
    made.set_timeout(timedelta(seconds=10))
    return made


def test_all_have_one_word_and_another_at_every_attempt_in_the_same_store(store: Store) -> None:
    words = [meet_all(store, ranks) for ranks in (RANKS, RANKS, 3, 2, RANKS)]
    assert [len(set(each)) for each in words] == [1] * len(words)
    assert len({each[0] for each in words}) == len(words)


@pytest.mark.parametrize("killed", ["after it said that it is here", "after it was answered"])
def test_what_a_killed_process_left_is_not_taken_for_one_that_is_here(
    killed: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.set("vitrail-here/1", "dead")
    if killed == "after it was answered":
        store.set("vitrail-word/1", "dead old")
        store.set("vitrail-came/old/1", "")
    said: list[str] = []
    monkeypatch.setattr(meeting, "SILENT", 0.0)
    monkeypatch.setattr(meeting, "say", said.append)
    with pytest.raises(ProcessError, match=r"^rank 1 of 2 did not come within 0 s"):
        agree(store, 0, 2, 0.1)
    assert said == ["waiting for rank 1 of 2"]
    one, other = meet_all(store, 2)
    assert one == other != "old"


def test_a_first_process_that_does_not_come_is_named(store: Store) -> None:
    store.set("vitrail-word/2", "dead old")
    with pytest.raises(ProcessError, match=r"^rank 0 of 3 did not come within 0 s"):
        agree(store, 2, 3, 0.1)


def test_many_that_are_missing_are_counted(store: Store) -> None:
    with pytest.raises(ProcessError, match=r"rank 1 of 9, rank 2 of 9, rank 3 of 9, rank 4 of 9 and 4 others did not"):
        agree(store, 0, 9, 0.0)
