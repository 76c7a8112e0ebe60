"""The loop: for every objective, on one screen."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.config.recipe import Training, decay_at, rate_at
from vitrail.data.feed import Loader
from vitrail.data.source import Batch, Skip
from vitrail.errors import ConfigError
from vitrail.models import give_keys
from vitrail.models.adapting import train_mode
from vitrail.ops.constants import upload
from vitrail.ops.random import Purpose, key, mix
from vitrail.runtime.machine import Group
from vitrail.train.dense import DensePrediction
from vitrail.train.guard import Guard
from vitrail.train.objective import BuiltObjective
from vitrail.train.state import State, clip, gradients, set_rate
from vitrail.train.step_graphs import Given, StepGraphs, launch

NAMED, RANKS = 8, 4  # samples of a step that diverged, and ranks whose samples are named
ROWS = ("images", "labels", "samples", "targets", "masks", "objects", "shapes")  # of a batch, one for each image


@dataclass
class Chore:
    """What is done beside the training, every so many steps: log, evaluate, save."""

    every: int

    def begin(self, state: State) -> None:
        """Prepare for the first step."""

    def __call__(self, state: State, *, ends: bool, interrupted: bool) -> None:
        """Do it where it is due after a step; `ends` where the run is over, `interrupted` where it goes on later."""
        if ends or not state.step % self.every:
            self.do(state)

    def do(self, state: State) -> None:
        """Do it."""
        raise NotImplementedError


class Turn(NamedTuple):
    """A run planned anew: from a step on, where its schedule is then, and the step that it is to end with."""

    step: int
    place: float
    steps: int


@dataclass(kw_only=True)
class Plan:
    """What does not change in a run; how much goes through at once aside, and its end where it is to end in time."""

    config: Training
    steps: int
    feed: Loader
    objective: BuiltObjective | DensePrediction
    forward: Callable[..., Tensor]  # the objective's module, compiled and wrapped as it may be
    autocast: Callable[[], AbstractContextManager[object]]
    group: Group
    guard: Guard
    micro_batch: int
    interrupted: Callable[[], bool] = lambda: False  # somebody asks to save and to go on later
    stopped: Callable[[], bool] = lambda: False  # somebody asks to end here
    no_sync: Callable[[], AbstractContextManager[object]] = nullcontext  # gradients from the other ranks
    pad_to_micro_batch: bool = False  # as a compiled model is made for one size
    graphs: StepGraphs | None = None  # where passes are launched as graphs
    objects: int = 0  # that an image has at most, of those that were looked at; of tasks of pixels or objects
    planned: int = 0  # steps at first
    turn: Turn | None = None  # the last one

    def __post_init__(self) -> None:
        self.planned = self.steps

    def take_turn(self, turn: Turn) -> None:
        """End elsewhere."""
        self.turn, self.steps = turn, turn.steps

    def place(self, step: int) -> float:
        """Say where the schedule is at a step, of the steps that were planned at first: it goes on without a jump."""
        if self.turn is None:
            return step
        left = max(self.turn.steps - self.turn.step, 1)
        return self.turn.place + (step - self.turn.step) * (self.planned - self.turn.place) / left


def train(plan: Plan, state: State, chores: Sequence[Chore]) -> bool:
    """Go from the state's step to the end; tells whether it got there or was interrupted."""
    interrupted = False
    for chore in chores:
        chore.begin(state)
    with plan.group.training(), closing(plan.feed.stream(start=state.step)) as batches:
        settled = plan.group.world_size == 1 or plan.config.parallel == "fsdp"
        while not (is_over(plan, state) or interrupted):
            batch = next(batches)
            settled = settled or settle_buckets(plan, state, batch)
            interrupted = train_step(plan, state, batch)
            if plan.group.world_size == 1:
                interrupted = plan.interrupted()
            for chore in chores:
                chore(state, ends=is_over(plan, state), interrupted=interrupted)
    return is_over(plan, state)


