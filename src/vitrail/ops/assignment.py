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


def assign_all(costs: NDArray[np.floating], present: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Solve many problems at once, P M Q, of the rows that are present, P M: what `assign` gives each; -1 elsewhere."""
    table = np.nan_to_num(np.asarray(costs, dtype=np.float64), nan=TOP, posinf=TOP, neginf=-TOP)
    count, rows, cols = table.shape
    of_row, of_col = np.zeros((count, rows)), np.zeros((count, cols))
    owner, given = np.full((count, cols), -1, dtype=np.int64), np.full((count, rows), -1, dtype=np.int64)
    many = present.sum(axis=1) > cols  # which have fewer columns than rows
    for row in range(rows):
        where = np.flatnonzero(present[:, row] & ~many)
        nearest, before = np.full((count, cols), np.inf), np.full((count, cols), -1, dtype=np.int64)
        seen, current, length = np.zeros((count, cols), dtype=np.bool_), np.full(count, row), np.zeros(count)
        last, open_to = np.full(count, -1), where
        while len(open_to):  # a shortest path in each, some longer than others
            here = current[open_to]
            reached = (length[open_to] - of_row[open_to, here])[:, None] + table[open_to, here] - of_col[open_to]
            better = ~seen[open_to] & (reached < nearest[open_to])
            nearest[open_to] = np.where(better, reached, nearest[open_to])
            before[open_to] = np.where(better, here[:, None], before[open_to])
            col = np.where(seen[open_to], np.inf, nearest[open_to]).argmin(axis=1)
            length[open_to] = nearest[open_to, col]
            seen[open_to, col] = True
            last[open_to], current[open_to] = col, owner[open_to, col]
            open_to = open_to[current[open_to] >= 0]
        of_row[where, row] += length[where]
        less = np.where(seen, length[:, None] - nearest, 0.0)
        problem, col = np.nonzero(seen & (owner >= 0))
        of_row[problem, owner[problem, col]] += less[problem, col]
        of_col -= less
        while len(where):  # back along the paths, to the row that they began with
            col = last[where]
            current = before[where, col]
            owner[where, col] = current
            last[where] = given[where, current]
            given[where, current] = col
            where = where[current != row]
    for problem in np.flatnonzero(many):
        given[problem, present[problem]] = assign(table[problem, present[problem]])
    return given
