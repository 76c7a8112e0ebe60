"""Verification against scikit-learn and against loops over pairs; identification against loops over images."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from reference import faces as reference
from sklearn.metrics import roc_auc_score, roc_curve

from vitrail.ops import verification
from vitrail.ops.verification import (
    Hardest,
    Roc,
    area_under,
    equal_error_rate,
    first_images,
    genuine_pairs,
    identification_ranks,
    impostor_pairs,
    leave_one_out,
    normalize,
    roc,
    tar_at,
)

Floats = NDArray[np.float32]


def scores(seed: int, *, ties: bool, genuine: int = 41, impostors: int = 203) -> tuple[Floats, Floats]:
    generator = np.random.default_rng(seed)
    both = generator.normal(0.4, 0.3, genuine), generator.normal(0.0, 0.3, impostors)
    one, two = (np.round(part, 1) if ties else part for part in both)
    return one.astype(np.float32), two.astype(np.float32)


def row(*values: float) -> Floats:
    return np.array(values, dtype=np.float32)


def in_parts(impostors: Floats, size: int = 17) -> Iterator[Floats]:
    return (impostors[start : start + size] for start in range(0, len(impostors), size))


def people(seed: int = 3) -> tuple[Floats, NDArray[np.int64]]:
    """Thirteen people of one to seven images, out of order."""
    generator = np.random.default_rng(seed)
    labels = generator.permutation(np.repeat(np.arange(13), 1 + np.arange(13) % 7))
    centers = generator.normal(size=(13, 5))
    return normalize(centers[labels] + 0.8 * generator.normal(size=(len(labels), 5))), labels


@pytest.fixture(params=[verification.CHUNK, 60])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once, and row by row or so."""
    monkeypatch.setattr(verification, "CHUNK", request.param)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_the_curve_is_scikit_learns_at_every_far(seed: int, ties: bool) -> None:
    genuine, impostors = scores(seed, ties=ties)
    curve = roc(genuine, in_parts(impostors))
    truth = np.repeat([1, 0], [len(genuine), len(impostors)])
    far, tar, levels = roc_curve(truth, np.concatenate([genuine, impostors]), drop_intermediate=False)
    for x, y, level in zip(far, tar, levels, strict=True):
        if np.isfinite(level) and level in genuine:
            place = int(np.flatnonzero(curve.thresholds == level)[0])
            assert (curve.far[place], curve.tar[place]) == pytest.approx((x, y))
    assert area_under(curve) == pytest.approx(roc_auc_score(truth, np.concatenate([genuine, impostors])), abs=1e-12)
    # Every corner of theirs lies on our line, and ours on theirs.
    for ours, theirs in ((curve, (far, tar)), (Roc(far=far, tar=tar, thresholds=levels, genuine=0, impostors=0), None)):
        xs, ys = theirs if theirs is not None else (curve.far, curve.tar)
        for x, y in zip(xs, ys, strict=True):
            assert on_line(ours, float(x), float(y))


def on_line(curve: Roc, x: float, y: float) -> bool:
    """Tell whether a point lies on one of the straight parts of a curve."""
    corners = list(zip(curve.far.tolist(), curve.tar.tolist(), strict=True))
    for (x1, y1), (x2, y2) in pairwise(corners):
        inside = x1 - 1e-12 <= x <= x2 + 1e-12 and y1 - 1e-12 <= y <= y2 + 1e-12
        if inside and abs((x - x1) * (y2 - y1) - (y - y1) * (x2 - x1)) < 1e-12:
            return True
    return False


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_the_equal_error_rate_is_where_the_curve_meets_the_diagonal(seed: int, ties: bool) -> None:
    genuine, impostors = scores(seed, ties=ties)
    curve = roc(genuine, in_parts(impostors))
    rate = equal_error_rate(curve)
    assert on_line(curve, rate, 1 - rate)


def test_the_equal_error_rate_of_a_case_on_paper() -> None:
    # At 0.5 half of the genuine are refused and 1 of 4 impostors is accepted; at 0.4, tied, none and 2 of 4.
    curve = roc(row(0.5, 0.4), iter([row(0.6, 0.4), row(0.1, 0.0)]))
    np.testing.assert_allclose(curve.far, [0, 0.25, 0.25, 0.25, 0.5, 1])
    np.testing.assert_allclose(curve.tar, [0, 0, 0.5, 0.5, 1, 1])
    assert equal_error_rate(curve) == pytest.approx(1 / 3)  # (1/4 + t/4) = 1 - (1/2 + t/2) at t = 1/3
    assert area_under(curve) == pytest.approx(0.6875)
    assert tar_at(curve, 0.49) == (0.5, 0.5)
    assert tar_at(curve, 0.5) == (1.0, pytest.approx(0.4))
    assert tar_at(curve, 0.2) == (0.0, np.inf)


def test_perfect_and_reversed_scores_have_the_rates_that_they_must() -> None:
    high, low = row(0.8, 0.9), row(0.1, 0.2, 0.3)
    good, bad = roc(high, iter([low])), roc(low, iter([high]))
    assert (equal_error_rate(good), area_under(good), tar_at(good, 0.001)[0]) == (0, 1, 1)
    assert (equal_error_rate(bad), area_under(bad), tar_at(bad, 0.4)[0]) == (1, 0, 0)
    same = roc(row(*[0.5] * 3), iter([row(*[0.5] * 4)]))
    assert (equal_error_rate(same), area_under(same)) == (0.5, 0.5)


