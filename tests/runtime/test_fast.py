"""A fast model is called like the plain one, and says what it runs in."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from families import family, images_for

from vitrail.errors import ConfigError, ShapeError
from vitrail.models import ViT
from vitrail.runtime import cpu
from vitrail.runtime.fast import Choice, FastModel, make_fast
from vitrail.runtime.rebuilt import Outputs

CHOICE = Choice(engine="an engine", precision="float32", device="cpu", why="for a test")


def test_it_is_called_like_the_plain_model() -> None:
    model, images = family("vit"), images_for(family("vit"), 3)
    assert isinstance(model, ViT)
    fast = make_fast(model)
    assert fast.plain is model
    assert (fast.config, fast.card, fast.layers) == (model.config, model.card, model.layers)
    with torch.no_grad():
        for name in ("__call__", "represent", "tokens", "feature_map"):
            torch.testing.assert_close(getattr(fast, name)(images), getattr(model, name)(images), atol=1e-5, rtol=0)
        assert all(map(torch.equal, fast.attention_maps(images), model.attention_maps(images)))
    pixels = torch.randint(0, 256, (3, 30, 40), dtype=torch.uint8)
    assert torch.equal(fast.preprocess(pixels), model.preprocess(pixels))
    assert fast.state_dict().keys() == model.state_dict().keys()
    assert make_fast(fast).plain is model


def test_a_model_without_a_classifier_gives_its_representation() -> None:
    model, images = family("vit", classes=None), images_for(family("vit"), 3)
    with torch.no_grad():
        torch.testing.assert_close(make_fast(model)(images), model(images), atol=1e-5, rtol=0)


def test_no_gradients_go_through_it_and_its_features_can_be_learned_from() -> None:
    model, images = family("vit"), images_for(family("vit"), 3)
    features = make_fast(model).represent(images)
    assert not features.requires_grad
    torch.nn.Linear(features.shape[1], 2)(features).sum().backward()


def test_a_precision_of_the_surroundings_does_not_change_it() -> None:
    model, images = family("vit"), images_for(family("vit"), 3)
    fast = make_fast(model)
    wanted = fast(images)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(fast(images), wanted)


def test_images_are_refused_as_the_plain_model_refuses_them() -> None:
    fast = make_fast(family("vit"))
    with pytest.raises(ShapeError, match="batch axis"):
        fast(torch.zeros(3, 12, 20))
    with pytest.raises(ShapeError, match="float32"):
        fast(torch.zeros(1, 3, 12, 20, dtype=torch.float64))


def test_it_is_made_at_the_first_pass_and_once_for_all_threads() -> None:
    model, made = family("vit"), list[int]()
    barrier = threading.Barrier(4)

    def make() -> object:
        made.append(1)
        return model.outputs

    def ask(_: int) -> Outputs:
        barrier.wait(10)
        return fast.outputs(torch.zeros(1, 3, 12, 20))

    fast = FastModel(model, make, CHOICE)  # pyright: ignore[reportArgumentType]
    assert made == []
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(4)))
    assert made == [1]


def test_models_that_compute_otherwise_are_told_apart() -> None:
    model, images = family("vit"), images_for(family("vit"), 3)
    made = [make_fast(model), FastModel(model, lambda: model.outputs, CHOICE)]
    if cpu.has_int8():
        made += [make_fast(model, precision="int8", images=images[:count]) for count in (1, 2)]
    assert len({each.made_as for each in made}) == len(made)
    assert make_fast(copy.deepcopy(model)).made_as == made[0].made_as


def test_it_says_what_was_chosen_and_why() -> None:
    fast = make_fast(family("vit"))
    assert fast.choice.precision == "float32"
    assert str(fast.choice).startswith("float32 in ")
    assert "the exact precision" in str(fast.choice)
    assert fast.choice.document()["device"] == "cpu"
    measured = Choice(**{**CHOICE.document(), "calibrated_on": 1200, "ratio": 2.345, "batch_size": 16})
    assert str(measured) == (
        "float32 in an engine on cpu, calibrated on 1,200 images: for a test; 2.35 times the plain model at batch 16"
    )


def test_what_it_cannot_be_is_refused_with_what_to_do() -> None:
    model = family("vit")
    with pytest.raises(ConfigError, match=r"precision must be one of auto, .*got 'fp16'. Take bfloat16"):
        make_fast(model, precision="fp16")
    with pytest.raises(ConfigError, match="batch_size"):
        make_fast(model, batch_size=0)
    with pytest.raises(ConfigError, match=r"weights in float32; got torch\.bfloat16\. Convert it: model\.float\(\)"):
        make_fast(family("vit", torch.bfloat16))
    with pytest.raises(ConfigError, match=r"on a CPU or an NVIDIA GPU; this one is on meta"):
        make_fast(family("vit").to("meta"))
    with pytest.raises(ConfigError, match=r"stays where and as it was made.*vitrail\.optimize\(model\.plain\.to"):
        make_fast(model).to(torch.float64)
    if cpu.has_int8():
        with pytest.raises(ConfigError, match=r"int8 needs images to calibrate with\. Give calibrate="):
            make_fast(model, precision="int8")
