"""Few shots against the answers of the authors' evaluator, and which rows they are."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from vitrail.errors import ConfigError
from vitrail.evaluation import fewshot
from vitrail.evaluation.shots import Settings, choose_shots

CASES = json.loads((Path(__file__).parents[1] / "reference" / "fewshot.json").read_text())
CELLS = [(number, cell) for number, case in enumerate(CASES) for cell in case["accuracy"]]


def drawn(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draw the features of a case, as its page says."""
    generator = np.random.RandomState(case["seed"])
    center = generator.standard_normal((case["classes"], case["dim"])).astype(np.float32)

    def some(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = generator.randint(0, case["classes"], count)
        noise = case["spread"] * generator.standard_normal((count, case["dim"]))
        return (center[labels] + noise).astype(np.float32), labels

    return *some(case["per_class"] * case["classes"]), *some(case["test"])


@pytest.mark.parametrize(("number", "cell"), CELLS)
def test_accuracy_is_that_of_the_authors_evaluator(number: int, cell: str) -> None:
    case = CASES[number]
    shots, l2 = int(cell.split()[0]), float(cell.split()[-1])
    found = fewshot(*drawn(case), classes=case["classes"], shots=shots, seed=case["rng_seed"], l2=l2)
    right, expected = found * case["test"], case["accuracy"][cell] * case["test"]
    assert abs(right - expected) < (0.01 if l2 == 1024 else 4.01)


def test_tensors_and_lists_are_taken_as_arrays_are() -> None:
    case = CASES[0]
    train, labels, test, answers = drawn(case)
    given: dict[str, Any] = {"classes": case["classes"], "shots": 5, "seed": 3, "l2": 1024.0}
    expected = fewshot(train, labels, test, answers, **given)
    tensors = (torch.from_numpy(train), torch.from_numpy(labels), torch.from_numpy(test).double(), answers.tolist())
    assert vitrail.evaluation.fewshot(*tensors, **given) == expected


def test_shots_are_the_first_of_a_permutation_that_runs_on_over_the_classes() -> None:
    labels = np.array([2, 0, 1, 0, 2, 2, 0, 1, 0, 2, 0])
    generator = np.random.default_rng(7)
    orders = [generator.permutation(np.where(labels == label)[0]) for label in range(4)]
    for shots in (1, 3):
        expected = np.concatenate([order[:shots] for order in orders])
        np.testing.assert_array_equal(choose_shots(labels, classes=4, shots=shots, seed=7), expected)
    few = choose_shots(labels, classes=4, shots=3, seed=7)
    assert set(choose_shots(labels, classes=4, shots=2, seed=7)) < set(few)
    assert len(few) == 3 + 2 + 3 + 0  # the second class has two, the last none


def test_all_shots_are_all_rows_with_a_label() -> None:
    found = choose_shots(np.array([1, -1, 0]), classes=2, shots=None, seed=0)
    np.testing.assert_array_equal(found, [0, 2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": 4}, r"train_labels must be from 0 to 3 for 4 class names; got 0 to 4"),
        ({"shots": 0}, r"shots must be"),
        ({"l2": -1.0}, r"l2 must be"),
        ({"seed": -1}, r"seed must be"),
        ({"classes": 0}, r"classes must be"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    case = CASES[0]
    given: dict[str, Any] = {"classes": 5, "shots": 5, "seed": 0, "l2": 1024.0, **changes}
    with pytest.raises(ConfigError, match=message):
        fewshot(*drawn(case), **given)


def test_features_that_do_not_fit_are_refused() -> None:
    train, labels, test, answers = drawn(CASES[0])
    given: dict[str, Any] = {"classes": 5, "shots": 5, "seed": 0, "l2": 1024.0}
    with pytest.raises(ConfigError, match=r"must be as wide; got 32 and 31"):
        fewshot(train, labels, test[:, :31], answers, **given)
    with pytest.raises(ConfigError, match=r"train_labels must be as many as the images, 199; got 200"):
        fewshot(train[:-1], labels, test, answers, **given)
    with pytest.raises(ConfigError, match=r"test_features must be rows of numbers"):
        fewshot(train, labels, test[0], answers, **given)
    expected = fewshot(train[:, ::-1].copy(), labels, test[:, ::-1].copy(), answers, **given)
    assert fewshot(train[:, ::-1], labels, test[:, ::-1], answers, **given) == expected
    assert fewshot(train[:, ::-1].tolist(), labels, test[:, ::-1].astype(object), answers, **given) == expected
    with pytest.raises(ConfigError, match=r"train_features must be rows of numbers"):
        fewshot(np.array([["a"]]), [0], test, answers, **given)
    broken = test.copy()
    broken[3, 4] = np.nan
    with pytest.raises(ConfigError, match=r"test_features must be finite"):
        fewshot(train, labels, broken, answers, **given)


@pytest.mark.parametrize(
    "changes",
    [{"shots": ()}, {"shots": (5, 5)}, {"seeds": ()}, {"probes": ("svm",)}, {"neighbors": 0}, {"shots": (0,)}],
)
def test_settings_are_checked(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Settings(**changes)


def test_classes_are_those_of_the_labels_and_the_first_seed_unless_said() -> None:
    case = CASES[0]
    rows = drawn(case)
    assert fewshot(*rows, shots=5) == fewshot(*rows, shots=5, classes=case["classes"], seed=0)
