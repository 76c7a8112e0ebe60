"""One step beside a step by hand; micro-batches, bad images, patience, numbers that are not finite; learning."""

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vitrail
from vitrail.config.recipe import EMA, SGD, Adam, Augmentation, Schedule, Training
from vitrail.data.decode import ImageError, Pixels
from vitrail.data.source import Batch, Source
from vitrail.data.sources.memory import MemorySource
from vitrail.errors import ConfigError
from vitrail.models import Model
from vitrail.ops.random import Purpose, key, mix
from vitrail.runtime.class_token import ClassTokenForward
from vitrail.runtime.machine import Group
from vitrail.runtime.reporter import SILENT, Reporter
from vitrail.train.guard import DivergedError
from vitrail.train.loop import Chore, accumulate, micro_step, sample_keys, split_micro_batches, train, train_step
from vitrail.train.objective import Classification
from vitrail.train.prepare import Ready, called, prepare, resolve_steps
from vitrail.train.run import run
from vitrail.train.state import State, gradients
from vitrail.train.task import Parts, Task

CLASSES = ("ant", "bee", "cat", "dog", "elk")
SMALL = {"depth": 2, "width": 24, "heads": 3, "mlp_width": 40}
SIZE = (8, 12)
STILL = Augmentation(crop="squash", flip=False)
# Everything random at once.
LIVELY: dict[str, Any] = {
    "augmentation": Augmentation(mixup=0.4, cutmix=1.0, mix_block=4, random_erasing=0.3),
    "dropout": 0.2,
    "stochastic_depth": 0.3,
    "label_smoothing": 0.1,
    "ema": EMA(decay=0.7),
}


class Spoilt(MemorySource):
    """Some images cannot be decoded."""

    spoilt: frozenset[int] = frozenset()

    def read(self, index: int) -> Pixels:
        if index in self.spoilt:
            raise ImageError("spoilt")
        return super().read(index)


def images_of(count: int, *spoilt: int) -> Spoilt:
    generator = np.random.default_rng(3)
    pixels = generator.integers(0, 256, (count, *SIZE, 3), dtype=np.uint8)
    source = Spoilt(pixels, np.arange(count) % len(CLASSES), CLASSES)
    source.spoilt = frozenset(spoilt)
    return source


def training(**changes: Any) -> Training:
    usual = {
        "batch_size": 12,
        "image_size": SIZE,
        "augmentation": STILL,
        "schedule": Schedule(curve="constant"),
        "validation_share": 0.0,
    }
    given = usual | {"optimizer": SGD(learning_rate=0.1), "bad_image_limit": 0.5} | changes
    return Training(**({"steps": 9} | given if "epochs" not in given else given))


def task(out: Path, source: Source, config: Training, *, val: Source | None = None, model: str = "ViT-Ti/4") -> Task:
    splits = {"train": source} | ({} if val is None else {"val": val})
    changes = SMALL if model == "ViT-Ti/4" else {}
    return Task(
        command="pytest",
        data="memory",
        splits=splits,
        model=model,
        training=config,
        out=out,
        changes=changes,
        device="cpu",
    )


def ready(out: Path, source: Source, **changes: Any) -> Ready:
    """A run of a small model, none of whose weights is zero, about to take its first step."""
    parts = Parts(train=source, val=None, test=None)
    made = prepare(task(out, source, training(**changes)), parts, Group(device=torch.device("cpu")), SILENT)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in made.state.model.named_parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
            if made.state.average is not None:
                made.state.average.weights[name].copy_(parameter)
    return made


def take(made: Ready, steps: int) -> Ready:
    batches = made.plan.feed.stream()
    for _ in range(steps):
        train_step(made.plan, made.state, next(batches))
    return made


def weights_of(made: Ready) -> dict[str, Tensor]:
    weights, _, others = made.state.tensors()
    named = {name: tensor.clone() for name, tensor in weights.items()}
    return named | {name: tensor.clone() for name, tensor in others.items()}


