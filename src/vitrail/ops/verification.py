"""Are two images of the same person? Exact curves from all pairs of embeddings, without holding all pairs.

Scores are cosines in single precision. A pair is accepted where its score is at least the threshold: TAR is the share
of genuine pairs (one person) that are, FAR that of impostor pairs (two people).

How sure the numbers are: pairs and images of one person are not independent, people are, so people are drawn anew, with
replacement, a thousand times. One who is drawn w times weighs w in genuine pairs, and w times the other's in impostor
pairs. More than 64 people are drawn in 64 groups.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]
Scores = NDArray[np.float32]
Numbers = NDArray[np.int64]
CHUNK = 1 << 22  # scores at once
MOST_LEVELS = 1 << 20  # of a curve
DRAWS, SEED = 1000, 0
GROUPS, LEVELS = 64, 512
AT_ONCE = 50  # draws
FEWEST = 5  # people whose draws say something


@dataclass(frozen=True, kw_only=True)
class Roc:
    """TAR against FAR at falling thresholds, from nothing accepted to everything; every corner of the curve."""

    far: Reals
    tar: Reals
    thresholds: Reals  # the first is infinite, the last minus infinite
    genuine: int
    impostors: int


class Pair(NamedTuple):
    """Two samples and their score."""

    first: int
    second: int
    score: float


class Block(NamedTuple):
    """Some pairs: the numbers of both samples, and the score of each."""

    first: Numbers
    second: Numbers
    scores: Scores


def normalize(embeddings: NDArray[np.floating]) -> Scores:
    """Bring every row to length one, in single precision; a row of zeros stays."""
    rows = np.asarray(embeddings, dtype=np.float64)
    return (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)).astype(np.float32)


def genuine_pairs(embeddings: Scores, labels: Numbers) -> Iterator[Block]:
    """Give all pairs of two images of one person, person by person."""
    order = np.argsort(labels, kind="stable")
    ends = np.flatnonzero(np.diff(labels[order])) + 1
    for own in np.split(order, ends):
        for start, stop in _rows(len(own), len(own)):
            block = embeddings[own[start:stop]] @ embeddings[own].T
            row, col = np.nonzero(np.arange(start, stop)[:, None] < np.arange(len(own)))
            yield Block(own[start + row], own[col], block[row, col])


def impostor_pairs(embeddings: Scores, labels: Numbers) -> Iterator[Block]:
    """Give all pairs of images of two people, so many at a time that memory has a bound."""
    count = len(labels)
    for start, stop in _rows(count, count):
        scores = embeddings[start:stop] @ embeddings[start:].T
        row, col = np.nonzero(
            (np.arange(start, stop)[:, None] < np.arange(start, count)) & (labels[start:stop, None] != labels[start:])
        )
        yield Block(start + row, start + col, scores[row, col])


def roc(genuine: Scores, impostors: Iterator[Scores]) -> Roc:
    """Draw the curve of genuine scores against impostors' that come in parts; exact, ties included.

    TAR changes at genuine scores alone, so the corners lie there: before each, and with all that has its score. Of
    over a million genuine scores every so many-th is taken, with straight lines between.
    """
    genuine = np.sort(genuine)
    levels = spread(genuine, MOST_LEVELS)
    above, reached, number = np.zeros(len(levels), np.int64), np.zeros(len(levels), np.int64), 0
    for part in impostors:
        part = np.sort(part)
        above += len(part) - np.searchsorted(part, levels, side="right")
        reached += len(part) - np.searchsorted(part, levels, side="left")
        number += len(part)
    if not len(levels) or not number:
        raise ValueError(f"a curve needs pairs of both kinds; got {len(genuine)} genuine and {number} impostors.")
    total = len(genuine) - np.searchsorted(genuine, levels, side="left")[::-1]
    before = len(genuine) - np.searchsorted(genuine, levels, side="right")[::-1]
    falling = levels[::-1].astype(np.float64)
    tar = np.stack([before, total], axis=1).ravel() / len(genuine)
    far = np.stack([above[::-1], reached[::-1]], axis=1).ravel() / number
    just_above = np.nextafter(levels[::-1], np.float32(np.inf)).astype(np.float64)
    thresholds = np.stack([just_above, falling], axis=1).ravel()
    return Roc(
        far=np.concatenate([[0.0], far, [1.0]]),
        tar=np.concatenate([[0.0], tar, [1.0]]),
        thresholds=np.concatenate([[np.inf], thresholds, [-np.inf]]),
        genuine=len(genuine),
        impostors=number,
    )


def spread(scores: Scores, most: int) -> Scores:
    """Give the distinct ones of sorted scores; where they are more than so many, that many of them, evenly."""
    levels = scores[np.flatnonzero(np.diff(scores, prepend=np.float32(-np.inf)))]
    return levels if len(levels) <= most else levels[np.linspace(0, len(levels) - 1, most).astype(np.int64)]


def equal_error_rate(curve: Roc) -> float:
    """Give FAR where it equals the share of genuine pairs refused, 1 - TAR, on straight lines between the corners."""
    gap = curve.far + curve.tar - 1  # from -1 up to 1
    after = int(np.argmax(gap >= 0))
    before = after - 1
    share = -gap[before] / (gap[after] - gap[before])
    return float(curve.far[before] + share * (curve.far[after] - curve.far[before]))


def tar_at(curve: Roc, far: float) -> tuple[float, float]:
    """Give the largest TAR whose FAR is at most this, and the highest threshold that has it."""
    best = int(np.flatnonzero(curve.far <= far)[-1])
    best = int(np.argmax(curve.tar == curve.tar[best]))
    return float(curve.tar[best]), float(curve.thresholds[best])


def area_under(curve: Roc) -> float:
    """Give the area under the curve: how often a genuine pair scores above an impostor one, ties by half."""
    return float(np.sum(np.diff(curve.far) * (curve.tar[1:] + curve.tar[:-1]) / 2))


class Hardest:
    """The pairs of the highest or lowest scores of all that go through, the hardest first."""

    def __init__(self, count: int, sign: Literal[1, -1]) -> None:
        self.count, self.sign = count, sign  # 1: the highest are the hardest
        self.pairs: list[Pair] = []

    def watch(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """Let blocks through, and remember their hardest pairs."""
        for block in blocks:
            keys = -self.sign * block.scores
            some = np.argpartition(keys, self.count)[: self.count] if len(keys) > self.count else np.arange(len(keys))
            found = [Pair(int(block.first[k]), int(block.second[k]), float(block.scores[k])) for k in some]
            ranked = sorted([*self.pairs, *found], key=lambda pair: (-self.sign * pair.score, pair))
            self.pairs = ranked[: self.count]
            yield block


def identification_ranks(
    embeddings: Scores, labels: Numbers, gallery: NDArray[np.bool_], probes: NDArray[np.bool_]
) -> Numbers:
    """Rank each probe's own person by the best of their gallery images, 1 the first; equals count against.

    A probe that is in the gallery itself is not compared with itself.
    """
    shelf = np.flatnonzero(gallery)
    shelf = shelf[np.argsort(labels[shelf], kind="stable")]
    people, starts = np.unique(labels[shelf], return_index=True)
    asked = np.flatnonzero(probes)
    ranks = np.empty(len(asked), np.int64)
    for start, stop in _rows(len(asked), len(shelf)):
        some = asked[start:stop]
        scores = embeddings[some] @ embeddings[shelf].T
        scores[some[:, None] == shelf] = -np.inf
        best = np.maximum.reduceat(scores, starts, axis=1)
        own = labels[some][:, None] == people
        mine = np.where(own, best, -np.inf).max(axis=1, keepdims=True)
        ranks[start:stop] = 1 + ((best >= mine) & ~own).sum(axis=1)
    return ranks


def leave_one_out(labels: Numbers) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Put every image into the gallery; probes are those of people with two images or more."""
    _, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return np.ones(len(labels), bool), counts[inverse] > 1


