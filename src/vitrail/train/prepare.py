"""From a task to what the loop takes: precision, compilation, ranks, feed, chores, and the state as it was saved."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_never

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitrail.config.objective import Labels, MaskedAutoencoder, MaskedPatches, NextPixels
from vitrail.config.outputs import LabelOutputs
from vitrail.config.recipe import Training
from vitrail.config.recipes import adjust, fit
from vitrail.config.task import Classify
from vitrail.data.annotated.feed import annotated_train_feed
from vitrail.data.balanced import BalancedSource
from vitrail.data.feed import Loader, train_feed
from vitrail.data.source import Source
from vitrail.errors import DataError
from vitrail.models import Model, ViT
from vitrail.models.dense import DenseViT
from vitrail.ops.masking import make_palette
from vitrail.runtime.class_token import ClassTokenForward
from vitrail.runtime.compiled import allow_compilations, backend_for, compiles
from vitrail.runtime.inference import InferenceOptions
from vitrail.runtime.machine import Group, multiplies_bfloat16, shard
from vitrail.runtime.reporter import Reporter
from vitrail.runtime.step_memory import fit_micro_batch
from vitrail.train.chores import ANSWER, Evaluate, Evaluation, Log, Probing, Save, Tempo
from vitrail.train.dense import DensePrediction, objects_of
from vitrail.train.distilling import BothHeads, Distilling, open_teacher
from vitrail.train.folder import Checkpoints
from vitrail.train.gaps import count_classes
from vitrail.train.guard import Guard
from vitrail.train.journal import Journal
from vitrail.train.loop import Chore, Plan
from vitrail.train.measuring import measure_accuracy, measure_dense, measure_objective, measure_task, tune_thresholds
from vitrail.train.objective import (
    BuiltObjective,
    Classification,
    Labelled,
    MaskedAutoencoding,
    MaskedPatchPrediction,
    NextPixelPrediction,
    OwnObjective,
)
from vitrail.train.savings import describe_savings
from vitrail.train.state import ModelEMA, State, build_optimizer
from vitrail.train.step_graphs import StepGraphs, check_graphs
from vitrail.train.task import Parts, Task, build_model
from vitrail.train.tasks import TaskObjective, with_outputs

Forward = Callable[..., Tensor]
Autocast = Callable[[], AbstractContextManager[object]]
# From a model to numbers about its features, by name, the same on all ranks; it has images of its own.
Probe = Callable[[Model, InferenceOptions], Mapping[str, float]]
PIXELS = 1 << 16  # of the training images, that make a palette
TOGETHER = 64  # images that are read at once for it
MOST_EVALUATED = 256  # images at once
COMPILATIONS = 128  # of a model's code in a process: several models, at several batch sizes, trained and evaluated
TIMES = 10  # evaluations and checkpoints of a run, where nothing else is said


@dataclass(frozen=True, kw_only=True)
class Ready:
    """Everything that a run is made of."""

    plan: Plan
    state: State
    chores: tuple[Chore, ...]
    evaluate: Callable[[Source], Mapping[str, float]]
    tune: Callable[[Source], Mapping[str, float]] | None  # chooses thresholds of labels, and measures again
    checkpoints: Checkpoints
    journal: Journal
    precision: str


def prepare(task: Task, parts: Parts, group: Group, report: Reporter, probe: Probe | None = None) -> Ready:
    """Build everything; nothing is read from an earlier run yet."""
    training = task.training
    precision = choose_precision(training, group.device)
    model = build_model(task, training, parts.train.class_names).to(group.device)
    model.card = with_outputs(model.card, training.task, lambda: parts.train)
    feed = training_feed(
        BalancedSource(parts.train) if training.sampling == "balanced" else parts.train,
        model,
        training,
        training.batch_size,
        workers=task.workers,
        rank=group.rank,
        ranks=group.world_size,
        device=group.device,
        augment_on=training.augment_on,
        full=True,
    )
    training, steps, said = resolve_steps(training, feed, len(parts.val or ()))
    for text in said:
        report.note(text)

    def palette() -> Tensor:
        report.note("making a palette of the training images")
        return group.broadcast(palette_of(parts.train, model, training) if group.is_main else None)

    objects = 0
    if isinstance(model, DenseViT):
        objective, objects = DensePrediction(model, training), objects_of(parts.train)
    elif task.objective is None:
        objective = build_objective(model, training, palette, partial(count_classes, parts.train))
    else:
        objective = OwnObjective(task.objective, model)
        objective.module.to(group.device)
    if training.compile == "graphs":
        check_graphs(model, objective, group)
    forward, hold = wrap(model, called(objective), training, group)
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
    share = -(-min(training.batch_size, feed.order.size or training.batch_size) // group.world_size)
    fits = fit_micro_batch(model.config, training, share, group.device, precision, group.world_size, objects)
    micro = min(group.all_gather(fits))
    for text in describe_savings(model, training):
        report.note(text)
    report.note(f"{precision} on {group.device}" + (f", {group.world_size} processes" if group.world_size > 1 else ""))
    if micro < share:
        report.note(f"{micro} images at a time, {-(-share // micro)} times a step: the batch does not fit at once")
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
        no_sync=hold,
        pad_to_micro_batch=compiles(training, group.device),
        graphs=StepGraphs(optimizer) if training.compile == "graphs" else None,
        objects=objects,
    )

    if isinstance(objective, DensePrediction):
        objective.progress = lambda: plan.place(state.step) / max(plan.planned, 1)

    def options() -> InferenceOptions:
        return InferenceOptions(
            group=group,
            batch_size=min(MOST_EVALUATED, max(plan.micro_batch * 2, 1)),
            workers=task.workers,
            bad_image_limit=training.bad_image_limit,
            cache=False,
        )

    def tune(source: Source) -> Mapping[str, float]:
        return tune_thresholds(model, source, options(), forward, autocast)

    def evaluate(source: Source) -> Mapping[str, float]:
        if isinstance(objective, DensePrediction):
            return measure_dense(plan, objective.model, source, options())
        if isinstance(objective, TaskObjective):
            return measure_task(model, source, options(), forward, autocast)
        if isinstance(objective, Classification):
            one = None if isinstance(called(objective), BothHeads) else forward  # which gives two classifiers' logits
            return measure_accuracy(model, source, options(), one, autocast)
        return measure_objective(plan, state, source, options())

    journal = Journal(task.out, track=task.track if group.is_main else (), report=report)
    checkpoints = Checkpoints(task.out, keep=training.keep, objective=training.objective)
    evaluated = None if parts.val is None else partial(evaluate, parts.val)
    probed = None if probe is None else lambda: probe(state.whole_model(), options())
    chores = build_chores(plan, evaluated, probed, journal, checkpoints, report)
    if task.until is not None:  # before all others, which may be the last ones then
        last = len(parts.val or ()), len(parts.test or ())
        evaluation = next((chore for chore in chores if isinstance(chore, Evaluation)), None)
        chores = (Tempo(1, plan, journal, report, task.out, task.until, task.seconds, last, evaluation), *chores)
    return Ready(
        plan=plan,
        state=state,
        chores=chores,
        evaluate=evaluate,
        tune=tune if isinstance(model.card.outputs, LabelOutputs) else None,
        checkpoints=checkpoints,
        journal=journal,
        precision=precision,
    )


def build_chores(
    plan: Plan,
    evaluate: Evaluate | None,
    probe: Evaluate | None,
    journal: Journal,
    checkpoints: Checkpoints,
    report: Reporter,
) -> tuple[Chore, ...]:
    """Log, evaluate and probe; log what that has ended; then save: a checkpoint holds what was logged before it."""
    config = plan.config
    assert config.evaluate_every is not None
    assert config.probe_every is not None
    assert config.save_every is not None
    log = Log(config.log_every, plan, journal, report)
    measuring: list[Chore] = []
    if evaluate is not None:
        measuring.append(Evaluation(config.evaluate_every, plan, journal, report, log, evaluate))
    if probe is not None:
        measuring.append(Probing(config.probe_every, plan, journal, report, log, probe))
    return (log, *measuring, log, Save(config.save_every, plan, journal, report, checkpoints))


def resolve_steps(training: Training, loader: Loader, evaluated: int) -> tuple[Training, int, list[str]]:
    """Turn epochs into steps, fit the schedule, and fill in when to evaluate and save; say what was changed."""
    steps = training.steps or max(round((training.epochs or 0) * loader.steps), 1)
    if training.schedule.warmup_epochs is not None:
        warmup = round(training.schedule.warmup_epochs * loader.steps)
        training = adjust(training, {"schedule.warmup_steps": warmup})
    training, said = fit(training, steps)
    often, least = max(steps // TIMES, 1), math.ceil(ANSWER * evaluated / training.batch_size)  # as an evaluation lasts
    evaluate_every = training.evaluate_every or min(max(often, least), steps)
    filled = {
        "evaluate_every": evaluate_every,
        "probe_every": training.probe_every or evaluate_every,
        "save_every": training.save_every or often,
        "log_every": min(training.log_every, steps),
    }
    if (count := loader.order.size) is not None and training.batch_size > count:
        said.append(f"each step sees all {count:,} images, fewer than the batch of {training.batch_size:,}")
    return adjust(training, filled), steps, said


def choose_precision(training: Training, device: torch.device) -> str:
    """Take bfloat16 where the device has it in hardware, on a CPU for pixels and objects, unless something is said."""
    if training.precision != "auto":
        return training.precision
    has = multiplies_bfloat16(device) and (device.type != "cpu" or training.dense_task is not None)
    return "bfloat16" if has else "float32"


def build_objective(
    model: Model,
    training: Training,
    palette: Callable[[], Tensor],
    counts: Callable[[], NDArray[np.int64]] | None = None,
) -> BuiltObjective:
    """Make what is learned from the images; a palette, or the images of each class, where they are needed."""
    match training.objective:
        case Labels():
            weighed = training.class_weights is not None or training.logit_adjustment > 0
            images = counts() if weighed and counts is not None else None
            if training.distill is not None:
                device = next(model.parameters()).device
                teacher = open_teacher(training.distill, device, compiled=compiles(training, device))
                return Distilling(model, training, teacher, images)
            return (Classification if isinstance(training.task, Classify) else TaskObjective)(model, training, images)
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


def called(objective: BuiltObjective | DensePrediction) -> nn.Module:
    """Give what is called of an objective: of a classifier that reads the class token alone, that of its last block."""
    module = objective.module
    if not isinstance(objective, Labelled) or not isinstance(module, ViT):
        return module
    if isinstance(objective, Distilling) and objective.distill.token:
        return BothHeads(module)
    # What attention's kernels drop, they draw for all queries.
    alone = module.config.reads_class_token_alone and not module.config.attention_dropout
    return ClassTokenForward(module) if alone else module


def wrap(model: Model, module: nn.Module, training: Training, group: Group) -> tuple[Forward, Autocast]:
    """Give what is trained as it is called, compiled and shared among ranks, and what holds gradients back."""
    compiled, backend = compiles(training, group.device), backend_for(model.config, group.device)
    if group.world_size > 1 and training.parallel == "fsdp":
        module = module.model if isinstance(module, ClassTokenForward) else module  # which shards blocks as they are
        stages = (child for child in model.children() if sum(1 for _ in child.parameters()) > 1)  # of a ResNet
        parts: list[nn.Module] = list(model.blocks if isinstance(model, ViT) else stages)
        if compiled:
            # Blocks share their code and differ in their rate of stochastic depth; each trains and evaluates.
            allow_compilations(2 * len(parts) + 2)
            for part in parts:
                part.compile(dynamic=False, backend=backend)
        shard(module, parts)
        return module, nullcontext
    if compiled:
        allow_compilations(COMPILATIONS)
    if group.world_size > 1:
        whole = DistributedDataParallel(module, device_ids=[group.device] if group.device.type == "cuda" else None)
        return (torch.compile(whole, dynamic=False, backend=backend) if compiled else whole), whole.no_sync
    return (torch.compile(module, dynamic=False, backend=backend) if compiled else module), nullcontext


def training_feed(source: Source, model: Model, training: Training, batch: int, **options: Any) -> Loader:  # noqa: ANN401
    """Feed the training images at the model's size, with its preprocessing."""
    feed = train_feed
    if training.dense_task is not None:
        feed = partial(annotated_train_feed, shapes=isinstance(model, DenseViT) and model.learns_shapes)
    return feed(
        source,
        model.config.image_size,
        batch=batch,
        augmentation=training.augmentation,
        preprocessing=model.card.preprocessing,
        seed=training.seed,
        channels=model.config.channels,
        bad_image_limit=training.bad_image_limit,
        **options,
    )


def palette_of(source: Source, model: Model, training: Training) -> Float[Tensor, "K C"]:
    """Make the palette of the first training images, in the numbers that the model reads; for all processes alike."""
    assert isinstance(training.objective, NextPixels)
    found: list[Tensor] = []
    with closing(training_feed(source, model, training, TOGETHER).epoch(0)) as batches:
        for batch in batches:
            found.append(batch.images.permute(0, 2, 3, 1).flatten(0, 2))  # BHW C
            if sum(len(part) for part in found) >= PIXELS:
                break
    pixels = torch.cat(found) if found else torch.empty(0)
    if not len(pixels):
        raise DataError("no image of the first epoch could be decoded, and the palette is made of them.")
    chosen = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(training.seed))[:PIXELS]
    return make_palette(pixels[chosen], training.objective.colors, seed=training.seed)