def assert_close(one: dict[str, Tensor], other: dict[str, Tensor], atol: float = 1e-6) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=atol, msg=lambda text: f"{name}: {text}")  # noqa: B023


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def scaled(source: MemorySource, samples: list[int]) -> tuple[Tensor, Tensor]:
    """Images as the paper's preprocessing has them, from -1 to 1, and their labels."""
    pixels = np.stack([MemorySource.read(source, sample) for sample in samples])
    images = torch.from_numpy((pixels.astype(np.float32) - 127.5) / 127.5).permute(0, 3, 1, 2).contiguous()
    return images, torch.from_numpy(source.labels[samples])


def by_hand(
    model: nn.Module, source: MemorySource, samples: list[int], rate: float, most: float
) -> tuple[float, float]:
    """One update as anybody would write it in torch; gives the loss and the norm."""
    kernels = [item for name, item in model.named_parameters() if item.ndim > 1 and name.endswith("weight")]
    others = [item for item in model.parameters() if not any(item is kernel for kernel in kernels)]
    adam = torch.optim.AdamW([{"params": kernels}, {"params": others, "weight_decay": 0.0}], lr=rate, weight_decay=0.2)
    images, labels = scaled(source, samples)
    loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), most)
    adam.step()
    return float(loss.detach()), float(norm)


@pytest.mark.parametrize("most", [0.3, 1000.0])
@pytest.mark.parametrize("spoilt", [(), (2, 7, 9)])
def test_a_step_is_a_step_by_hand_over_the_images_that_can_be_read(
    tmp_path: Path, most: float, spoilt: tuple[int, ...]
) -> None:
    source, optimizer = images_of(11, *spoilt), Adam(learning_rate=3e-3, weight_decay=0.2)
    schedule = Schedule(curve="cosine", warmup_steps=0)
    changes = {"clip_norm": most, "label_smoothing": 0.1, "micro_batch": 4}
    made = ready(tmp_path, source, optimizer=optimizer, schedule=schedule, **changes)
    twin = copy.deepcopy(made.state.model)
    good = [sample for sample in range(11) if sample not in spoilt]
    loss, norm = by_hand(twin, source, good, 3e-3, most)
    take(made, 1)
    assert made.state.step == 1
    assert float(made.state.norm) == pytest.approx(norm, rel=1e-5)
    assert made.state.tally[0] / made.state.tally[2] == pytest.approx(loss, rel=1e-5)
    assert made.state.tally[2] == len(good)
    assert sorted(skip.sample for skip in made.state.bad) == list(spoilt)
    # Adam turns the smallest gradients, which rounding decides, into whole steps: keys' biases have none.
    keys = slice(SMALL["width"], 2 * SMALL["width"])
    for (name, ours), theirs in zip(made.state.model.named_parameters(), twin.parameters(), strict=True):
        if name.endswith("qkv.bias"):
            ours, theirs = (torch.cat([part[: keys.start], part[keys.stop :]]) for part in (ours, theirs))
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_the_tally_counts_images_and_those_classified_right(tmp_path: Path) -> None:
    source = images_of(11)
    made = ready(tmp_path, source, optimizer=SGD(learning_rate=1e-12), batch_size=4, epochs=2)
    images, labels = scaled(source, list(range(11)))
    logits = made.state.model(images).detach()
    assert made.plan.steps == 4  # two whole batches an epoch
    take(made, 4)
    seen = torch.cat([batch.samples for epoch in range(2) for batch in made.plan.feed.epoch(epoch)])
    losses = F.cross_entropy(logits, labels, reduction="none")[seen].sum()
    right = (logits.argmax(dim=1) == labels)[seen].sum()
    torch.testing.assert_close(made.state.tally, torch.tensor([losses, right, 16]).double(), rtol=1e-5, atol=0)


def test_an_image_without_a_label_is_never_right() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]] * 3)
    targets = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.2, 0.8, 0.0]])
    nothing = torch.zeros(3, dtype=torch.long)
    part = Batch(torch.zeros(3, 3, 8, 12), nothing, nothing, nothing, nothing[:0], 0, 0, (), targets)
    judged = Classification(vitrail.create("ViT-Ti/4", image_size=8, classes=3), training()).compute_loss(
        logits, part, ()
    )
    assert judged.correct.tolist() == [1, 0, 0]
    assert judged.losses[1] == 0


