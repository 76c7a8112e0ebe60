"""Requests of many clients in batches of one model, without a timer: a model that is free takes what waits.

Images are decoded by threads beside the model, as soon as they come; one that comes while nothing else is done is
decoded by the lane that computes it, with all cores. On a CPU every core has a lane of its own, which
takes a batch and computes it with one thread, as `vitrail predict` does; the first lane, where it is alone, uses all
cores (OpenMP is slow where the pools of a process have more threads than there are cores). What nobody waits for any
more is dropped before it costs anything.
"""

import asyncio
import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from vitrail.data.decode import ImageError
from vitrail.serve.jobs import BadImagesError, Job, RefusedError, Running, Task, Ticket
from vitrail.serve.metrics import Metrics
from vitrail.serve.waiting import Fit

log = logging.getLogger("vitrail.serve")
CPU_TOKENS, GPU_TOKENS = 1024, 16_384  # of a batch


class Engine:
    """Takes requests in the event loop; threads decode and compute; answers come back to the loop."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        device: torch.device,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        queue: int = 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.metrics, self.device, self.queue, self.clock = metrics, device, queue, clock
        self.cores = torch.get_num_threads()
        gpu = device.type != "cpu"
        self.batch_size, self.batch_tokens = batch_size, batch_tokens or (GPU_TOKENS if gpu else CPU_TOKENS)
        self._lanes_wanted = 1 if gpu else self.cores
        self._decoders = max(self.cores, 2)
        self._ready: deque[Job] = deque()
        lock = threading.RLock()
        self._changed, self._first = threading.Condition(lock), threading.Condition(lock)
        self._first_idle = False  # the first lane waits for `_first`, the others for `_changed`
        self._waiting: Counter[Task] = Counter()  # images that are decoded or wait, by what is done with them
        self._decoding = 0  # images among them that are not decoded yet
        self._running: dict[int, Running] = {}  # by lane
        self._fits: dict[Task, Fit] = {}
        self._decode_fit = Fit()
        self._stopped = False
        self._pool: ThreadPoolExecutor | None = None
        self._threads: list[threading.Thread] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        metrics.watch_queue(self.waiting)

    @property
    def lanes(self) -> int:
        """How many batches are computed at once."""
        return self._lanes_wanted

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the threads; answers are given in this event loop."""
        self._loop, self._stopped, self._threads = loop, False, []
        self._pool = ThreadPoolExecutor(
            self._decoders, "decode", initializer=torch.set_num_threads, initargs=(1,)
        )  # two threads that share each image lose to two that take an image each
        for lane in range(self._lanes_wanted):
            thread = threading.Thread(target=self._work, args=(lane,), name=f"lane-{lane}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Let the threads end when nothing waits any more."""
        with self._changed:
            self._stopped = True
            self._wake_all()
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        for thread in self._threads:
            thread.join()

    def waiting(self) -> int:
        """Count the images that wait, those that are being decoded among them."""
        return self._waiting.total()

    def is_idle(self) -> bool:
        """Tell whether nothing waits, and nothing is computed."""
        return not self._running and not self.waiting()

    def most_of(self, task: Task) -> int:
        """Give how many images of a task are computed at once."""
        return max(min(self.batch_tokens // task.tokens, self.batch_size or task.most, task.most), 1)

    def predict_wait(self, task: Task, images: int) -> float:
        """Predict the seconds until so many more images would be answered."""
        now = self.clock()
        with self._changed:
            waiting = dict(self._waiting)
            running = sum(max(each.begun + each.expected - now, 0.0) for each in self._running.values())
            decoding = self._decoding
        before = sum(self._fit(other).predict(count, self.most_of(other)) for other, count in waiting.items() if count)
        decoded = self._decode_fit.predict(decoding, 1) / self._decoders
        own = self._fit(task).predict(images, self.most_of(task)) + self._decode_fit.predict(images, 1)
        return max((before + running) / self.lanes, decoded) + own

    async def answer(self, task: Task, images: Sequence[bytes], deadline: float) -> Ticket:
        """Answer all images of a request; refuse it where it would not be answered within its deadline.

        Where this is cancelled, since the client has gone, what is left of the request is dropped.
        """
        assert self._loop is not None, "start() comes first"
        assert self._pool is not None
        now = self.clock()
        wait = self.predict_wait(task, len(images))
        if self.waiting() + len(images) > self.queue:
            raise self._refuse("queue", f"{self.waiting():,} images wait already, of at most {self.queue:,}", wait)
        if now + wait > deadline:
            left = max(deadline - now, 0.0)
            raise self._refuse(
                "deadline", f"the answer would take {wait:.1f} s, and {left:.1f} s are left for it", wait
            )
        ticket = Ticket(task, deadline, now, self._loop.create_future(), [None] * len(images), len(images))
        jobs = [Job(ticket, place, data, since=now) for place, data in enumerate(images)]
        with self._changed:
            alone = len(jobs) == 1 and self.is_idle()
            self._waiting[task] += len(jobs)
            if alone:
                self._ready.append(jobs[0])
                self._wake_lane()
            else:
                self._decoding += len(jobs)
        for job in jobs if not alone else ():
            job.decoding = True
            self._pool.submit(self._hand_on, job)
        try:
            await asyncio.wait_for(ticket.done, deadline - now)
        except TimeoutError:
            wait = self.predict_wait(task, len(images))
            raise self._refuse("late", f"no answer within {deadline - now:.1f} s: more work came first", wait) from None
        finally:
            ticket.gone = True
        if ticket.error is not None:
            raise ticket.error
        if ticket.failed:
            raise BadImagesError(sorted(ticket.failed))
        return ticket

    def _refuse(self, reason: str, message: str, wait: float) -> RefusedError:
        self.metrics.refused(reason)
        return RefusedError(reason, f"{message}. Try again in {max(math.ceil(wait), 1)} s.", wait)

    def _fit(self, task: Task) -> Fit:
        return self._fits.setdefault(task, Fit())

    def forget(self, task: Task) -> None:
        """Forget how long a task takes that will not come again."""
        self._fits.pop(task, None)

    def _hand_on(self, job: Job) -> None:
        """Decode an image beside the model, and hand it to the lanes."""
        if not self._decode(job):
            return self._finish([job])
        with self._changed:
            self._decoding -= 1
            job.decoding = False
            self._ready.append(job)
            self._wake_lane()
        return None

    def _decode(self, job: Job) -> bool:
        """Decode an image, unless nobody waits for it; tell whether it is there."""
        begun, data, ticket = self.clock(), job.data, job.ticket
        job.data = None
        try:
            if not self._is_wanted(ticket):
                return False
            assert data is not None
            job.image = ticket.task.decode(data)
        except ImageError as error:
            ticket.failed.append((job.place, str(error)))
            return False
        except Exception as error:  # a bug, which must not stop a thread that others wait for
            ticket.error = error
            return False
        taken = self.clock() - begun
        self.metrics.decoding.observe(taken)
        with self._changed:
            self._decode_fit.add(1, taken)
            ticket.seconds["decoding"] = max(ticket.seconds.get("decoding", 0.0), taken)
        return True

    def _is_wanted(self, ticket: Ticket) -> bool:
        """Tell whether anybody waits for a request, and may still get all of it."""
        return not (ticket.gone or ticket.failed or ticket.error or self.clock() > ticket.deadline)

    def _work(self, lane: int) -> None:
        """Compute batch after batch, until nothing waits and the engine is stopped."""
        while (taken := self._take(lane)) is not None:
            jobs = [job for job in taken if job.data is None or self._decode(job)]
            self._finish([job for job in taken if job not in jobs])
            if not jobs:
                with self._changed:
                    self._running.pop(lane, None)
                continue
            task, begun = jobs[0].ticket.task, self.clock()
            try:
                with torch.inference_mode():
                    answers = task.compute([job.image for job in jobs])
                for job, answer in zip(jobs, answers, strict=True):
                    job.ticket.answers[job.place] = answer
            except Exception as error:
                log.exception("a batch of %d images failed", len(jobs))
                for job in jobs:
                    job.ticket.error = error
            computing = self.clock() - begun
            with self._changed:
                self._fit(task).add(len(jobs), computing)
                self._running.pop(lane, None)
            self.metrics.batch.observe(len(jobs))
            self.metrics.computing.observe(computing)
            for job in jobs:
                waited = begun - job.since
                self.metrics.waiting.observe(waited)
                seconds = job.ticket.seconds
                seconds["waiting"] = max(seconds.get("waiting", 0.0), waited)
                seconds["computing"] = max(seconds.get("computing", 0.0), computing)
            self._finish(jobs)

    def _take(self, lane: int) -> list[Job] | None:
        """Take what waits longest and all that can be computed with it; None where the engine is stopped."""
        dropped: list[Job] = []
        with self._changed:
            while not self._ready:
                if self._stopped and not self._decoding:
                    self._wake_all()
                    return None
                self._first_idle = self._first_idle or lane == 0
                (self._changed if lane else self._first).wait()
            self._first_idle = self._first_idle and lane != 0
            first = self._ready[0].ticket.task
            most, taken, others = self.most_of(first), [], []
            while self._ready and len(taken) < most:
                job = self._ready.popleft()
                if not self._is_wanted(job.ticket):
                    dropped.append(job)
                elif job.ticket.task == first:
                    taken.append(job)
                else:
                    others.append(job)
            self._ready.extendleft(reversed(others))
            for job in taken:
                job.counted = False
            self._waiting[first] -= len(taken)
            alone = lane == 0 and not self._running and not self.waiting()
            if taken:
                self._running[lane] = Running(self.clock(), self._fit(first).predict(len(taken), most))
            if self._ready:
                self._wake_lane()
        self._finish(dropped)
        if taken and self.device.type == "cpu":
            torch.set_num_threads(self.cores if alone else 1)  # of this thread's work alone
        return taken

    def _wake_lane(self) -> None:
        """Wake a lane that waits: the first one, where it does."""
        (self._first if self._first_idle else self._changed).notify()
        self._first_idle = False

    def _wake_all(self) -> None:
        self._first.notify_all()
        self._changed.notify_all()

    def _finish(self, jobs: Sequence[Job]) -> None:
        """Count images as done, and wake those whose request is answered."""
        if not jobs:
            return
        answered: list[Ticket] = []
        with self._changed:
            for job in jobs:
                ticket = job.ticket
                if job.counted:
                    self._waiting[ticket.task] -= 1
                    self._decoding -= job.decoding
                    job.counted = job.decoding = False
                job.image = None
                ticket.left -= 1
                if ticket.left == 0:
                    answered.append(ticket)
            for task in [task for task, count in self._waiting.items() if not count]:
                del self._waiting[task]
            if self._stopped:
                self._wake_all()
        if answered and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_wake, answered)


def _wake(tickets: Sequence[Ticket]) -> None:
    for ticket in tickets:
        if not ticket.done.done():
            ticket.done.set_result(None)


def stack(images: Sequence[Tensor], device: torch.device) -> Tensor:
    """Put decoded images together, where the model is."""
    return torch.stack(list(images)).to(device, non_blocking=True)
