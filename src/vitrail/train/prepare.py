"""From a task to what the loop takes: precision, compilation, ranks, feed, chores, and the state as it was saved."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, assert_never, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitrail.config import Card
from vitrail.config.objective import Labels, MaskedAutoencoder, MaskedPatches, NextPixels
from vitrail.config.recipe import Training
from vitrail.config.recipes import adjust, fit
from vitrail.data.feed import BatchStream, train_feed
from vitrail.data.loader import Loader
from vitrail.data.source import Source
from vitrail.models import BiT, Model, ViT
from vitrail.runtime.group import Group, shard
from vitrail.runtime.memory import fit_micro_batch
from vitrail.runtime.reporter import Reporter
from vitrail.train.checkpoints import Checkpoints, Journal
from vitrail.train.chores import Evaluate, Evaluation, Log, Probing, Save
from vitrail.train.loop import Chore, Plan
from vitrail.train.mae import MaskedAutoencoding
from vitrail.train.masked import MaskedPatchPrediction
from vitrail.train.measure import measure_accuracy, measure_objective
from vitrail.train.objective import BuiltObjective, Classification, OwnObjective
from vitrail.train.optimizer import Guard, ModelEMA, build_optimizer
from vitrail.train.parts import Parts
from vitrail.train.pixels import NextPixelPrediction, palette_of
from vitrail.train.state import State
from vitrail.train.task import Task, build_model

Forward = Callable[..., Tensor]
Autocast = Callable[[], AbstractContextManager[object]]
MOST_EVALUATED = 256  # images at once
TIMES = 10  # evaluations and checkpoints of a run, where nothing else is said


@runtime_checkable
class Probe(Protocol):
    """How the features of a model are probed, with images of its own; handed in."""

    def __call__(self, model: Model, *, group: Group, batch: int, workers: int, limit: float) -> Mapping[str, float]:
        """Give numbers by name; the same on all ranks."""
        ...


@dataclass(frozen=True, kw_only=True)
class Ready:
    """Everything that a run is made of."""

    plan: Plan
    state: State
    chores: tuple[Chore, ...]
    evaluate: Callable[[Source], Mapping[str, float]]
    checkpoints: Checkpoints
    journal: Journal
    said: list[str]


def prepare(task: Task, parts: Parts, group: Group, report: Reporter, probe: Probe | None = None) -> Ready:
    """Build everything; nothing is read from an earlier run yet."""
    training = task.training
    precision = choose_precision(training, group.device)
    model = build_model(task, training, parts.train.class_names).to(group.device)
    feed = build_feed(task, parts.train, model, group)
    training, steps, said = resolve_steps(training, feed.loader)

    def palette() -> Tensor:
        report.note("making a palette of the training images")
        return group.broadcast(palette_of(parts.train, model, training) if group.is_main else None)

    if task.objective is None:
        objective = build_objective(model, training, palette)
    else:
        objective = OwnObjective(task.objective, model)
        objective.module.to(group.device)
    forward, hold = wrap(model, objective.module, training, group)
    optimizer = build_optimizer(objective.module, training.optimizer, training.layer_decay)
    state = State(
        model=model,
        module=objective.module,
        optimizer=optimizer,
        average=None if training.ema is None else ModelEMA(objective.module),
        tally=torch.zeros(3, dtype=torch.float64, device=group.device),
    )
    guard = Guard(optimizer, group.device, waits=training.parallel == "fsdp" and group.world_size > 1)
    autocast = partial(torch.autocast, group.device.type, torch.bfloat16, enabled=precision == "bfloat16")
    share = -(-min(training.batch_size, feed.loader.order.size or training.batch_size) // group.world_size)
    micro = min(group.all_gather(fit_micro_batch(model.config, training, share, group.device, precision)))
    said.append(f"{precision} on {group.device}" + (f", {group.world_size} processes" if group.world_size > 1 else ""))
    if micro < share:
        said.append(f"{micro} images at a time, {-(-share // micro)} times a step: the batch does not fit at once")
    plan = Plan(
        config=training,
        steps=steps,
        feed=feed,
        objective=objective,
        forward=forward,
        autocast=autocast,
        group=group,
        guard=guard,
        micro_batch=micro,
        interrupted=lambda: False,
        stopped=lambda: False,
        no_sync=hold,
        pad_to_micro_batch=compiles(training, group.device),
    )

    def at_once() -> int:
        return min(MOST_EVALUATED, max(plan.micro_batch * 2, 1))

    def evaluate(source: Source) -> Mapping[str, float]:
        if task.objective is not None or not isinstance(training.objective, Labels):
            return measure_objective(plan, state, source, workers=task.workers)
        return measure_accuracy(
            model,
            source,
            group=group,
            batch=at_once(),
            workers=task.workers,
            limit=training.bad_image_limit,
            forward=forward,
            autocast=autocast,
        )

    def probing(probe: Probe) -> Mapping[str, float]:
        model = state.whole_model()
        return probe(model, group=group, batch=at_once(), workers=task.workers, limit=training.bad_image_limit)

    journal = Journal(task.out, tensorboard=task.tensorboard and group.is_main)
    checkpoints = Checkpoints(task.out, keep=training.keep, objective=training.objective)
    evaluated = None if parts.val is None else partial(evaluate, parts.val)
    probed = None if probe is None else partial(probing, probe)
    chores = build_chores(plan, evaluated, probed, journal, checkpoints, report)
    return Ready(
        plan=plan,
        state=state,
        chores=chores,
        evaluate=evaluate,
        checkpoints=checkpoints,
        journal=journal,
        said=said,
    )


def build_chores(
    plan: Plan,
    evaluate: Evaluate | None,
    probe: Evaluate | None,
    journal: Journal,
    checkpoints: Checkpoints,
    report: Reporter,
) -> tuple[Chore, ...]:
    """Evaluate, which may end the run, and probe, then log, then save: a checkpoint holds what was logged before it."""
    config, group = plan.config, plan.group
    assert config.evaluate_every is not None
    assert config.probe_every is not None
    assert config.save_every is not None
    log = Log(config.log_every, journal, group, report, plan.guard, counts=plan.objective.counts)
    save = Save(
        config.save_every,
        checkpoints,
        journal,
        group,
        card_of,
        report,
        plan.guard,
        lambda: numeric_environment(plan),
    )
    measuring: list[Chore] = []
    if evaluate is not None:
        measuring.append(Evaluation(config.evaluate_every, evaluate, journal, group, report, log, plan.guard))
    if probe is not None:
        measuring.append(Probing(config.probe_every, probe, journal, group, report, log, plan.guard))
    return (*measuring, log, save)


def numeric_environment(plan: Plan) -> dict[str, Any]:
    """Give what changes a result in its last digits."""
    return {
        "threads": torch.get_num_threads(),
        "processes": plan.group.world_size,
        "images at a time": plan.micro_batch,
        "device": plan.group.device.type,
        "compiled": plan.pad_to_micro_batch,
        "shared out": plan.group.world_size > 1 and plan.config.parallel == "fsdp",
        "torch": torch.__version__,
    }


def card_of(state: State, metrics: Mapping[str, float] | None = None) -> Card:
    """Give what belongs to the weights: class names, preprocessing, where they come from, how good they are."""
    return replace(state.model.card, metrics=dict(state.metrics if metrics is None else metrics))


def resolve_steps(training: Training, loader: Loader) -> tuple[Training, int, list[str]]:
    """Turn epochs into steps, fit the schedule, and fill in when to evaluate and save; say what was changed."""
    steps = training.steps or max(round((training.epochs or 0) * loader.steps), 1)
    if training.schedule.warmup_epochs is not None:
        warmup = round(training.schedule.warmup_epochs * loader.steps)
        training = adjust(training, {"schedule.warmup_steps": warmup})
    training, said = fit(training, steps)
    often = max(steps // TIMES, 1)
    evaluate_every = training.evaluate_every or often
    filled = {
        "evaluate_every": evaluate_every,
        "probe_every": training.probe_every or evaluate_every,
        "save_every": training.save_every or often,
        "log_every": min(training.log_every, steps),
    }
    count = loader.order.size
    if count is not None and training.batch_size > count:
        said.append(f"each step sees all {count:,} images, fewer than the batch of {training.batch_size:,}")
    return adjust(training, filled), steps, said


def build_feed(task: Task, source: Source, model: Model, group: Group) -> BatchStream:
    """BatchStream the training images at the model's size, with its preprocessing."""
    training = task.training
    return train_feed(
        source,
        model.config.image_size,
        batch=training.batch_size,
        augmentation=training.augmentation,
        preprocessing=model.card.preprocessing,
        seed=training.seed,
        channels=model.config.channels,
        workers=task.workers,
        rank=group.rank,
        ranks=group.world_size,
        bad_image_limit=training.bad_image_limit,
        device=group.device,
        augment_on=training.augment_on,
        full=True,
    )


