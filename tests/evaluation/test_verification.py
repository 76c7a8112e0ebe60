"""Who is a stranger, what is measured of them, and what of it is written."""

import csv
import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from reference import faces as reference
from sklearn.metrics import roc_auc_score

from vitrail.config import Card
from vitrail.data.sources.memory import MemorySource
from vitrail.errors import ConfigError, DataError
from vitrail.evaluation.results import read_results, write_document
from vitrail.evaluation.verification import curve_table, embed, measure_verification, strangers, verify
from vitrail.models import Model, create
from vitrail.runtime.inference import InferenceOptions
from vitrail.runtime.machine import Group

NAMES = tuple("abcdefg")
HOW = InferenceOptions(group=Group(device=torch.device("cpu")), cache=False, batch_size=5)


def faces(each: int = 4) -> MemorySource:
    """Seven people: a picture each, and noise on it."""
    generator = np.random.default_rng(6)
    labels = np.tile(np.arange(7), each)
    pixels = generator.integers(0, 256, (7, 8, 12, 3))[labels] + generator.normal(0, 30, (7 * each, 8, 12, 3))
    return MemorySource(pixels.clip(0, 255).astype(np.uint8), labels, NAMES)


def small(*known: str, classes: int | None = 7) -> Model:
    model = create("ViT-Ti/4", image_size=(8, 12), classes=classes, depth=1, width=24, heads=3, mlp_width=40)
    model.card = Card(class_names=known or None)
    return model


