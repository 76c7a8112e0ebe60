"""A report: what is written, that its page fits, and that its numbers are those of the functions."""

import base64
import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evaluating import NAMES, Pictures, guessing, write_folder
from families import FAMILIES, family
from PIL import Image

import vitrail
from vitrail import inspection
from vitrail.cli import main
from vitrail.config import Learned2DPositions, NoPositions
from vitrail.data.open import open_images
from vitrail.inspection.drawing import Seen, drawings, enlarge
from vitrail.inspection.report import in_words, small_enough, write_report
from vitrail.inspection.study import Views, study
from vitrail.inspection.views import spread, views_of
from vitrail.models import Model


def looked(model: Model, count: int = 5) -> Seen:
    pixels = torch.randint(0, 256, (count, 3, *model.config.image_size), dtype=torch.uint8)
    views = Views(pixels, pixels / 127.5 - 1, [f"image {place}" for place in range(count)], [None] * count)
    return Seen("a model", model, views, study(model, views, maps=True, bias=True, tell=lambda text: None))


def read(page: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="document">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_a_report(name: str, tmp_path: Path) -> None:
    subject = looked(family(name))
    made = write_report(tmp_path / "out", subject)
    document = read(made.page)
    names = {path.stem for path in made.figures}
    assert {"filters", "shifts", "patches", "layers"} <= names
    assert ("rollout" in names) == ("distance" in names) == ("heads" in names) == (name != "bit")
    for path in made.figures:
        width, height = struct.unpack(">II", path.read_bytes()[16:24])
        assert min(width, height) > 100
    assert len(document["images"]) == 5
    for image in document["images"]:
        assert len(image["top"]) == 5
        assert (image["attention"] is None) == (name == "bit")
    assert made.bytes == made.page.stat().st_size < 25_000_000


def test_the_page_holds_the_weights_that_functions_give(tmp_path: Path) -> None:
    model = family("vit")
    subject = looked(model)
    document = read(write_report(tmp_path, subject).page)
    assert subject.views is not None
    maps = inspection.rollout(model, subject.views.images)
    pooled = inspection.pooled_attention(model, subject.views.images)
    for number, image in enumerate(document["images"]):
        found = image["attention"]
        assert (found["rows"], found["cols"], found["layers"], found["heads"], found["class_token"]) == (
            3,
            5,
            2,
            3,
            True,
        )
        levels = np.frombuffer(base64.b64decode(found["rollout"]), np.uint8)
        np.testing.assert_allclose(
            levels * found["rollout_peak"] / 255, maps[number].numpy().ravel(), atol=found["rollout_peak"] / 255
        )
        levels = np.frombuffer(base64.b64decode(found["pooled"]), np.uint8).reshape(2, 3, 15)
        peaks = np.frombuffer(base64.b64decode(found["pooled_peaks"]), "<f4").reshape(2, 3, 1)
        np.testing.assert_allclose(levels * peaks / 255, pooled[number].flatten(2).numpy(), atol=peaks.max() / 255)
        shares = model(subject.views.images[number : number + 1]).detach().softmax(dim=1)[0]
        assert image["top"][0]["name"] == str(int(shares.argmax()))
        assert image["top"][0]["probability"] == pytest.approx(float(shares.max()), abs=1e-4)
    numbers = json.loads((tmp_path / "inspection.json").read_text())
    expected = inspection.attention_distance(model, subject.views.images).mean(dim=0)
    np.testing.assert_allclose(numbers["attention_distance"], expected.numpy(), atol=1e-4)
    assert numbers["shifts"]["pixels"][:3] == [0, 2, 4]
    assert numbers["dropped"]["cosine"][0] == pytest.approx(1, abs=1e-5)


def test_labels_of_other_classes_are_neither_right_nor_wrong(tmp_path: Path) -> None:
    model = guessing(names=NAMES)
    pixels = torch.zeros(2, 3, *model.config.image_size, dtype=torch.uint8)
    views = Views(pixels, pixels.float(), ["a", "b"], [NAMES[0], "unknown"])
    found = study(model, views, maps=True, bias=False, tell=lambda text: None)
    one, two = read(write_report(tmp_path, Seen("m", model, views, found)).page)["images"]
    assert one["right"] == (one["top"][0]["name"] == NAMES[0])
    assert (two["label"], two["right"]) == ("unknown", None)


def test_large_pictures_are_made_smaller() -> None:
    assert small_enough(torch.zeros(3, 1024, 700, dtype=torch.uint8)).shape == (3, 512, 350)
    assert small_enough(torch.zeros(3, 300, 512, dtype=torch.uint8)).shape == (3, 300, 512)


def test_two_models_stand_side_by_side(tmp_path: Path) -> None:
    subject, other = looked(family("vit")), looked(family("hybrid"))
    assert subject.views is not None
    assert other.views is not None
    between = inspection.layer_similarity(subject.model, subject.views.images, other.model, other.views.images)
    made = write_report(tmp_path, subject, other=other, between=between)
    names = {path.stem for path in made.figures}
    assert {"filters", "other-filters", "layers-against"} <= names
    numbers = json.loads((tmp_path / "inspection.json").read_text())
    np.testing.assert_allclose(numbers["layers_against"], between.numpy(), atol=1e-5)
    assert len(numbers["other"]["attention_distance"]) == 2


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"positions", "positions-before", "positions-resampled"}),
        (
            {"positions": Learned2DPositions()},
            {"positions-by-axis", "positions", "positions-before", "positions-resampled"},
        ),
        ({"positions": NoPositions()}, set()),
    ],
)
def test_positions_are_drawn_by_their_kind(changes: dict[str, Any], expected: set[str]) -> None:
    seen = Seen("m", family("vit", **changes), None, None)
    assert {drawing.name for drawing in drawings(seen, None, None)} - {"filters"} == expected


