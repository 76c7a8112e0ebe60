"""Splits that cannot leak: a picture and its copies, also those encoded anew, are always in one part alone."""

from collections.abc import Callable, Collection, Mapping, Sequence
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from vitrail.data.decode import ImageError
from vitrail.data.near import LARGEST, Thumbnails
from vitrail.data.source import Source, Subset
from vitrail.errors import ConfigError
from vitrail.files import image_hash, short_hash
from vitrail.files.hashes import WIDTH
from vitrail.ops.near import connected, near_pairs

Progress = Callable[[int, int], None]  # how many samples are done, and of how many
HELD_OUT = "held out"  # the seed of the classes that are kept out
VTAB = {"train": 800, "dev": 200}
SHARES: Mapping[str, float] = {"train": 0.9, "dev": 0.1}


class SomeClasses(Subset):
    """The samples of some classes of a source, in its order; labels are numbers among these classes."""

    def __init__(self, source: Source, names: Collection[str]) -> None:
        if missing := sorted(set(names) - set(source.class_names)):
            raise ConfigError(f"expected classes of the source; it has no {', '.join(missing[:4])}.")
        kept = tuple(name for name in source.class_names if name in set(names))
        places = {name: number for number, name in enumerate(kept)}
        numbers = np.array([*(places.get(name, -1) for name in source.class_names), -1], dtype=np.int64)
        labels = numbers[np.asarray(source.labels)]  # what has no label, -1, is the last
        super().__init__(source, np.flatnonzero(labels >= 0))
        self.class_names = kept
        self._labels = labels[self.indices]

    @property
    def fingerprint(self) -> str:
        """A digest of the source's, of the numbers chosen, and of the classes."""
        names = "\0".join(self.class_names)
        return f"classes-{short_hash(names, super().fingerprint).hex()}"


def hold_out(names: Collection[str], share: float) -> tuple[str, ...]:
    """Choose classes to keep out whole, by a hash of each name, in whatever order they come; one at least stays.

    Of a share over 0 one at least is chosen.
    """
    if not share:
        return ()
    if len(names) < 2:
        raise ConfigError(f"held_out needs two classes at least, one of them to train on; got {len(names)}.")
    count = min(max(round(share * len(names)), 1), len(names) - 1)
    order = {name: short_hash(name, key=HELD_OUT.encode(), width=64) for name in names}
    return tuple(sorted(sorted(names, key=lambda name: (order[name], name))[:count]))


# Of each source as it was opened: the hashes of its samples, and which of them were made; and their thumbnails.
_made: WeakKeyDictionary[Source, tuple[NDArray[np.uint8], NDArray[np.bool_]]] = WeakKeyDictionary()
_thumbnails: WeakKeyDictionary[Source, Thumbnails] = WeakKeyDictionary()


def content_hashes(
    source: Source, *, reuse: bool = False, thumbnails: bool = False, progress: Progress | None = None
) -> NDArray[np.uint8]:
    """Hash the contents of all samples, whatever their names and labels: N rows of 16 bytes.

    What cannot be read is like nothing else: it has the hash of its name. Where `reuse` allows it, a sample that was
    hashed before, since its source was opened, is not read again; elsewhere a stale hash would be a leak. With
    `thumbnails`, those are made from the same read, for `contents`.
    """
    root, indices = _root(source)
    hashes, made = _made.get(root) or (np.zeros((len(root), WIDTH), np.uint8), np.zeros(len(root), np.bool_))
    _made[root] = hashes, made
    if thumbnails and root not in _thumbnails:
        _thumbnails[root] = Thumbnails(root)
    small = _thumbnails[root] if thumbnails else None
    try:
        for done, index in enumerate(indices.tolist(), start=1):
            if not (reuse and made[index] and (small is None or small.has(index, hashes[index].tobytes()))):
                made[index] = True
                try:
                    data = root.read(index)
                    found = image_hash(data)
                    if small is not None:
                        small.make(index, found, data)
                except ImageError:
                    found, made[index] = short_hash(root.name(index).encode(errors="replace")), False
                hashes[index] = np.frombuffer(found, dtype=np.uint8)
            if progress is not None:
                progress(done, len(indices))
    finally:
        if small is not None:
            small.save()
    return hashes[indices]


