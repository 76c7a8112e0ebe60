"""What is read off a study's cells: intervals are scipy's, and a verdict is said where its interval says it."""

from collections.abc import Mapping

import numpy as np
import pytest
from scipy import stats

from vitrail.errors import ConfigError
from vitrail.studies.paper import distance, scaling, shape
from vitrail.studies.reading import Expects, Finding, Reading, best, estimate, exactly, mean_by_seed, paired, percent
from vitrail.studies.scales import SCALES
from vitrail.studies.table import Cell, Count, Done, Network, Results, packed_numbers, unpacked_numbers

NOTHING = Count(network=Network(model="ViT-B/16"))


def results(*rows: Mapping[str, object]) -> Results:
    """Cells whose `at` is what is not a number of theirs."""
    numbers = ("accuracy", "loss", "parameters", "images", "exaflops", "gmacs")
    return Results(
        Done(
            cell=Cell(at={k: v for k, v in row.items() if k not in numbers}, work=NOTHING),  # pyright: ignore
            numbers={k: v for k, v in row.items() if k in numbers},
        )
        for row in rows
    )


@pytest.mark.parametrize("values", [[61.2, 63.9, 60.1], [61.2, 63.9, 60.1, 62.2, 61.0]], ids=len)
def test_an_interval_is_students(values: list[float]) -> None:
    found = estimate(values)
    assert found is not None
    assert found.interval is not None
    assert found.deviation is not None
    expected = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    np.testing.assert_allclose(found.interval, expected, rtol=1e-9 if len(values) == 3 else 1e-4)
    np.testing.assert_allclose((found.mean, found.deviation), (np.mean(values), np.std(values, ddof=1)))


def test_one_seed_has_no_interval_and_no_verdict() -> None:
    found = estimate([3.0])
    assert found is not None
    assert found.interval is None
    assert Finding(says="x", estimate=found, expects="more").verdict == "not seen"
    assert estimate([]) is None
    assert Finding(says="x", estimate=None, expects="more").verdict == "not seen"


@pytest.mark.parametrize(
    ("low", "high", "more", "less", "equal"),
    [
        (0.1, 0.9, "confirmed", "contradicted", "confirmed"),
        (-0.9, -0.1, "contradicted", "confirmed", "confirmed"),
        (-0.5, 0.5, "not seen", "not seen", "confirmed"),
        (0.5, 1.5, "confirmed", "contradicted", "not seen"),
        (1.1, 2.0, "confirmed", "contradicted", "contradicted"),
        (-2.0, -1.1, "contradicted", "confirmed", "contradicted"),
        (-3.0, 3.0, "not seen", "not seen", "not seen"),
    ],
)
def test_a_verdict_is_what_the_interval_says(low: float, high: float, more: str, less: str, equal: str) -> None:
    found = exactly((low + high) / 2)._replace(interval=(low, high))
    margins: dict[Expects, float] = {"more": 0.0, "less": 0.0, "equal": 1.0}
    said = {
        kind: Finding(says="x", estimate=found, expects=kind, margin=margin).verdict for kind, margin in margins.items()
    }
    assert said == {"more": more, "less": less, "equal": equal}


def test_a_claim_is_confirmed_where_all_of_it_is() -> None:
    yes, no = (Finding(says="x", estimate=exactly(value), expects="more") for value in (1.0, -1.0))
    unsure = Finding(says="x", estimate=None, expects="more")
    verdicts = {
        parts: Reading(findings=parts, tables=()).verdict for parts in ((yes, yes), (yes, unsure), (yes, unsure, no))
    }
    assert list(verdicts.values()) == ["confirmed", "not seen", "contradicted"]


def test_differences_are_taken_seed_by_seed_and_of_the_seeds_that_both_have() -> None:
    found = paired({0: 5.0, 1: 7.0, 2: 9.0}, {2: 4.0, 0: 1.0})
    assert found is not None
    assert found.values == (4.0, 5.0)
    assert mean_by_seed([{0: 1.0, 1: 2.0}, {1: 4.0}]) == {1: 3.0}
    assert mean_by_seed([]) == {}


def test_a_run_that_diverged_has_no_accuracy_and_its_option_is_not_the_best() -> None:
    cells = results(
        {"rate": 1, "seed": 0, "accuracy": 0.5},
        {"rate": 1, "seed": 1, "accuracy": 0.7},
        {"rate": 2, "seed": 0, "accuracy": 0.9},
        {"rate": 2, "seed": 1},
    )
    by = {rate: cells.where(rate=rate) for rate in (1, 2)}
    assert best(by) == 1
    low, high = percent(by[1]), percent(by[2])
    assert low is not None
    assert high is not None
    assert low.mean == pytest.approx(60)
    assert high.values == (90.0,)
    with pytest.raises(ConfigError, match="several cells have the seed 0"):
        cells.by_seed("accuracy")


