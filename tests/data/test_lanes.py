"""Many shards side by side: steps that any number of ranks share, each shard fetched by one, whatever goes wrong."""

import io
import itertools
import json
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
from vitrail.data.feed import Loader, train_feed
from vitrail.data.open import open_split
from vitrail.data.source import Batch, RankShare
from vitrail.data.sources.lanes import lanes_of
from vitrail.data.sources.remote import SPAN, RemoteShards
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.files import transfer

SHARDS, BATCH, LANES = 35, 16, 4  # 35 // 8 lanes of 4 images, in blocks of 2
COUNTS = [3 + 5 * number % 7 for number in range(SHARDS)]
NAMES = ("ant", "bee", "cow")
PATTERN = f"set/s-{{00..{SHARDS - 1}}}.tar"
MIXED = Augmentation(mixup=0.4, cutmix=1.0, mix_block=2)


class Faulty(dict[str, Served]):
    """Files of a server, each of which is served in several ways, one after the other; the last stays."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: dict[str, list[Served | float]] = {}
        self.stopping = threading.Event()

    def get(self, path: str, default: object = None) -> Served | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.faults.get(path):
            fault = self.faults[path].pop(0)
            if isinstance(fault, Served):
                return fault
            self.stopping.wait(fault)  # says nothing
        return super().get(path)


@pytest.fixture(scope="module")
def tars() -> dict[str, bytes]:
    return {f"s-{number:02}.tar": write(number) for number in range(SHARDS)}


def write(shard: int) -> bytes:
    random = np.random.default_rng(shard)
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for number in range(COUNTS[shard]):
            file = io.BytesIO()
            Image.fromarray(random.integers(0, 256, (9, 11, 3), dtype=np.uint8)).save(file, "PNG")
            for suffix, data in ((".png", file.getvalue()), (".cls", f"{(shard + number) % 3}".encode())):
                member = tarfile.TarInfo(f"{shard:02}-{number:02}{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return whole.getvalue()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(transfer, "PAUSES", (0.0, 0.0))
    yield tmp_path / "cache"
    settle()


@pytest.fixture
def server(tars: dict[str, bytes]) -> Iterator[Server]:
    made = Server()
    made.files = files = Faulty()
    for name, data in tars.items():
        files[f"/set/{name}"] = Served(data)
    files["/set/classes.txt"] = Served("\n".join(NAMES).encode())
    with made.running():
        yield made
        settle()
        files.stopping.set()


def settle() -> None:
    """Wait for shards that are on their way."""
    for thread in threading.enumerate():
        if thread.name.startswith("vitrail-shard"):
            thread.join(30)


def feed(source: RemoteShards, rank: int = 0, ranks: int = 1, workers: int = 0) -> Loader:
    how = {"augmentation": MIXED, "preprocessing": Preprocessing(), "seed": 3, "workers": workers}
    return train_feed(source, (8, 8), batch=BATCH, rank=rank, ranks=ranks, **how)  # pyright: ignore[reportArgumentType]


def opened(server: Server, keep: int = 8) -> RemoteShards:
    return RemoteShards(server.url(PATTERN), keep=keep)


def first(made: Loader, steps: int, start: int = 0) -> list[Batch]:
    batches = made.stream(start)
    found = list(itertools.islice(batches, steps))
    batches.close()
    settle()
    return found


def asked(server: Server) -> Counter[str]:
    settle()
    found = Counter(each.path.removeprefix("/set/") for each in server.asked if each.path.endswith(".tar"))
    server.asked.clear()
    return found


def assert_same(one: Batch, *parts: Batch) -> None:
    for name in ("samples", "places", "labels", "images", "targets"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(one, name)), name
    assert {(part.epoch, part.step) for part in parts} == {(one.epoch, one.step)}


@pytest.mark.parametrize(
    ("shards", "batch", "block", "lanes"),
    [
        (15, 16, 1, 1),
        (16, 16, 2, 2),
        (34, 16, 2, 2),
        (35, 16, 2, 4),
        (200, 4096, 4, 8),
        (2048, 4096, 4, 16),
        (200, 13, 1, 13),
    ],
)
def test_lanes_divide_the_blocks_of_a_batch_and_where_they_can_the_shards(
    shards: int, batch: int, block: int, lanes: int
) -> None:
    share = RankShare(batch=batch, rank=0, ranks=1, block=block, ahead=1)
    assert lanes_of(shards, share, None) == lanes
    assert lanes_of(shards, share, 1) == 1
    with pytest.raises(ConfigError, match=f"must divide the {batch // block} blocks"):
        lanes_of(shards, share, batch // block + 1)


@pytest.mark.parametrize(
    ("ranks", "workers"), [(2, 0), *(pytest.param(*more, marks=pytest.mark.slow) for more in ((3, 2), (4, 0), (8, 0)))]
)
def test_any_number_of_ranks_share_the_steps_of_one(
    ranks: int, workers: int, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = first(feed(opened(server)), 25)  # more than two epochs
    shares, fetched = [], []
    for rank in range(ranks):
        monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / f"machine-{rank}"))
        asked(server)
        shares.append(first(feed(opened(server), rank, ranks, workers), 25))
        fetched.append(asked(server))
    for one, *parts in zip(whole, *shares, strict=True):
        assert len(one.samples) == BATCH
        assert_same(one, *parts)
    assert len({int(sample) // SPAN for sample in whole[0].samples}) == LANES  # shuffled across shards


def test_an_epoch_of_four_machines_is_every_image_once_and_every_shard_fetched_once_whatever_fails(
    server: Server, tars: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "TIMEOUT", 0.25)
    monkeypatch.setattr(transfer, "SLOW", 0.1)
    assert isinstance(server.files, Faulty)
    server.files.stopping = server.stopping
    for number, (name, data) in enumerate(tars.items()):
        busy, cut, slow = Served(b"", status=500), Served(data, cuts=[701]), Served(data, drip=0.03)
        several = [[busy], [cut], [], [Served(b"", status=503), busy, cut], [slow], [0.4]]
        server.files.faults[f"/set/{name}"] = [*several[number % 6]] if number < 18 else [*several[number % 4]]
    names = Served("\n".join(NAMES).encode(), cuts=[3])
    server.files.faults["/set/classes.txt"] = [Served(b"", status=500), names, Served(b"", status=429)]
    samples: list[int] = []
    holders: dict[str, int] = {}
    for rank in range(4):
        monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / f"machine-{rank}"))
        for batch in feed(opened(server, keep=2), rank, 4).epoch(0):
            samples += batch.samples.tolist()
            held = [*(tmp_path / f"machine-{rank}" / "downloads").glob("s-*.tar")]
            assert len(held) <= 2 + 3 + 1  # kept, of this step, on its way
        for name in asked(server):
            assert name not in holders, "fetched by two ranks"
            holders[name] = rank
    assert len(samples) == len(set(samples)) == sum(COUNTS)
    assert Counter(sample // SPAN for sample in samples) == dict(enumerate(COUNTS))
    assert sorted(holders) == sorted(tars)


def test_a_shard_that_came_is_not_fetched_again_in_its_epoch(server: Server) -> None:
    list(feed(opened(server, keep=0)).epoch(0))
    assert set(asked(server).values()) == {1}


@pytest.mark.parametrize(("start", "workers"), [(1, 0), (7, 2), (19, 0)])
def test_a_run_resumes_at_the_sample_on_another_machine_with_other_ranks(
    start: int, workers: int, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = first(feed(opened(server)), start + 3)
    again = []
    for rank in range(2):
        monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / f"other-{rank}"))
        again.append(first(feed(opened(server, keep=1), rank, 2, workers), 3, start))
    for one, *parts in zip(whole[start:], *again, strict=True):
        assert_same(one, *parts)


def test_with_their_sizes_told_no_earlier_shard_is_fetched_and_steps_are_known(server: Server, cache: Path) -> None:
    whole = first(feed(opened(server)), 22)
    for file in [*cache.rglob("*")]:
        file.unlink() if file.is_file() else None
    sizes = {f"s-{number:02}.tar": count for number, count in enumerate(COUNTS)}
    server.files["/set/sizes.json"] = Served(json.dumps({**sizes, "__len__": sum(COUNTS)}).encode())
    asked(server)
    made = feed(opened(server))
    assert made.steps == -(-sum(COUNTS) // BATCH)
    assert not asked(server)
    found = first(made, 2, 20)
    assert_same(whole[20], found[0])
    wanted = {f"s-{int(sample) // SPAN:02}.tar" for batch in whole[20:22] for sample in batch.samples}
    assert len(asked(server).keys() - wanted) <= LANES  # those that come after them
    server.files["/set/sizes.json"] = Served(json.dumps({name: size + 1 for name, size in sizes.items()}).encode())
    (cache / "downloads").rename(cache / "away")
    with pytest.raises(DataError, match=r"where sizes.json beside it says"):
        first(feed(opened(server)), 40)


def test_a_server_that_stays_down_is_named_with_what_to_do(server: Server) -> None:
    server.files["/set/s-07.tar"] = Served(b"", status=503)
    with pytest.raises(CheckpointError, match=r"cannot serve .*s-07\.tar now \(HTTP 503\)"):
        list(feed(opened(server)).epoch(0))


def test_an_object_store_gives_what_a_server_gives(
    server: Server, tars: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec
    from fsspec.implementations.memory import MemoryFileSystem

    store = fsspec.filesystem("memory")
    for name, data in {**tars, "classes.txt": "\n".join(NAMES).encode()}.items():
        store.pipe(f"/bucket/set/{name}", data)
    broken = Counter[str]()
    real = MemoryFileSystem.open

    def open_badly(self: MemoryFileSystem, path: str, *args: object, **options: object) -> object:
        broken[path] += 1
        if path.endswith("3.tar") and broken[path] < 3:
            raise ConnectionResetError("the store hung up")
        return real(self, path, *args, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(MemoryFileSystem, "open", open_badly)
    source = open_split(f"memory://bucket/{PATTERN}")
    assert isinstance(source, RemoteShards)
    for one, other in zip(first(feed(opened(server)), 9), first(feed(source), 9), strict=True):
        assert_same(one, other)
    assert max(broken.values()) == 3
    with pytest.raises(CheckpointError, match=r"there is no file at memory://bucket/none/s-\d\d\.tar"):
        list(feed(RemoteShards("memory://bucket/none/s-{00..20}.tar", class_names=NAMES)).epoch(0))


def test_a_store_whose_driver_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec.core

    def fail(*_: object) -> None:
        raise ImportError("no s3fs")

    monkeypatch.setattr(fsspec.core, "url_to_fs", fail)
    with pytest.raises(
        CheckpointError, match=r"s3:// is read by fsspec and s3fs.*pip install 'vitrail\[stores\]' s3fs"
    ):
        open_split("s3://bucket/set/s-{00..20}.tar")
