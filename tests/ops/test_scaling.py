"""The law of the loss: planted laws are found again, and scipy's least squares finds no better one."""

import numpy as np
import pytest
from scipy.optimize import least_squares, nnls

from vitrail.ops.scaling import Law, _non_negative, bootstrap_law, fit_law

PLANTED = Law(least=1.7, of_parameters=400.0, of_images=900.0, parameters=0.42, images=0.55)


def runs(noise: float = 0.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Losses of every size at every length, so many times a seed."""
    parameters, images = (grid.ravel() for grid in np.meshgrid([1e5, 4e5, 2e6, 9e6], [3e4, 1e5, 6e5], indexing="ij"))
    parameters, images = np.tile(parameters, 3), np.tile(images, 3)
    random = np.random.default_rng(seed)
    return parameters, images, PLANTED.loss(parameters, images) * (1 + noise * random.standard_normal(len(images)))


def test_a_planted_law_is_found_again() -> None:
    found = fit_law(*runs())
    np.testing.assert_allclose(
        [found.least, found.parameters, found.images], [1.7, 0.42, 0.55], rtol=0.03, err_msg=str(found)
    )
    np.testing.assert_allclose(found.loss(7e7, 5e6), PLANTED.loss(7e7, 5e6), rtol=2e-3)


def test_no_descent_finds_a_better_law_of_noisy_runs() -> None:
    parameters, images, losses = runs(noise=0.01, seed=4)

    def errors(logs: np.ndarray) -> np.ndarray:
        least, first, second, one, two = np.exp(logs)
        return (least + first * parameters**-one + second * images**-two) / losses - 1

    ours = fit_law(parameters, images, losses)
    own = float(np.square(errors(np.log(np.maximum(np.array(ours), 1e-300)))).sum())
    starts = np.random.default_rng(1).uniform(np.log([0.5, 10, 10, 0.1, 0.1]), np.log([3, 1e4, 1e4, 1.5, 1.5]), (30, 5))
    others = [2 * least_squares(errors, start, bounds=(-20, 20)).cost for start in starts]
    assert own <= min(others) * 1.002


def test_factors_are_those_of_scipys_non_negative_least_squares() -> None:
    columns = np.random.default_rng(3).standard_normal((40, 9, 3))
    for one, found in zip(columns, _non_negative(columns), strict=True):
        np.testing.assert_allclose(found, nnls(one, np.ones(9))[0], atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [0.0, 0.01])  # of all seeds of a configuration
def test_the_bootstraps_intervals_hold_the_truth_about_as_often_as_they_say(shared: float) -> None:
    inside, predicted = 0, 0
    for seed in range(12):
        parameters, images, losses = runs(noise=0.003 if shared else 0.01, seed=seed)
        random = np.random.default_rng(seed + 50)
        losses = losses * (1 + shared * np.tile(random.standard_normal(len(losses) // 3), 3))
        boot = bootstrap_law(parameters, images, losses, draws=40, seed=seed)
        low, high = boot.interval("images")
        inside += low <= PLANTED.images <= high
        actual = PLANTED.loss(2.7e7, 1.8e6) * (1 + 0.01 * np.random.default_rng(seed + 100).standard_normal())
        said, least, most = boot.predict(2.7e7, 1.8e6)
        assert least <= said <= most or abs(said / least - 1) < 0.02
        predicted += least <= actual <= most
    assert inside >= 9
    assert predicted >= 9


def test_a_loss_that_images_alone_lower_has_no_part_of_parameters() -> None:
    parameters, images, _ = runs()
    found = fit_law(parameters, images, 2.0 + 50 * images**-0.5)
    assert found.of_parameters * 1e5**-found.parameters == pytest.approx(0, abs=1e-3)
    assert found.images == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize("seed", range(4))
def test_a_law_is_the_same_whatever_the_rounding(seed: int) -> None:
    """Of two lengths alone many exponents fit alike: the last bits, another machine's, must not choose."""
    parameters, images, losses = runs(noise=0.05, seed=seed)
    two = images < 5e5
    bits = 1 + 1e-13 * np.random.default_rng(1).standard_normal(int(two.sum()))
    law, same = (fit_law(parameters[two], images[two], each) for each in (losses[two], losses[two] * bits))
    np.testing.assert_allclose(same, law, rtol=1e-5, atol=1e-9)