def test_an_array_for_a_picture_comes_back_to_a_step() -> None:
    values = np.random.default_rng(0).normal(size=(2, 3, 5))
    back = unpacked_numbers(packed_numbers(values))
    assert back.shape == values.shape
    np.testing.assert_allclose(back, values, atol=(values.max() - values.min()) / 255)


def test_points_for_a_doubling_are_numpys_slope() -> None:
    compute, accuracy = [1.0, 3.0, 10.0], [[0.2, 0.3], [0.31, 0.35], [0.4, 0.39]]
    parts = [results(*({"seed": seed, "accuracy": value} for seed, value in enumerate(values))) for values in accuracy]
    found = shape.slope_by_seed(compute, parts)
    for seed in (0, 1):
        expected = np.polyfit(np.log2(compute), [100 * values[seed] for values in accuracy], 1)[0]
        assert found[seed] == pytest.approx(expected)


def scaled(family: str, points: list[tuple[float, float]]) -> Results:
    return results(
        *(
            {"family": family, "size": place, "length": 1, "seed": 0, "accuracy": accuracy / 100}
            | {"exaflops": compute, "parameters": compute, "images": 7.0, "gmacs": 1.0}
            for place, (compute, accuracy) in enumerate(points)
        )
    )


def test_families_are_compared_where_both_have_compute() -> None:
    # Straight lines over the logarithm: 10 points a decade, and 3 points above it; what gets worse is no part of it.
    one = scaling.runs_of(scaled("ViT", [(1.0, 13.0), (10.0, 23.0), (50.0, 1.0), (100.0, 33.0)]))
    other = scaling.runs_of(scaled("BiT", [(10.0, 20.0), (1000.0, 40.0)]))
    assert scaling.advantage(one, other) == {0: pytest.approx(3.0)}
    assert scaling.advantage(other, one, (0.5, 1.0)) == {0: pytest.approx(-3.0)}
    # A family that gets no better stays where it is, up to its largest run.
    flat = scaling.runs_of(scaled("BiT", [(1.0, 13.0), (10.0, 13.0), (100.0, 9.0)]))
    assert scaling.advantage(one, flat) == {0: pytest.approx(10.0, abs=0.01)}
    assert scaling.advantage(one, scaling.runs_of(scaled("BiT", [(1000.0, 1.0), (2000.0, 2.0)]))) == {}


def test_a_law_that_the_largest_run_has_no_loss_for_is_tried_on_the_next() -> None:
    rows = [
        {"family": "ViT", "size": size, "length": length, "seed": 0, "accuracy": 0.5, "gmacs": 1.0}
        | {"parameters": 10.0**size, "images": 1e4 * length, "exaflops": 10.0**size * length}
        | ({} if (size, length) == (7, 4) else {"loss": 1 + 10.0 ** (-size / 4) + 30 * (1e4 * length) ** -0.5})
        for size in (5, 6, 7)
        for length in (1, 2, 4)
    ]
    found = scaling.held_out(scaling.runs_of(results(*rows)), 10)
    assert found.largest[0]["exaflops"] == 2e7
    assert found.said is not None
    assert found.said[0] == pytest.approx(float(found.largest[1].first("loss")), rel=1e-2)


def test_distances_are_compared_as_shares_of_a_uniform_heads() -> None:
    def looked(family: str, near: float, far: float, uniform: float) -> list[Done]:
        numbers = {"distances": [[near, far]], "fresh_distances": [[0.4, 0.41]], "uniform_distance": uniform}
        picture = {"filters": packed_numbers(np.ones((2, 3, 4, 4))), "filter_shares": [0.6, 0.4]}
        return [
            Done(
                cell=Cell(at={"family": family, "what": "look", "seed": seed}, work=NOTHING), numbers=numbers | picture
            )
            for seed in range(2)
        ]

    found = Results([*looked("ViT", 0.1, 0.4, 0.4), *looked("hybrid", 0.3, 0.4, 0.5)])
    reading = distance.read(found, SCALES["cpu"])
    values = [finding.estimate.mean for finding in reading.findings[:3] if finding.estimate is not None]
    np.testing.assert_allclose(values, [1.0 - 0.75, 0.75 - 0.025, 0.6 - 0.25])
    for plot in reading.plots:
        assert plot.draw("light").startswith(b"\x89PNG")


def test_what_saturates_is_the_largest_model_against_the_next_of_the_same_images() -> None:
    found = scaling.last_gain(scaling.runs_of(scaled("ViT", [(1.0, 13.0), (100.0, 30.0), (10.0, 28.0)])))
    assert found is not None
    assert found.values == (pytest.approx(2.0),)
