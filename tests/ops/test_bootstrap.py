"""Draws of people against the same with every pair written out as often as it weighs."""

import numpy as np
import pytest
from numpy.typing import NDArray

from vitrail.ops import verification as bootstrap
from vitrail.ops.verification import (
    Block,
    PairCounts,
    area_under,
    draw_groups,
    drawn_rates,
    drawn_share,
    equal_error_rate,
    genuine_pairs,
    impostor_pairs,
    interval_of,
    normalize,
    roc,
    tar_at,
)


def people(count: int = 7, each: int = 4) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    generator = np.random.default_rng(2)
    labels = np.repeat(np.arange(count), each)
    return normalize(generator.normal(size=(count, 5))[labels] + generator.normal(size=(len(labels), 5))), labels


def counted(embeddings: NDArray[np.float32], labels: NDArray[np.int64]) -> tuple[PairCounts, Block, Block]:
    genuine = Block(*map(np.concatenate, zip(*genuine_pairs(embeddings, labels), strict=True)))
    counts = PairCounts(labels, genuine.scores)
    counts.add_genuine(genuine_pairs(embeddings, labels))
    impostors = Block(*map(np.concatenate, zip(*impostor_pairs(embeddings, labels), strict=True)))
    assert sum(len(part) for part in counts.watch(iter([impostors]))) == len(impostors.scores)
    return counts, genuine, impostors


def test_a_draw_weighs_pairs_by_how_often_their_people_come() -> None:
    embeddings, labels = people()
    counts, genuine, impostors = counted(embeddings, labels)
    found = drawn_rates(counts, (0.1, 0.01))
    weights = draw_groups(7).astype(np.int64)
    assert counts.exact
    assert (weights.sum(axis=1) == 7).all()
    for draw in (0, 1, 17, 999):
        own = np.repeat(genuine.scores, weights[draw][labels[genuine.first]])
        times = weights[draw][labels[impostors.first]] * weights[draw][labels[impostors.second]]
        curve = roc(own, iter([np.repeat(impostors.scores, times)]))
        assert found["eer"][draw] == pytest.approx(equal_error_rate(curve))
        assert found["auc"][draw] == pytest.approx(area_under(curve))
        assert found["tar0"][draw] == pytest.approx(tar_at(curve, 0.1)[0])
        assert found["tar1"][draw] == pytest.approx(tar_at(curve, 0.01)[0])


def test_more_people_than_groups_are_drawn_in_groups_and_spread_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings, labels = people(60, 3)
    exact = drawn_rates(counted(embeddings, labels)[0], (0.05,))
    monkeypatch.setattr(bootstrap, "GROUPS", 20)
    monkeypatch.setattr(bootstrap, "LEVELS", 90)
    counts, _, _ = counted(embeddings, labels)
    assert (counts.groups, counts.people, counts.exact) == (20, 60, False)
    grouped = drawn_rates(counts, (0.05,))
    for name, values in grouped.items():
        assert values.mean() == pytest.approx(exact[name].mean(), abs=0.01)
        assert values.std() == pytest.approx(exact[name].std(), rel=0.4)


def test_a_draw_of_one_person_alone_measures_nothing() -> None:
    embeddings, labels = people(2)
    found = drawn_rates(counted(embeddings, labels)[0], (0.1,))
    alone = draw_groups(2).max(axis=1) == 2
    for name in ("auc", "tar0"):
        assert np.array_equal(np.isnan(found[name]), alone)
    assert interval_of(found["auc"], people=2) is None


def test_shares_are_weighed_by_people_and_an_interval_is_the_middle_of_the_draws() -> None:
    owners = np.repeat(np.arange(40), 5)
    hits = np.random.default_rng(1).random(200) < np.repeat(np.linspace(0.3, 0.9, 40), 5)
    draws = drawn_share(hits, owners)
    weights = draw_groups(40)[3]
    assert draws[3] == pytest.approx((weights[owners] * hits).sum() / 200)
    found = interval_of(draws, people=40)
    assert found is not None
    spread = np.array([hits[owners == person].mean() for person in range(40)]).std(ddof=1) / np.sqrt(40)
    assert found[1] - found[0] == pytest.approx(2 * 1.96 * spread, rel=0.15)
    assert found[0] < hits.mean() < found[1]
