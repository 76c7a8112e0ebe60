"""Distillation: the losses against formulas, teachers that read otherwise, a distillation token, what is refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from vitrail.config import Preprocessing
from vitrail.config.objective import HardDistillation, SoftDistillation
from vitrail.config.recipe import Training
from vitrail.config.task import Regression
from vitrail.data.transforms.finish import scale
from vitrail.errors import ConfigError
from vitrail.models import Model
from vitrail.models.heads import TwoHeads
from vitrail.train.distilling import as_read, columns_of, told_loss

LABELS = np.arange(30) % 3
IMAGES = np.random.default_rng(0).integers(0, 150, (30, 16, 16, 3), dtype=np.uint8)
IMAGES[..., 1] += (LABELS * 40).astype(np.uint8)[:, None, None]
HOW: dict[str, Any] = {"steps": 6, "batch_size": 10, "quiet": True, "device": "cpu", "workers": 0, "evaluate_every": 3}


def small(**fields: Any) -> Model:
    return vitrail.create("ViT-Ti/8", image_size=16, **{"classes": 3, "depth": 1, "width": 24, "heads": 3, **fields})


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("teacher") / "run"
    vitrail.finetune((IMAGES, LABELS), model=small(), out=out, **{**HOW, "steps": 20, "lr": 3e-3})
    return out


def test_the_losses_are_the_papers() -> None:
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (torch.randn(5, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    soft = SoftDistillation(teacher="x", temperature=2.5)
    p, q = (theirs / 2.5).softmax(dim=1), (ours / 2.5).softmax(dim=1)
    found = told_loss(ours.float(), theirs.float(), soft).double()
    torch.testing.assert_close(found, 2.5**2 * (p * (p / q).log()).sum(dim=1), rtol=1e-4, atol=1e-6)
    wanted = -ours.log_softmax(dim=1)[range(5), theirs.argmax(dim=1)]
    found = told_loss(ours.float(), theirs.float(), HardDistillation(teacher="x")).double()
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    assert float(told_loss(ours.float(), ours.float(), soft).abs().max()) < 1e-6


def test_a_student_that_learns_from_the_teacher_alone_comes_nearer_to_it(teacher: Path) -> None:
    fields = {**HOW, "steps": 40, "lr": 3e-3, "distill": "soft", "teacher": str(teacher), "share": 1.0, "seed": 1}
    run = vitrail.finetune((IMAGES, LABELS), model=small(), **fields)
    ours, theirs = (vitrail.predict(each, list(IMAGES)).logits.softmax(dim=1) for each in (run, teacher))
    uniform = torch.full_like(ours, 1 / 3)
    assert float((ours - theirs).abs().mean()) < 0.5 * float((uniform - theirs).abs().mean())


@pytest.mark.slow
def test_a_teacher_is_compiled_where_its_student_is_and_says_the_same(teacher: Path) -> None:
    program = f"""
import torch
from vitrail.config.objective import SoftDistillation
from vitrail.train.distilling import open_teacher
soft, images = SoftDistillation(teacher={str(teacher)!r}), torch.randn(4, 3, 16, 16)
plain, fast = (open_teacher(soft, torch.device("cpu"), compiled=compiled) for compiled in (False, True))
with torch.no_grad():
    torch.testing.assert_close(fast(images), plain(images), rtol=1e-4, atol=1e-5)
print(plain._compiled_call_impl is None, fast._compiled_call_impl is None)
"""  # in a process of its own, as types are not checked in what is compiled
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "False"]


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{"distill": "soft"}, {"distill": "hard", "token": True, "mixup": 0.2}], ids=str)
def test_a_run_with_a_teacher_resumes_to_the_bit(teacher: Path, tmp_path: Path, fields: dict[str, Any]) -> None:
    shape = {f"model.{name}": value for name, value in {"depth": 1, "width": 24, "heads": 3}.items()}
    given: Any = {**HOW, **fields, **shape, "model": "ViT-Ti/8", "image_size": 16, "save_every": 2}
    given["teacher"] = str(teacher)
    whole = vitrail.finetune((IMAGES, LABELS), out=tmp_path / "whole", **given)
    stop: Any = {"callbacks": lambda record: record["step"] >= 4}
    vitrail.finetune((IMAGES, LABELS), out=tmp_path / "cut", **given, **stop)
    (tmp_path / "cut" / "summary.json").unlink()
    again = vitrail.finetune((IMAGES, LABELS), out=tmp_path / "cut", **given)
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
    if fields.get("token"):
        head = again.model.head
        assert isinstance(head, TwoHeads)
        assert not torch.equal(head.first.weight, head.second.weight)
        assert again.model.config.registers == 1  # pyright: ignore[reportAttributeAccessIssue]


def test_a_teacher_reads_images_by_its_own_means_and_at_its_own_size() -> None:
    levels = torch.from_numpy(IMAGES[:2]).permute(0, 3, 1, 2)
    mine = Preprocessing(mean=(0.5, 0.4, 0.3), deviation=(0.2, 0.3, 0.4))
    model = small()
    wanted = scale(levels, model.card.preprocessing)
    torch.testing.assert_close(as_read(scale(levels, mine), mine, model), wanted, rtol=1e-4, atol=1e-5)
    odd = torch.zeros(2, 3, 20, 20)
    assert as_read(odd, model.card.preprocessing, model).shape == (2, 3, 16, 16)


def test_classes_of_a_teacher_are_found_by_their_names() -> None:
    assert columns_of(("a", "b"), ("a", "b"), 2) is None
    assert columns_of(("a", "b"), None, 2) is None
    assert columns_of(("b", "a"), ("a", "x", "b"), 3) == [2, 0]
    with pytest.raises(ConfigError, match="does not know c"):
        columns_of(("a", "c"), ("a", "b"), 2)
    with pytest.raises(ConfigError, match="has 5 classes, and the data 2"):
        columns_of(("a", "c"), None, 5)


def test_what_cannot_teach_is_refused_before_anything_is_computed(teacher: Path, tmp_path: Path) -> None:
    data = (IMAGES, LABELS)
    with pytest.raises(ConfigError, match="distill needs a teacher"):
        vitrail.finetune(data, model=small(), distill="soft", **HOW)
    with pytest.raises(ConfigError, match=r"token=true needs a model with a distillation token"):
        vitrail.finetune(data, model=small(), distill="hard", token=True, teacher=str(teacher), **HOW)
    vitrail.save(small(channels=5), tmp_path / "five")
    with pytest.raises(ConfigError, match="the teacher reads 5 channels, and the student 3"):
        vitrail.finetune(data, model=small(), distill="hard", teacher=str(tmp_path / "five"), **HOW)
    vitrail.save(small(classes=None), tmp_path / "bare")
    with pytest.raises(ConfigError, match="has no classifier"):
        vitrail.finetune(data, model=small(), distill="hard", teacher=str(tmp_path / "bare"), **HOW)
    with pytest.raises(ConfigError, match="distill goes with task=classify alone"):
        Training(steps=1, task=Regression(), distill=HardDistillation(teacher="x"))
