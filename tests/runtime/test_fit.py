"""How many images go through at once: as memory allows, in equal parts of the batch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peak import peak_bytes

from vitrail.config import parse
from vitrail.config.objective import MaskedAutoencoder, MaskedPatches, NextPixels, Objective
from vitrail.config.recipe import EMA, SGD, Adam, Training
from vitrail.data.source import Batch
from vitrail.models import build
from vitrail.ops.cost.counts import Step, parameters, peak_memory
from vitrail.runtime import machine, step_memory
from vitrail.runtime.machine import free_memory
from vitrail.runtime.step_memory import fit_micro_batch, networks, prediction_bytes
from vitrail.train.prepare import build_objective

CPU = torch.device("cpu")
MODEL = parse("ViT-S/16", {"image_size": (64, 96), "classes": 7})
GIB = 1 << 30


def fitted(monkeypatch: pytest.MonkeyPatch, free: float, share: int, precision: str = "float32", **changes: Any) -> int:
    monkeypatch.setattr(step_memory, "free_memory", lambda device: int(free))
    given = {"steps": 5, "optimizer": Adam()} | changes
    return fit_micro_batch(MODEL, Training(**given), share, CPU, precision)


def needed(batch: int) -> int:
    return peak_memory(MODEL, Step(kind="train", batch=batch, device="cpu", class_token_alone=True)).total


def test_less_memory_makes_smaller_parts_and_each_fits_where_one_more_would_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {}
    for free in (64 * GIB, 8 * GIB, 4 * GIB, 2 * GIB, GIB, 1):
        size = found[free] = fitted(monkeypatch, free, 839)
        parts = -(-839 // size)
        assert size == -(-839 // parts)  # equal, as near as can be
        if 1 < size < 839:
            assert needed(size) <= 0.8 * free < needed(-(-839 // (parts - 1)))
    assert found[64 * GIB] == 839
    assert found[1] == 1
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert len(set(found.values())) >= 5


def test_ranks_that_share_weights_out_have_room_for_more_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ranks hold of weights, moments and gradients is 16 bytes a weight, and 20 with an average."""
    free = needed(60) / 0.8 + 1
    monkeypatch.setattr(step_memory, "free_memory", lambda device: int(free))
    activations = (needed(60) - needed(30)) / 30  # of an image, with the image itself
    size = 16 * parameters(MODEL).total
    for ranks, parallel, ema in (
        (1, "fsdp", None),
        (8, "ddp", None),
        (4, "fsdp", None),
        (8, "fsdp", None),
        (8, "fsdp", EMA()),
    ):
        training = Training(steps=5, optimizer=Adam(), parallel=parallel, ema=ema)  # pyright: ignore[reportArgumentType]
        found = fit_micro_batch(MODEL, training, 10**9, CPU, "float32", ranks)
        if ranks == 1 or parallel == "ddp":
            assert found <= 60
            continue
        more = size * (1 - 1 / ranks) - (0 if ema is None else size / 4 / ranks)
        assert 60 < found <= 60 + more / activations
        assert found > 60 + 0.5 * more / activations  # a block is whole, and its gradients


def test_the_average_and_adams_moments_take_room_and_bfloat16_makes_some(monkeypatch: pytest.MonkeyPatch) -> None:
    free = needed(240) / 0.8 + 1
    plain = fitted(monkeypatch, free, 240)
    assert plain == 240
    assert fitted(monkeypatch, free, 240, ema=EMA()) < plain
    tight = needed(60) / 0.8 + 1
    assert fitted(monkeypatch, tight, 240) == 60
    assert fitted(monkeypatch, tight, 240, optimizer=SGD()) >= 60
    assert fitted(monkeypatch, tight, 2400, "bfloat16") > fitted(monkeypatch, tight, 2400) == 60


