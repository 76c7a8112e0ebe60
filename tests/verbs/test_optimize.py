"""`vitrail.optimize`: a model made fast, called alike, saved and opened again."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from families import family, images_for

import vitrail
from vitrail.cli import main
from vitrail.config import Card, Preprocessing
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import Model
from vitrail.runtime import cpu
from vitrail.runtime.fast import FastModel
from vitrail.runtime.scales import products_of
from vitrail.verbs import optimize as verb

eights = pytest.mark.skipif(not cpu.has_int8(), reason="no products in int8")
PHOTOS = [np.random.default_rng(number).integers(0, 256, (24, 40, 3), dtype=np.uint8) for number in range(9)]


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "measure_ratio", lambda fast, batch_size: (batch_size or 16, 2.5))


def model() -> Model:
    made = family("vit")
    made.card = Card(
        class_names=tuple(f"kind {number}" for number in range(7)),
        preprocessing=Preprocessing(mean=(0.4, 0.5, 0.6), deviation=(0.2, 0.25, 0.3)),
        temperature=1.7,
    )
    return made


def test_by_itself_it_is_exact_on_a_cpu_and_keeps_the_card() -> None:
    plain, images = model(), images_for(model())
    fast = vitrail.optimize(plain)
    assert isinstance(fast, FastModel)
    assert fast.plain is plain
    assert fast.card == plain.card
    assert (fast.choice.precision, fast.choice.ratio, fast.choice.batch_size) == ("float32", 2.5, 16)
    with torch.no_grad():
        torch.testing.assert_close(fast(images), plain(images), atol=1e-4, rtol=0)
    ours, theirs = vitrail.predict(fast, PHOTOS), vitrail.predict(plain, PHOTOS)
    assert [each.label for each in ours] == [each.label for each in theirs]
    assert ours.computed["ratio"] == 2.5
    torch.testing.assert_close(vitrail.embed(fast, PHOTOS), vitrail.embed(plain, PHOTOS), atol=1e-4, rtol=0)


def test_where_the_fast_path_is_slower_the_plain_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "measure_ratio", lambda fast, batch_size: (16, 0.9))
    plain, images = model(), images_for(model())
    found = vitrail.optimize(plain)
    assert found.choice.engine == "plain"
    assert "the fast path has 0.90 times its speed here" in found.choice.why
    with torch.no_grad():
        assert torch.equal(found(images), plain(images))
    assert vitrail.optimize(plain, engine="fast").choice.engine != "plain"
    assert vitrail.optimize(plain, engine="plain").choice.why == "as asked"


def test_the_ratio_is_measured_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    found = vitrail.optimize(model(), batch_size=3, engine="fast")
    assert found.choice.batch_size == 3
    assert found.choice.ratio is not None
    assert found.choice.ratio > 0


@eights
def test_eight_bits_are_saved_and_opened_with_the_same_answers(tmp_path: Path) -> None:
    plain, images = model(), images_for(model(), 5)
    fast = vitrail.optimize(plain, precision="int8", calibrate=PHOTOS)
    assert fast.choice.calibrated_on == len(PHOTOS)
    written = vitrail.save(fast, tmp_path / "eight")
    assert written.path == tmp_path / "eight"
    again = vitrail.optimize(tmp_path / "eight")
    assert again.choice.precision == "int8"
    assert again.choice.calibrated_on == len(PHOTOS)
    assert torch.equal(again(images), fast(images))
    assert torch.equal(again.represent(images), fast.represent(images))
    assert again.card.class_names == plain.card.class_names
    assert again.card.preprocessing == plain.card.preprocessing
    assert again.card.temperature == plain.card.temperature
    rounded = again.plain.state_dict()
    changed = {name for name, held in plain.state_dict().items() if not torch.equal(held, rounded[name])}
    assert changed == {f"{name}.weight" for name in products_of(plain)}  # the plain model of it has the rounded ones
    for name in changed:
        held = plain.state_dict()[name]
        torch.testing.assert_close(rounded[name], held, atol=float(held.abs().max()) / 200, rtol=0)
    assert vitrail.optimize(plain, precision="int8", calibrate=PHOTOS, out=tmp_path / "other").choice.ratio == 2.5
    ours, theirs = ((tmp_path / name / "weights.safetensors").read_bytes() for name in ("eight", "other"))
    assert ours == theirs


@eights
def test_verbs_take_the_folder_as_a_model(tmp_path: Path) -> None:
    fast = vitrail.optimize(model(), precision="int8", calibrate=PHOTOS, out=tmp_path / "eight")
    found = vitrail.predict(tmp_path / "eight", PHOTOS)
    assert found.computed["precision"] == "int8"
    torch.testing.assert_close(found.logits, vitrail.predict(fast, PHOTOS).logits, atol=1e-5, rtol=0)
    plain = vitrail.predict(tmp_path / "eight", PHOTOS, engine="plain")
    assert plain.computed["engine"] == "plain"
    with pytest.raises(ConfigError, match=r"got image_size=24\. Optimize the checkpoint that it came from"):
        vitrail.predict(tmp_path / "eight", PHOTOS, image_size=24)
    with pytest.raises(ConfigError, match=r"knows its model; got heads=3\. Leave heads out"):
        vitrail.predict(tmp_path / "eight", PHOTOS, heads=3)


@eights
def test_what_reads_weights_refuses_the_folder_with_what_to_do(tmp_path: Path) -> None:
    vitrail.optimize(model(), precision="int8", calibrate=PHOTOS, out=tmp_path / "eight")
    with pytest.raises(CheckpointError, match=r"in eight bits.*Open it with vitrail\.optimize\(path\)"):
        vitrail.load(tmp_path / "eight")
    with pytest.raises(CheckpointError, match=r"in eight bits"):
        vitrail.finetune("sample", model=str(tmp_path / "eight"), out=tmp_path / "run")
    document = json.loads((tmp_path / "eight" / "optimized.json").read_text())
    (tmp_path / "eight" / "optimized.json").write_text(json.dumps({**document, "precision": "int4"}))
    with pytest.raises(CheckpointError, match=r"optimized\.json"):
        vitrail.predict(tmp_path / "eight", PHOTOS)


def test_what_cannot_be_is_refused_with_what_to_do(tmp_path: Path) -> None:
    plain = model()
    for options, words in (
        ({"precision": "float8"}, "on a CPU eight bits are int8"),
        ({"precision": "fp16"}, "Take bfloat16"),
        ({"calibrate": PHOTOS}, "calibrate is of eight bits; got precision=float32"),
        ({"out": tmp_path / "new"}, "out is of eight bits; got precision=float32"),
        ({"engine": "tensorrt"}, r"vitrail\.export\(model, to='onnx'\)"),
        ({"engine": "plain", "precision": "int8"}, "Leave engine out"),
        ({"batch": 0}, "Did you mean 'batch_size'"),
        ({"batch_size": 0}, "batch_size"),
        ({"image_size": 31}, r"vitrail\.load"),
    ):
        with pytest.raises(ConfigError, match=words):
            vitrail.optimize(plain, **options)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"vitrail\.save\(model\.plain"):
        vitrail.save(vitrail.optimize(plain), tmp_path / "new")
    if cpu.has_int8():
        with pytest.raises(ConfigError, match="written in the layout vitrail; got google"):
            vitrail.save(
                vitrail.optimize(plain, precision="int8", calibrate=PHOTOS), tmp_path / "new.npz", layout="google"
            )
    assert not list(tmp_path.iterdir())


def test_a_fast_model_is_trained_and_exported_as_its_plain_one(tmp_path: Path, untyped: None) -> None:
    plain = model()
    fast = vitrail.optimize(plain)
    copied = vitrail.load(fast, classes=3)
    assert copied.config.classes == 3
    assert torch.equal(
        copied.state_dict()["blocks.0.mlp.expand.weight"], plain.state_dict()["blocks.0.mlp.expand.weight"]
    )
    with pytest.raises(AttributeError, match=r"Did you mean vitrail\.optimize\?"):
        _ = vitrail.quantize  # pyright: ignore[reportAttributeAccessIssue]
    made = vitrail.export(fast, to="torch", out=tmp_path / "small.pt2", fixed_size=True)
    assert made.verified is not None


@eights
def test_the_command_says_what_was_chosen_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vitrail.save(model(), tmp_path / "run")
    out = tmp_path / "eight"
    assert main(["optimize", str(tmp_path / "run"), "--precision", "int8", "--out", str(out), "--json", "--quiet"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["precision"], said["calibrated_on"], said["ratio"]) == ("int8", 128, 2.5)
    assert main(["optimize", str(out), "--quiet"]) == 0
    assert "int8 in oneDNN on cpu" in capsys.readouterr().out
    assert main(["optimize", str(tmp_path / "run"), "--precision", "int8", "--out", str(out)]) == 1
    assert main(["optimize", str(tmp_path / "run"), "--precision", "int3"]) == 1
