"""Self-training beside its definition: what is taken of pseudo-labels, a perfect teacher, rounds, and resuming."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import vitrail
from vitrail.cli import main
from vitrail.config.recipe import RandAugment
from vitrail.data.joined import Joined
from vitrail.data.pseudo import PseudoLabeled, choose_pseudo
from vitrail.data.sources.memory import MemorySource
from vitrail.errors import ConfigError, DataError
from vitrail.models import Model, ViT, create
from vitrail.verbs.selftrain import SelfTraining

NAMES = ("red", "green", "blue")
MODEL = "ViT-Ti/8"
FIELDS: dict[str, Any] = {"recipe": "small", "steps": 4, "batch_size": 12, "model.depth": 1, "image_size": 16}
FIELDS |= {"quiet": True, "workers": 0, "device": "cpu", "validation_share": 0, "save_every": 2, "log_every": 1}


class Perfect(ViT):
    """A teacher that sees the brightest channel."""

    def forward(self, images: Tensor) -> Tensor:
        return 90 * images.mean(dim=(2, 3))


def perfect() -> Model:
    model = create(MODEL, image_size=16, depth=1, classes=3)
    model.__class__ = Perfect
    return model.eval()


def images(count: int, seed: int, *, known: bool = True) -> MemorySource:
    labels = np.arange(count) % 3
    pixels = np.random.default_rng(seed).integers(0, 120, (count, 16, 16, 3))
    pixels[np.arange(count), :, :, labels] += 100
    return MemorySource(pixels.astype(np.uint8), labels if known else np.zeros(count, np.int64), NAMES)


def assert_same(one: Model, other: Model) -> None:
    ours, theirs = one.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def slow_choice(labels: list[int], sure: list[float], least: float, count: int | None) -> list[int]:
    kept = [place for place, label in enumerate(labels) if label >= 0 and sure[place] >= least]
    by_class = {label: [place for place in kept if labels[place] == label] for label in {labels[k] for k in kept}}
    many = count or round(len(kept) / len(by_class))
    found = []
    for places in by_class.values():
        ordered = sorted(places, key=lambda place: (-sure[place], place))
        found += [ordered[turn % len(ordered)] for turn in range(many)]
    return sorted(found)


@pytest.mark.parametrize("per_class", [None, 2, 9])
def test_the_surest_of_each_class_are_taken_and_few_come_again(per_class: int | None) -> None:
    random = np.random.default_rng(per_class or 5)
    labels = random.choice([-1, 0, 1, 3], 40, p=[0.1, 0.6, 0.2, 0.1])
    sure = np.round(random.random(40), 1).astype(np.float32)  # with equals
    found = choose_pseudo(labels, sure, 4, least=0.25, balanced=True, per_class=per_class)
    assert found.tolist() == slow_choice(labels.tolist(), sure.tolist(), 0.25, per_class)
    plain = choose_pseudo(labels, sure, 4, least=0.25, balanced=False, per_class=per_class)
    wanted = [n for n in range(40) if labels[n] >= 0 and sure[n] >= 0.25]
    assert len(plain) == len(set(plain.tolist()))
    assert plain.tolist() == wanted or per_class
    assert not len(choose_pseudo(labels, sure, 4, least=1.1, balanced=True))


@pytest.mark.parametrize("balance", [True, False])
def test_with_a_perfect_teacher_it_is_training_on_the_labels(tmp_path: Path, balance: bool) -> None:
    labeled, hidden = images(9, 1), images(18, 2)
    found = vitrail.selftrain(
        labeled,
        images(18, 2, known=False),
        model=MODEL,
        teacher=perfect(),
        out=tmp_path / "self",
        rounds=1,
        confidence=0.9,
        balance=balance,
        **FIELDS,
    )
    noise: dict[str, Any] = {"randaugment": RandAugment()}
    wanted = vitrail.finetune(Joined([labeled, hidden]), model=MODEL, **{**FIELDS, **noise})
    assert_same(found.model, wanted.model)
    assert found.rounds[0].taken == 18
    assert found.rounds[0].confidence > 0.99
    plain = vitrail.finetune(labeled, model=MODEL, **{**FIELDS, **noise})
    with pytest.raises(AssertionError):
        assert_same(found.model, plain.model)


def test_rounds_teach_each_other_and_resume_to_the_bit(tmp_path: Path) -> None:
    labeled, others = images(12, 1), images(18, 2)
    data = {"train": labeled, "val": images(9, 3), "test": images(9, 4)}

    def run(name: str, **more: Any) -> SelfTraining:
        given = {**FIELDS, "confidence": 0.0, "out": tmp_path / name, **more}
        return vitrail.selftrain(data, others, model=MODEL, **given)

    whole = run("whole")
    seen: list[int] = []

    def crash(record: Mapping[str, Any]) -> None:
        if record.get("kind") == "train":
            seen.append(record["step"])
            if len(seen) == 7:  # in the first student
                raise InterruptedError

    with pytest.raises(InterruptedError):
        run("parts", callbacks=crash)
    again = run("parts")
    assert_same(again.model, whole.model)
    assert len(whole.rounds) == 2
    assert whole.finished
    assert {"accuracy", "test_accuracy"} <= whole.rounds[1].metrics.keys()
    assert json.loads((tmp_path / "whole" / "selftrain.json").read_text()) == json.loads(json.dumps(whole.document()))
    first = vitrail.load(tmp_path / "whole" / "round-1" / "student")
    with np.load(tmp_path / "whole" / "round-2" / "pseudo_labels.npz") as held:
        taught = dict(held)
    pixels = torch.stack([first.preprocess(others.read(n))[0] for n in range(18)])
    with torch.inference_mode():
        shares = first(pixels).softmax(dim=1)
    assert taught["labels"].tolist() == shares.argmax(dim=1).tolist()
    np.testing.assert_allclose(taught["confidence"], shares.amax(dim=1), atol=1e-5)
    assert whole.rounds[1].labeled == 18
    assert "student 2" in str(whole)
    assert vitrail.evaluate(whole, data).images == 9  # taken wherever a run is
    with pytest.raises(ConfigError, match="was begun otherwise"):
        run("whole", learning_rate=0.5)


def test_copies_of_images_to_test_on_are_not_learned_from(tmp_path: Path) -> None:
    test = images(9, 4)
    pixels = np.stack([test.read(n) for n in range(9)] + [images(6, 2).read(n) for n in range(6)])
    found = vitrail.selftrain(
        {"train": images(9, 1), "test": test},
        MemorySource(pixels, np.zeros(15, np.int64), NAMES),
        model=MODEL,
        teacher=perfect(),
        out=tmp_path / "self",
        rounds=1,
        **FIELDS,
    )
    assert (found.rounds[0].labeled, found.rounds[0].taken) == (6, 6)


def test_a_bit_in_memory_learns_from_a_vit_and_repeats_are_counted_apart(tmp_path: Path) -> None:
    bit = create("BiT-R50x1", units=(1,), width=32, image_size=16, classes=3)
    others = images(8, 2)  # three, three and two of a class
    kept = {name: value for name, value in FIELDS.items() if name not in ("recipe", "model.depth")}
    given: dict[str, Any] = {**kept, "steps": 1}
    found = vitrail.selftrain(
        images(9, 1), others, model=bit, teacher=perfect(), out=tmp_path / "self", rounds=1, per_class=4, **given
    )
    [only] = found.rounds
    assert (only.labeled, only.taken, only.shown, only.correct) == (8, 8, 12, 1.0)
    assert "8 of 8" in str(found)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    given: dict[str, Any] = {**FIELDS, "model": MODEL, "teacher": perfect(), "out": tmp_path / "self"}
    blank = MemorySource(np.full((6, 16, 16, 3), 90, np.uint8), np.zeros(6, np.int64), NAMES)
    with pytest.raises(DataError, match=r"sure of none of 6 images\. Lower confidence=1"):
        vitrail.selftrain(images(9, 1), blank, **{**given, "confidence": 1.0})
    with pytest.raises(DataError, match=r"other classes apart .*: 4 \(without names\), not 3 \(red, green, blue\)"):
        vitrail.selftrain(images(9, 1), images(6, 2), **{**given, "teacher": create(MODEL, image_size=16, classes=4)})
    with pytest.raises(ConfigError, match="self-training learns labels"):
        vitrail.selftrain(images(9, 1), images(6, 2), **given, objective="mae")
    with pytest.raises(ConfigError, match="rounds must be a whole number"):
        vitrail.selftrain(images(9, 1), images(6, 2), **given, rounds=0)
    with pytest.raises(ConfigError, match="confidence must be from 0 to 1"):
        vitrail.selftrain(images(9, 1), images(6, 2), **given, confidence=30)


def test_a_source_with_labels_of_its_own_reads_the_images() -> None:
    base = images(6, 2)
    source = PseudoLabeled(base, np.array([5, 0, 5]), np.array([1, 0, 2]), NAMES)
    assert source.labels.tolist() == [1, 0, 2]
    assert [source.name(n) for n in range(3)] == [base.name(n) for n in (5, 0, 5)]
    read: NDArray[Any] = source.read(2)  # pyright: ignore[reportAssignmentType]
    assert np.array_equal(read, base.read(5))
    assert source.fingerprint != PseudoLabeled(base, np.array([5, 0, 5]), np.array([1, 0, 1]), NAMES).fingerprint


def test_the_command_takes_any_folder_of_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from evaluating import write_folder

    write_folder(tmp_path / "labeled", images(24, 1))
    write_folder(tmp_path / "others", images(12, 2))
    words = ["selftrain", str(tmp_path / "labeled"), str(tmp_path / "others"), "--model", MODEL, "--rounds", "1"]
    words += ["--out", str(tmp_path / "self"), "--steps", "2", "--batch", "8", "--confidence", "0", "--depth", "1"]
    assert main([*words, "--image-size", "16", "--device", "cpu", "--recipe", "small", "--json", "--quiet"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["finished"]
    assert main(["evaluate", said["rounds"][0]["folder"], str(tmp_path / "labeled"), "--quiet", "--json"]) == 0
    kept = len(np.load(tmp_path / "self" / "split.npz")["dev"])
    assert json.loads(capsys.readouterr().out)["images"] == kept > 0
