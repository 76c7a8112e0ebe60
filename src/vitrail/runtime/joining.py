"""What processes do together and have once: each its share, all failing where one fails, rows joined in the first."""

import platform
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from vitrail.runtime.machine import Group
from vitrail.runtime.watch import ProcessError, name_of_process

Result = TypeVar("Result")
ROWS = 1 << 14  # sent at once


def all_or_none(group: Group, do: Callable[[], Result]) -> Result:
    """Let every process do something of its own; where one fails, all fail, with its number and its reason."""
    if group.world_size == 1:
        return do()
    found: Any = None
    error: Exception | None = None
    try:
        found = do()
    except Exception as raised:
        error = raised
    said = None if error is None else (platform.node(), str(error) or type(error).__name__)
    verdicts = group.all_gather(said)
    if error is not None:
        raise error
    for rank, verdict in enumerate(verdicts):
        if verdict is not None:
            raise ProcessError(f"{name_of_process(rank, group.world_size, verdict[0])} failed: {verdict[1]}")
    return found


def share(group: Group, count: int, block: int, stretch: int) -> list[range]:
    """Give this process's numbers below `count`: whole blocks, which are cut as one process cuts them.

    One process goes through `stretch` numbers after the other and cuts each into blocks, the last of which is smaller.
    """
    each = -(-stretch // block)  # blocks of a stretch
    blocks = count // stretch * each + -(-(count % stretch) // block)
    low, high = (blocks * rank // group.world_size for rank in (group.rank, group.rank + 1))

    def start(number: int) -> int:
        return min(number // each * stretch + number % each * block, count)

    first, last = start(low), start(high)
    begins = [first, *range((first // stretch + 1) * stretch, last, stretch)]
    return [range(begin, min((begin // stretch + 1) * stretch, last)) for begin in begins if begin < last]


def join_rows(group: Group, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put the rows of all processes one below the other, in the first; the others keep their own."""
    if group.world_size == 1:
        return dict(rows)
    counts = [int(row[0]) for row in group.all_gather_numbers(*(len(part) for part in rows.values()))]
    found = {}
    for name, own in rows.items():
        if not group.is_main:
            for part in own.split(ROWS):
                dist.send(part.contiguous(), dst=0, group=group.hosts)
            found[name] = own
            continue
        whole = found[name] = torch.empty(sum(counts), *own.shape[1:], dtype=own.dtype)
        whole[: len(own)] = own
        for rank, part in enumerate(whole.split(counts)):
            for some in part.split(ROWS) if rank else ():
                dist.recv(some, src=rank, group=group.hosts)
    return found


def join_lists(group: Group, own: list[Any]) -> list[Any]:
    """Put the lists of all processes behind each other, in the first; the others keep their own."""
    if group.world_size == 1:
        return own
    parts: list[Any] | None = [None] * group.world_size if group.is_main else None
    dist.gather_object(own, parts, dst=0, group=group.hosts)
    return own if parts is None else [each for part in parts for each in part]