def first_images(labels: Numbers, count: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Put the first images of each person into the gallery; the rest are probes."""
    order = np.argsort(labels, kind="stable")
    place = np.empty(len(labels), np.int64)
    place[order] = np.arange(len(labels)) - np.searchsorted(labels[order], labels[order])
    return place < count, place >= count


def _rows(rows: int, width: int) -> Iterator[tuple[int, int]]:
    """Cut rows so that a part has at most so many numbers."""
    step = max(CHUNK // max(width, 1), 1)
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


class PairCounts:
    """Impostor pairs by group, group and level of score; genuine pairs by group and level."""

    def __init__(self, labels: Numbers, genuine: Scores) -> None:
        people, inverse = np.unique(labels, return_inverse=True)
        self.people = len(people)
        self.groups = min(self.people, GROUPS)
        shuffled = np.random.default_rng(SEED).permutation(self.people) % self.groups
        self.group_of = (np.arange(self.people) if self.people <= GROUPS else shuffled)[inverse]
        self.levels = spread(np.sort(genuine), LEVELS)
        self.exact = len(self.levels) < LEVELS
        self._cells = (len(self.levels) + 1, self.groups, self.groups)
        self._impostors = np.zeros(self._cells, np.int64)
        self._genuine = np.zeros(self._cells[:2], np.int64)

    def add_genuine(self, blocks: Iterator[Block]) -> None:
        """Count blocks of genuine pairs."""
        for block in blocks:
            np.add.at(self._genuine, (self._place(block), self.group_of[block.first]), 1)

    def watch(self, blocks: Iterator[Block]) -> Iterator[Scores]:
        """Count blocks of impostor pairs on their way, and give their scores."""
        for block in blocks:
            cell = (self._place(block) * self.groups + self.group_of[block.first]) * self.groups
            cell += self.group_of[block.second]
            self._impostors += np.bincount(cell, minlength=self._impostors.size).reshape(self._cells)
            yield block.scores

    def _place(self, block: Block) -> Numbers:
        return np.searchsorted(self.levels, block.scores, side="right")  # how many levels a score reaches

    def rates(self, weights: Reals) -> tuple[Reals, Reals]:
        """Give FAR and TAR at every level, rising, for each draw of groups."""
        reached = np.flip(np.flip(self._impostors[1:], 0).cumsum(0), 0).astype(np.float64)  # L g g
        inside = np.einsum("lgg->lg", reached)
        whole = self._impostors.sum(0).astype(np.float64)
        extra = weights - weights**2  # two people of one group: its weight once
        levels, groups = reached.shape[:2]
        across = (weights @ reached.transpose(1, 0, 2).reshape(groups, -1)).reshape(len(weights), levels, groups)
        false = np.einsum("dlg,dg->dl", across, weights) + extra @ inside.T
        every = np.einsum("dg,gh,dh->d", weights, whole, weights) + extra @ np.diagonal(whole)
        genuine = np.flip(np.flip(self._genuine[1:], 0).cumsum(0), 0)
        true, pairs = weights @ genuine.T, weights @ self._genuine.sum(0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return false / every[:, None], true / pairs[:, None]


def draw_groups(groups: int) -> Reals:
    """Draw groups with replacement: how often each comes, a row a draw."""
    return np.random.default_rng(SEED).multinomial(groups, np.full(groups, 1 / groups), size=DRAWS).astype(np.float64)


def drawn_rates(counts: PairCounts, fars: tuple[float, ...]) -> dict[str, Reals]:
    """Give EER, AUC, and TAR at each of some FARs (`tar0`, `tar1`, ...) of every draw."""
    weights = draw_groups(counts.groups)
    parts = [_measures(counts, weights[k : k + AT_ONCE], fars) for k in range(0, DRAWS, AT_ONCE)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _measures(counts: PairCounts, weights: Reals, fars: tuple[float, ...]) -> dict[str, Reals]:
    far, tar = counts.rates(weights)
    after = np.concatenate([tar[:, 1:], np.zeros((len(tar), 1))], axis=1)  # above the level
    # The first level from above where FAR has reached 1 - TAR: a step up to it, or the flat part before.
    meets = far + tar >= 1
    place = meets.shape[1] - 1 - np.argmax(np.flip(meets, 1), axis=1)
    row = np.arange(len(tar))
    found = {"eer": np.minimum(far[row, place], 1 - after[row, place])}
    next_far = np.concatenate([far[:, 1:], np.zeros((len(far), 1))], axis=1)
    beaten = far if counts.exact else (far + next_far) / 2
    found["auc"] = ((tar - after) * (1 - beaten)).sum(axis=1)
    for number, most in enumerate(fars):
        found[f"tar{number}"] = np.where(np.isnan(far), np.nan, np.where(far <= most, tar, 0)).max(axis=1)
    return found


def drawn_share(hits: NDArray[np.bool_], people: Numbers) -> Reals:
    """Give the share of hits of every draw of the people whose they are."""
    _, inverse = np.unique(people, return_inverse=True)
    right = np.bincount(inverse, weights=hits)
    every = np.bincount(inverse).astype(np.float64)
    weights = draw_groups(len(every))
    return (weights @ right) / (weights @ every)


def interval_of(values: Reals, people: int) -> tuple[float, float] | None:
    """Give the middle 95 % of the draws, of five people or more; draws of one person alone measure nothing."""
    sound = values[np.isfinite(values)]
    if people < FEWEST:
        return None
    low, high = np.quantile(sound, (0.025, 0.975))
    return float(low), float(high)
