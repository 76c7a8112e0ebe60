"""LoRA in numbers of float64 and plain loops: a layer, its gradients, and its merged weight; matrix by matrix."""

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def merged(weight: Matrix, changes: dict[int, tuple[Matrix, Matrix]], scale: float) -> Matrix:
    """The weight with every change, each from a row on: W[i, j] + scale * sum over r of B[i, r] A[r, j]."""
    whole = weight.copy()
    for first, (inward, outward) in changes.items():
        for row in range(outward.shape[0]):
            for column in range(inward.shape[1]):
                for rank in range(inward.shape[0]):
                    whole[first + row, column] += scale * outward[row, rank] * inward[rank, column]
    return whole


def gradients(error: Matrix, inward: Matrix, outward: Matrix, scale: float) -> tuple[Matrix, Matrix]:
    """Of a loss by A and by B, from its gradient by those rows of the merged weight that they change (chain rule)."""
    by_inward, by_outward = np.zeros_like(inward), np.zeros_like(outward)
    for rank in range(inward.shape[0]):
        for row in range(outward.shape[0]):
            for column in range(inward.shape[1]):
                by_inward[rank, column] += scale * outward[row, rank] * error[row, column]
                by_outward[row, rank] += scale * error[row, column] * inward[rank, column]
    return by_inward, by_outward