def settle_buckets(plan: Plan, state: State, batch: Batch) -> bool:
    """Send no image through, so that DDP orders its buckets before the first step and not after it.

    Sums of three ranks or more depend on where a gradient is in its bucket: a step that resumes would have other bits.
    """
    train_mode(state.module)
    accumulate(plan, state, change_rows(batch, itemgetter(slice(0))), 0, 1)
    state.optimizer.zero_grad(set_to_none=True)
    return True


def train_step(plan: Plan, state: State, batch: Batch) -> bool:
    """One update from one global batch, whatever share of it goes through at once; tells whether to end after it."""
    config = plan.config
    rate = rate_at(config.schedule, config.optimizer.learning_rate, plan.place(state.step), plan.planned)
    shares, skipped, asked, stopped = zip(
        *plan.group.all_gather_numbers(len(batch.labels), len(batch.skipped), plan.interrupted(), plan.stopped()),
        strict=True,
    )
    state.stopped = any(stopped)
    if any(skipped):
        note_bad(plan, state, batch)
    if not any(shares):  # nothing of the step could be decoded
        state.step += 1
        return any(asked)
    set_rate(state.optimizer, rate)
    train_mode(state.module)
    own = accumulate(plan, state, batch, int(sum(shares)), int(max(shares)))
    loss = plan.group.all_reduce_sum(own)
    norm = clip(gradients(state.optimizer), config.clip_norm)
    plan.guard.look(loss, norm, partial(name_step, plan, state.step, batch.samples, own))
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    if state.average is not None and config.ema is not None:
        state.average.update(state.module, decay_at(config.ema, state.step))
    state.epoch, state.rate, state.norm = plan.feed.order.shown(batch.epoch), rate, norm
    state.step += 1
    return any(asked)


def name_step(plan: Plan, step: int, samples: Tensor, loss: Tensor) -> str:
    """Say which step it was, and some of its images: of the ranks whose own loss is not finite, where some are."""
    source, group = plan.feed.source, plan.group
    names = ", ".join(f"{sample} ({source.name(sample)})" for sample in samples[:NAMED].tolist())
    names = f"samples {names}{' and others' if len(samples) > NAMED else ''}"
    if group.world_size == 1:
        return f"step {step}, {names}"
    every = group.all_gather((bool(torch.isfinite(loss)), names))  # all are here: they have seen the same sum
    bad = [rank for rank, (fine, _) in enumerate(every) if not fine] or range(group.world_size)
    said = [f"rank {rank} of {group.world_size}, {every[rank][1]}" for rank in bad[:RANKS]]
    return f"step {step}, {'; '.join(said)}{' and others' if len(bad) > RANKS else ''}"


