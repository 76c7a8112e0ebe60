"""The cheapest way to give every row a column of its own (Jonker and Volgenant, 1987, after Crouse, 2016)."""

import numpy as np
from numpy.typing import NDArray

TOP = 1e9  # a cost that is not finite


def assign(costs: NDArray[np.floating]) -> NDArray[np.int64]:
    """Give the column of every row, -1 where there are fewer columns than rows; the sum of the costs is the least."""
    table = np.nan_to_num(np.asarray(costs, dtype=np.float64), nan=TOP, posinf=TOP, neginf=-TOP)
    rows, cols = table.shape
    if rows <= cols:
        return _assign(table)
    found = np.full(rows, -1, dtype=np.int64)
    found[_assign(table.T)] = np.arange(cols)
    return found


def _assign(table: NDArray[np.float64]) -> NDArray[np.int64]:
    """Take the rows one by one, each by the shortest path of changes that frees a column for it."""
    rows, cols = table.shape
    of_row, of_col = np.zeros(rows), np.zeros(cols)  # prices: a cost less both is never below 0
    owner, given = np.full(cols, -1, dtype=np.int64), np.full(rows, -1, dtype=np.int64)
    for row in range(rows):
        nearest, before = np.full(cols, np.inf), np.full(cols, -1, dtype=np.int64)
        seen, current, length = np.zeros(cols, dtype=np.bool_), row, 0.0
        while True:
            reached = length + table[current] - of_row[current] - of_col
            better = ~seen & (reached < nearest)
            nearest[better], before[better] = reached[better], current
            col = int(np.argmin(np.where(seen, np.inf, nearest)))
            length = nearest[col]
            seen[col] = True
            if owner[col] < 0:
                break
            current = int(owner[col])
        of_row[row] += length
        changed = seen & (owner >= 0)
        of_row[owner[changed]] += length - nearest[changed]
        of_col[seen] -= length - nearest[seen]
        while col >= 0:  # back along the path, to the row that it began with
            current = int(before[col])
            owner[col] = current
            given[current], col = col, int(given[current])
    return given
