import json

import pytest

import vitrail
from vitrail.cli import main


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == 0
    return capsys.readouterr().out


def test_a_plan_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "ViT-B/16", "--images", "303e6", "--epochs", "7")
    for words in ("86,567,656", "17.56", "2,121,000,000 images", "223.5", "GiB"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 80


def test_several_models_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "--compare", "ViT-L/16", "R50+ViT-L/32", "BiT-R152x2")
    row = next(line.split() for line in text.splitlines() if line.split()[:1] == ["parameters"])
    assert row == ["parameters", "304,326,632", "328,994,856", "236,335,208"]
    assert max(map(len, text.splitlines())) <= 80
    documents = json.loads(shown(capsys, "--compare", "ViT-L/16", "BiT-R152x2", "--json"))
    assert [document["model"] for document in documents] == ["ViT-L/16", "BiT-R152x2"]


def test_any_field_can_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["depth=8", "width=1024", "mlp_width=2048", "heads=8", "patch=32"]
    arguments = [word for setting in settings for word in ("--set", setting)]
    document = json.loads(shown(capsys, "ViT-B/16", *arguments, "--image-size", "256x192", "--json"))
    assert document["tokens"] == 1 + 8 * 6
    assert document["config"]["stem"] == {"kind": "patches", "patch": 32, "norms": False}
    assert document["parameters"]["attention"] == 8 * 4 * (1024 * 1024 + 1024)


def test_pixels_as_patches_get_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert "of the work is token against token" in shown(capsys, "ViT-B/1", "--batch", "1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ViT-B16"], "Did you mean 'ViT-B/16'?"),
        (["ViT-B/16", "ViT-L/16"], "side by side with --compare"),
        (["ViT-B/16", "--epochs", "7"], "needs both images and epochs"),
        (["ViT-B/16", "--image-size", "big"], "--image-size must be a side or HEIGHTxWIDTH, such as 224"),
        (["ViT-B/16", "--image-size", "225"], "multiples of the patch side 16; got 225x225"),
        (["ViT-B/16", "--precision", "float8"], "precision must be one of 'float32', 'bfloat16'"),
        (["ViT-B/16", "--batch", "0"], "batch_size must be a whole number, at least 1; got 0"),
        (["ViT-B/16", "--set", "widht=3"], "Did you mean 'width'?"),
        (["ViT-B/16", "--images", "-5", "--epochs", "1"], "images must be a whole number, at least 1; got -5"),
        (["ViT-B/16", "--images", "0.5", "--epochs", "1"], "images must be a whole number, at least 1; got 0.5"),
        (["ViT-B/16", "--images", "1e308", "--epochs", "1"], "images must be a whole number, at least 1 and at most"),
        (["ViT-B/16", "--images", "1e6", "--epochs", "1e308"], "epochs must be at most"),
        (["ViT-B/16", "--image-size", "\u00b2"], "--image-size must be a side or HEIGHTxWIDTH"),
        (["ViT-B/16", "--image-size", "64", "--set", "image_size=32"], "given twice"),
    ],
)
def test_a_wrong_plan_is_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error


def test_the_function_gives_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    made = vitrail.plan("ViT-B/16", batch_size=2, image_size=(256, 192), depth=8, images=1.28e6, epochs=90)
    arguments = ["--batch", "2", "--image-size", "256x192", "--set", "depth=8", "--images", "1.28e6", "--epochs", "90"]
    assert shown(capsys, "ViT-B/16", *arguments) == f"{made}\n"
    assert json.loads(shown(capsys, "ViT-B/16", *arguments, "--json")) == made.document()
    model = vitrail.create("ViT-Ti/16", image_size=32)
    assert vitrail.plan(model).parameters.total == sum(weight.numel() for weight in model.parameters())


