"""Slow, obvious losses of queries: one image, one object and one pixel at a time, in float64."""

import math

from scipy.optimize import linear_sum_assignment

Row = list[float]
Table = list[Row]
Thing = tuple[int, Table, Row | None]  # class, mask and box


def softmax(values: Row) -> Row:
    top = max(values)
    each = [math.exp(value - top) for value in values]
    return [value / sum(each) for value in each]


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def giou(a: Row, b: Row) -> float:
    area = [max(box[2] - box[0], 0) * max(box[3] - box[1], 0) for box in (a, b)]
    wide = max(min(a[2], b[2]) - max(a[0], b[0]), 0)
    tall = max(min(a[3], b[3]) - max(a[1], b[1]), 0)
    union = area[0] + area[1] - wide * tall
    hull = (max(a[2], b[2]) - min(a[0], b[0])) * (max(a[3], b[3]) - min(a[1], b[1]))
    return wide * tall / union - (hull - union) / hull


def mask_loss(logits: Table, target: Table, known: Table) -> tuple[float, float]:
    """Cross-entropy and dice of one mask, over the pixels that count."""
    pixels, total, both, either = 0.0, 0.0, 0.0, 0.0
    for row, line in enumerate(logits):
        for col, value in enumerate(line):
            share, weight, odds = target[row][col], known[row][col], sigmoid(value)
            pixels += -weight * (share * math.log(odds) + (1 - share) * math.log(1 - odds))
            total += weight
            both += share * weight * odds * weight
            either += (share + odds) * weight
    return pixels / total, 1 - (2 * both + 1) / (either + 1)


def enlarged(table: Table, rows: int, cols: int) -> Table:
    """A table at another size, each new value a mixture of the four old ones around its middle."""

    def between(old: int, new: int) -> list[tuple[int, int, float]]:
        found = []
        for place in range(new):
            at = min(max((place + 0.5) * old / new - 0.5, 0.0), old - 1.0)
            first = int(at)
            found.append((first, min(first + 1, old - 1), at - first))
        return found

    made = []
    for top, bottom, down in between(len(table), rows):
        line = []
        for left, right, across in between(len(table[0]), cols):
            upper = table[top][left] * (1 - across) + table[top][right] * across
            lower = table[bottom][left] * (1 - across) + table[bottom][right] * across
            line.append(upper * (1 - down) + lower * down)
        made.append(line)
    return made


def image_loss(
    classes: Table, masks: list[Table], boxes: Table, objects: list[Thing], known: Table
) -> tuple[float, list[int]]:
    """Match objects (class, mask, box) with scipy, and give the loss and the queries of the objects."""
    shares = [softmax(row) for row in classes]
    costs = []
    for number, target, box in objects:
        row = []
        for query in range(len(classes)):
            entropy, dice = mask_loss(masks[query], target, known) if masks else (0.0, 0.0)
            cost = -2 * shares[query][number] + 5 * entropy + 5 * dice
            if box is not None:
                far = sum(abs(mine - yours) for mine, yours in zip(boxes[query], box, strict=True))
                cost += 5 * far - 2 * giou(boxes[query], box)
            row.append(cost)
        costs.append(row)
    rows, cols = linear_sum_assignment(costs) if costs else ((), ())
    query_of = {int(row): int(col) for row, col in zip(rows, cols, strict=True)}
    queries = [query_of.get(place, -1) for place in range(len(objects))]
    return loss_of(classes, masks, boxes, objects, known, queries), queries


def loss_of(
    classes: Table, masks: list[Table], boxes: Table, objects: list[Thing], known: Table, queries: list[int]
) -> float:
    """The loss of an image whose objects have these queries; -1: none."""
    shares = [softmax(row) for row in classes]
    query_of = {place: query for place, query in enumerate(queries) if query >= 0}
    object_of = {col: row for row, col in query_of.items()}
    loss, weights = 0.0, 0.0
    for query, share in enumerate(shares):
        wanted = objects[object_of[query]][0] if query in object_of else len(share) - 1
        weight = 1.0 if query in object_of else 0.1
        loss += -2 * weight * math.log(share[wanted])
        weights += weight
    loss /= weights
    for place, query in query_of.items():
        _, target, box = objects[place]
        entropy, dice = mask_loss(masks[query], target, known) if masks else (0.0, 0.0)
        more = 5 * entropy + 5 * dice
        if box is not None:
            far = sum(abs(mine - yours) for mine, yours in zip(boxes[query], box, strict=True))
            more += 5 * far + 2 * (1 - giou(boxes[query], box))
        loss += more / len(query_of)
    return loss


def guess_loss(classes: Table, boxes: Table, objects: list[tuple[int, Row]], grid: tuple[int, int]) -> float:
    """The loss of what every patch is guessed to be, one at a time."""
    loss, weights, real = 0.0, 0.0, []
    for place, scores in enumerate(classes):
        y, x = (place // grid[1] + 0.5) / grid[0], (place % grid[1] + 0.5) / grid[1]
        found = None
        for number, (left, top, right, bottom) in objects:
            wide, tall = right - left, bottom - top
            near_x = abs(x - (left + right) / 2) <= max(0.25 * wide, 0.5 / grid[1])
            near_y = abs(y - (top + bottom) / 2) <= max(0.25 * tall, 0.5 / grid[0])
            if near_x and near_y and (found is None or wide * tall < found[0]):
                found = (wide * tall, number, [left, top, right, bottom])
        share = softmax(scores)
        weight = 0.1 if found is None else 1.0
        loss += -2 * weight * math.log(share[-1 if found is None else found[1]])
        weights += weight
        if found is not None:
            far = sum(abs(mine - yours) for mine, yours in zip(boxes[place], found[2], strict=True))
            real.append(5 * far + 2 * (1 - giou(boxes[place], found[2])))
    return loss / weights + (sum(real) / len(real) if real else 0.0)
