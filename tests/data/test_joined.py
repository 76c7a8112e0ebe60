"""Sources joined into one: every sample in its place, told from others, refused where classes differ."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.joined import Joined
from vitrail.data.source import Subset
from vitrail.data.sources.memory import MemorySource
from vitrail.data.sources.packed import PackedSource, pack
from vitrail.errors import DataError

NAMES = ("ant", "bee", "cat")


def source(count: int, seed: int, title: str, names: tuple[str, ...] = NAMES) -> MemorySource:
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 256, (count, 4, 5, 3), dtype=np.uint8)
    return MemorySource(pixels, generator.integers(0, len(names), count), names, title=title)


def test_every_sample_is_that_of_its_source() -> None:
    first, second, third = source(3, 0, "first"), source(5, 1, "second"), source(2, 2, "third")
    joined = pickle.loads(pickle.dumps(Joined((first, Subset(first, []), second, third))))
    places = [(part, index) for part in (first, second, third) for index in range(len(part))]
    assert len(joined) == len(places) == 10
    for number, (part, index) in enumerate(places):
        np.testing.assert_array_equal(joined.read(number), part.read(index))
        assert joined.name(number) == part.name(index)
        assert joined.labels[number] == part.labels[index]
    for outside in (-1, 10):
        with pytest.raises(IndexError):
            joined.read(outside)


def test_many_are_read_at_once_where_all_are_packed_and_alike(tmp_path: Path) -> None:
    for count, name in ((3, "first"), (5, "second")):
        pack(source(count, count, name), tmp_path / name, (4, 5), overwrite=False)
    first, second = (PackedSource(tmp_path / name) for name in ("first", "second"))
    joined = Joined((first, Subset(second, [4, 0, 2]), first))
    assert joined.shape == (4, 5, 3)
    indices = np.array([8, 0, 3, 5, 3, 7])
    wanted = np.stack([joined.read(index) for index in indices.tolist()])  # pyright: ignore[reportArgumentType]
    np.testing.assert_array_equal(joined.read_many(indices), wanted)
    assert joined.read_many(np.zeros(0, np.int64)).shape == (0, 4, 5, 3)
    assert Joined((first, source(3, 0, "first"))).shape is None


def test_the_fingerprint_goes_by_the_sources_and_their_order() -> None:
    first, second = source(3, 0, "first"), source(3, 1, "second")
    prints = [Joined(parts).fingerprint for parts in ((first, second), (second, first), (first,), (first, first))]
    assert len(set(prints)) == 4
    assert prints[0] == Joined((source(3, 0, "first"), second)).fingerprint


def test_sources_of_other_classes_are_refused() -> None:
    with pytest.raises(DataError, match="expected sources of the same classes"):
        Joined((source(3, 0, "first"), source(3, 0, "second", ("ant", "cat", "bee"))))
