"""Graphs of CUDA: what was captured once is launched as one, so that the host need not launch every kernel."""

from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")
Replay = Callable[[], object]  # computes the result again, in its place, of what is in the places that were read


def capture(run: Callable[[], Result]) -> tuple[Replay, Result]:
    """Capture what some work launches; it has run before, so that nothing is compiled or made the first time in it.

    Nothing is computed yet, and other threads go on copying meanwhile.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = run()
    return graph.replay, result
