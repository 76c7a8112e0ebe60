"""Shards on a server, streamed: what is asked of it and when, and the same batches whatever was there before."""

import io
import itertools
import pickle
import tarfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from files.servers import Served, Server
from PIL import Image

from vitrail.config import Preprocessing
from vitrail.config.recipe import Augmentation
from vitrail.data.feed import Loader, evaluation_feed, train_feed
from vitrail.data.open import open_split
from vitrail.data.source import Batch, Subset
from vitrail.data.sources import tar as tars
from vitrail.data.sources.remote import SPAN, RemoteShards
from vitrail.data.sources.shards import Shards
from vitrail.data.sources.tar import TarSource
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.files import fetch, transfer

COUNTS = (11, 7, 13, 5, 17)  # samples of each shard
NAMES = ("ant", "bee", "cow")
PATTERN = "set/s-{0..4}.tar"
MIXED = Augmentation(mixup=0.4, cutmix=1.0, mix_block=2)


class Gated(dict[str, Served]):
    """Files of a server, some of which are not given before they may be."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: dict[str, threading.Event] = {}

    def get(self, path: str, default: object = None) -> Served | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if path in self.gates:
            assert self.gates[path].wait(30)
        return super().get(path)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("VITRAIL_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(transfer, "PAUSES", (0.0, 0.0))
    yield tmp_path / "cache"
    settle()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server()
    made.files = Gated()
    for number in range(len(COUNTS)):
        path = write(tmp_path / f"s-{number}.tar", number)
        made.files[f"/set/s-{number}.tar"] = Served(path.read_bytes())
    made.files["/set/classes.txt"] = Served("\n".join(NAMES).encode())
    (tmp_path / "classes.txt").write_text("\n".join(NAMES))
    with made.running():
        yield made
        settle()


def settle() -> None:
    """Wait for shards that are on their way."""
    for thread in threading.enumerate():
        if thread.name.startswith("vitrail-shard"):
            thread.join(30)


def write(path: Path, shard: int, *, seed: int = 0) -> Path:
    with tarfile.open(path, "w") as tar:
        for member in range(COUNTS[shard]):
            buffer = io.BytesIO()
            pixels = np.random.RandomState(seed + 100 * shard + member).randint(0, 256, (9, 7, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(buffer, "PNG")
            for name, data in ((f"{member}.png", buffer.getvalue()), (f"{member}.txt", NAMES[member % 3].encode())):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path


def asked(server: Server) -> dict[str, int]:
    """Count the requests for each file since last asked."""
    settle()
    found = Counter(each.path.removeprefix("/set/") for each in server.asked)
    server.asked.clear()
    return dict(found)


def feed(server: Server, *, batch: int = 6, seed: int = 3, workers: int = 0, keep: int = 8, rank: int = 0) -> Loader:
    return train_feed(
        RemoteShards(server.url(PATTERN), keep=keep),
        (8, 8),
        batch=batch,
        augmentation=MIXED,
        preprocessing=Preprocessing(),
        seed=seed,
        workers=workers,
        rank=rank % 2,
        ranks=2 if rank else 1,
    )


def first(made: Loader, steps: int, start: int = 0) -> list[Batch]:
    batches = made.stream(start)
    found = list(itertools.islice(batches, steps))
    batches.close()  # pyright: ignore[reportAttributeAccessIssue]
    settle()
    return found


def assert_same(some: list[Batch], others: list[Batch]) -> None:
    assert len(some) == len(others)
    for one, other in zip(some, others, strict=True):
        assert (one.epoch, one.step) == (other.epoch, other.step)
        assert one.targets is not None
        assert other.targets is not None
        for name in ("samples", "places", "labels", "images", "targets"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name


def names_of(server: Server, batches: list[Batch]) -> list[str]:
    source = RemoteShards(server.url(PATTERN))
    return [source.name(int(sample)) for batch in batches for sample in batch.samples]


def test_nothing_but_the_classes_is_asked_for_before_the_first_step(server: Server) -> None:
    source = open_split(server.url(PATTERN))
    assert isinstance(source, RemoteShards)
    assert source.class_names == NAMES
    assert feed(server).order.size is None
    assert asked(server) == {"classes.txt": 1}


def test_the_first_batch_comes_while_the_second_shard_is_on_its_way(server: Server) -> None:
    made = feed(server)
    order = [f"s-{number}.tar" for number in made.order.shards(0)]  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(server.files, Gated)
    gate = server.files.gates[f"/set/{order[1]}"] = threading.Event()
    batches = made.stream()
    batch = next(batches)
    assert len(batch.samples) == 6
    assert set((batch.samples // SPAN).tolist()) == {int(order[0][2])}
    gate.set()
    assert asked(server) == {"classes.txt": 1, order[0]: 1, order[1]: 1}
    rest = list(itertools.islice(batches, 8))
    assert asked(server) == dict.fromkeys(order[2:], 1)  # the first of the next epoch is here already
    assert sum(len(each.samples) for each in [batch, *rest]) == sum(COUNTS)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_holds_every_sample_once_and_the_next_has_another_order(server: Server, workers: int) -> None:
    batches = first(feed(server, workers=workers), 18)
    epochs = [[int(sample) for batch in part for sample in batch.samples] for part in (batches[:9], batches[9:])]
    expected = [shard * SPAN + member for shard, count in enumerate(COUNTS) for member in range(count)]
    for number, epoch in enumerate(epochs):
        assert sorted(epoch) == expected
        assert {batch.epoch for batch in batches[9 * number : 9 * number + 9]} == {number}
        shards = [shard for shard, _ in itertools.groupby(sample // SPAN for sample in epoch)]
        assert len(shards) == len(COUNTS)  # one after the other
        assert epoch[:11] != sorted(epoch[:11])
    inside = [[sample for sample in epoch if sample // SPAN == 4] for epoch in epochs]
    assert epochs[0] != epochs[1]
    assert inside[0] != inside[1]
    members = [sample % SPAN for sample in inside[0]]
    assert members == [14, 15, 6, 13, 10, 3, 11, 8, 4, 16, 9, 1, 0, 2, 12, 5, 7]  # always, so that saved runs go on
    assert not np.array_equal(first(feed(server, seed=4), 1)[0].samples, batches[0].samples)
    labels = torch.cat([batch.labels for batch in batches[:9]]).tolist()
    assert labels == [sample % SPAN % 3 for sample in epochs[0]]


@pytest.mark.parametrize(("workers", "start"), [(0, 0), (0, 3), (0, 9), (2, 5), (2, 8), (2, 13)])
def test_a_run_resumes_in_the_shard_it_was_in(server: Server, cache: Path, workers: int, start: int) -> None:
    whole = first(feed(server, keep=0), 27)
    for file in cache.glob("downloads/s-*.tar"):
        file.unlink()  # only what was learnt of the shards is left
    asked(server)
    again = first(feed(server, keep=0, workers=workers), 3, start)
    wanted = [f"/set/s-{int(sample) // SPAN}.tar" for batch in whole[start:] for sample in batch.samples]
    requests = [each.path for each in server.asked]
    assert requests == list(dict.fromkeys(wanted))[: len(requests)]  # none of those before it
    assert len(requests) >= 2
    assert_same(again, whole[start : start + 3])


def test_on_another_machine_a_run_resumes_too_after_fetching_what_came_before(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = first(feed(server), 14)
    for start in (6, 12):
        monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / f"other-{start}"))
        asked(server)
        assert_same(first(feed(server, keep=1), 2, start), whole[start : start + 2])
        assert max(asked(server).values()) <= 2  # once for its count, and once more to be read where it had gone


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_share_every_step_and_together_are_one(server: Server, workers: int) -> None:
    whole = first(feed(server, batch=8), 14)
    parts = [first(feed(server, batch=8, rank=rank, workers=workers), 14) for rank in (1, 2)]
    for one, *shares in zip(whole, parts[1], parts[0], strict=True):  # rank 2 % 2 is the first
        for name in ("samples", "images", "targets", "places"):
            assert torch.equal(torch.cat([getattr(share, name) for share in shares]), getattr(one, name)), name
        assert len(shares[0].samples) % 2 == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_unshuffled_it_is_what_local_files_give(server: Server, tmp_path: Path, workers: int) -> None:
    local = TarSource(str(tmp_path / "s-{0..4}.tar"))
    options = {"size": (8, 8), "batch": 6, "preprocessing": Preprocessing(), "workers": workers}
    here = list(evaluation_feed(local, **options).epoch(0))  # pyright: ignore[reportArgumentType]
    there = list(evaluation_feed(RemoteShards(server.url(PATTERN)), **options).epoch(0))  # pyright: ignore[reportArgumentType]
    for one, other in zip(here, there, strict=True):
        for name in ("places", "labels", "images", "targets"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert names_of(server, there) == [local.name(int(sample)) for batch in here for sample in batch.samples]


def test_files_over_the_bound_go_and_what_they_held_stays_known(server: Server, cache: Path) -> None:
    made = feed(server, keep=1)
    batches = made.stream()
    for batch in itertools.islice(batches, 27):
        settle()
        held = {int(path.name[2]) for path in cache.glob("downloads/s-*.tar")}
        assert {int(sample) // SPAN for sample in batch.samples} <= held
        assert len(held) <= 1 + 2 + 1  # kept, in use by a step, on its way
    requests = asked(server)
    assert 12 <= sum(requests.values()) <= 16  # two or three epochs of five, less what was still there
    assert made.steps == 9
    assert len(RemoteShards(server.url(PATTERN))) == sum(COUNTS)
    assert asked(server) == {}


def test_the_files_used_longest_ago_go_first_but_for_those_in_use(server: Server, cache: Path) -> None:
    urls = [server.url(f"set/s-{number}.tar") for number in range(5)]
    shards = Shards(urls, NAMES, unlabeled=False, keep=2)
    for number in (0, 1, 2, 3, 4, 0):
        shards.local(number)
    shards.evict({1})
    for folder in ("downloads", "streamed"):
        assert {path.name[2] for path in cache.glob(f"{folder}/s-*.tar")} == {"0", "1", "4"}
    assert [shards.count(number) for number in (0, 1, 4)] == [11, 7, 17]
    assert not shards.known()


def test_files_that_were_fetched_otherwise_are_never_removed(server: Server, cache: Path) -> None:
    TarSource(server.url("set/s-{0..2}.tar"))
    first(feed(server, keep=0), 20)
    assert {path.name[:3] for path in cache.glob("downloads/s-*.tar")} >= {"s-0", "s-1", "s-2"}


def test_a_reader_fetches_a_file_that_another_process_has_removed(server: Server, cache: Path) -> None:
    source = RemoteShards(server.url(PATTERN))
    data = source.read(2 * SPAN + 12)
    for path in cache.glob("downloads/s-*.tar"):
        path.unlink()
    assert source.read(2 * SPAN + 12) == data
    assert asked(server) == {"classes.txt": 1, "s-2.tar": 2}
    for wrong in (2 * SPAN + 13, 5 * SPAN, -1):
        with pytest.raises(IndexError):
            source.read(wrong)


def test_the_number_of_steps_is_not_known_before_all_was_seen(server: Server) -> None:
    made = feed(server)
    with pytest.raises(ConfigError, match=r"5 shards is not known until the stream has been read once.*steps=10_000"):
        _ = made.steps
    first(made, 2)
    with pytest.raises(ConfigError, match="not known"):
        _ = made.steps
    first(made, 9)
    assert made.steps == 9
    assert made.order.size == sum(COUNTS)
    assert feed(server).steps == 9


def test_questions_about_all_samples_bring_all_shards(server: Server, tmp_path: Path) -> None:
    source, local = RemoteShards(server.url(PATTERN)), TarSource(str(tmp_path / "s-{0..4}.tar"))
    np.testing.assert_array_equal(source.labels, local.labels)
    assert asked(server) == {"classes.txt": 1} | {f"s-{number}.tar": 1 for number in range(5)}
    assert [source.read(index) for index in range(len(source))] == [local.read(index) for index in range(len(local))]
    assert [source.name(index) for index in (0, 11, 52)] == ["s-0.tar/0.png", "s-1.tar/0.png", "s-4.tar/16.png"]
    assert source.read(11) == source.read(SPAN)
    assert Subset(source, [20, 3]).read(0) == local.read(20)
    assert source.problems == []
    with pytest.raises(IndexError):
        source.read(53)
    first(feed(server), 9)
    streamed = RemoteShards(server.url(PATTERN))
    np.testing.assert_array_equal(streamed.labels, local.labels)
    assert (
        streamed.fingerprint == source.fingerprint != RemoteShards(server.url(PATTERN), class_names="abc").fingerprint
    )
    assert asked(server) == {}


def test_a_shard_is_looked_through_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    real = tars._look_through
    monkeypatch.setattr(tars, "_look_through", lambda path, size: looked.append(path.name[:3]) or real(path, size))
    first(feed(server, keep=0), 27)
    assert sorted(looked) == [f"s-{number}" for number in range(5)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shard_that_is_missing_is_named_and_the_run_can_be_started_again(
    server: Server, cache: Path, workers: int
) -> None:
    whole = first(feed(server), 9)
    third = int(whole[4].samples[0]) // SPAN
    held = server.files.pop(f"/set/s-{third}.tar")
    for path in (*cache.glob("downloads/s-*"), *cache.glob("tars/*")):
        path.unlink()
    got = []
    with pytest.raises(CheckpointError, match=rf"there is no file at http://.*/s-{third}\.tar \(HTTP 404\)"):
        got.extend(feed(server, workers=workers).stream())
    settle()
    server.files[f"/set/s-{third}.tar"] = held
    assert_same(first(feed(server, workers=workers), 9 - len(got), len(got)), whole[len(got) :])


def test_a_download_that_was_cut_goes_on(server: Server) -> None:
    for served in server.files.values():
        if len(served.body) > 5000:
            served.cuts = [3000, 900]
    batches = first(feed(server), 9)
    assert sum(len(batch.samples) for batch in batches) == sum(COUNTS)
    assert [each.range for each in server.asked if each.path == "/set/s-3.tar"] == [None, "bytes=3000-", "bytes=3900-"]


def test_a_shard_that_changes_on_the_server_is_told(server: Server, tmp_path: Path, cache: Path) -> None:
    source = RemoteShards(server.url(PATTERN))
    source.read(SPAN)
    server.files["/set/s-1.tar"] = Served(write(tmp_path / "new.tar", 1, seed=7).read_bytes())
    for path in cache.glob("downloads/s-*.tar"):
        path.unlink()
    with pytest.raises(DataError, match=r"s-1\.tar has changed on its server .*Start the run again"):
        source.read(SPAN)
    again = RemoteShards(server.url(PATTERN))
    assert again.read(SPAN) == TarSource(tmp_path / "new.tar").read(0)
    server.files["/set/s-1.tar"] = Served(write(tmp_path / "newer.tar", 1, seed=8).read_bytes())
    for path in cache.glob("downloads/s-*.tar"):
        path.unlink()
    fetch(server.url("set/s-1.tar"))  # as another process would
    with pytest.raises(DataError, match=r"s-1\.tar has changed on its server"):
        again.read(SPAN)


def test_without_a_list_of_classes_all_is_fetched_at_opening(server: Server) -> None:
    del server.files["/set/classes.txt"]
    with pytest.raises(DataError, match=r"expected the names of the classes in classes\.txt beside http://.*s-0\.tar"):
        RemoteShards(server.url(PATTERN))
    assert asked(server) == {"classes.txt": 1}
    source = open_split(server.url(PATTERN))
    assert isinstance(source, TarSource)
    assert asked(server) == {"classes.txt": 1} | {f"s-{number}.tar": 1 for number in range(5)}
    given = RemoteShards(server.url(PATTERN), class_names=NAMES)
    assert given.labels_of(np.array([2, SPAN])).tolist() == [2, 0]
    for nothing in (Served(b"", status=403), Served(b"<html>not here</html>")):
        server.files["/set/classes.txt"] = nothing
        assert isinstance(open_split(server.url(PATTERN)), TarSource)


def test_a_list_of_classes_that_cannot_be_asked_for_is_an_error(server: Server) -> None:
    server.files["/set/classes.txt"] = Served(b"", status=503)
    with pytest.raises(CheckpointError, match=r"cannot serve .*classes\.txt now \(HTTP 503\)"):
        open_split(server.url(PATTERN))
    assert asked(server) == {"classes.txt": 3}  # and after two pauses


def test_what_is_in_the_cache_needs_no_network(tmp_path: Path) -> None:
    server = Server()
    server.files["/s-0.tar"] = Served(write(tmp_path / "s.tar", 0).read_bytes())
    with server.running():
        assert len(open_split(server.url("s-0.tar"))) == COUNTS[0]
    assert len(open_split(server.url("s-0.tar"))) == COUNTS[0]
    with pytest.raises(CheckpointError, match=r"cannot reach 127\.0\.0\.1 for .*classes\.txt"):
        open_split(server.url("s-{0..1}.tar"))


def test_a_stream_that_was_read_goes_on_without_the_network(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = first(feed(server), 9)
    asked(server)
    monkeypatch.setenv("VITRAIL_OFFLINE", "1")
    assert_same(first(feed(server, workers=2), 4, 5), whole[5:])
    assert asked(server) == {}


def test_pickling_carries_what_was_learnt_and_no_file(server: Server) -> None:
    source = RemoteShards(server.url(PATTERN))
    data = source.read(3 * SPAN + 4)
    copy = pickle.loads(pickle.dumps(source))
    assert copy.read(3 * SPAN + 4) == data
    assert (copy.name(3 * SPAN + 4), copy.fingerprint) == ("s-3.tar/4.png", source.fingerprint)
    assert asked(server) == {"classes.txt": 1, "s-3.tar": 1}


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_images_are_counted_against_what_all_shards_may_hold(server: Server, tmp_path: Path, workers: int) -> None:
    whole = write(tmp_path / "bad.tar", 2).read_bytes()
    place = whole.index(b"IHDR")
    server.files["/set/s-2.tar"] = Served(whole[:place] + b"XXXX" + whole[place + 4 :])
    source = RemoteShards(server.url(PATTERN))

    def made(limit: float) -> Loader:
        return evaluation_feed(
            source, (8, 8), batch=6, preprocessing=Preprocessing(), workers=workers, bad_image_limit=limit
        )

    allowed = made(0.03)
    assert sum(len(batch.samples) for batch in allowed.epoch(0)) == sum(COUNTS) - 1
    assert {skip.name for skip in allowed.bad.values() if skip} == {"s-2.tar/0.png"}
    with pytest.raises(DataError, match=r"1 of 53 images cannot be read, over the limit of 1\.0%: s-2\.tar/0\.png"):
        list(made(0.01).epoch(0))


def test_a_label_of_no_class_is_an_error_that_names_the_shard(server: Server) -> None:
    made = RemoteShards(server.url(PATTERN), class_names=("ant", "bee"))
    with pytest.raises(DataError, match=r"http://.*s-2\.tar: the label 'cow' is none of the 2 classes"):
        made.read(2 * SPAN)


def test_shards_without_a_labeled_image_are_passed_over(server: Server, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "empty.tar", "w"):
        pass
    empty = Served((tmp_path / "empty.tar").read_bytes())
    server.files["/set/s-0.tar"] = server.files["/set/s-3.tar"] = empty
    batches = list(feed(server).epoch(0))
    assert {int(sample) // SPAN for batch in batches for sample in batch.samples} == {1, 2, 4}
    assert sum(len(batch.samples) for batch in batches) == 7 + 13 + 17
    for number in (1, 2, 4):
        server.files[f"/other/s-{number}.tar"] = empty
    made = RemoteShards(server.url("other/s-{1,2,4}.tar"), class_names=NAMES)
    with pytest.raises(DataError, match="none of the 3 shards holds a labelled image"):
        next(evaluation_feed(made, (8, 8), batch=2, preprocessing=Preprocessing()).epoch(0))