def test_before_training_positions_are_those_of_a_fresh_model() -> None:
    fresh = vitrail.create("ViT-Ti/16", image_size=64, seed=0)
    found = {drawing.name: drawing.draw("light") for drawing in drawings(Seen("m", fresh, None, None), None, None)}
    assert found["positions"] == found["positions-before"]
    trained = vitrail.create("ViT-Ti/16", image_size=64, seed=1)
    other = {drawing.name: drawing.draw("light") for drawing in drawings(Seen("m", trained, None, None), None, None)}
    assert other["positions-before"] == found["positions-before"] != other["positions"]
    assert found["filters"] != other["filters"]


def test_themes_differ_and_drawing_is_repeatable() -> None:
    (filters, *_) = drawings(Seen("m", family("vit"), None, None), None, None)
    assert filters.draw("light") == filters.draw("light") != filters.draw("dark")


def test_a_map_is_enlarged_about_its_place() -> None:
    maps = torch.zeros(1, 3, 5)
    maps[0, 1, 3] = 0.25
    large = enlarge(maps, (48, 80), 16)
    assert large.shape == (1, 48, 80)
    place = int(large[0].argmax())
    assert abs(place // 80 - 23.5) <= 1
    assert abs(place % 80 - 55.5) <= 1
    flat = enlarge(torch.full((1, 3, 5), 0.1), (48, 80), 16)
    torch.testing.assert_close(flat, torch.ones_like(flat), atol=0.02, rtol=0)


@pytest.mark.parametrize(
    ("name", "words"),
    [("vit", "ViT, 4x4 patches, 2 layers of 3 heads"), ("hybrid", "hybrid, 8x8 patches"), ("bit", "BiT ResNet, 0.")],
)
def test_a_model_is_said_in_words(name: str, words: str) -> None:
    assert in_words(family(name)).startswith(words)


def test_images_are_chosen_over_all_of_a_source() -> None:
    assert spread(10, 4).tolist() == [0, 3, 6, 9]
    assert spread(3, 8).tolist() == [0, 1, 2]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("home")
    write_folder(root / "images" / "test", Pictures(29))
    vitrail.save(guessing(names=NAMES), root / "run")
    vitrail.save(guessing(seed=1, names=NAMES), root / "other")
    loose = root / "loose"
    loose.mkdir()
    for number in range(3):
        Image.fromarray(np.full((20, 30, 3), 60 * number, np.uint8)).save(loose / f"{number}.png")
    (loose / "bad.jpg").write_bytes(b"no image")
    return root


def inspected(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["inspect", *map(str, arguments), "--json", "--quiet"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_command_writes_a_page_with_mistakes(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = inspected(capsys, home / "run", home / "images", "--out", tmp_path / "out", "--images", "8")
    document = read(Path(found["page"]))
    assert found["images"] == len(document["images"]) == 8
    model, source = vitrail.load(home / "run"), open_images(home / "images")["test"]
    views, kept, _ = views_of(model, source, range(29))
    shares = model(views.images).detach().softmax(dim=1)
    wrong = [number for number in kept if int(shares[number].argmax()) != int(source.labels[number])]
    surest = sorted(wrong, key=lambda number: -float(shares[number].max()))[:4]
    mistakes = [image for image in document["images"] if image["mistake"]]
    assert [image["name"] for image in mistakes] == [source.name(number) for number in surest]
    assert all(image["right"] is False and image["label"] != image["top"][0]["name"] for image in mistakes)
    assert all(Path(path).is_file() for path in found["figures"])


def test_another_model_is_put_beside(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = inspected(
        capsys, home / "run", home / "images", "--against", home / "other", "--out", tmp_path, "--images", "5"
    )
    assert any("layers-against" in path for path in found["figures"])


def test_without_images_the_weights_are_shown(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = inspected(capsys, home / "run", "--out", tmp_path)
    assert found["images"] == 0
    assert any("filters" in path for path in found["figures"])
    assert read(Path(found["page"]))["images"] == []


def test_loose_files_and_one_file_can_be_looked_at(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inspected(capsys, home / "run", home / "loose", "--out", tmp_path / "a", "--no-bias")["images"] == 3
    one = inspected(capsys, home / "run", home / "loose" / "1.png", "--out", tmp_path / "b")
    (image,) = read(Path(one["page"]))["images"]
    assert (image["name"], image["label"], image["right"]) == ("1.png", None, None)
    assert main(["inspect", str(home / "run"), str(home / "loose"), "--out", str(tmp_path / "c"), "--no-bias"]) == 0
    assert "left out bad.jpg: " in " ".join(capsys.readouterr().err.split())


def test_bad_input_is_refused_before_anything_is_computed(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    for arguments, words in (
        ((home / "run", home / "nowhere"), "there is no data at"),
        ((home / "nowhere",), "nowhere"),
        ((home / "run", home / "loose" / "bad.jpg"), "none of the 1 images can be decoded"),
        ((home / "run", home / "images", "--images", "0"), "images"),
        ((home / "run", home / "images", "--split", "val"), "there is no split 'val'"),
    ):
        assert main(["inspect", *map(str, arguments), "--out", str(out)]) == 1
        assert words in " ".join(capsys.readouterr().err.split())
        assert not out.exists()


def test_an_evaluation_links_to_where_the_model_looked(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(home / "run"), str(home / "images"), "--report", str(tmp_path), "--worst", "3"]) == 0
    assert "report.html" in capsys.readouterr().out
    document = read(tmp_path / "report.html")
    numbers = json.loads((tmp_path / "evaluation.json").read_text())
    assert [image["name"] for image in document["images"]] == [row["name"] for row in numbers["worst"]["images"]]
    assert all(image["mistake"] for image in document["images"])
    tables = {table["id"]: table for table in document["tables"]}
    assert tables["accuracy"]["rows"][0][1] == f"{100 * numbers['accuracy']:.1f} %"
    assert {row[0] for row in tables["classes"]["rows"]} == {row["name"] for row in numbers["classes"] if row["images"]}
    assert (tmp_path / "predictions.csv").is_file()


@pytest.mark.slow
def test_the_page_of_sixteen_images_and_two_base_models_stays_under_25_megabytes(tmp_path: Path) -> None:
    seen = []
    for name in ("ViT-B/16", "R50+ViT-B/16"):
        model = vitrail.create(name, classes=1000, image_size=224)
        pixels = torch.randint(0, 256, (16, 3, 224, 224), dtype=torch.uint8)  # noise: the largest files
        views = Views(pixels, pixels / 127.5 - 1, [f"image {place}" for place in range(16)], [None] * 16)
        seen.append(Seen(name, model, views, study(model, views, maps=True, bias=False, tell=lambda text: None)))
    assert seen[0].found is not None
    made = write_report(tmp_path, seen[0], other=seen[1], between=seen[0].found.layers)
    assert made.bytes < 25_000_000
    document = read(made.page)
    assert document["images"][0]["attention"]["all_heads"]
    assert document["images"][0]["attention"]["rows"] == 14