@pytest.mark.parametrize("average", [EMA(decay=0.7), EMA(decay=0.4, ramp=True)])
def test_the_average_follows_every_update(tmp_path: Path, average: EMA) -> None:
    made = ready(tmp_path, images_of(24), ema=average)
    batches, expected = made.plan.feed.stream(), None
    for step in range(6):
        before = {name: item.detach().clone() for name, item in made.state.model.named_parameters()}
        expected = before if expected is None else expected
        train_step(made.plan, made.state, next(batches))
        kept = min(0.4, (1 + step) / (10 + step)) if average.ramp else 0.7
        for name, item in made.state.model.named_parameters():
            expected[name] = kept * expected[name] + (1 - kept) * item.detach()
        assert_close(made.state.tensors()[0], expected)


def test_micro_batches_change_nothing_whatever_is_random(tmp_path: Path) -> None:
    source, outcomes = images_of(24), {}
    for size in (12, 1, 3, 5):
        made = ready(tmp_path / str(size), source, micro_batch=size, clip_norm=1.0, **LIVELY)
        assert made.plan.micro_batch == size
        outcomes[size] = weights_of(take(made, 3))
    quiet: dict[str, Any] = LIVELY | {"dropout": 0.0, "stochastic_depth": 0.0}
    still = ready(tmp_path / "still", source, clip_norm=1.0, **quiet)
    for size in (1, 3, 5):
        assert_close(outcomes[size], outcomes[12])
    others = weights_of(take(still, 3))
    assert max(float((others[name] - outcomes[12][name]).abs().max()) for name in others) > 1e-3


def test_a_last_block_of_the_class_token_alone_learns_what_the_whole_one_does(tmp_path: Path) -> None:
    source, outcomes = images_of(24), {}
    for name in ("alone", "whole"):
        made = ready(tmp_path / name, source, clip_norm=1.0, **LIVELY)
        assert isinstance(made.plan.forward, ClassTokenForward)
        if name == "whole":
            made.plan.forward = made.plan.objective.module
        outcomes[name] = weights_of(take(made, 3)) | {"norm": made.state.norm, "tally": made.state.tally}
    assert_close(outcomes["alone"], outcomes["whole"])
    whole: list[dict[str, Any]] = [{"attention_dropout": 0.1}, {"pooling": "mean"}]
    for changes in whole:  # drawn for all queries; read from all tokens
        model = vitrail.create("ViT-Ti/4", **SMALL, **changes)
        assert called(Classification(model, training())) is model


def test_every_sample_has_its_own_dropout_in_every_epoch(tmp_path: Path) -> None:
    made = ready(tmp_path, images_of(12), batch_size=12)
    first, second = (next(made.plan.feed.epoch(epoch)) for epoch in range(2))
    keys = {sample: key for sample, key in zip(first.samples.tolist(), sample_keys(first, 0).tolist(), strict=True)}
    assert len(set(keys.values())) == 12
    for part in split_micro_batches(first, 5, 0):
        assert sample_keys(part, 0).tolist() == [keys[sample] for sample in part.samples.tolist()]
    later = dict(zip(second.samples.tolist(), sample_keys(second, 0).tolist(), strict=True))
    other = dict(zip(first.samples.tolist(), sample_keys(first, 1).tolist(), strict=True))
    assert all(len({keys[sample], later[sample], other[sample]}) == 3 for sample in keys)


def test_dropout_has_keys_of_its_own(tmp_path: Path) -> None:
    part = next(ready(tmp_path, images_of(12), batch_size=12).plan.feed.epoch(1))
    found = sample_keys(part, 3).astype(np.uint64)
    samples = part.samples.numpy().astype(np.uint64)
    same = [purpose for purpose in Purpose if np.array_equal(mix(samples ^ key(3, 1, purpose)), found)]
    assert same == [Purpose.DROPOUT]


