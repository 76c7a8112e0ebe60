"""Soups beside their definition: means, the greedy choice, and what is refused; a soup of one is its member."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evaluating import NAMES, Pictures, guessing, logits_of, write_folder

import vitrail
from vitrail.cli import main
from vitrail.errors import ConfigError, DataError
from vitrail.models import Model
from vitrail.verbs.soup import Score, choose_validation

VAL, TEST = Pictures(60, seed=5), Pictures(20, seed=6)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    write_folder(tmp_path / "images" / "val", VAL)
    write_folder(tmp_path / "images" / "test", TEST)
    for seed in range(5):
        vitrail.save(member(seed), tmp_path / f"run-{seed}")
    return tmp_path


def member(seed: int, **fields: Any) -> Model:
    """Models near each other, as runs from one checkpoint are."""
    model, generator = guessing(names=NAMES, seed=0, **fields), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * seed * torch.randn(parameter.shape, generator=generator))
    return model


def accuracy(model: Model) -> float:
    return float((logits_of(model, VAL).argmax(axis=1) == np.asarray(VAL.labels)).mean())


def mean_of(models: list[Model]) -> Model:
    """The mean by numpy, a weight at a time."""
    made = guessing(names=NAMES)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            values = np.stack([model.get_parameter(name).detach().double().numpy() for model in models])
            parameter.copy_(torch.from_numpy(values.mean(axis=0)))
    return made


def assert_same(one: Model, other: Model) -> None:
    ours, theirs = one.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def test_a_soup_of_one_is_its_member_to_the_bit_and_of_equals_too(home: Path) -> None:
    vitrail.soup([home / "run-3"], out=home / "soup")
    assert_same(vitrail.load(home / "soup"), vitrail.load(home / "run-3"))
    for precision in (torch.float32, torch.bfloat16, torch.float64):
        model = member(2).to(precision)
        assert_same(vitrail.soup([model] * 3).model, model)
    whole = vitrail.soup([vitrail.load(home / "run-1")]).model
    assert whole.card == vitrail.load(home / "run-1").card


def test_a_uniform_soup_is_the_mean_and_every_verb_opens_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(home / f"run-{seed}") for seed in range(5)]
    given = ["--data", str(home / "images"), "--out", str(home / "soup"), "--json", "--quiet"]
    assert main(["soup", *paths, *given]) == 0
    said = json.loads(capsys.readouterr().out)
    expected = mean_of([member(seed) for seed in range(5)])
    made = vitrail.load(home / "soup")
    assert_same(made, expected)
    assert made.card.class_names == NAMES
    assert made.card.provenance is not None
    assert (said["how"], said["images"], said["split"]) == ("uniform", 60, "val")
    assert said["accuracy"] == pytest.approx(accuracy(expected))
    scores = {row["name"]: row["accuracy"] for row in said["members"]}
    assert scores == pytest.approx({path: accuracy(member(seed)) for seed, path in enumerate(paths)})
    assert [row["accuracy"] for row in said["members"]] == sorted(scores.values(), reverse=True)
    assert json.loads((home / "soup" / "soup.json").read_text()) == said
    for verb in ("evaluate", "predict", "describe"):
        rest = [str(home / "images")] if verb != "describe" else []
        assert main([verb, str(home / "soup"), *rest]) == 0
    vitrail.finetune((np.zeros((14, 8, 12, 3), np.uint8), np.arange(14) % 7), model=home / "soup", steps=1, quiet=True)
    assert main(["soup", *paths, *given]) == 1
    assert "overwrite" in capsys.readouterr().err
    assert main(["soup", paths[0], *given, "--overwrite"]) == 0
    assert_same(vitrail.load(home / "soup"), member(0))


def test_a_greedy_soup_takes_what_makes_the_mean_no_worse(home: Path) -> None:
    members = [member(seed) for seed in range(5)]
    found = vitrail.soup(members, home / "images", how="greedy")
    order = sorted(range(5), key=lambda seed: -accuracy(members[seed]))
    taken = [order[0]]
    for seed in order[1:]:
        tried = [members[each] for each in (*taken, seed)]
        if accuracy(mean_of(tried)) >= accuracy(mean_of([members[each] for each in taken])):
            taken.append(seed)
    assert 0 < len(taken) < 5  # so that the case says something
    assert_same(found.model, mean_of([members[seed] for seed in taken]))
    assert [each.taken for each in found.members] == [seed in taken for seed in order]
    assert isinstance(found.score, Score)
    assert found.score.accuracy == pytest.approx(accuracy(found.model))
    best = found.members[0].score
    assert best is not None
    assert found.score.accuracy >= best.accuracy
    assert "greedy soup of" in str(found)
    assert vitrail.predict(found, home / "images" / "test")[0].label in NAMES


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"depth": 2}, "depth 2, not 1"),
        ({"activation": "gelu"}, "activation 'gelu', not 'gelu-tanh'"),
        ({"pooling": "mean"}, "pooling 'mean', not 'token'"),
        ({"classes": 6}, "classes 6, not 7"),
    ],
)
def test_other_configurations_are_refused(fields: dict[str, Any], words: str) -> None:
    other = guessing(fields.pop("classes", 7), **fields)
    with pytest.raises(ConfigError, match=rf"have other configurations: .*{words}.*averaged only where"):
        vitrail.soup([guessing(), other])


def test_dropout_of_training_may_differ_and_classes_may_not() -> None:
    found = vitrail.soup([guessing(), guessing(dropout=0.1, stochastic_depth=0.2)])
    assert_same(found.model, guessing())
    broken = guessing()
    torch.nn.init.constant_(broken.get_parameter("head.bias"), torch.inf)
    with pytest.raises(ConfigError, match=r"diverged: its head\.bias is not all finite\. Leave it out"):
        vitrail.soup([guessing(), broken])
    with pytest.raises(ConfigError, match="tell other classes apart"):
        vitrail.soup([guessing(), guessing(names=NAMES), guessing(names=NAMES[::-1])])
    assert vitrail.soup([guessing(), guessing(names=NAMES)]).model.card.class_names == NAMES
    with pytest.raises(ConfigError, match="have other configurations"):
        vitrail.soup([guessing(), vitrail.create("BiT-R50x1", image_size=32)])


def test_what_cannot_be_is_refused_before_any_compute(home: Path) -> None:
    with pytest.raises(ConfigError, match="at least one model"):
        vitrail.soup([])
    with pytest.raises(ConfigError, match="Give a list of them"):
        vitrail.soup(str(home / "run-0"))
    with pytest.raises(ConfigError, match="chosen on validation images"):
        vitrail.soup([home / "run-0"], how="greedy")
    with pytest.raises(ConfigError, match="how must be one of 'uniform', 'greedy'"):
        vitrail.soup([home / "run-0"], how="best")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="makes their numbers too good"):
        vitrail.soup([home / "run-0"], home / "images", split="test")
    with pytest.raises(DataError, match="has no val split"):
        vitrail.soup([home / "run-0"], home / "images" / "val")


def test_the_images_are_those_that_all_runs_kept_back_and_the_soup_knows_them(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (70, 8, 12, 3), dtype=np.uint8)
    data = (pixels, np.arange(70) % 7)
    runs = [
        vitrail.finetune(
            data, model=member(0), out=tmp_path / f"run-{seed}", steps=2, seed=seed, validation_share=share, quiet=True
        )
        for seed, share in enumerate((0.3, 0.4))
    ]
    found = vitrail.soup(runs, data, how="greedy", out=tmp_path / "soup")
    kept = [set(np.load(tmp_path / f"run-{seed}" / "split.npz")["dev"].tolist()) for seed in range(2)]
    assert 0 < found.images == len(kept[0] & kept[1]) < len(kept[1])
    assert found.split == "those of all that all runs kept back"
    assert vitrail.evaluate(tmp_path / "soup", data).images == found.images
    assert choose_validation({"all": VAL}, [None], "", "all") == (VAL, "all")  # as asked, where nothing is known
