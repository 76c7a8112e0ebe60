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
    assert document["config"]["stem"] == {"kind": "patches", "patch": 32}
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
