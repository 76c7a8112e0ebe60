"""From what a way is, as data, to what measures it; and what it needs."""

from typing import assert_never

from vitrail.ops.cost.counts import Step, peak_memory
from vitrail.studies.bench.peers import config_of
from vitrail.studies.bench.table import (
    Decode,
    Forward,
    Load,
    Opened,
    Products,
    StepMemory,
    TrainLoop,
    TrainStep,
    Work,
)
from vitrail.studies.bench.timing import Clock

LITTLE = 2 << 30  # bytes of a GPU that any process may take, its context and libraries
MORE = 1.1  # times the prediction


def open_work(work: Work, clock: Clock) -> Opened:
    """Make ready to measure; what the work does not need is not imported."""
    match work:
        case Forward():
            from vitrail.studies.bench.forward import open_forward

            return open_forward(work, clock)
        case Products():
            from vitrail.studies.bench.products import open_products

            return open_products(work, clock)
        case TrainStep():
            from vitrail.studies.bench.training import open_training

            return open_training(work, clock)
        case TrainLoop():
            from vitrail.studies.bench.training import open_loop

            return open_loop(work, clock)
        case StepMemory():
            from vitrail.studies.bench.memory import open_memory

            return open_memory(work, clock.device)
        case Decode():
            from vitrail.studies.bench.decoding import open_decoding

            return open_decoding(work)
        case Load():
            from vitrail.studies.bench.loading import open_loading

            return open_loading(work)
        case _:
            assert_never(work)


def gpu_bytes(work: Work) -> int:
    """Predict the bytes of a GPU that a way takes at most."""
    kind, precision = "train", "bfloat16"
    match work:
        case Decode() | Load():
            return 0
        case Forward() | Products():
            kind = "infer"
        case StepMemory():
            if work.predicted:
                return 0
            kind, precision = work.kind, work.precision
        case TrainStep() | TrainLoop():
            pass
        case _:
            assert_never(work)
    step = Step(kind=kind, batch=work.shape.batch, precision=precision)
    return LITTLE + int(MORE * peak_memory(config_of(work.shape), step).total)
