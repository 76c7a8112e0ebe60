"""From the outputs of a model to answers, and how good they are, by what its card says that they mean."""

from collections.abc import Sequence
from typing import Any, assert_never

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.config.outputs import LabelOutputs, NumberOutputs, OrderedOutputs, Outputs
from vitrail.ops.label_metrics import average_precisions, best_threshold, f1_scores, mean_of
from vitrail.ops.metrics import bounded, confusion_matrix
from vitrail.ops.number_metrics import (
    absolute_errors,
    correlations,
    determinations,
    rank_correlations,
    root_squares,
    weighted_kappa,
)
from vitrail.ops.task_losses import label_loss, median_class, number_loss, order_loss

HALF = 0.5
Values = Float[np.ndarray, "N K"]
Rows = list[dict[str, Any]]
# What an evaluation is chosen by, and whether the larger is the better.
CHOSEN_BY: dict[type, tuple[str, bool]] = {
    LabelOutputs: ("mean_average_precision", True),
    NumberOutputs: ("r2", True),
    OrderedOutputs: ("mean_absolute_error", False),
}


def answers_of(outputs: Outputs, raw: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
    """Give the probability of each label, the numbers in their own units, or the probability of each ordered class."""
    match outputs:
        case LabelOutputs():
            return bounded(raw).sigmoid()
        case NumberOutputs(mean=mean, deviation=deviation):
            scale, shift = (torch.tensor(part, dtype=torch.float64, device=raw.device) for part in (deviation, mean))
            return (raw.double() * scale + shift).float()
        case OrderedOutputs():
            return bounded(raw).softmax(dim=1)
        case _:
            assert_never(outputs)


def measure(
    outputs: Outputs, raw: Float[Tensor, "N K"], targets: Float[Tensor, "N K"], names: Sequence[str]
) -> tuple[dict[str, float], Rows]:
    """Give the headline, and a row for each label, number or class; what is not defined is left out, or None."""
    found = answers_of(outputs, raw).double().numpy()
    match outputs:
        case LabelOutputs():
            return _labels(outputs, found, targets.numpy() > HALF, raw, targets, names)
        case NumberOutputs():
            return _numbers(outputs, found, raw, targets, names)
        case OrderedOutputs():
            return _ordered(found, raw, targets, names)
        case _:
            assert_never(outputs)


def choose_thresholds(raw: Float[Tensor, "N K"], targets: Float[Tensor, "N K"]) -> tuple[float, ...]:
    """Give for each label the probability from which on to say it, by the F1 of images that were not trained on."""
    shares, truths = bounded(raw).double().sigmoid().numpy(), targets.numpy() > HALF
    pairs = zip(truths.T, shares.T, strict=True)
    return tuple(round(best_threshold(*pair), 6) for pair in pairs)


def said_labels(outputs: LabelOutputs, probabilities: Values) -> np.ndarray:
    """Tell which labels are said: those whose probability reaches their threshold."""
    return probabilities >= np.array(outputs.thresholds)


def _labels(
    outputs: LabelOutputs, shares: Values, truths: np.ndarray, raw: Tensor, targets: Tensor, names: Sequence[str]
) -> tuple[dict[str, float], Rows]:
    precisions, said = average_precisions(truths, shares), said_labels(outputs, shares)
    scores = f1_scores(truths, said)
    whole = {
        "mean_average_precision": mean_of(precisions),
        "macro_f1": mean_of(scores),
        "exact_match": float((said == truths).all(axis=1).mean()) if len(truths) else 0.0,
        "loss": _mean(label_loss(raw, targets)),
    }
    rows = [
        {
            "name": name,
            "images": int(truths[:, number].sum()),
            "average_precision": _known(precisions[number]),
            "f1": _known(scores[number]),
            "threshold": outputs.thresholds[number],
            "said": int(said[:, number].sum()),
        }
        for number, name in enumerate(names)
    ]
    return whole, rows


def _numbers(
    outputs: NumberOutputs, found: Values, raw: Tensor, targets: Tensor, names: Sequence[str]
) -> tuple[dict[str, float], Rows]:
    truths = targets.double().numpy()
    each = {
        "mean_absolute_error": absolute_errors(truths, found),
        "root_mean_squared_error": root_squares(truths, found),
        "r2": determinations(truths, found),
        "correlation": correlations(truths, found),
        "rank_correlation": rank_correlations(truths, found),
    }
    scaled = (targets.double() - torch.tensor(outputs.mean, dtype=torch.float64)) / torch.tensor(outputs.deviation)
    whole = {metric: mean_of(values) for metric, values in each.items() if not np.isnan(values).all()}
    whole["loss"] = _mean(number_loss(raw, scaled.float(), "squared", 1.0))
    spread = {"mean": truths.mean(axis=0), "deviation": truths.std(axis=0)}
    rows = [
        {"name": name, **{metric: _known(values[number]) for metric, values in (each | spread).items()}}
        for number, name in enumerate(names)
    ]
    return whole, rows


def _ordered(found: Values, raw: Tensor, targets: Tensor, names: Sequence[str]) -> tuple[dict[str, float], Rows]:
    known = targets.sum(dim=1).numpy() > 0
    labels = np.where(known, targets.argmax(dim=1).numpy(), -1)
    answers = median_class(torch.from_numpy(found)).numpy()
    confusion = confusion_matrix(labels, answers, len(names))
    labels, answers = labels[known], answers[known]
    distance = np.abs(labels - answers)
    kappa = weighted_kappa(confusion)
    whole = {
        "accuracy": _share(distance == 0),
        "mean_absolute_error": _share(distance),
        "within_one": _share(distance < 2),
    }
    whole |= {} if np.isnan(kappa) else {"quadratic_kappa": kappa}
    whole["loss"] = _mean(order_loss(raw, targets)[torch.from_numpy(known)])
    rows = [
        {
            "name": name,
            "images": int((mine := labels == number).sum()),
            "accuracy": _share(distance[mine] == 0) if mine.any() else None,
            "mean_absolute_error": _share(distance[mine]) if mine.any() else None,
            "answered": int((answers == number).sum()),
        }
        for number, name in enumerate(names)
    ]
    return whole, rows


def _share(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0


def _mean(losses: Tensor) -> float:
    return float(losses.mean(dtype=torch.float64)) if len(losses) else 0.0


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
