"""A report: what is written, that its page fits, and that its numbers are those of the functions."""

import base64
import io
import json
import re
import shutil
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evaluating import NAMES, Pictures, guessing, write_folder
from families import FAMILIES, family
from PIL import Image
from torch.nn import functional as F

import vitrail
from vitrail import inspection
from vitrail.cli import main
from vitrail.config import Learned2DPositions, NoPositions, Preprocessing
from vitrail.data.open import open_data, open_images
from vitrail.errors import ConfigError, DataError, VitrailError
from vitrail.figures import measured
from vitrail.figures.measured import draw_confusion, label_size, wrapped
from vitrail.inspection.drawing import Drawing, drawings, enlarge
from vitrail.inspection.page import pictures_of, small_enough
from vitrail.inspection.report import in_words, write_report
from vitrail.inspection.study import Inspected, draw_images, drawn_count, look, study
from vitrail.inspection.views import Views, spread, views_of
from vitrail.models import Model, ViT

QUICK = ("vit", "bit")


@pytest.fixture
def sketched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw nothing, where a test reads words and numbers: an empty picture for every figure."""
    buffer = io.BytesIO()
    Image.new("RGB", (31, 29)).save(buffer, "PNG")

    def sketches(*given: Any) -> list[Drawing]:
        return [drawing._replace(draw=lambda _: buffer.getvalue()) for drawing in drawings(*given)]

    monkeypatch.setattr("vitrail.inspection.report.drawings", sketches)


def looked(model: Model, count: int = 5) -> Inspected:
    pixels = torch.randint(0, 256, (count, 3, *model.config.image_size), dtype=torch.uint8)
    views = Views(pixels, pixels / 127.5 - 1, [f"image {place}" for place in range(count)], [None] * count)
    return Inspected("a model", model, study(model, views, maps=True, bias=True))


def read(page: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="document">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in FAMILIES]
)
def test_every_family_has_a_report(name: str, tmp_path: Path) -> None:
    subject = looked(family(name))
    made = write_report(tmp_path / "out", subject)
    document = read(made.page)
    names = {path.stem for path in made.figures}
    assert {"filters", "shifts", "patches", "layers"} <= names
    assert ("rollout" in names) == ("distance" in names) == ("heads" in names) == (name != "bit")
    for path in made.figures:
        width, height = struct.unpack(">II", path.read_bytes()[16:24])
        assert min(width, height) > 20
    assert len(document["images"]) == 5
    for image in document["images"]:
        assert len(image["top"]) == 5
        assert (image["attention"] is None) == (name == "bit")
    assert made.bytes == made.page.stat().st_size < 25_000_000


@pytest.mark.usefixtures("sketched")
def test_the_page_holds_the_weights_that_functions_give(tmp_path: Path) -> None:
    model = family("vit")
    subject = looked(model)
    document = read(write_report(tmp_path, subject).page)
    assert subject.found is not None
    maps = inspection.rollout(model, subject.found.views.images)
    pooled = inspection.pooled_attention(model, subject.found.views.images)
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
        shares = model(subject.found.views.images[number : number + 1]).detach().softmax(dim=1)[0]
        assert image["top"][0]["name"] == str(int(shares.argmax()))
        assert image["top"][0]["probability"] == pytest.approx(float(shares.max()), abs=1e-4)
    numbers = json.loads((tmp_path / "inspection.json").read_text())
    expected = inspection.attention_distance(model, subject.found.views.images).mean(dim=0)
    np.testing.assert_allclose(numbers["attention_distance"], expected.numpy(), atol=1e-4)
    assert numbers["shifts"]["pixels"][:3] == [0, 2, 4]
    assert numbers["dropped"]["cosine"][0] == pytest.approx(1, abs=1e-5)


@pytest.mark.usefixtures("sketched")
def test_labels_of_other_classes_are_neither_right_nor_wrong(tmp_path: Path) -> None:
    model = guessing(names=NAMES)
    pixels = torch.zeros(2, 3, *model.config.image_size, dtype=torch.uint8)
    views = Views(pixels, pixels.float(), ["a", "b"], [NAMES[0], "unknown"])
    found = study(model, views, maps=True, bias=False)
    one, two = read(write_report(tmp_path, Inspected("m", model, found)).page)["images"]
    assert one["right"] == (one["top"][0]["name"] == NAMES[0])
    assert (two["label"], two["right"]) == ("unknown", None)


def test_large_pictures_are_made_smaller() -> None:
    assert small_enough(torch.zeros(3, 1024, 700, dtype=torch.uint8), 512).shape == (3, 512, 350)
    assert small_enough(torch.zeros(3, 300, 512, dtype=torch.uint8), 512).shape == (3, 300, 512)


@pytest.mark.parametrize(("resize", "share"), [("squash", 1.0), ("crop", 0.8)])
def test_pictures_are_sharper_than_what_the_model_reads_and_show_the_same(resize: Any, share: float) -> None:
    model = vitrail.create("ViT-Ti/16", image_size=(48, 64), depth=1)
    model.card = replace(model.card, preprocessing=Preprocessing(resize=resize, crop_share=share))
    smooth = Image.fromarray(np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8))
    sizes_of = ((300, 220), (900, 820), (30, 20))
    images = [np.array(smooth.resize(size, Image.Resampling.BICUBIC)) for size in sizes_of]
    source = open_data([(image, 0) for image in images])["all"]
    views, _, _ = views_of(model, source, range(3), sharp=True)
    sizes = [tuple(picture.shape[1:]) for picture in views.pictures]
    height, width = model.config.image_size
    assert max(sizes[0]) <= 300 * share + 60
    assert max(sizes[1]) == 384
    assert sizes[2] == (height, width)  # nothing to be sharper than
    for picture, pixels in zip(views.pictures[:2], views.pixels[:2], strict=True):
        assert picture.shape[1] / picture.shape[2] == pytest.approx(height / width, rel=0.02)
        small = F.adaptive_avg_pool2d(picture.float(), (height, width))
        assert float((small - pixels).abs().mean()) < 8  # the same part of the image; of another it is 40
    assert len(views_of(model, source, range(3))[0].sharp) == 0


@pytest.mark.parametrize(
    ("names", "fit"),
    [
        (["yes", "no"], True),
        (NAMES, True),
        ([f"class {place}" for place in range(60)], True),
        ([f"class {place}" for place in range(200)], False),
        ([f"{place} " + "long " * 9 for place in range(50)], False),
    ],
)
def test_confusions_have_names_where_they_fit(names: list[str], fit: bool) -> None:
    assert (label_size(names) is not None) == fit
    assert all("".join(wrapped(name)).replace(" ", "") == name.replace(" ", "") for name in names)  # never cut
    counts = np.eye(len(names)) * 5
    assert draw_confusion(counts, names, "light") != draw_confusion(counts.T[::-1], names, "light")


@pytest.mark.parametrize(("count", "side"), [(3, 64), (40, 160), (12, 600)])
def test_pictures_keep_to_their_bytes(count: int, side: int) -> None:
    pixels = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8)  # noise: the largest files
    made = pictures_of(pixels, 300_000)
    assert sum(picture.bytes for picture in made) <= 300_000
    assert made[0].url.startswith("data:image/png" if side == 64 else "data:image/jpeg")
    for picture in made:
        assert picture.bytes == len(base64.b64decode(picture.url.partition(",")[2]))


@pytest.mark.slow
def test_any_name_can_be_drawn(tmp_path: Path) -> None:
    model = family("vit")
    pixels = torch.zeros(4, 3, 12, 20, dtype=torch.uint8)
    names = ["$\\frac{$.png", "caf\udce9.png", "_hidden", "\u732b.png"]
    views = Views(pixels, pixels.float(), names, [None] * 4)
    found = study(model, views, maps=True, bias=True)
    seen = Inspected("_$\\frac{$", model, found)
    made = write_report(tmp_path / "out", seen, other=seen._replace(title="caf\udce9"), between=found.layers)
    assert len(read(made.page)["images"]) == 4


@pytest.mark.usefixtures("sketched")
def test_a_report_replaces_its_own_and_nothing_else(tmp_path: Path) -> None:
    seen, out = Inspected("one", family("vit")), tmp_path / "out"
    write_report(out, seen)
    (out / "figures" / "old.png").write_bytes(b"of an earlier version")
    write_report(out, seen)
    assert not (out / "figures" / "old.png").exists()
    with pytest.raises(DataError, match="holds a report of 'one', which would be lost"):
        write_report(out, seen._replace(title="two"))
    (out / "mine.txt").write_text("notes")
    with pytest.raises(VitrailError, match=r"it also holds mine\.txt"):
        write_report(out, seen)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(VitrailError, match="is a file"):
        write_report(tmp_path / "file", seen)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_model_that_diverged_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    model = family("vit")
    with torch.no_grad():
        model.get_parameter("blocks.0.attention.qkv.weight").mul_(1e30)
    with pytest.raises(ConfigError, match="answers to these images are not finite"):
        looked(model)
    with torch.no_grad():
        model.get_parameter("head.weight")[0, 0] = float("nan")
    with pytest.raises(ConfigError, match=r"'head.weight' holds numbers that are not finite"):
        looked(model)


@pytest.mark.slow
def test_a_model_without_classes_has_no_answers_to_compare(tmp_path: Path) -> None:
    subject = looked(family("vit", classes=None))
    made = write_report(tmp_path / "out", subject)
    numbers = json.loads((tmp_path / "out" / "inspection.json").read_text())
    assert numbers["shifts"]["same"] == [None] * len(numbers["shifts"]["pixels"])
    assert all(image["top"] == [] for image in read(made.page)["images"])


def test_heads_are_kept_for_the_first_images_and_their_mean_for_the_others() -> None:
    model = family("vit")
    assert isinstance(model, ViT)
    images = torch.randn(5, 3, 12, 20)
    each = 2 * 15 * (15 + 4)
    with torch.no_grad():
        found, _ = look(model, images, 5 * each + 2 * 2 * each)
    assert found.plan == (1, 2)
    assert [maps.levels.shape[1] for maps in found.maps] == [3, 3, 1, 1, 1]
    layers = model.attention_maps(images)
    for number, maps in enumerate(found.maps):
        for layer in range(2):
            weights = layers[layer][number, :, 1:, 1:]
            expected = weights if number < 2 else weights.mean(dim=0, keepdim=True)
            back = maps.levels[layer] * (maps.peaks[layer][..., None] / 255)
            np.testing.assert_allclose(back, expected.numpy(), atol=float(maps.peaks.max()) / 255)


def test_what_is_drawn_is_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, list[Any]] = {}
    for name in ("draw_tiles", "draw_distances", "draw_heads", "draw_matrix"):
        monkeypatch.setattr(
            f"vitrail.figures.{name}", lambda *given, name=name, **_: drawn.setdefault(name, []).append(given) or b""
        )
    subject = looked(family("vit"))
    assert subject.found is not None
    assert subject.found.attention is not None
    for drawing in drawings(subject, None, None):
        if drawing.name not in ("filters", "rollout", "shifts", "patches"):
            drawing.draw("light")
    own, fresh, larger = (given[0] for given in drawn["draw_tiles"])
    np.testing.assert_allclose(own, inspection.position_similarity(subject.model).numpy())
    assert fresh.shape == own.shape
    np.testing.assert_allclose(larger, inspection.position_similarity(subject.model, (16, 32)).numpy())
    raw, normalized = (given[0][0][1] for given in drawn["draw_distances"])
    np.testing.assert_allclose(raw, subject.found.attention.distance.mean(dim=0).numpy())
    np.testing.assert_allclose(normalized, subject.found.attention.normalized_distance.mean(dim=0).numpy())
    np.testing.assert_allclose(drawn["draw_heads"][0][0], subject.found.attention.pooled[0].numpy())
    assert subject.found.layers is not None
    np.testing.assert_allclose(drawn["draw_matrix"][0][0], subject.found.layers.numpy())


@pytest.mark.parametrize(("name", "expected"), [("vit", 2), ("vit-mean", 1), ("vit-max", 1)])
def test_distances_are_one_picture_where_there_is_no_class_token(name: str, expected: int) -> None:
    every = {drawing.name: drawing for drawing in drawings(looked(family(name)), None, None)}
    assert len([each for each in every if each.startswith("distance")]) == expected
    captions = " ".join(drawing.caption for drawing in every.values())
    assert ("class token" in captions) == (expected == 2)
    assert ("largest values" in every["rollout"].caption) == (name == "vit-max")


@pytest.mark.usefixtures("sketched")
def test_curves_and_layers_are_of_images_drawn_from_all_whatever_is_wrong(home: Path, tmp_path: Path) -> None:
    source, model = Pictures(29), vitrail.load(home / "run")
    made = vitrail.inspect(model, home / "images", count=4, drawn=11, out=tmp_path / "one")
    numbers = draw_images(source, 11)
    assert len({*numbers}) == 11
    assert numbers not in (spread(29, 11).tolist(), list(range(11)))
    many = np.array(draw_images(Pictures(400), 64))
    assert (len(np.unique(many)), many.min() < 40, many.max() > 360) == (64, True, True)
    assert np.bincount(many // 100).min() >= 8  # of 16 on average in every quarter
    images = views_of(model, open_images(home / "images")["test"], numbers)[0].images
    found = inspection.patch_agreement(model, images, [0.25, 0.75], change="drop")
    said = made.numbers["dropped"]
    assert (said["images"], made.numbers["layers_images"]) == (11, 11)
    np.testing.assert_allclose([said["cosine"][1], said["cosine"][3]], found.cosine.numpy(), atol=1e-5)
    np.testing.assert_allclose(said["same_interval"][3], found.same_interval[1].numpy(), atol=1e-5)
    np.testing.assert_allclose(made.numbers["layers"], inspection.layer_similarity(model, images).numpy(), atol=1e-5)
    assert (
        vitrail.inspect(model, home / "images", count=9, search=0, drawn=11, out=tmp_path / "two").numbers["shifts"]
        == made.numbers["shifts"]
    )


def test_a_large_model_is_shown_fewer_images() -> None:
    small, large = vitrail.create("ViT-Ti/16", image_size=64), vitrail.create("ViT-B/16", depth=1)
    assert (drawn_count(small), drawn_count(large)) == (64, 64)
    large.config = replace(large.config, depth=12)  # counted, never run
    assert (drawn_count(large), drawn_count(small, large)) == (12, 12)


def test_large_grids_have_a_tile_for_some_of_their_patches() -> None:
    model = vitrail.create("ViT-Ti/4", image_size=160, depth=1)  # 40 x 40 patches
    some = inspection.position_similarity(model, every=2)
    assert some.shape == (20, 20, 40, 40)
    torch.testing.assert_close(some, inspection.position_similarity(model)[::2, ::2])
    names = {drawing.name for drawing in drawings(Inspected("m", model), None, None)}
    assert {"positions", "positions-before", "positions-resampled"} <= names


@pytest.mark.slow
def test_two_models_stand_side_by_side(tmp_path: Path) -> None:
    subject, other = looked(family("vit")), looked(family("hybrid"))
    assert subject.found is not None
    assert other.found is not None
    between = inspection.layer_similarity(
        subject.model, subject.found.views.images, other.model, other.found.views.images
    )
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
    seen = Inspected("m", family("vit", **changes))
    assert {drawing.name for drawing in drawings(seen, None, None)} - {"filters"} == expected


def test_before_training_positions_are_those_of_a_fresh_model() -> None:
    fresh = vitrail.create("ViT-Ti/16", image_size=64, seed=0)
    found = {drawing.name: drawing.draw("light") for drawing in drawings(Inspected("m", fresh), None, None)}
    assert found["positions"] == found["positions-before"]
    trained = vitrail.create("ViT-Ti/16", image_size=64, seed=1)
    other = {drawing.name: drawing.draw("light") for drawing in drawings(Inspected("m", trained), None, None)}
    assert other["positions-before"] == found["positions-before"] != other["positions"]
    assert found["filters"] != other["filters"]


def test_themes_differ_and_drawing_is_repeatable() -> None:
    (filters, *_) = drawings(Inspected("m", family("vit")), None, None)
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


@pytest.mark.usefixtures("sketched")
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


@pytest.mark.usefixtures("sketched")
def test_the_function_and_the_command_write_the_same_files(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    arguments = ("--against", home / "other", "--images", "4", "--out", one)
    shown = inspected(capsys, home / "run", home / "images", *arguments)
    made = vitrail.inspect(home / "run", home / "images", against=home / "other", count=4, out=two)
    names, others = ({path.relative_to(root) for path in root.rglob("*") if path.is_file()} for root in (one, two))
    assert names == others
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in names)
    assert made.numbers == json.loads((two / "inspection.json").read_text())
    assert shown == made.document() | {"page": shown["page"], "figures": shown["figures"]}
    assert (made.folder, made.page) == (two, two / "report.html")
    assert str(made).startswith(f"{len(made.figures)} figures in {two}")


@pytest.mark.usefixtures("sketched")
def test_a_model_in_memory_is_looked_into(home: Path, tmp_path: Path) -> None:
    model = guessing(names=NAMES).train()
    made = vitrail.inspect(model, home / "loose" / "1.png", out=tmp_path / "out", bias=False)
    assert (made.images, made.numbers["title"], model.training) == (1, "model", True)
    with pytest.raises(ConfigError, match=r"the model reads images of \(8, 12\); got image_size=32"):
        vitrail.inspect(model, image_size=32, out=tmp_path / "other")


@pytest.mark.parametrize("labeled", [False, True])
@pytest.mark.usefixtures("sketched")
def test_images_in_memory_are_looked_at(labeled: bool, home: Path, tmp_path: Path) -> None:
    pixels = [np.full((20, 30, 3), level, np.uint8) for level in (0, 120, 240)]
    mixed = [home / "loose" / "0.png", Image.fromarray(pixels[1]), pixels[2]]
    images = list(zip(pixels, range(3), strict=True)) if labeled else mixed
    made = vitrail.inspect(guessing(names=NAMES), images, out=tmp_path / "out", bias=False)
    shown = made.numbers["images"]
    assert [image["label"] is not None for image in shown] == [labeled] * 3
    assert all(image["top"] for image in shown)


@pytest.mark.usefixtures("sketched")
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


@pytest.mark.usefixtures("sketched")
def test_loose_files_and_one_file_can_be_looked_at(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


@pytest.mark.usefixtures("sketched")
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
    assert document["headline"]["value"] == tables["accuracy"]["rows"][0][1]
    assert [figure["id"] for figure in document["figures"] if figure["measured"]] == ["confusion", "reliability"]


@pytest.mark.slow
def test_the_page_of_sixteen_images_and_two_base_models_stays_under_25_megabytes(tmp_path: Path) -> None:
    seen = []
    for name in ("ViT-B/16", "R50+ViT-B/16"):
        model = vitrail.create(name, classes=1000, image_size=224)
        pixels = torch.randint(0, 256, (16, 3, 224, 224), dtype=torch.uint8)  # noise: the largest files
        views = Views(pixels, pixels / 127.5 - 1, [f"image {place}" for place in range(16)], [None] * 16)
        seen.append(Inspected(name, model, study(model, views, maps=True, bias=False)))
    assert seen[0].found is not None
    made = write_report(tmp_path, seen[0], other=seen[1], between=seen[0].found.layers)
    assert made.bytes < 25_000_000
    document = read(made.page)
    assert document["images"][0]["attention"]["all_heads"]
    assert document["images"][0]["attention"]["rows"] == 14


@pytest.mark.usefixtures("sketched")
def test_one_bad_image_among_many_is_left_out(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(tmp_path / "images" / "test", Pictures(33))
    last = sorted((tmp_path / "images" / "test").rglob("*.*"))[-1]
    last.write_bytes(b"no image")
    arguments = (home / "run", tmp_path / "images", "--out", tmp_path / "out", "--images", "6", "--no-bias")
    assert inspected(capsys, *arguments)["images"] in (5, 6)


@pytest.mark.usefixtures("sketched")
def test_a_model_without_names_has_those_of_the_data(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vitrail.save(guessing(), tmp_path / "nameless")
    found = inspected(capsys, tmp_path / "nameless", home / "images", "--out", tmp_path / "out", "--no-bias")
    images = read(Path(found["page"]))["images"]
    assert any(image["mistake"] for image in images)
    assert {image["top"][0]["name"] for image in images} <= set(NAMES)
    assert all(image["right"] is not None for image in images)


@pytest.mark.usefixtures("sketched")
def test_mistakes_by_other_labels_are_shown_as_mistakes(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = open_images(home / "images")["test"]
    labels = {source.name(number): [(int(source.labels[number]) + 1) % len(NAMES)] for number in range(len(source))}
    (tmp_path / "labels.json").write_text(json.dumps(labels))
    page = tmp_path / "page"
    command = ["evaluate", str(home / "run"), str(home / "images"), "--report", str(page), "--quiet"]
    assert main([*command, "--labels", str(tmp_path / "labels.json")]) == 0
    images = read(page / "report.html")["images"]
    assert images
    assert all(image["right"] is False and image["label"] != image["top"][0]["name"] for image in images)


def test_names_of_folders_tell_checkpoints_apart() -> None:
    from vitrail.verbs.inspect import slug_of, titles_of

    assert (slug_of("runs/a/best"), slug_of("runs/b/best"), slug_of("vitrail-ti8")) == (
        "a-best",
        "b-best",
        "vitrail-ti8",
    )
    assert titles_of("a/best", "b/best") == ["a/best", "b/best"]
    assert titles_of("a/one.npz", "b/two") == ["one", "two"]


@pytest.mark.usefixtures("sketched")
def test_a_split_without_images_and_loose_images_are_told(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(home / "run"), "--split", "test", "--out", str(tmp_path / "out")]) == 1
    assert "is of images, and there are none" in " ".join(capsys.readouterr().err.split())
    write_folder(tmp_path / "mixed", Pictures(6))
    Image.new("RGB", (20, 20)).save(tmp_path / "mixed" / "loose.png")
    arguments = ["inspect", str(home / "run"), str(tmp_path / "mixed"), "--out", str(tmp_path / "out"), "--no-bias"]
    assert main(arguments) == 0
    assert "1 images that lie beside the folders of classes are not looked at" in " ".join(
        capsys.readouterr().err.split()
    )


def test_a_run_shows_how_it_learned(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(home / "run", tmp_path / "run")
    log = [
        {"kind": "train", "step": 2, "loss": 2.5, "accuracy": 0.25, "learning_rate": 1e-3},
        {"kind": "evaluation", "step": 2, "loss": 2.25, "accuracy": 0.375},
        {"kind": "probe", "step": 2, "linear": 0.5},
        {"kind": "train", "step": 4, "loss": 1.5, "accuracy": float("nan"), "learning_rate": 5e-4},
    ]
    lines = "".join(json.dumps(record) + "\n" for record in log)
    (tmp_path / "run" / "log.jsonl").write_text(lines + '{"kind": "train", "st')  # killed while it was written
    drawn: list[Any] = []
    real = measured.draw_learning
    monkeypatch.setattr("vitrail.figures.measured.draw_learning", lambda *given: drawn.append(given[0]) or real(*given))
    made = vitrail.inspect(tmp_path / "run", out=tmp_path / "out")
    assert made.figures[0].stem == "learning"
    assert drawn[0] == [
        ("loss", [("training", (2, 4), (2.5, 1.5), ()), ("validation", (2,), (2.25,), ())]),
        ("accuracy", [("training", (2,), (0.25,), ()), ("validation", (2,), (0.375,), ())]),
        ("learning rate", [("training", (2, 4), (1e-3, 5e-4), ())]),
    ]
    assert "learning" not in {path.stem for path in vitrail.inspect(home / "run", out=tmp_path / "other").figures}