def test_a_batch_is_cut_into_parts_the_last_of_which_may_be_empty(tmp_path: Path) -> None:
    batch = next(ready(tmp_path, images_of(11), batch_size=11).plan.feed.stream())
    for size, least, expected in ((4, 0, [4, 4, 3]), (4, 5, [4, 4, 3, 0, 0]), (11, 1, [11]), (20, 0, [11])):
        parts = list(split_micro_batches(batch, size, least))
        assert [len(part.labels) for part in parts] == expected
        for field in ("images", "labels", "samples", "targets"):
            assert torch.equal(torch.cat([getattr(part, field) for part in parts]), getattr(batch, field))
    assert [len(part.labels) for part in split_micro_batches(_none(batch), 4, 0)] == [0]


def _none(batch: Batch) -> Batch:
    (part,) = list(split_micro_batches(batch, len(batch.labels), 2))[1:]
    return part


def test_an_empty_share_changes_nothing(tmp_path: Path) -> None:
    made = ready(tmp_path, images_of(11), batch_size=11, dropout=0.2)
    plan, state = made.plan, made.state
    batch = next(plan.feed.stream())
    alone = accumulate(plan, state, batch, 11, 11)
    expected, tally = [gradient.clone() for gradient in gradients(state.optimizer)], state.tally.clone()
    assert micro_step(plan, state, _none(batch), 1 / 11) == 0
    assert torch.equal(state.tally, tally)
    for gradient, before in zip(gradients(state.optimizer), expected, strict=True):
        assert torch.equal(gradient, before)
    state.optimizer.zero_grad()
    assert accumulate(plan, state, batch, 11, 33) == alone  # as where another rank has three times as many
    for gradient, before in zip(gradients(state.optimizer), expected, strict=True):
        assert torch.equal(gradient, before)


def test_a_step_without_a_readable_image_moves_no_weight(tmp_path: Path) -> None:
    made = ready(tmp_path, images_of(9, 0, 1, 2, 3, 4, 5, 6, 7), batch_size=1, bad_image_limit=0.95)
    before = weights_of(made)
    batch = next(batch for batch in made.plan.feed.stream() if not len(batch.labels))
    train_step(made.plan, made.state, batch)
    after = weights_of(made)
    assert_same(before, {name: after[name] for name in before})
    assert made.state.tally.tolist() == [0, 0, 0]
    assert made.state.step == 1
    assert [skip.reason for skip in made.state.bad] == ["spoilt"] * len(made.state.bad) != []


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_numbers_that_are_not_finite_stop_the_run_before_the_update(tmp_path: Path, where: str) -> None:
    made = take(ready(tmp_path, images_of(24), optimizer=Adam(learning_rate=1e-3), ema=EMA(decay=0.5)), 2)
    plan, state = made.plan, made.state
    before, batch = weights_of(made), next(plan.feed.stream(start=2))
    if where == "loss":
        plan.forward = lambda images: state.model(images) * torch.tensor(float("nan"))
    else:
        assert isinstance(state.model.head, nn.Linear)
        state.model.head.weight.register_hook(lambda gradient: gradient * float("inf"))
    some = ", ".join(f"{sample} (image {sample})" for sample in batch.samples[:8].tolist())
    with pytest.raises(DivergedError) as caught:
        train_step(plan, state, batch)
    text = str(caught.value)
    assert text.startswith(f"step 2, samples {some} and others: the loss is ")
    assert ("loss is nan" in text) == (where == "loss")
    for advice in ("nothing was updated", "rate", "raise warmup_steps", "clip_norm=1", "float32", "vitrail data check"):
        assert advice in text
    assert state.step == 2
    after = weights_of(made)
    assert before.pop("tally").shape == after.pop("tally").shape  # which counts the step that failed
    assert_same(before, after)


def refusing(made: Ready, at: Callable[[int, int], bool]) -> list[int]:
    """Let the forward pass run out of memory by its count and the number of images; gives the list of sizes seen."""
    seen: list[int] = []
    forward = made.plan.forward

    def fake(images: Tensor) -> Tensor:
        seen.append(len(images))
        if at(len(seen), len(images)):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(images)

    made.plan.forward = fake
    return seen


def test_a_micro_batch_that_does_not_fit_is_halved_and_the_result_is_the_same(tmp_path: Path) -> None:
    source = images_of(24)
    expected = weights_of(take(ready(tmp_path / "one", source, clip_norm=1.0, **LIVELY), 3))
    made = ready(tmp_path / "two", source, clip_norm=1.0, **LIVELY)
    seen = refusing(made, lambda count, images: images > 6 or count == 3)  # the third: gradients are there already
    assert_close(weights_of(take(made, 3)), expected)
    assert seen == [12, 6, 6, *[3] * 12]
    assert made.plan.micro_batch == 3


