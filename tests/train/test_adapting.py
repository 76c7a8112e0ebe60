"""Ways of adapting a checkpoint: which weights move, what they become, what is refused; and that such runs resume."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from killed_runs import STEPS, Runs, arguments, result

import vitrail
from vitrail.config.objective import Adapt, HeadAlone, LastBlocks, Norms
from vitrail.errors import ConfigError
from vitrail.models import Model
from vitrail.models.adapting import trained_names

CLASSES = 3
NORMS = ("attention_norm", "mlp_norm")
WAYS: dict[str, Adapt] = {"head": HeadAlone(), "norms": Norms()}
WAYS |= {f"last-{count}": LastBlocks(blocks=count) for count in (1, 2)}
AFTER = {"head.weight", "head.bias"}
END = {"norm.weight", "norm.bias"}


def small(**fields: Any) -> Model:
    return vitrail.create(
        "ViT-Ti/8", image_size=16, classes=CLASSES, **{"depth": 3, "width": 24, "heads": 3, "mlp_width": 40, **fields}
    )


def pictures() -> tuple[Any, Any]:
    labels = np.arange(30) % CLASSES
    pixels = np.random.default_rng(0).integers(0, 150, (30, 16, 16, 3), dtype=np.uint8)
    pixels[..., 1] += (labels * 40).astype(np.uint8)[:, None, None]
    return pixels, labels


def train(model: Any = None, out: Path | None = None, **fields: Any) -> vitrail.Run:
    usual = {"steps": 6, "batch_size": 10, "evaluate_every": 3, "quiet": True, "device": "cpu", "workers": 0}
    data = {"train": pictures(), "val": pictures()}
    return vitrail.finetune(data, model=small() if model is None else model, out=out, **{**usual, **fields})


def block(number: int) -> set[str]:
    return {name for name, _ in small().named_parameters() if name.startswith(f"blocks.{number}.")}


@pytest.mark.parametrize(
    ("adapt", "expected"),
    [
        (HeadAlone(), AFTER),
        (
            Norms(),
            AFTER
            | END
            | {f"blocks.{n}.{norm}.{part}" for n in range(3) for norm in NORMS for part in ("weight", "bias")},
        ),
        (LastBlocks(blocks=1), AFTER | END | block(2)),
        (LastBlocks(blocks=2), AFTER | END | block(1) | block(2)),
    ],
    ids=["head", "norms", "last-1", "last-2"],
)
def test_the_parameters_that_are_trained_are_these(adapt: Adapt, expected: set[str]) -> None:
    assert set(trained_names(small(), adapt)) == expected


def test_of_a_bit_the_last_stages_are_trained_with_what_comes_after() -> None:
    model = vitrail.create("BiT-R50x1", classes=2, image_size=32, units=(1, 1), width=32)
    found = set(trained_names(model, LastBlocks(blocks=1)))
    rest = {name for name, _ in model.named_parameters()} - found
    assert found >= {"head.weight", "norm.bias", "stages.1.0.conv2.weight"}
    assert rest == {name for name in rest if name.startswith(("root.", "stages.0."))}
    assert {"root.weight", "stages.0.0.norm1.weight"} <= rest


@pytest.mark.parametrize(
    "adapt", ["head", *(pytest.param(way, marks=pytest.mark.slow) for way in WAYS if way != "head")]
)
@pytest.mark.parametrize("ema", [None, pytest.param("ema", marks=pytest.mark.slow)])
def test_what_is_trained_moves_and_all_else_keeps_its_bits(adapt: str, ema: str | None) -> None:
    model = small()
    run = train(model, adapt=adapt, ema=ema, optimizer="adam", weight_decay=0.1, learning_rate=1e-2)
    trained = set(trained_names(model, WAYS[adapt]))
    before, after = dict(model.named_parameters()), dict(run.model.named_parameters())
    moved = {name for name in after if name.startswith("head.") or not torch.equal(before[name], after[name])}
    keys = {f"blocks.{n}.attention.qkv.bias" for n in range(3)}  # of keys, whose gradient is nothing but rounding
    assert moved - keys == trained - keys


@pytest.mark.parametrize("ema", [None, pytest.param("ema", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "matrices",
    ["all", *(pytest.param(each, marks=pytest.mark.slow) for each in ("query,value", ["mlp", "out"]))],
    ids=str,
)
def test_by_lora_those_matrices_alone_change_and_the_result_is_a_plain_model(matrices: Any, ema: str | None) -> None:
    model = small()
    run = train(model, adapt="lora", rank=3, matrices=matrices, ema=ema, optimizer="adam", learning_rate=1e-2)
    said = "all" if matrices == "all" else ",".join(matrices) if isinstance(matrices, list) else matrices
    words = {"query,value": {"attention.qkv"}, "mlp,out": {"attention.out", "mlp.expand", "mlp.contract"}}
    layers = words.get(said, {"attention.qkv", "attention.out", "mlp.expand", "mlp.contract"})
    before, after = dict(model.named_parameters()), dict(run.model.named_parameters())
    assert before.keys() == after.keys()
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    assert moved == AFTER | {f"blocks.{number}.{layer}.weight" for number in range(3) for layer in layers}
    if said == "query,value":
        for number in range(3):
            name = f"blocks.{number}.attention.qkv.weight"
            keys = slice(24, 48)
            assert torch.equal(before[name][keys], after[name][keys])
    change = after["blocks.1.attention.out.weight"] - before["blocks.1.attention.out.weight"]
    assert torch.linalg.matrix_rank(change.double(), atol=1e-5) == (0 if said == "query,value" else 3)


@pytest.mark.slow
def test_by_lora_a_model_learns() -> None:
    run = train(adapt="lora", steps=60, optimizer="adam", learning_rate=1e-2, warmup_steps=0, log_every=20)
    losses = [record["loss"] for record in run.history if record["kind"] == "train"]
    assert losses[-1] < 0.7 * losses[0]


def test_a_linear_probe_is_softmax_regression_on_frozen_features_whatever_is_dropped_before() -> None:
    model = small(dropout=0.4, stochastic_depth=0.3)
    plain = {"crop": "squash", "flip": False, "label_smoothing": 0.0, "mixup": 0.0, "cutmix": 0.0, "ema": None}
    plain |= {"randaugment": None, "random_erasing": 0.0, "clip_norm": None, "result": "last", "dropout": None}
    fields = {"optimizer": "sgd", "momentum": 0.9, "learning_rate": 0.5, "warmup_steps": 0, "curve": "constant"}
    fields |= {"layer_decay": None, "stochastic_depth": None, "jitter": 0.0, "weight_decay": 0.0}
    run = train(model, adapt="head", batch_size=30, steps=7, **plain, **fields)
    pixels, labels = pictures()
    with torch.no_grad():
        features = model.eval().represent(model.preprocess(list(pixels))).double().numpy()
    weight, bias = np.zeros((CLASSES, 24)), np.zeros(CLASSES)
    speed = [np.zeros_like(weight), np.zeros_like(bias)]
    for _ in range(7):
        logits = features @ weight.T + bias
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        error = (shares / shares.sum(axis=1, keepdims=True) - np.eye(CLASSES)[labels]) / 30
        speed = [0.9 * speed[0] + error.T @ features, 0.9 * speed[1] + error.sum(axis=0)]
        weight, bias = weight - 0.5 * speed[0], bias - 0.5 * speed[1]
    head = run.model.head
    assert isinstance(head, torch.nn.Linear)
    np.testing.assert_allclose(head.weight.detach().numpy(), weight, atol=2e-5)
    np.testing.assert_allclose(head.bias.detach().numpy(), bias, atol=2e-5)


@pytest.mark.parametrize(
    ("adapt", "said"),
    [
        ("last-4", "adapt=last-4: the model has 3 blocks. Set adapt=last-1, or adapt=full"),
        ("last-0", "blocks must be a whole number, at least 1"),
        ("some", "adapt must be one of full, lora, head, norms, last; got 'some'"),
    ],
)
def test_a_way_that_the_model_cannot_take_is_refused(adapt: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        train(adapt=adapt)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rank": 25}, "rank=25 is more than the model's width, 24"),
        ({"matrices": "query,values"}, "matrices must be some of query, key, .*, qkv; got 'values'"),
        ({"alpha": 0}, "alpha must be positive"),
        ({"parallel": "fsdp"}, "adapt=lora leaves little to share out. Set parallel=ddp"),
    ],
    ids=str,
)
def test_lora_that_cannot_be_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        train(adapt="lora", **fields)


def test_a_bit_has_no_blocks_for_lora() -> None:
    model = vitrail.create("BiT-R50x1", classes=2, image_size=32, units=(1, 1), width=32)
    with pytest.raises(ConfigError, match=r"a BiT has none\. Set adapt=norms or last-1"):
        train(model, adapt="lora")


def test_rank_without_lora_says_what_has_one() -> None:
    with pytest.raises(ConfigError, match="'rank' is a field of adapt=lora; here adapt is head"):
        train(adapt="head", rank=4)


def test_a_fresh_model_by_its_name_has_nothing_to_keep() -> None:
    with pytest.raises(ConfigError, match=r"a fresh model has none\. Begin with a checkpoint, model=FILE"):
        train("ViT-Ti/8", adapt="head", image_size=16)


def test_an_objective_without_labels_trains_everything() -> None:
    with pytest.raises(ConfigError, match=r"trains all weights; got adapt=norms\. Set adapt=full"):
        vitrail.pretrain(pictures(), model=small(), objective="masked-patch", adapt="norms", quiet=True, steps=1)


@pytest.mark.parametrize("adapt", ["lora", *(pytest.param(way, marks=pytest.mark.slow) for way in ("norms", "last-1"))])
def test_such_a_run_that_is_killed_ends_with_the_same_bits(
    adapt: str, runs: Runs, images: Path, whole: Path, tmp_path: Path
) -> None:
    def request(out: Path) -> list[str]:
        command = arguments(images, out)
        for name in ("depth", "width", "heads", "mlp_width"):  # which the checkpoint decides
            place = next(number for number, part in enumerate(command) if part.startswith(f"model.{name}="))
            del command[place - 1 : place + 1]
        command[command.index("--model") + 1] = str(whole)
        return [*command, "--adapt", adapt]

    assert runs(request(tmp_path / "one")).status == 0
    ended = runs(request(tmp_path / "two"), trick=["signal", 8, signal.SIGKILL])
    assert ended.status == -signal.SIGKILL
    ended = runs(request(tmp_path / "two"))
    assert ended.status == 0, ended.said
    assert f"resuming from step 7 of {STEPS}" in ended.said
    assert result(tmp_path / "one") == result(tmp_path / "two")