ASKING: list[tuple[str, dict[str, object], Objective, int]] = [
    ("ViT-Ti/16", {"depth": 3}, MaskedPatches(), 6),
    ("ViT-Ti/16", {"depth": 3}, MaskedPatches(target="small-colors"), 7),
    ("ViT-Ti/16", {"depth": 3}, MaskedPatches(target="pixels"), 6),
    ("ViT-S/16", {"depth": 2}, MaskedAutoencoder(masked=0.5), 4),
    ("ViT-Ti/16", {"depth": 12}, MaskedAutoencoder(decoder_depth=1), 12),
    ("ViT-Ti/1", {"depth": 3, "image_size": (20, 24), "causal": True, "pooling": "mean"}, NextPixels(), 5),
]
QUICK = 1  # of these; the others are of the same kinds, in other sizes


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("name", "fields", "objective", "count"),
    [pytest.param(*asking, marks=[pytest.mark.slow] * (number >= QUICK)) for number, asking in enumerate(ASKING)],
)
def test_a_step_without_labels_needs_what_is_reckoned(
    name: str, fields: dict[str, object], objective: Objective, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parse(name, {"classes": None, **fields})
    training = Training(objective=objective, steps=5, optimizer=Adam())
    made = build_objective(build(config, seed=0).train(), training, lambda: torch.rand(512, 3))
    samples = torch.arange(count)
    part = Batch(torch.rand(count, 3, *config.image_size), samples, samples, samples, samples[:0], 0, 0, ())

    def once() -> None:
        inputs = made.inputs(part)
        outputs = made.module(*inputs)  # which the loop holds too
        made.compute_loss(outputs, part, inputs).losses.mean().backward()

    once()
    made.module.zero_grad()
    weights = 4 * sum(parameter.numel() for parameter in made.module.parameters())
    measured = peak_bytes(once)[1] + 3 * weights + 4 * part.images.numel()  # with Adam's moments
    for share, fits in ((0.95, False), (1.15, True)):
        monkeypatch.setattr(
            step_memory, "free_memory", lambda device, share=share: int(share * measured / step_memory.SHARE)
        )
        assert (fit_micro_batch(config, training, count, CPU, "float32") == count) == fits


def test_predictions_of_half_the_precision_take_less() -> None:
    config, objective = parse("ViT-Ti/16", {"classes": None}), MaskedPatches(target="small-colors")
    outputs = 64 * 98 * 16 * 512  # images, corrupted patches, colours, classes
    full, half = (
        prediction_bytes(config, objective, Step(kind="train", batch=64, precision=precision))
        for precision in ("float32", "bfloat16")
    )
    assert full - half == 2 * outputs


@pytest.mark.slow
@pytest.mark.usefixtures("untyped")
def test_a_decoder_whose_activations_are_made_again_holds_less() -> None:
    samples = torch.arange(8)
    part = Batch(torch.rand(8, 3, 64, 64), samples, samples, samples, samples[:0], 0, 0, ())
    peaks = []
    for checkpointing in (False, True):
        config = parse("ViT-Ti/8", {"classes": None, "depth": 1, "image_size": 64, "checkpointing": checkpointing})
        training = Training(objective=MaskedAutoencoder(decoder_depth=8), steps=5, optimizer=Adam())
        made = build_objective(build(config, seed=0).train(), training, lambda: torch.rand(512, 3))

        def once(made: Any = made) -> None:
            inputs = made.inputs(part)
            made.compute_loss(made.module(*inputs), part, inputs).losses.mean().backward()

        once()
        peaks.append(peak_bytes(once)[1])
    assert peaks[1] < 0.5 * peaks[0]


def test_the_average_is_of_the_decoder_too(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = MaskedAutoencoder()
    decoder = parameters(networks(MODEL, objective)[1]).total
    asked = {"objective": objective, "ema": EMA()}
    found = [fitted(monkeypatch, free, 4096, **asked) for free in (GIB, GIB + 4 * decoder / step_memory.SHARE)]
    assert found[0] < found[1]
    assert fitted(monkeypatch, GIB, 4096, objective=objective) >= found[1]


def test_what_is_asked_is_taken_and_is_never_more_than_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fitted(monkeypatch, 1, 839, micro_batch=37) == 37
    assert fitted(monkeypatch, 1, 20, micro_batch=37) == 20


def test_free_memory_is_what_the_machine_and_its_container_leave(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    meminfo, cgroup = tmp_path / "meminfo", tmp_path / "cgroup"
    cgroup.mkdir()
    meminfo.write_text("MemTotal:       33554432 kB\nMemAvailable:   16777216 kB\nHugePages_Total:       0\n")
    monkeypatch.setattr(machine, "MEMINFO", meminfo)
    monkeypatch.setattr(machine, "CGROUP", cgroup)
    assert free_memory(CPU) == 16 * GIB
    (cgroup / "memory.current").write_text(f"{5 * GIB}\n")
    (cgroup / "memory.max").write_text("max\n")
    assert free_memory(CPU) == 16 * GIB
    (cgroup / "memory.max").write_text(f"{6 * GIB}\n")
    assert free_memory(CPU) == GIB
    # Images that were read fill the cache up to the limit; it makes room.
    (cgroup / "memory.stat").write_text(f"anon {GIB}\nfile {4 * GIB}\ninactive_file {3 * GIB}\nactive_file {GIB}\n")
    assert free_memory(CPU) == 4 * GIB
    (cgroup / "memory.max").write_text(f"{64 * GIB}\n")
    assert free_memory(CPU) == 16 * GIB
    (cgroup / "memory.max").write_text(f"{2 * GIB}\n")
    assert free_memory(CPU) == GIB // 4  # never nothing


def test_this_machine_has_free_memory() -> None:
    assert free_memory(CPU) >= GIB // 4