def test_one_image_that_does_not_fit_ends_the_run(tmp_path: Path) -> None:
    made = ready(tmp_path, images_of(12), batch_size=5)
    seen = refusing(made, lambda count, images: True)
    with pytest.raises(ConfigError, match=r"1 images at a time do not fit .* Set micro_batch to fewer"):
        take(made, 1)
    assert seen == [5, 3, 2, 1]


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_parts_that_are_filled_up_learn_the_same(tmp_path: Path, loss: Any) -> None:
    """As where the model is compiled, and images are absent."""
    results = []
    for fills in (False, True):
        made = ready(
            tmp_path / str(fills), images_of(13, 2, 5), batch_size=11, micro_batch=4, loss=loss, bad_image_limit=0.5
        )
        made.plan.pad_to_micro_batch = fills
        sizes: list[int] = []
        model = made.state.model
        made.plan.forward = lambda images, model=model, sizes=sizes: (sizes.append(len(images)), model(images))[1]
        take(made, 3)
        results.append(weights_of(made))
        assert set(sizes) == {4} if fills else min(sizes) < 4
    assert_close(*results)


def test_chores_come_after_every_step_and_an_interruption_ends_the_run(tmp_path: Path) -> None:
    made = ready(tmp_path, images_of(24), steps=4)
    told: list[tuple[int, bool, bool]] = []

    class Told(Chore):
        def __call__(self, state: State, *, ends: bool, interrupted: bool) -> None:
            told.append((state.step, ends, interrupted))

    chore = Told(every=1)
    made.plan.interrupted = lambda: made.state.step == 2
    assert not train(made.plan, made.state, [chore])
    assert told == [(1, False, False), (2, False, True)]
    assert train(made.plan, made.state, [chore])
    assert told[2:] == [(3, False, False), (4, True, False)]
    batches = made.plan.feed.stream(start=2)
    assert train(made.plan, made.state, [chore])
    assert len(told) == 4
    batches.close()


@pytest.mark.parametrize("average", [None, EMA(decay=0.6)])
def test_patience_ends_a_run_and_the_best_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, average: EMA | None
) -> None:
    source, values = images_of(24), iter([0.3, 0.6, 0.5, 0.6, 0.2, 1.0])
    seen: list[dict[str, Tensor]] = []

    def measure(model: Model, source: Source, *_: Any) -> Mapping[str, float]:
        assert not model.training
        seen.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return {"accuracy": next(values), "count": len(seen)}

    monkeypatch.setattr("vitrail.train.prepare.measure_accuracy", measure)
    config = training(steps=40, evaluate_every=2, save_every=2, patience=3, ema=average)
    notes: list[str] = []
    report = Reporter()
    monkeypatch.setattr(report, "note", notes.append)
    outcome = run(task(tmp_path / "run", source, config, val=images_of(3)), report)
    assert len(seen) == 5  # the second was the best, and equal is not better
    assert (outcome.finished, outcome.step, outcome.steps) == (True, 10, 40)
    assert (outcome.result, outcome.result_step) == ("best", 4)
    assert outcome.metrics == {"accuracy": 0.6, "count": 2}
    assert any("the best was at step 4: taking it" in note for note in notes)
    assert_same(vitrail.load(tmp_path / "run").state_dict(), seen[1])


def test_steps_are_logged_before_they_are_evaluated_and_those_that_patience_ends_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = iter([0.6, 0.7, 0.2])
    monkeypatch.setattr("vitrail.train.prepare.measure_accuracy", lambda *_: {"accuracy": next(values)})
    config = training(steps=40, evaluate_every=2, log_every=4, patience=1)
    assert run(task(tmp_path / "run", images_of(24), config, val=images_of(3)), Reporter()).step == 6
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    found = [(line["kind"], line["step"], line.get("images")) for line in lines]
    each = config.batch_size
    assert found == [
        ("evaluation", 2, None),
        ("train", 4, 4 * each),
        ("evaluation", 4, None),
        ("evaluation", 6, None),
        ("train", 6, 2 * each),
    ]