def accumulate(plan: Plan, state: State, batch: Batch, images: int, most: int) -> Tensor:
    """Add up the gradients of the mean loss over all ranks' images, part by part; give this rank's share of the loss.

    A micro-batch that does not fit into memory is halved, once and for all.
    """
    while True:
        tally, total = state.tally.clone(), torch.zeros((), device=plan.group.device)
        try:
            parts = list(split_micro_batches(batch, plan.micro_batch, -(-most // plan.micro_batch)))
            for number, part in enumerate(parts):
                with nullcontext() if number + 1 == len(parts) else plan.no_sync():
                    total += micro_step(plan, state, part, plan.group.world_size / max(images, 1))
            return total
        except torch.OutOfMemoryError as error:
            if plan.micro_batch == 1 or plan.group.world_size > 1:
                raise ConfigError(
                    f"{plan.micro_batch} images at a time do not fit into the memory of {plan.group.device}. "
                    "Set micro_batch to fewer, model.checkpointing=true, or take a smaller model."
                ) from error
            if plan.graphs is not None:
                plan.graphs.forget()
            state.tally.copy_(tally)
            state.optimizer.zero_grad(set_to_none=True)
            plan.micro_batch = -(-plan.micro_batch // 2)
        torch.cuda.empty_cache()


def micro_step(plan: Plan, state: State, part: Batch, scale: float) -> Tensor:
    """Send some images through, forward and backward; give the sum of their losses as it weighs in the gradient."""
    real = len(part.labels)
    # One at least, as the other ranks may wait for this one's gradients; all, as a compiled model is made for one size.
    part = pad_batch(part, plan.micro_batch if plan.pad_to_micro_batch else 1)
    assert part.targets is not None
    keys = upload(sample_keys(part, plan.config.seed), part.images.device)
    given = Given(part, plan.objective.inputs(part), keys)
    with attention_draws(plan, state, part):
        loss, sums = (plan.graphs or launch)(partial(passes, plan, state, real, scale), given, (real, scale))
    if real:
        state.tally += sums
    return loss


def passes(plan: Plan, state: State, real: int, scale: float, given: Given) -> tuple[Tensor, Tensor]:
    """Compute a part forward and backward; give its loss, and the sums of losses, correct answers and images."""
    give_keys(state.model, given.keys)
    with plan.autocast():
        outputs = plan.forward(*given.inputs)
    losses, correct = plan.objective.compute_loss(outputs, given.part, given.inputs)
    loss = losses[:real].sum() * scale  # what fills up has none
    loss.backward()
    sums = [losses[:real].detach().sum(dtype=torch.float64), correct[:real].sum(dtype=torch.float64)]
    return loss.detach(), torch.stack([*sums, torch.full_like(sums[0], real)])


@contextmanager
def attention_draws(plan: Plan, state: State, part: Batch) -> Iterator[None]:
    """Let what fused attention drops, from torch's generator, depend on the part alone; nothing else draws from it."""
    if not getattr(state.model.config, "attention_dropout", 0.0):
        yield
        return
    first = int(part.samples[0]) if len(part.samples) else 0
    devices = [part.images.device] if part.images.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(int(key(plan.config.seed, part.epoch, first, Purpose.DROPOUT) >> np.uint64(1)))
        yield


def pad_batch(part: Batch, size: int) -> Batch:
    """Put empty images without labels behind, so that there are so many; they have no loss."""
    missing = size - len(part.labels)
    if missing <= 0:
        return part
    return change_rows(part, lambda rows: torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]))


def split_micro_batches(batch: Batch, size: int, least: int) -> Iterator[Batch]:
    """Cut a batch into parts; as many on every rank, where the last may be empty."""
    for number in range(max(least, -(-len(batch.labels) // size), 1)):
        yield change_rows(batch, itemgetter(slice(number * size, (number + 1) * size)))


def change_rows(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """Do the same to all that a batch has a row of for each image."""
    rows = {name: getattr(batch, name) for name in ROWS}
    return batch._replace(**{name: change(held) for name, held in rows.items() if held is not None})


def sample_keys(batch: Batch, seed: int) -> NDArray[np.int64]:
    """Give each sample the key of its dropout masks: a function of (seed, epoch, sample)."""
    hashed = mix(batch.samples.numpy().astype(np.uint64) ^ key(seed, batch.epoch, Purpose.DROPOUT))
    return hashed.astype(np.int64)


def is_over(plan: Plan, state: State) -> bool:
    """Tell whether all steps are done, somebody asked to end, or evaluations have stopped getting better."""
    patience = plan.config.patience
    stopped = plan.stopped() if plan.group.world_size == 1 else state.stopped  # on all ranks alike
    return stopped or state.step >= plan.steps or (patience is not None and state.stale >= patience)


def note_bad(plan: Plan, state: State, batch: Batch) -> None:
    """Tell all ranks of images that could not be decoded, so that the limit counts them all."""
    found = [skip for part in plan.group.all_gather(batch.skipped) for skip in part]
    plan.feed.note(tuple(found))
    state.bad = [skip or Skip(sample, "", "") for sample, skip in plan.feed.bad.items()]
