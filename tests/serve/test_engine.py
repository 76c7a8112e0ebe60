"""Batches without a timer, deadlines, refusals, and clients that have gone."""

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from vitrail.data.decode import ImageError
from vitrail.serve.engine import Engine
from vitrail.serve.jobs import BadImagesError, RefusedError
from vitrail.serve.metrics import Metrics
from vitrail.serve.waiting import Fit


@dataclass(eq=False)
class Doubling:
    """Doubles numbers; a batch waits until it is let go."""

    tokens: int = 100
    most: int = 256
    go: threading.Event = field(default_factory=threading.Event)
    batches: list[list[int]] = field(default_factory=list)
    decoded: list[int] = field(default_factory=list)

    def decode(self, data: bytes) -> int:
        if data == b"bad":
            raise ImageError("no image")
        self.decoded.append(int(data))
        return int(data)

    def compute(self, images: Sequence[int]) -> list[int]:
        self.batches.append(list(images))
        assert self.go.wait(20)
        if 13 in images:
            raise RuntimeError("unlucky")
        return [2 * image for image in images]


def engine(**options: Any) -> Engine:
    made = Engine(Metrics(), device=torch.device("cpu"), **options)
    made._lanes_wanted = 1
    made.start(asyncio.get_running_loop())
    return made


async def until(true: Any) -> None:
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not become true")


def soon(seconds: float = 20.0) -> float:
    return time.monotonic() + seconds


def test_what_waits_while_the_model_works_is_the_next_batch_up_to_its_tokens() -> None:
    async def run() -> tuple[list[list[int]], list[list[Any]]]:
        task, made = Doubling(), engine(batch_tokens=400)
        first = asyncio.create_task(made.answer(task, [b"1"], soon()))
        await until(lambda: task.batches)
        others = [asyncio.create_task(made.answer(task, [b"%d" % n], soon())) for n in range(2, 8)]
        await until(lambda: len(task.decoded) == 7 and made.waiting() == 6)
        task.go.set()
        tickets = await asyncio.gather(first, *others)
        made.stop()
        assert made.waiting() == 0
        return task.batches, [ticket.answers for ticket in tickets]

    batches, answers = asyncio.run(run())
    assert [len(batch) for batch in batches] == [1, 4, 2]
    assert answers == [[2 * n] for n in range(1, 8)]


def test_a_request_of_several_images_is_answered_whole_and_in_order() -> None:
    async def run() -> list[Any]:
        task, made = Doubling(), engine(batch_tokens=300)
        task.go.set()
        ticket = await made.answer(task, [b"%d" % n for n in range(7)], soon())
        made.stop()
        return ticket.answers

    assert asyncio.run(run()) == [2 * n for n in range(7)]


def test_nothing_is_decoded_or_computed_for_a_client_that_has_gone() -> None:
    async def run() -> Doubling:
        task, made = Doubling(), engine()
        first = asyncio.create_task(made.answer(task, [b"1"], soon()))
        await until(lambda: task.batches)
        gone = asyncio.create_task(made.answer(task, [b"2"], soon()))
        await until(lambda: 2 in task.decoded)
        gone.cancel()
        await asyncio.wait([gone])
        task.go.set()
        await first
        await made.answer(task, [b"3"], soon())
        made.stop()
        assert made.waiting() == 0
        return task

    assert [1] in (batches := asyncio.run(run()).batches)
    assert not any(2 in batch for batch in batches)


def test_a_request_that_would_come_too_late_is_refused_at_the_door_with_its_wait() -> None:
    async def run() -> RefusedError:
        task, made = Doubling(), engine(batch_tokens=100)
        for _ in range(5):
            made._fit(task).add(1, 2.0)
        waiting = [asyncio.create_task(made.answer(task, [b"1"], soon())) for _ in range(4)]
        await until(lambda: made.waiting() == 3)
        assert 6 < made.predict_wait(task, 1) <= 10.1  # one is computed, three wait, and its own
        with pytest.raises(RefusedError, match="would take") as refused:
            await made.answer(task, [b"2"], soon(5))
        task.go.set()
        await asyncio.gather(*waiting)
        made.stop()
        assert 2 not in task.decoded
        return refused.value

    assert asyncio.run(run()).retry_after in (7, 8, 9, 10, 11)


def test_the_queue_is_bounded() -> None:
    async def run() -> None:
        task, made = Doubling(), engine(queue=3, batch_tokens=100)
        waiting = [asyncio.create_task(made.answer(task, [b"1"], soon()))]
        await until(lambda: task.batches)  # the model is busy, and three more may wait
        waiting += [asyncio.create_task(made.answer(task, [b"1"], soon())) for _ in range(3)]
        await until(lambda: made.waiting() == 3)
        with pytest.raises(RefusedError, match="3 images wait already, of at most 3"):
            await made.answer(task, [b"1"], soon())
        task.go.set()
        await asyncio.gather(*waiting)
        made.stop()

    asyncio.run(run())


def test_a_deadline_that_passes_ends_the_wait() -> None:
    async def run() -> None:
        task, made = Doubling(), engine()
        with pytest.raises(RefusedError, match="no answer within") as late:
            await made.answer(task, [b"1"], soon(0.2))
        assert late.value.reason == "late"
        task.go.set()
        made.stop()

    asyncio.run(run())


def test_a_bad_image_and_a_failing_batch_fail_their_own_request_alone() -> None:
    async def run() -> None:
        task, made = Doubling(), engine(batch_tokens=100)
        task.go.set()
        with pytest.raises(BadImagesError, match="image 1: no image"):
            await made.answer(task, [b"1", b"bad"], soon())
        with pytest.raises(RuntimeError, match="unlucky"):
            await made.answer(task, [b"13"], soon())
        assert (await made.answer(task, [b"4"], soon())).answers == [8]
        made.stop()
        assert made.waiting() == made._decoding == 0

    asyncio.run(run())


def test_the_fit_is_least_squares_and_never_negative() -> None:
    fit, random = Fit(), np.random.default_rng(0)
    sizes = random.integers(1, 17, 60)
    for size in sizes:
        fit.add(int(size), 0.01 + 0.002 * int(size))
    assert fit.coefficients() == pytest.approx((0.01, 0.002))
    assert fit.predict(20, 8) == pytest.approx(3 * 0.01 + 20 * 0.002)
    same = Fit()
    for _ in range(5):
        same.add(4, 0.1)
    assert same.predict(8, 4) == pytest.approx(0.2)
    falling = Fit()
    for size, seconds in ((1, 1.0), (8, 0.1)) * 4:
        falling.add(size, seconds)
    assert min(falling.coefficients()) >= 0
    assert Fit().predict(5, 2) == 0