@pytest.mark.parametrize(
    ("steps", "evaluated", "every"), [(100, 0, 10), (100, 50, 10), (100, 1000, 42), (3, 10_000, 3), (5, 3, 1)]
)
def test_evaluations_take_no_longer_than_the_steps_between_them_unless_asked_for(
    steps: int, evaluated: int, every: int, tmp_path: Path
) -> None:
    loader = ready(tmp_path, images_of(24), steps=4).plan.feed
    config = replace(training(steps=steps), batch_size=8, evaluate_every=None, save_every=None)
    assert resolve_steps(config, loader, evaluated)[0].evaluate_every == every
    assert resolve_steps(replace(config, evaluate_every=1), loader, evaluated)[0].evaluate_every == 1


@pytest.mark.parametrize(
    ("result", "accuracies", "losses", "taken"),
    [
        ("last", (0.9, 0.1, 0.2), (1, 1, 1), 2),
        ("best", (0.9, 0.1, 0.2), (1, 1, 1), 0),
        ("best", (0.4, 0.9, 0.9), (1, 3, 2), 2),  # of equals that of the least loss
        ("best", (0.4, 0.9, 0.9), (1, 2, 3), 1),
        ("best", (0.4, 0.9, 0.9), (1, 2, 2), 1),
    ],
)
def test_the_result_is_the_best_weights_unless_the_last_are_asked_for(
    result: str,
    accuracies: tuple[float, ...],
    losses: tuple[float, ...],
    taken: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[dict[str, Tensor]] = []

    def measure(model: Model, source: Source, *_: Any) -> Mapping[str, float]:
        if len(source) == 5:  # the test images: measured once, with the weights that are taken
            assert_same(dict(model.state_dict()), seen[taken])
            return {"accuracy": 0.5, "loss": 7.0}
        seen.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return {"accuracy": accuracies[len(seen) - 1], "loss": float(losses[len(seen) - 1])}

    monkeypatch.setattr("vitrail.train.prepare.measure_accuracy", measure)
    config = training(steps=6, evaluate_every=2, result=result)
    asked = task(tmp_path / "run", images_of(24), config, val=images_of(3))
    asked = replace(asked, splits={**asked.splits, "test": images_of(5)})
    outcome = run(asked, SILENT)
    assert (outcome.step, outcome.result, outcome.result_step) == (6, result, 2 * taken + 2)
    own = {"accuracy": accuracies[taken], "loss": losses[taken]}
    assert outcome.metrics == {**own, "test_accuracy": 0.5, "test_loss": 7.0}
    assert_same(vitrail.load(tmp_path / "run").state_dict(), seen[taken])
    again = run(asked, SILENT)
    assert (again.again, again.result, again.result_step) == (True, result, 2 * taken + 2)


def test_fine_tuning_learns_eight_images_by_heart(tmp_path: Path) -> None:
    pretrained = vitrail.create("ViT-Ti/4", image_size=8, classes=7, seed=5, **SMALL)  # pyright: ignore[reportArgumentType]
    vitrail.save(pretrained, tmp_path / "pretrained")
    source = images_of(8)
    config = training(
        optimizer=Adam(learning_rate=3e-3),
        schedule=Schedule(curve="cosine", warmup_steps=5),
        steps=60,
        batch_size=8,
        clip_norm=1.0,
    )
    asked = task(tmp_path / "run", source, config, val=source, model=str(tmp_path / "pretrained"))
    records: list[Mapping[str, Any]] = []
    outcome = run(asked, SILENT, callbacks=[records.append])
    assert outcome.metrics["accuracy"] == 1
    losses = [record["loss"] for record in records if record["kind"] == "train"]
    assert losses[0] > 1 > 0.3 > losses[-1]
    model = copy.deepcopy(vitrail.load(tmp_path / "run"))
    assert (model.card.class_names, model.config.image_size) == (CLASSES, SIZE)
    images, labels = scaled(source, list(range(8)))
    assert torch.equal(model(images).argmax(dim=1), labels)