def contents(source: Source, *, progress: Progress | None = None) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Give the hash and the thumbnail of every sample; each is read once at most since its source was opened."""
    hashes = content_hashes(source, reuse=True, thumbnails=True, progress=progress)
    root, indices = _root(source)
    return hashes, _thumbnails[root].rows[indices]


def _root(source: Source) -> tuple[Source, NDArray[np.int64]]:
    """Give the source that a subset is of in the end, and the numbers of its samples there."""
    root, indices = source, np.arange(len(source))
    while isinstance(root, Subset):
        root, indices = root.source, root.indices[indices]
    return root, indices


def split(
    source: Source,
    shares: Mapping[str, float] = SHARES,
    *,
    seed: int,
    stratified: bool = True,
    progress: Progress | None = None,
) -> dict[str, Subset]:
    """Share samples out by their contents and the seed, never by their order; copies and near-copies stay together.

    Each class is shared out to within one sample, groups of copies aside; so is the whole. Of more than 200,000 samples
    only equal contents are kept together, as near-copies must be decoded to be found.
    """
    if not shares or min(shares.values()) < 0 or abs(sum(shares.values()) - 1) > 1e-9:
        raise ConfigError(f"expected shares of at least 0 that add up to 1; got {dict(shares)}.")
    hashes, groups = _grouped(source, progress)
    labels = np.asarray(source.labels) if stratified else np.zeros(len(source), dtype=np.int64)
    strata = _strata(groups, labels)
    quotas = _quotas([sum(len(group) for group in groups) for groups in strata], np.array(list(shares.values())))
    return _share_out(source, hashes, strata, quotas, tuple(shares), seed)


def vtab_split(source: Source, seed: int, *, progress: Progress | None = None) -> dict[str, Subset]:
    """Draw 1,000 training examples regardless of class, 800 to train on and 200 to choose by, as VTAB-1k does."""
    count = sum(VTAB.values())
    if len(source) < count:
        raise ConfigError(f"expected at least {count:,} samples; got {len(source):,}. Use split with shares.")
    hashes, groups = _grouped(source, progress)
    strata = _strata(groups, np.zeros(len(source), dtype=np.int64))
    quotas = np.array([[*VTAB.values(), len(source) - count]], dtype=np.int64)
    parts = _share_out(source, hashes, strata, quotas, (*VTAB, "rest"), seed)
    return {name: parts[name] for name in VTAB}


def same_contents(hashes: NDArray[np.uint8]) -> list[NDArray[np.int64]]:
    """Group the numbers of samples by their hashes; each group in the order of the samples."""
    if not len(hashes):
        return []
    order = np.lexsort(tuple(hashes.T))  # stable
    changes = (hashes[order[1:]] != hashes[order[:-1]]).any(axis=1)
    return np.split(order, np.flatnonzero(changes) + 1)


def _grouped(source: Source, progress: Progress | None) -> tuple[NDArray[np.uint8], list[NDArray[np.int64]]]:
    """Hash all samples, and group them by contents and near-copies; each group begins with its lowest hash."""
    if len(source) > LARGEST:
        hashes = content_hashes(source, reuse=True, progress=progress)
        return hashes, same_contents(hashes)
    hashes, thumbnails = contents(source, progress=progress)
    groups = same_contents(hashes)  # in the order of the hashes, so that of the samples means nothing
    merged: dict[int, list[NDArray[np.int64]]] = {}
    pairs = near_pairs(thumbnails[[group[0] for group in groups]])
    for number, group in zip(connected(pairs, len(groups)).tolist(), groups, strict=True):
        merged.setdefault(number, []).append(group)
    return hashes, [np.concatenate(together) for together in merged.values()]


def _strata(groups: list[NDArray[np.int64]], labels: NDArray[np.int64]) -> list[list[NDArray[np.int64]]]:
    """Gather groups of samples by their (lowest) label."""
    strata: dict[int, list[NDArray[np.int64]]] = {}
    for group in groups:
        strata.setdefault(int(labels[group].min()), []).append(group)
    return [strata[label] for label in sorted(strata)]


def _quotas(sizes: Sequence[int], shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Round each class's shares up or down so that it adds up, and so that the parts as wholes come out right too."""
    quotas = np.zeros((len(sizes), len(shares)), dtype=np.int64)
    owed = np.zeros(len(shares))  # to each part by the classes so far
    for row, size in zip(quotas, sizes, strict=True):
        exact = size * shares
        row[:] = np.floor(exact + 1e-9)
        fractions = exact - row
        owed += fractions
        open_parts = np.flatnonzero(fractions > 1e-9)
        chosen = open_parts[np.argsort(-owed[open_parts], kind="stable")][: size - int(row.sum())]
        row[chosen] += 1
        owed[chosen] -= 1
    return quotas


def _share_out(
    source: Source,
    hashes: NDArray[np.uint8],
    strata: list[list[NDArray[np.int64]]],
    quotas: NDArray[np.int64],
    names: tuple[str, ...],
    seed: int,
) -> dict[str, Subset]:
    """Draw a part for each group by its hash and the seed, with the odds of the room left in each part."""
    key = seed.to_bytes(16, "little", signed=True)
    chosen: list[list[int]] = [[] for _ in names]
    for groups, quota in zip(strata, quotas, strict=True):
        keyed = [(short_hash(hashes[group[0]].tobytes(), key=key, width=8), group) for group in groups]
        room = quota.tolist()
        # The large ones first, while there is room for them.
        for draw, group in sorted(keyed, key=lambda pair: (-len(pair[1]), pair[0])):
            odds = [left if left >= len(group) else 0 for left in room]
            if not any(odds):
                odds = [left if left == max(room) else 0 for left in room]
            part = _draw(draw, odds)
            room[part] -= len(group)
            chosen[part].extend(group.tolist())
    return {name: Subset(source, sorted(part)) for name, part in zip(names, chosen, strict=True)}


def _draw(draw: bytes, odds: list[int]) -> int:
    # The order of the groups comes from these bytes too: they are mixed once more, to be independent of it.
    point = int.from_bytes(short_hash(draw, width=8), "little") * sum(odds) >> 64
    for part, weight in enumerate(odds):
        if point < weight:
            return part
        point -= weight
    return len(odds) - 1