def cloud(people: int, each: int, noise: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    generator = np.random.default_rng(5)
    labels = np.repeat(np.arange(people), each)
    return generator.normal(size=(people, 6))[labels] + noise * generator.normal(size=(len(labels), 6)), labels


def test_people_whom_the_model_knows_by_name_are_left_out() -> None:
    source = faces()
    left, known = strangers(small("a", "c", "nobody"), source)
    assert (left.class_names, known) == (("b", "d", "e", "f", "g"), 2)
    assert [left.name(place) for place in range(5)] == ["image 1", "image 3", "image 4", "image 5", "image 6"]
    assert left.labels[:6].tolist() == [0, 1, 2, 3, 4, 0]
    assert strangers(small("a", "c"), source, everyone=True) == (source, 0)
    assert strangers(small("cat", "dog"), source) == (source, 0)  # a model from elsewhere
    assert strangers(small(classes=None), source) == (source, 0)
    with pytest.raises(DataError, match=r"trained on all 7 people.*held_out=0.25.*everyone=True"):
        strangers(small(*NAMES), source)


def test_an_embedding_is_the_direction_of_what_the_classifier_reads() -> None:
    model, source = small().eval(), faces(2)
    pixels = np.stack([source.read(place) for place in range(14)]).astype(np.float32)
    images = torch.from_numpy((pixels - 127.5) / 127.5).permute(0, 3, 1, 2)
    plain, mirrored = (model.represent(part).detach() for part in (images, images.flip(3)))
    directions = [part / part.norm(dim=1, keepdim=True) for part in (plain, mirrored)]
    found = {flip: torch.from_numpy(embed(model, source, HOW, flip=flip).values["embedding"]) for flip in (False, True)}
    torch.testing.assert_close(found[False], directions[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found[True], directions[0] + directions[1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("classes", [7, None])
def test_a_model_is_measured_on_strangers_with_or_without_a_classifier(classes: int | None) -> None:
    found = measure_verification(small("a", "c", classes=classes), faces(), HOW, gallery=2)
    assert (found.people, found.trained_on, found.images, found.skipped) == (5, 2, 20, 0)
    assert (found.curve.genuine, found.curve.impostors) == (5 * 6, 10 * 16)
    assert found.auc.value > 0.8  # fresh weights see noise too
    assert found.gallery == 2
    everyone = measure_verification(small("a", "c", classes=classes), faces(), HOW, everyone=True)
    assert (everyone.people, everyone.trained_on) == (7, 0)


def test_numbers_are_those_of_loops_over_pairs() -> None:
    embeddings, labels = cloud(11, 5, 1.0)
    found = verify(embeddings, labels, [f"image {place}" for place in range(55)], tuple("abcdefghijk"), far=0.05)
    genuine, impostors = reference.pairs(embeddings, labels.tolist())
    truth = [1] * len(genuine) + [0] * len(impostors)
    assert found.auc.value == pytest.approx(roc_auc_score(truth, genuine + impostors), abs=1e-6)
    assert [each.far for each in found.at] == [0.05, 0.001]
    assert found.at[0].tar.value == pytest.approx(reference.tar(genuine, impostors, 0.05))
    assert found.at[1].tar.interval is None  # 0.1 % of 1,375 pairs is one
    for number in (found.eer, found.auc, found.at[0].tar, found.rank1):
        assert number.interval is not None
        assert number.interval[0] <= number.value <= number.interval[1]
        assert number.interval[0] < number.interval[1]
    assert found.ranks[0] == found.rank1.value
    assert list(found.ranks) == sorted(found.ranks)
    assert found.gallery_rank1 is not None
    assert found.gallery_ranks[0] == found.gallery_rank1.value
    assert found.alike[0].score == pytest.approx(max(impostors), abs=1e-6)
    assert found.unlike[0].score == pytest.approx(min(genuine), abs=1e-6)
    first = found.unlike[0]
    places = [int(name.split()[1]) for name in (first.first, first.second)]
    assert first.people == tuple("abcdefghijk"[labels[place]] for place in places)


def test_the_same_people_have_the_same_numbers_again_in_any_order() -> None:
    embeddings, labels = cloud(8, 4, 0.8)
    order = np.random.default_rng(0).permutation(32)
    names = [str(place) for place in range(32)]
    one = verify(embeddings, labels, names, (*NAMES, "h"))
    two = verify(embeddings[order], labels[order], [names[place] for place in order], (*NAMES, "h"))
    for name in ("eer", "auc", "rank1"):
        ours, theirs = getattr(one, name), getattr(two, name)
        assert ours.value == pytest.approx(theirs.value, abs=1e-6)
        assert ours.interval == pytest.approx(theirs.interval, abs=1e-6)


def test_what_cannot_be_measured_is_refused() -> None:
    embeddings, labels = cloud(3, 2, 0.5)
    names = [str(place) for place in range(6)]
    with pytest.raises(DataError, match="one person alone"):
        verify(embeddings, np.zeros(6, np.int64), names, NAMES)
    with pytest.raises(DataError, match="nobody has two images"):
        verify(embeddings, np.arange(6), names, NAMES)
    with pytest.raises(ConfigError, match="gallery must be 1 image"):
        verify(embeddings, labels, names, NAMES, gallery=0)
    with pytest.raises(ConfigError, match=r"far must be a share.*Take far=0.01"):
        verify(embeddings, labels, names, NAMES, far=0.0)
    with pytest.raises(DataError, match="not finite"):
        verify(embeddings * np.nan, labels, names, NAMES)
    assert verify(embeddings, labels, names, NAMES, gallery=2).gallery_rank1 is None
    assert verify(embeddings, labels, names, NAMES).eer.interval is None  # of three people
    unnamed = MemorySource(np.zeros((2, 8, 12, 3), np.uint8), [0, 0], ("a",))
    unnamed.class_names = ()
    with pytest.raises(DataError, match="no names of people"):
        strangers(small(), unnamed)


def test_the_document_has_a_row_a_number_and_the_table_every_corner(tmp_path: Path) -> None:
    embeddings, labels = cloud(7, 3, 1.0)
    found = verify(embeddings, labels, [str(place) for place in range(21)], NAMES, trained_on=4)
    made = replace(found, model="run", data="faces", setting={"flip": True}).document()
    write_document(tmp_path / "verification.json", made)
    rows = read_results(tmp_path / "verification.json")
    assert [row.metric for row in rows] == ["eer", "auc", "tar", "tar", "rank1", "rank1"]
    assert rows[0].interval == found.eer.interval
    assert rows[2].setting == {"flip": True, "far": 0.01, "threshold": found.at[0].threshold}
    assert json.loads(json.dumps(made))["pairs"] == {"genuine": 21, "impostor": 189}
    table = list(csv.DictReader(StringIO(curve_table(found.curve))))
    assert len(table) == len(found.curve.far)
    np.testing.assert_allclose([float(row["tar"]) for row in table], found.curve.tar)
    long = replace(found.curve, **{name: np.linspace(0, 1, 9999) for name in ("far", "tar", "thresholds")})
    assert len(curve_table(long).splitlines()) == 2001