def test_a_recipe_says_what_is_left_open(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(shown(capsys, "ViT-L/16", "--recipe", "jft/ViT-L/16-14ep", "--json"))
    assert document["step"]["batch"] == 4096
    assert document["step"]["optimizer"] == "adam"
    run = document["run"]
    assert (run["images"], run["epochs"], run["steps"]) == (303_000_000, 14, -(-303_000_000 * 14 // 4096))
    assert run["exaflops"] == pytest.approx(1567, rel=0.002)
    assert run["tpuv3_core_days"] == pytest.approx(680, abs=5)
    assert document["config"]["pre_logits"] == 1024  # of pre-training
    tuned = vitrail.plan("ViT-B/16", recipe="finetune/pets", classes=37)
    assert (tuned.steps, tuned.step.batch, tuned.step.optimizer) == (500, 512, "sgd")
    assert tuned.config.image_size == (384, 384)
    assert tuned.config.classes == 37
    shorter = vitrail.plan("ViT-B/16", recipe="i1k", epochs=90, batch_size=1024, image_size=160)
    assert (shorter.epochs, shorter.step.batch, shorter.config.image_size) == (90, 1024, (160, 160))


def test_a_masked_autoencoder_is_counted_as_the_visible_patches_and_the_decoder() -> None:
    plain, masked = (vitrail.plan("ViT-B/16", recipe=name, images=1000) for name in ("i1k", "mae"))
    assert 0.3 < masked.training_flops / plain.training_flops < 0.6
    assert masked.steps == -(-1000 * 800 // 4096)


def test_a_run_on_a_device_of_the_table_has_time_energy_and_a_price(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["ViT-B/16", "--recipe", "i1k", "--on", "H200", "--price", "2.50", "--nodes", "2"]
    document = json.loads(shown(capsys, *arguments, "--json"))
    place, ranks = document["place"], document["ranks"]
    assert (place["devices"], ranks["world_size"], place["micro_batch"], place["accumulation"]) == (16, 16, 256, 1)
    hours = place["seconds"] / 3600
    assert hours == pytest.approx(93_836 * 256 / 3549 / 3600, rel=0.03)  # at the rate that LOG.md has
    assert place["cost"] == pytest.approx(2.5 * 16 * hours)
    assert place["kilowatt_hours"] == pytest.approx(0.7 * 16 * hours)
    assert ranks["DDP"]["seconds"] == pytest.approx(ranks["DDP"]["traffic"] / 50e9)
    sent = ranks["FSDP"]["run_seconds"] - place["seconds"]
    assert sent == pytest.approx(document["run"]["steps"] * ranks["FSDP"]["traffic"] / 50e9)
    text = shown(capsys, *arguments)
    for words in (
        "on H200",
        "38% of 989 TFLOP/s",
        "TPUv3-core-days",
        "2(n-1)/n",
        f"{place['cost']:,.2f}",
        "time of the run",
    ):
        assert words in text
    assert max(map(len, text.splitlines())) <= 100
    assert vitrail.plan("ViT-B/16", on="T4").step.precision == "float32"
    small = vitrail.plan("ViT-G/14", on="T4", steps=5)
    assert "not even one image at a time fits" in str(small)


def test_what_fits_a_memory_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "--fit", "24GB")
    assert max(map(len, text.splitlines())) <= 80
    assert all(name in text for name in vitrail.names())
    document = json.loads(shown(capsys, "ViT-L/16", "--fit", "24GB", "--batch", "512", "--json"))
    (row,) = document["models"]
    assert row["inference"] > row["checkpointing"] > row["bfloat16"] > row["float32"] > 0
    assert row["micro_batch"] <= row["bfloat16"]
    assert row["accumulation"] == -(-512 // row["micro_batch"])
    place = vitrail.plan("ViT-L/16", on="RTX-4090").place  # which has as much
    assert place is not None
    assert (place.largest_training, place.largest_inference) == (row["bfloat16"], row["inference"])
    assert str(vitrail.plan(fit="24GB")) + "\n" == text


def test_a_shape_is_proposed_for_a_budget(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(shown(capsys, "--shape", "1e21", "--json"))
    config, run = document["config"], document["run"]
    assert config["width"] == 64 * config["heads"]
    assert run["exaflops"] == pytest.approx(1000, rel=1e-6)
    assert run["budget_flops"] == 1e21
    text = shown(capsys, "--shape", "1e21", "--image-size", "224", "--set", "patch=16")
    assert "SoViT's rule (arXiv 2305.13035)" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "which model? Give a name such as ViT-B/16, --shape 1e21, or --fit 24GB"),
        (["ViT-B/16", "--on", "H20"], "Did you mean 'H200'?"),
        (["ViT-B/16", "--fit", "lots"], "must be a size of memory such as 24GB; got 'lots'"),
        (["ViT-B/16", "--fit", "8GB", "--on", "H200"], "fit lists what fits a memory, without on"),
        (["ViT-B/16", "--price", "2"], "a price needs a time. Say which device, such as --on H200, or --probe"),
        (["ViT-B/16", "--on", "H200", "--utilization", "38"], "at most 1; got 38"),
        (["ViT-B/16", "--utilization", "0.4"], "a share of a device's peak"),
        (["ViT-B/16", "--on", "H200", "--probe"], "Give one of them"),
        (["ViT-B/16", "--bandwidth", "50"], "Say how many there are"),
        (["ViT-B/16", "--nodes", "0"], "nodes must be a whole number, at least 1"),
        (["ViT-B/16", "--shape", "1e21"], "shape proposes the model"),
        (["--shape", "5"], "from 1e+15 to 1e+27; got 5"),
        (["ViT-B/16", "--recipe", "augreg/light1"], "Say how many images there are: --images"),
        (["ViT-B/16", "--recipe", "i2k"], "there is no recipe 'i2k'"),
        (["ViT-B/16", "--recipe", "i1k", "--optimizer", "sgd"], "says the optimizer"),
        (["ViT-B/16", "--steps", "5", "--epochs", "2", "--images", "9"], "given twice: steps and epochs"),
        (["ViT-B/16", "--on", "T4", "--precision", "bfloat16"], "no bfloat16 of a T4"),
    ],
)
def test_what_a_plan_cannot_answer_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments]) == 1
    assert message in capsys.readouterr().err