def choose_precision(training: Training, device: torch.device) -> str:
    """Take bfloat16 where the device has it in hardware, unless something else is said."""
    if training.precision != "auto":
        return training.precision
    return (
        "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    )


def build_objective(model: Model, training: Training, palette: Callable[[], Tensor]) -> BuiltObjective:
    """Make what is learned from the images; a palette where one is needed."""
    match training.objective:
        case Labels():
            return Classification(model, training)
        case MaskedPatches() as config:
            made = MaskedPatchPrediction(model, config, seed=training.seed)
        case MaskedAutoencoder() as config:
            made = MaskedAutoencoding(model, config, seed=training.seed)
        case NextPixels() as config:
            made = NextPixelPrediction(model, config, palette())
        case _:
            assert_never(training.objective)
    made.module.to(next(model.parameters()).device)
    return made


def wrap(model: Model, module: nn.Module, training: Training, group: Group) -> tuple[Forward, Autocast]:
    """Give what is trained as it is called, compiled and shared among ranks, and what holds gradients back."""
    compiled = compiles(training, group.device)
    if group.world_size > 1 and training.parallel == "fsdp":
        parts: list[nn.Module] = list(model.blocks) if isinstance(model, ViT) else list(units(model))
        if compiled:
            # Blocks share their code and differ in their rate of stochastic depth; each trains and evaluates.
            limit = 2 * len(parts) + 2
            torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, limit)
            for part in parts:
                part.compile(dynamic=False)
        shard(module, parts)
        return module, nullcontext
    if group.world_size > 1:
        whole = DistributedDataParallel(module, device_ids=[group.device] if group.device.type == "cuda" else None)
        return (torch.compile(whole, dynamic=False) if compiled else whole), whole.no_sync
    return (torch.compile(module, dynamic=False) if compiled else module), nullcontext


def compiles(training: Training, device: torch.device) -> bool:
    """Tell whether the model is compiled."""
    return training.compile == "on" or (training.compile == "auto" and device.type == "cuda")


def units(model: Model) -> list[nn.Module]:
    """List the stages of a ResNet."""
    assert isinstance(model, BiT)
    return [child for child in model.children() if sum(1 for _ in child.parameters()) > 1]
