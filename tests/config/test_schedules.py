"""Every step of short runs against the formulas; BiT's staircases against their rule."""

from collections.abc import Callable

import pytest
from reference import optimizers as reference

from vitrail.config.recipe import EMA, Curve, Schedule, decay_at, rate_at
from vitrail.config.recipes import hyperrule

SUPPORTS = {
    1: (100, 200, 300, 400, 500),
    20_000: (500, 3000, 6000, 9000, 10_000),
    500_000: (500, 6000, 12_000, 18_000, 20_000),
}


@pytest.mark.parametrize("warmup", [0, 1, 7])
@pytest.mark.parametrize("end", [0.0, 1e-5, 0.02])
def test_linear_and_cosine_are_the_formulas_at_every_step(warmup: int, end: float) -> None:
    formulas: dict[Curve, Callable[..., float]] = {"linear": reference.linear, "cosine": reference.cosine}
    for step in range(31):
        for curve, expected in formulas.items():
            schedule = Schedule(curve=curve, warmup_steps=warmup, final_learning_rate=end)
            assert rate_at(schedule, 0.05, step, 31) == pytest.approx(expected(0.05, end, warmup, step, 31), rel=1e-12)


def test_a_rate_rises_from_nothing_to_its_base_and_falls_to_its_end() -> None:
    for curve in ("linear", "cosine"):
        schedule = Schedule(curve=curve, warmup_steps=11, final_learning_rate=1e-4)
        rates = [rate_at(schedule, 0.03, step, 53) for step in range(54)]
        assert rates[0] == 0
        assert max(rates) == rates[11] == 0.03
        assert rates[53] == pytest.approx(1e-4)
        assert rates[:12] == sorted(rates[:12])
        assert rates[11:] == sorted(rates[11:], reverse=True)
        assert rate_at(schedule, 0.03, 32, 53) == pytest.approx((0.03 + 1e-4) / 2)  # half of the way


def test_a_constant_rate_is_warmed_up_and_stays() -> None:
    schedule = Schedule(curve="constant", warmup_steps=3)
    assert [rate_at(schedule, 0.6, step, 6) for step in range(6)] == pytest.approx([0, 0.2, 0.4, 0.6, 0.6, 0.6])


def test_a_warm_up_that_lasts_to_the_end_divides_by_nothing() -> None:
    schedule = Schedule(curve="cosine", warmup_steps=4)
    assert [rate_at(schedule, 0.4, step, 4) for step in range(4)] == pytest.approx([0, 0.1, 0.2, 0.3])


@pytest.mark.parametrize("examples", SUPPORTS)
def test_the_hyperrule_is_bits_at_every_step(examples: int) -> None:
    training = hyperrule(examples).training
    assert training.steps is not None
    for step in range(training.steps):
        expected = reference.hyperrule(0.003, SUPPORTS[examples], step)
        assert rate_at(training.schedule, 0.003, step, training.steps) == pytest.approx(expected, rel=1e-12)
    assert reference.hyperrule(0.003, SUPPORTS[examples], training.steps) is None


def test_a_staircase_drops_after_its_milestones() -> None:
    schedule = Schedule(curve="staircase", warmup_steps=2, milestones=(3, 5), drop=0.5)
    rates = [rate_at(schedule, 0.8, step, 8) for step in range(8)]
    assert rates == pytest.approx([0, 0.4, 0.8, 0.8, 0.4, 0.4, 0.2, 0.2])


def test_an_average_keeps_its_decay_or_ramps_up_to_it() -> None:
    assert [decay_at(EMA(decay=0.7), step) for step in (0, 1, 99)] == [0.7, 0.7, 0.7]
    ramp = EMA(decay=0.7, ramp=True)
    assert [decay_at(ramp, step) for step in (0, 1, 5, 20)] == pytest.approx([1 / 10, 2 / 11, 6 / 15, 0.7])
    assert decay_at(ramp, 19) == pytest.approx(20 / 29)
