"""How loss falls with parameters and images: L = E + A N^-a + B D^-b (Hoffmann et al., 2022), by variable projection.

For given exponents the law is linear in E, A and B, whose best values, none negative, are found exactly; only the two
exponents are searched. Parabolas through slices of equal compute, the other usual way, are biased.
"""

from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]
EXPONENTS = (0.02, 2.5)  # between which both are searched
GRID, ZOOMS = 13, 6  # places of a search along each exponent, and how often it is repeated around the best
NUMBERS = 5  # that the law has
TIE = 1e-9  # of an error: those that differ by less are alike but for rounding, which is another's on another machine
SUPPORTS = [np.array(part) for size in (1, 2, 3) for part in combinations(range(3), size)]


class Law(NamedTuple):
    """The law's five numbers, for N in parameters and D in images."""

    least: float  # E
    of_parameters: float  # A
    of_images: float  # B
    parameters: float  # a
    images: float  # b

    def loss(self, parameters: Reals | float, images: Reals | float) -> Reals:
        """Give the loss that the law says."""
        small = self.of_parameters * np.asarray(parameters, dtype=np.float64) ** -self.parameters
        return self.least + small + self.of_images * np.asarray(images, dtype=np.float64) ** -self.images


def fit_law(parameters: Reals, images: Reals, losses: Reals) -> Law:
    """Fit the law by least squares of relative errors."""
    scales = float(np.exp(np.log(parameters).mean())), float(np.exp(np.log(images).mean()))
    small, seen = parameters / scales[0], images / scales[1]  # else the columns differ by many orders
    best = (np.inf, (0.5, 0.5), np.zeros(3))
    windows = [EXPONENTS, EXPONENTS]
    for _ in range(ZOOMS):
        first, second = (np.geomspace(*window, GRID) for window in windows)
        found = _search(small, seen, losses, first, second)
        best = found if found[0] < best[0] * (1 - TIE) else best
        windows = [_around(place, window) for place, window in zip(best[1], windows, strict=True)]
    _, (one, two), (least, first_factor, second_factor) = best
    return Law(float(least), float(first_factor) * scales[0] ** one, float(second_factor) * scales[1] ** two, one, two)


def _around(place: float, window: tuple[float, float]) -> tuple[float, float]:
    """Give a smaller window around a place: a step and a half of its grid to both sides."""
    step = (window[1] / window[0]) ** (1.5 / (GRID - 1))
    return max(place / step, EXPONENTS[0]), min(place * step, EXPONENTS[1])


def _search(
    small: Reals, seen: Reals, losses: Reals, first: Reals, second: Reals
) -> tuple[float, tuple[float, float], Reals]:
    """Try all pairs of exponents; give the least error, its exponents and its factors."""
    ones, twos = np.meshgrid(first, second, indexing="ij")
    pairs = np.stack([ones.ravel(), twos.ravel()], axis=1)  # pairs 2
    columns = (
        np.stack([np.ones((len(pairs), len(losses))), small ** -pairs[:, :1], seen ** -pairs[:, 1:]], axis=2)
        / losses[None, :, None]
    )  # pairs runs 3, so that errors are relative
    factors = _non_negative(columns)
    errors = np.square((columns @ factors[:, :, None])[:, :, 0] - 1.0).sum(axis=1)
    place = int((errors <= errors.min() * (1 + TIE)).argmax())  # the first
    return float(errors[place]), (float(pairs[place, 0]), float(pairs[place, 1])), factors[place]


def _non_negative(columns: Reals) -> Reals:
    """Solve least squares to ones with no factor below zero: of three, every set that may be left is tried."""
    count = len(columns)
    gram, right = np.einsum("pri,prj->pij", columns, columns), columns.sum(axis=1)
    best, least = np.zeros((count, 3)), np.full(count, np.inf)
    for kept in SUPPORTS:
        part = gram[:, kept[:, None], kept[None, :]]
        ridge = 1e-12 * np.trace(part, axis1=1, axis2=2)[:, None, None] * np.eye(len(kept))
        found = np.linalg.solve(part + ridge, right[:, kept, None])[:, :, 0]
        whole = np.zeros((count, 3))
        whole[:, kept] = found
        error = np.einsum("pi,pij,pj->p", whole, gram, whole) - 2 * (whole * right).sum(axis=1)
        better = (found >= 0).all(axis=1) & (error < least)
        best[better], least[better] = whole[better], error[better]
    return best


class Bootstrap(NamedTuple):
    """Laws of as many draws of the runs, with repetition, and the relative errors of the law of all runs."""

    law: Law
    laws: list[Law]
    errors: Reals

    def interval(self, number: str) -> tuple[float, float]:
        """Give the 95 % interval of one of the law's numbers."""
        values = [getattr(law, number) for law in self.laws]
        low, high = np.quantile(values, (0.025, 0.975))
        return float(low), float(high)

    def predict(self, parameters: float, images: float, *, seed: int = 0) -> tuple[float, float, float]:
        """Predict the loss of another run: the law's, and the ends of 95 %, its own error among them."""
        random = np.random.default_rng(seed)
        said = np.array([float(law.loss(parameters, images)) for law in self.laws])
        drawn = said[:, None] * (1 + random.choice(self.errors, (len(said), 32)))
        low, high = np.quantile(drawn, (0.025, 0.975))
        return float(self.law.loss(parameters, images)), float(low), float(high)


def bootstrap_law(parameters: Reals, images: Reals, losses: Reals, *, draws: int = 200, seed: int = 0) -> Bootstrap:
    """Fit the law to all runs, and to draws of them with repetition.

    What is drawn are configurations, each with all its seeds: these share what the law does not say of it.
    """
    random = np.random.default_rng(seed)
    law = fit_law(parameters, images, losses)
    _, which = np.unique(np.stack([parameters, images]), axis=1, return_inverse=True)
    runs = [np.flatnonzero(which == place) for place in range(int(which.max()) + 1)]
    laws = []
    while len(laws) < draws:
        drawn = random.integers(0, len(runs), len(runs))
        if len(set(drawn.tolist())) >= min(NUMBERS, len(runs)):
            some = np.concatenate([runs[place] for place in drawn])
            laws.append(fit_law(parameters[some], images[some], losses[some]))
    said = law.loss(parameters, images)
    spread = np.sqrt(len(runs) / max(len(runs) - NUMBERS, 1))  # what five numbers took of the errors
    return Bootstrap(law, laws, (losses - said) / said * spread)


def at_bound(exponent: float) -> bool:
    """Tell whether an exponent lies at an end of what is searched, so that the runs do not say it."""
    return exponent < EXPONENTS[0] * 1.01 or exponent > EXPONENTS[1] / 1.01
