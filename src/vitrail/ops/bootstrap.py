"""How sure numbers about people are: the people are drawn anew, with replacement, a thousand times.

Pairs and images of one person are not independent, people are: so people are drawn. One who is drawn w times weighs w
in genuine pairs, and w times the other's in impostor pairs. More than 64 people are drawn in 64 groups.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vitrail.ops.verification import Block, Numbers, Reals, Scores, spread

DRAWS, SEED = 1000, 0
GROUPS, LEVELS = 64, 512
AT_ONCE = 50  # draws
FEWEST = 5  # people whose draws say something


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
