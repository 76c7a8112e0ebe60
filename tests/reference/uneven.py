"""Losses of uneven classes and the order that balances them, image by image, in plain Python."""

from math import exp, log, log1p


def loss(logits: list[list[float]], labels: list[int], kind: str, weights: list[float], focal: float) -> list[float]:
    """The weighted focal loss of each image, of a softmax or of a sigmoid for each class."""
    found = []
    for row, label in zip(logits, labels, strict=True):
        if kind == "softmax":
            most = max(row)
            total = sum(exp(each - most) for each in row)
            share = exp(row[label] - most) / total
            found.append(-weights[label] * (1 - share) ** focal * (row[label] - most - log(total)))
            continue
        summed = 0.0
        for number, each in enumerate(row):
            right = each if number == label else -each
            loss = log1p(exp(-abs(right))) + max(-right, 0)  # -log sigmoid
            summed += (1 - exp(-loss)) ** focal * loss
        found.append(weights[label] * summed)
    return found


def adjusted_loss(logits: list[float], label: int, counts: list[int], strength: float) -> float:
    """Menon et al. (2021), equation 10: log(1 + sum over others of (share / own share)^t e^(logit - own logit))."""
    others = (other for other in range(len(logits)) if other != label)
    return log1p(
        sum((counts[other] / counts[label]) ** strength * exp(logits[other] - logits[label]) for other in others)
    )


def effective(counts: list[int], beta: float) -> list[float]:
    """Cui et al. (2019), equation 2: by 1 - beta, over 1 - beta to the power of the images; they add up to K."""
    raw = [(1 - beta) / (1 - beta**count) for count in counts]
    return [len(counts) * each / sum(raw) for each in raw]