@pytest.mark.parametrize("far", [0.004, 0.01, 0.1, 0.5])
def test_tar_is_the_largest_that_any_threshold_gives(far: float) -> None:
    for ties in (False, True):
        genuine, impostors = scores(7, ties=ties)
        found, threshold = tar_at(roc(genuine, in_parts(impostors)), far)
        assert found == reference.tar(genuine.tolist(), impostors.tolist(), far)
        assert (impostors >= threshold).mean() <= far
        assert (genuine >= threshold).mean() == found


def test_both_kinds_of_pairs_are_needed() -> None:
    with pytest.raises(ValueError, match="pairs of both kinds; got 1 genuine and 0 impostors"):
        roc(row(0.5), iter([]))


def test_a_curve_of_very_many_levels_is_thinned_and_stays_close(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine, impostors = scores(1, ties=False, genuine=3000, impostors=4000)
    whole = roc(genuine, in_parts(impostors, 999))
    monkeypatch.setattr(verification, "MOST_LEVELS", 200)
    thin = roc(genuine, in_parts(impostors, 999))
    assert len(thin.far) == 402
    assert equal_error_rate(thin) == pytest.approx(equal_error_rate(whole), abs=0.003)
    assert area_under(thin) == pytest.approx(area_under(whole), abs=0.003)


@pytest.mark.usefixtures("chunk")
def test_all_pairs_are_those_of_a_double_loop_each_once() -> None:
    embeddings, labels = people()
    genuine, impostors = reference.pairs(embeddings.astype(np.float64), labels.tolist())
    for blocks, expected in (
        (genuine_pairs(embeddings, labels), genuine),
        (impostor_pairs(embeddings, labels), impostors),
    ):
        found, seen = [], set()
        same = expected is genuine
        for block in blocks:
            assert ((labels[block.first] == labels[block.second]) == same).all()
            seen |= {frozenset(pair) for pair in zip(block.first.tolist(), block.second.tolist(), strict=True)}
            found += block.scores.tolist()
        assert len(seen) == len(found) == len(expected)
        np.testing.assert_allclose(sorted(found), sorted(expected), atol=1e-6)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("sign", [1, -1])
def test_the_hardest_pairs_are_the_first_of_all_sorted(sign: int) -> None:
    embeddings, labels = people()
    blocks = list(impostor_pairs(embeddings, labels))
    hardest = Hardest(4, 1 if sign == 1 else -1)
    assert sum(len(block.scores) for block in hardest.watch(iter(blocks))) == sum(len(b.scores) for b in blocks)
    every = np.sort(np.concatenate([block.scores for block in blocks]))
    np.testing.assert_allclose([pair.score for pair in hardest.pairs], every[::-sign][:4], atol=1e-6)
    for pair in hardest.pairs:
        assert embeddings[pair.first] @ embeddings[pair.second] == pytest.approx(pair.score, abs=1e-6)


@pytest.mark.usefixtures("chunk")
def test_leave_one_out_ranks_are_those_of_a_loop_over_images() -> None:
    embeddings, labels = people()
    gallery, probes = leave_one_out(labels)
    found = identification_ranks(embeddings, labels, gallery, probes)
    expected = []
    for image in range(len(labels)):
        others = [other for other in range(len(labels)) if other != image]
        if labels[image] in labels[others]:
            cosines = [float(embeddings[image] @ embeddings[other]) for other in others]
            expected.append(reference.rank(cosines, labels[others].tolist(), int(labels[image])))
    assert found.tolist() == expected
    assert 1 < max(expected) < 13
    assert len(expected) == len(labels) - 2  # the two people of one image are looked among, not for


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("count", [1, 3])
def test_gallery_ranks_are_those_of_a_loop_over_probes(count: int) -> None:
    embeddings, labels = people()
    gallery, probes = first_images(labels, count)
    for person in range(13):
        own = np.flatnonzero(labels == person)
        assert gallery[own].tolist() == [place < count for place in range(len(own))]
    assert (gallery ^ probes).all()
    shelf = np.flatnonzero(gallery)
    expected = [
        reference.rank([float(embeddings[i] @ embeddings[j]) for j in shelf], labels[shelf].tolist(), int(labels[i]))
        for i in np.flatnonzero(probes)
    ]
    assert identification_ranks(embeddings, labels, gallery, probes).tolist() == expected


def test_a_model_that_says_the_same_of_everybody_finds_nobody() -> None:
    labels = np.array([0, 0, 1, 1, 2])
    ranks = identification_ranks(np.ones((5, 3), np.float32), labels, *leave_one_out(labels))
    assert ranks.tolist() == [3, 3, 3, 3]


def test_rows_of_any_length_become_directions_and_zeros_stay() -> None:
    rows = normalize(np.array([[3.0, 4.0], [0.0, 0.0], [1e-9, 0.0]]))
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0, 0], [1, 0]], rtol=1e-6)
