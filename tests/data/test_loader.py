"""The order of samples, and batches of it: the same for any number of workers, ranks and restarts."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.decode import ImageError, Pixels
from vitrail.data.feed import Loader
from vitrail.data.source import Batch, Names, Source
from vitrail.errors import ConfigError, DataError
from vitrail.ops.random import Purpose, draws, shuffled


class Numbers(Source):
    """Images of one pixel that say their number; some are broken."""

    def __init__(self, count: int, broken: tuple[int, ...] = ()) -> None:
        self.class_names = ("even", "odd")
        self.count, self.broken = count, broken

    @property
    def labels(self) -> NDArray[np.int64]:
        return np.arange(self.count, dtype=np.int64) % 2

    def read(self, index: int) -> bytes | Pixels:
        if index in self.broken:
            raise ImageError("torn")
        return np.array([[[index % 256, index // 256 % 256]]], dtype=np.uint8)

    def name(self, index: int) -> str:
        return f"number {index}"

    @property
    def fingerprint(self) -> str:
        return str(self.count)


def take(data: bytes | Pixels, sample: int, epoch: int) -> Tensor:
    assert isinstance(data, np.ndarray)
    shown = torch.from_numpy(data.copy()).permute(2, 0, 1)
    draw = int(draws(np.array([sample]), 1, 0, epoch, 1)[0, 0] * 256)
    return torch.cat([shown, torch.full((1, 1, 1), draw, dtype=torch.uint8)])


def flat(batches: list[Batch]) -> Tensor:
    return torch.cat(
        [torch.cat([batch.samples[:, None], batch.images.flatten(1)], dim=1) for batch in batches if len(batch.samples)]
    )


@given(count=st.integers(1, 3000), seed=st.integers(0, 2**31), epoch=st.integers(0, 99))
def test_an_order_is_a_permutation_and_every_place_is_found_alone(count: int, seed: int, epoch: int) -> None:
    order = shuffled(np.arange(count), count, seed, epoch)
    assert sorted(order.tolist()) == list(range(count))
    some = np.array([0, count // 2, count - 1])
    np.testing.assert_array_equal(shuffled(some, count, seed, epoch), order[some])


def test_orders_of_seeds_and_epochs_have_nothing_in_common() -> None:
    count = 5000
    orders = [shuffled(np.arange(count), count, seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    for one, other in itertools.combinations(orders, 2):
        assert (one == other).sum() < 12  # one is expected
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.06
    for order in orders:
        assert abs(np.corrcoef(order, np.arange(count))[0, 1]) < 0.06
        assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.06
        first = np.bincount(order[: count // 2] * 10 // count, minlength=10)
        assert (abs(first - 250) < 60).all()  # a half holds a half of every tenth


def test_draws_are_uniform_and_depend_on_everything_they_are_given() -> None:
    samples = np.arange(20_000)
    base = draws(samples, 5, 0, 0, 1)
    assert base.min() >= 0
    assert base.max() < 1
    np.testing.assert_allclose(base.mean(axis=0), 0.5, atol=0.01)
    np.testing.assert_allclose(base.var(axis=0), 1 / 12, atol=0.003)
    others = [draws(samples, 5, *key) for key in ((1, 0, 1), (0, 1, 1), (0, 0, 2))]
    for other in [*others, np.roll(base, 1, axis=0), np.roll(base, 1, axis=1)]:
        assert abs(np.corrcoef(base.ravel(), other.ravel())[0, 1]) < 0.01
    np.testing.assert_array_equal(draws(samples[7:9], 5, 0, 0, 1), base[7:9])
    np.testing.assert_array_equal(draws(samples, 3, 0, 0, 1), base[:, :3])


def test_no_two_purposes_share_a_number_and_those_of_saved_runs_stay() -> None:
    numbers = {name: purpose.value for name, purpose in Purpose.__members__.items()}
    assert len({*numbers.values()}) == len(numbers)
    stages = ("CROP", "FLIP", "THREE_AUGMENT", "JITTER", "RANDAUGMENT", "ERASING", "MIXING", "DROPOUT", "HIDING")
    known = {**{name: number for number, name in enumerate(stages, start=1)}, "ORDER": 13, "SPOILING": 40, "SHARD": 90}
    assert known.items() <= numbers.items()


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_change_nothing(workers: int) -> None:
    alone = flat(list(Loader(Numbers(103), take, batch=10, seed=4).epoch(2)))
    shared = flat(list(Loader(Numbers(103), take, batch=10, seed=4, workers=workers).epoch(2)))
    assert torch.equal(alone, shared)
    assert sorted(alone[:, 0].tolist()) == list(range(103))


@pytest.mark.parametrize(("ranks", "block"), [(2, 1), (3, 4), (4, 3)])
def test_ranks_share_every_step_in_whole_blocks(ranks: int, block: int) -> None:
    alone = list(Loader(Numbers(103), take, batch=24, seed=4, block=block).epoch(0))
    parts = [
        list(Loader(Numbers(103), take, batch=24, seed=4, rank=rank, ranks=ranks, block=block).epoch(0))
        for rank in range(ranks)
    ]
    assert len(alone) == 5
    for step, whole in enumerate(alone):
        shares = [part[step] for part in parts]
        assert torch.equal(flat(shares), flat([whole]))
        for share in shares[:-1]:
            assert len(share.samples) % block == 0
    assert len(alone[-1].samples) == 103 - 4 * 24


def test_a_run_resumes_at_any_step() -> None:
    loader = Loader(Numbers(37), take, batch=10, seed=1)
    whole = list(itertools.islice(loader.stream(), 11))
    assert [(batch.epoch, batch.step) for batch in whole[3:6]] == [(0, 3), (1, 0), (1, 1)]
    for start in (0, 3, 4, 9):
        again = list(itertools.islice(Loader(Numbers(37), take, batch=10, seed=1).stream(start), 11 - start))
        assert torch.equal(flat(again), flat(whole[start:]))
    late = next(Loader(Numbers(37), take, batch=10, seed=1).stream(4 * 10**9))
    assert late.epoch == 10**9


def test_without_shuffling_the_order_is_the_sources() -> None:
    batches = list(Loader(Numbers(23), take, batch=10, shuffle=False).epoch(5))
    assert torch.cat([batch.samples for batch in batches if len(batch.samples)]).tolist() == list(range(23))
    assert torch.equal(batches[0].labels, torch.arange(10) % 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_images_are_left_out_counted_and_listed(workers: int) -> None:
    loader = Loader(Numbers(400, broken=(7, 200)), take, batch=50, workers=workers)
    batches = list(loader.epoch(0)) + list(loader.epoch(1))
    assert sum(len(batch.samples) for batch in batches) == 2 * 398
    assert sorted(loader.bad) == [7, 200]
    skip = loader.bad[7]
    assert skip is not None
    assert (skip.name, skip.reason) == ("number 7", "torn")
    for batch in batches:
        assert 7 not in batch.samples
        assert len(batch.images) == len(batch.labels) == len(batch.places)


def test_too_many_bad_images_stop_the_run_and_say_so() -> None:
    loader = Loader(Numbers(100, broken=(3, 50)), take, batch=10)
    with pytest.raises(DataError, match=r"2 of 100 images cannot be read, over the limit of 1\.0%: number \d+: torn"):
        list(loader.epoch(0))
    assert len(list(Loader(Numbers(100, broken=(3, 50)), take, batch=10, bad_image_limit=0.02).epoch(0))) == 10


def test_a_batch_of_bad_images_alone_is_empty() -> None:
    loader = Loader(Numbers(4, broken=(0, 1)), take, batch=2, shuffle=False, bad_image_limit=0.9)
    first, second = loader.epoch(0)
    assert len(first.samples) == 0
    assert len(second.samples) == 2


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(DataError, match="holds no images"):
        Loader(Numbers(0), take, batch=4)
    with pytest.raises(ConfigError, match=r"the batch of 13 must be whole blocks of 4\. Take a multiple of 4"):
        Loader(Numbers(9), take, batch=13, ranks=2, block=4)
    with pytest.raises(ConfigError, match="rank must be"):
        Loader(Numbers(9), take, batch=12, rank=1)


def test_names_are_kept_in_one_buffer() -> None:
    texts = ["a", "", "blé/ü.jpg", "\udcff.png", "x" * 300]
    names = Names(texts)
    assert [names[index] for index in range(5)] == texts
    assert len(names) == 5
    with pytest.raises(IndexError):
        _ = names[5]
