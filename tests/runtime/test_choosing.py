"""Which model images go through: the plain one, or it made fast where that is asked for or repays."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from evaluating import guessing, passing
from families import family, images_for

import vitrail
from vitrail.errors import ConfigError
from vitrail.runtime import cpu, inference
from vitrail.runtime.engines import EngineModel
from vitrail.runtime.fast import FastModel, make_fast
from vitrail.runtime.inference import choose_model, computed_in, repays

AUTO = passing(engine="auto")


def test_few_images_go_through_the_plain_model_and_many_through_a_faster_one() -> None:
    model = vitrail.create("ViT-B/16", classes=None, device="meta")  # 203 uses of every weight by an image
    assert not any(repays(model, count, "float32") for count in (1, 3, 10_000))  # it is on no device
    small = guessing()
    assert choose_model(small, 3, AUTO) is small
    assert choose_model(small, inference.FEW - 1, AUTO) is small
    fast = choose_model(small, 100_000, AUTO)
    assert isinstance(fast, FastModel)
    assert fast.plain is small
    assert fast.choice.precision == "float32"


@pytest.mark.parametrize(("name", "least"), [("ViT-B/16", 81), ("ViT-Ti/16", 75), ("BiT-R50x1", 103)])
def test_how_many_repay_depends_on_how_often_an_image_uses_a_weight(
    name: str, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = vitrail.create(name, device="meta")
    monkeypatch.setattr(type(model), "parameters", lambda self: iter([torch.zeros(1)]))  # as if on a CPU
    assert [repays(model, count, "float32") for count in (least - 1, least)] == [False, True]


def test_a_gpus_path_repays_for_a_great_many_images_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGpu:
        device, dtype = torch.device("cuda"), torch.float32

    model = vitrail.create("ViT-B/16", device="meta")
    monkeypatch.setattr(type(model), "parameters", lambda self: iter([OnGpu()]))
    assert [repays(model, count, "bfloat16") for count in (1_000_000, 1_300_000)] == [False, True]
    assert not repays(model, 10**9, "float32")  # what is kept in single precision stays the plain model's
    assert repays(model, 1, "float8")


def test_the_plain_model_is_a_word_away() -> None:
    model = guessing()
    assert choose_model(model, 100_000, passing(engine="plain")) is model
    assert choose_model(make_fast(model), 100_000, passing(engine="plain")) is model
    assert isinstance(choose_model(model, 1, passing(engine="fast")), FastModel)


def test_a_fast_model_stays_what_it_is() -> None:
    fast = make_fast(guessing())
    assert choose_model(fast, 1, AUTO) is fast
    if cpu.has_bfloat16():
        with pytest.raises(ConfigError, match="made fast in float32; got precision=bfloat16"):
            choose_model(fast, 1, replace(AUTO, precision="bfloat16"))


def test_a_processor_without_bfloat16_leaves_it_to_the_plain_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model, half = guessing(), replace(AUTO, precision="bfloat16")
    monkeypatch.setattr(inference, "has_bfloat16", lambda: False)
    assert choose_model(model, 100_000, half) is model
    monkeypatch.setattr(cpu, "has_bfloat16", lambda: False)
    with pytest.raises(ConfigError, match="no products in bfloat16"):
        choose_model(model, 100_000, replace(half, engine="fast"))


@pytest.mark.skipif(not cpu.has_int8(), reason="no products in int8")
def test_eight_bits_are_made_for_a_single_image_on_the_sample_in_the_box() -> None:
    model = family("vit")
    fast = choose_model(model, 1, replace(AUTO, precision="int8"))
    assert isinstance(fast, FastModel)
    assert fast.choice.calibrated_on == 128
    with torch.no_grad():
        wanted = model(images_for(model))
    torch.testing.assert_close(fast(images_for(model)), wanted, atol=0.3 * float(wanted.abs().max()), rtol=0)


def test_a_model_in_half_precision_stays_as_it_is() -> None:
    model = family("vit", torch.bfloat16)
    assert choose_model(model, 100_000, AUTO) is model


def test_an_exported_file_runs_in_its_own_engine() -> None:
    said = {"to": "onnx", "sizes": {}, "input": "images"}
    model = EngineModel(lambda images: [images], guessing().config, guessing().card, said, b"")
    assert choose_model(model, 100_000, AUTO) is model
    assert computed_in(model, AUTO)["engine"] == "exported to onnx"
    with pytest.raises(ConfigError, match="runs in its own engine and precision"):
        choose_model(model, 1, replace(AUTO, engine="fast"))


def test_what_was_computed_in_is_said() -> None:
    model = guessing()
    assert computed_in(model, AUTO) == {"engine": "plain", "precision": "float32", "device": "cpu"}
    said = computed_in(choose_model(model, 100_000, AUTO), AUTO)
    assert (said["precision"], said["device"]) == ("float32", "cpu")
    assert said["engine"] in ("oneDNN", "torch")


def test_verbs_take_the_word_and_say_what_was_used(tmp_path: Path) -> None:
    images = [torch.randint(0, 256, (3, 8, 12), dtype=torch.uint8) for _ in range(3)]
    model = guessing()
    found = {word: vitrail.predict(model, images, engine=word) for word in ("auto", "plain", "fast")}
    assert found["auto"].computed == found["plain"].computed == {**found["plain"].document()["computed"]}
    assert found["auto"].computed["engine"] == "plain"  # of three images
    assert found["fast"].computed["engine"] != "plain"
    assert torch.equal(found["auto"].logits, found["plain"].logits)
    torch.testing.assert_close(found["fast"].logits, found["plain"].logits, atol=1e-4, rtol=0)
    torch.testing.assert_close(
        vitrail.embed(model, images, engine="fast"), vitrail.embed(model, images), atol=1e-4, rtol=0
    )
    with pytest.raises(ConfigError, match=r"vitrail\.export\(model, to='openvino'\)"):
        vitrail.predict(model, images, engine="openvino")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="int8 is of the fast engine; got engine=plain"):
        vitrail.predict(model, images, engine="plain", precision="int8")
