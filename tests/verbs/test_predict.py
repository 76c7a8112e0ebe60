"""`vitrail.predict`, `vitrail.embed` and `model.preprocess`: the same numbers for whatever holds an image."""

import csv
import io
import os
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evaluating import CPU, HEIGHT, NAMES, WIDTH, Pictures, guessing, write_folder
from PIL import Image
from torch.utils.data import Subset

import vitrail
from vitrail.checkpoint.run_folder import locate
from vitrail.data.feed import evaluation_feed
from vitrail.data.open import open_data
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.runtime.inference import InferenceOptions
from vitrail.runtime.reporter import Reporter, cell_len
from vitrail.verbs import predict as verbs
from vitrail.verbs.predictions import save_features

IMAGES = 31  # which has some of every class


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of class folders: odd sizes, some JPEG, and one that is no image."""
    root = write_folder(tmp_path / "photos", Pictures(IMAGES))
    noise = np.random.default_rng(5).integers(0, 256, (41, 67, 3), dtype=np.uint8)
    Image.fromarray(noise).save(root / "a" / "large.jpg")
    return root


class Notes(Reporter):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.done: list[tuple[int, int | None]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def progress(self, what: str, done: int = 0, total: int | None = None) -> None:
        self.done.append((done, total))


def paths_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_preprocess_gives_to_the_bit_what_evaluation_feeds(photos: Path) -> None:
    model = guessing(names=NAMES)
    source = open_data(photos)["all"]
    feed = evaluation_feed(
        source, model.config.image_size, batch=len(source), preprocessing=model.card.preprocessing, device="cpu"
    )
    fed = next(iter(feed.epoch(0))).images
    paths = [photos / source.name(index) for index in range(len(source))]
    assert torch.equal(model.preprocess(paths), fed)
    assert torch.equal(model.preprocess(str(paths[3])), fed[3:4])
    assert torch.equal(model.preprocess([path.read_bytes() for path in paths]), fed)


def test_preprocess_follows_the_precision_of_the_model(photos: Path) -> None:
    model = guessing(names=NAMES).to(torch.bfloat16)
    batch = model.preprocess(paths_of(photos)[0])
    assert (batch.dtype, batch.shape) == (torch.bfloat16, (1, 3, HEIGHT, WIDTH))
    assert len(vitrail.predict(model, photos)) == IMAGES + 1


def test_a_prediction_is_the_softmax_of_the_logits_of_what_is_preprocessed(photos: Path) -> None:
    model = guessing(names=NAMES)
    paths = paths_of(photos)
    found = vitrail.predict(model, paths)
    with torch.inference_mode():
        logits = model(model.preprocess(paths))
    assert [each.name for each in found] == [str(path) for path in paths]
    assert torch.allclose(found.logits, logits, atol=1e-5)
    for each, row in zip(found, logits.softmax(dim=1), strict=True):
        assert torch.allclose(each.probabilities, row, atol=1e-6)
        assert each.label == NAMES[int(row.argmax())]
        assert each.probability == pytest.approx(float(row.max()), abs=1e-6)
        assert [share for _, share in each.top(3)] == pytest.approx(row.topk(3).values.tolist(), abs=1e-6)
        assert len(each.top(100)) == len(NAMES)


def test_the_same_image_in_every_form_has_the_same_answer(photos: Path) -> None:
    model = guessing(names=NAMES)
    path = paths_of(photos)[1]
    with Image.open(path) as opened, Image.open(path) as loaded:
        pixels = np.asarray(loaded)
        tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
        forms = [path, str(path), path.read_bytes(), opened, loaded, pixels, tensor]
        found = vitrail.predict(model, [*forms, io.BytesIO(path.read_bytes())])
        assert found.names == [str(path), str(path), *(f"image {number}" for number in range(2, 8))]
        assert torch.equal(found.logits, found.logits[:1].expand_as(found.logits))
        for form in (*forms, io.BytesIO(path.read_bytes())):
            assert len(vitrail.predict(model, form)) == 1
        assert len(vitrail.predict(model, np.stack([pixels] * 3))) == 3
        assert len(vitrail.predict(model, (each for each in forms))) == 7


def test_folders_globs_and_sources_are_taken_apart_in_order(photos: Path) -> None:
    model = guessing(names=NAMES)
    (photos / ".hidden.png").write_bytes(b"")
    (photos / "a" / "notes.txt").write_text("no image")
    notes = Notes()
    every = {str(path) for path in paths_of(photos) if path.suffix != ".txt" and path.name[0] != "."}
    assert {*vitrail.predict(model, photos, report=notes).names} == every
    assert "notes.txt" in notes.notes[0]
    assert notes.done[-1] == (IMAGES + 1, IMAGES + 1)
    assert vitrail.predict(model, f"{photos}/a/*.jpg").names == [str(photos / "a" / "large.jpg")]
    assert {*vitrail.predict(model, f"{photos}/*").names} == every
    assert {*vitrail.predict(model, f"{photos}/**").names} == every
    source = Pictures(5, names=list("vwxyz"))
    both = vitrail.predict(model, [source, photos / "a" / "large.jpg", source])
    assert both.names == [*"vwxyz", str(photos / "a" / "large.jpg"), *"vwxyz"]
    assert torch.equal(both.logits[:5], both.logits[6:])


def test_bad_images_are_listed_and_never_move_the_others(photos: Path) -> None:
    model = guessing(names=NAMES)
    paths = paths_of(photos)
    bad = photos / "text.jpg"
    bad.write_text("hello")
    found = vitrail.predict(model, [paths[0], bad, paths[1], b"", paths[2]])
    alone = vitrail.predict(model, paths[:3])
    assert found.names == alone.names
    assert torch.allclose(found.logits, alone.logits, atol=1e-6)
    assert [each.name for each in found.failed] == [str(bad), "image 3"]
    assert "no image of a known format" in found.failed[0].reason
    none = vitrail.predict(model, bad, features=True)
    assert len(none) == 0
    assert none.features is not None
    assert none.features.shape == (0, model.config.representation)
    assert "text.jpg" in repr(none)


def test_an_answer_of_nan_is_a_failure(photos: Path) -> None:
    model = guessing(names=NAMES)
    with torch.no_grad():
        next(iter(model.head.parameters()))[0, 0] = torch.nan
    found = vitrail.predict(model, paths_of(photos)[:2])
    assert len(found) == 0
    assert "NaN" in found.failed[1].reason


def test_features_are_what_the_classifier_reads(photos: Path) -> None:
    model = guessing(None)
    paths = paths_of(photos)
    found = vitrail.embed(model, paths, batch_size=3)
    with torch.inference_mode():
        assert torch.allclose(found, model.represent(model.preprocess(paths)), atol=1e-5)
    with pytest.raises(ConfigError, match=r"no classifier.*vitrail.embed"):
        vitrail.predict(model, paths)
    (photos / "text.jpg").write_text("hello")
    with pytest.raises(DataError, match=r"1 of 33 images cannot be read: .*text.jpg: no image.*embeddings skips"):
        vitrail.embed(model, photos)
    skipping = verbs.embeddings(model, photos)
    assert len(skipping.names) == len(skipping.features) == IMAGES + 1
    classifier = guessing(names=NAMES)
    both = vitrail.predict(classifier, paths, features=True)
    assert both.features is not None
    assert torch.equal(both.features, vitrail.embed(classifier, paths))


def test_nothing_depends_on_batches_stretches_or_workers(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = guessing(names=NAMES)
    (photos / "b" / "bad.png").write_bytes(b"x")
    whole = vitrail.predict(model, photos)
    monkeypatch.setattr(verbs, "STRETCH", 7)
    notes = Notes()
    for batch, workers in ((5, 0), (2, 2)):
        found = vitrail.predict(model, photos, batch_size=batch, workers=workers, report=notes)
        assert found.names == whole.names
        assert found.failed == whole.failed
        assert torch.allclose(found.logits, whole.logits, atol=1e-5)
        assert notes.done[-1] == (IMAGES + 2, IMAGES + 2)


def test_a_checkpoint_is_loaded_and_a_model_stays_as_it_is(photos: Path, tmp_path: Path) -> None:
    model = guessing()
    vitrail.save(model, tmp_path / "run")
    model.train()
    found = vitrail.predict(model, photos)
    assert model.training
    assert found[0].label.startswith("class ")
    assert torch.equal(vitrail.predict(tmp_path / "run", photos).logits, found.logits)
    assert vitrail.predict(str(tmp_path / "run"), photos, image_size=16)[0].probability > 0


@pytest.mark.usefixtures("untyped")
def test_options_that_cannot_be_are_refused(photos: Path) -> None:
    model = guessing()
    with pytest.raises(ConfigError, match=r"vitrail\.load"):
        vitrail.predict(model, photos, image_size=16)
    with pytest.raises(ConfigError, match="got dict"):
        vitrail.predict({}, photos)  # pyright: ignore[reportArgumentType]
    for name, wrong in (("top", 0), ("batch_size", 0), ("workers", -1), ("precision", "int3"), ("engine", "tensorrt")):
        with pytest.raises(ConfigError, match=name):
            vitrail.predict(model, photos, **{name: wrong})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"embed has no option .bach_size.. Did you mean .batch_size"):
        vitrail.embed(model, photos, bach_size=3)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("images", ["nowhere.jpg", ["nowhere.jpg", "no*.png"], [], "empty"])
def test_what_is_not_there_is_said_before_the_model_is_looked_at(
    images: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"there is no image at 'nowhere.jpg'|got none|empty has none"):
        vitrail.predict("no-model", images)


@pytest.mark.parametrize("columns", [43, 80, 131])
def test_a_table_shows_all_classes_that_are_asked_for_in_the_width_of_the_terminal(
    photos: Path, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = guessing(names=["a long name of a class 日本" * 4, *NAMES[1:]])
    (photos / ("日本語の写真" * 9 + ".png")).write_bytes(paths_of(photos / "a")[0].read_bytes())
    found = vitrail.predict(model, photos, top=3)
    assert [line.count("%") for line in found.table()] == [3] * len(found)
    assert all(any(name in line for line in found.table()) for name in found.names)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = [*found.table()]
    assert "".join(lines).count("%") == 3 * len(found)
    assert columns // 2 < max(map(cell_len, lines)) <= columns
    assert max(map(cell_len, vitrail.predict(model, paths_of(photos)[:1], top=3).table())) <= columns


def test_an_option_that_is_not_there_is_answered_with_the_nearest() -> None:
    wrong: list[tuple[Callable[..., object], str, str]] = [
        (vitrail.predict, "topk", "top"),
        (vitrail.predict, "top_k", "top"),
        (vitrail.embed, "img_size", "image_size"),
        (vitrail.evaluate, "batch", "batch_size"),
        (vitrail.fewshot, "shot", "shots"),
        (vitrail.verify, "num_workers", "workers"),
    ]
    for verb, option, meant in wrong:
        with pytest.raises(ConfigError, match=f"{verb.__name__} has no option '{option}'. Did you mean '{meant}'"):
            verb("no-model", "sample", **{option: 2})


def test_a_dataset_is_read_without_its_labels() -> None:
    model, pairs = guessing(names=NAMES), [(Pictures(IMAGES).read(index), index) for index in range(5)]
    subset: Any = Subset(pairs, range(5))  # pyright: ignore[reportArgumentType]
    wanted = vitrail.predict(model, [image for image, _ in pairs]).logits
    for data in (pairs, subset, [{"image": image, "label": "?"} for image, _ in pairs]):
        assert torch.equal(vitrail.predict(model, data).logits, wanted)
        assert len(vitrail.embed(model, data)) == 5


@pytest.mark.parametrize(("images", "got"), [(None, "None"), ({"a": "a.jpg"}, "a dict. Give its values")])
def test_what_holds_no_images_is_refused(images: object, got: str) -> None:
    with pytest.raises(ConfigError, match=f"images must be a path, .* or a dataset; got {got}."):
        vitrail.predict("no-model", images)


def test_results_print_well(photos: Path) -> None:
    model = guessing(names=["[red]long [/] name of a class 日本" * 2, *NAMES[1:]])
    for name in ("new\nline.png", "日本語の写真" * 9 + ".png", "esc\x1b[31m.png"):
        (photos / name).write_bytes(paths_of(photos / "a")[0].read_bytes())
    found = vitrail.predict(model, photos, top=7)
    assert len(repr(found).splitlines()) == 11
    lines = [*found.table()]
    assert len(lines) == len(found)
    assert all(line.isprintable() for line in lines)
    one = vitrail.predict(model, photos / "new\nline.png", top=3)
    assert len([*one.table()]) == 4
    assert "\n" not in str(one[0])
    assert eval(repr(one[0]), {"Prediction": dict})["name"] == one[0].name
    rows = found.rows()
    assert [*rows[0]][:5] == ["name", "label", "probability", "label_2", "probability_2"]
    assert len(rows[0]) == 15
    read = [*csv.DictReader(io.StringIO(found.csv().decode(), newline=""))]
    assert [row["name"] for row in read] == [*found.names]
    assert [float(row["probability"]) for row in read] == pytest.approx([each.probability for each in found], rel=1e-5)


def test_features_are_written_whole_with_their_names(photos: Path, tmp_path: Path) -> None:
    from pyarrow import parquet

    model = guessing(names=NAMES)
    Path(os.fsdecode(os.fsencode(photos) + b"/bad\xff.png")).write_bytes(paths_of(photos)[0].read_bytes())
    found = vitrail.predict(model, photos, features=True)
    assert found.features is not None
    save_features(tmp_path / "f.npy", found)
    assert np.array_equal(np.load(tmp_path / "f.npy"), found.features.numpy())
    save_features(tmp_path / "f.parquet", found)
    table = parquet.read_table(tmp_path / "f.parquet").to_pydict()
    assert [name for name in table["name"] if "udcff" not in name] == [
        name for name in found.names if name.isprintable()
    ]
    assert table["label"] == [each.label for each in found]
    assert np.array_equal(np.array(table["features"], np.float32), found.features.numpy())
    with pytest.raises(ConfigError, match=r"ends in .npy or .parquet"):
        save_features(tmp_path / "f.txt", found)
    with pytest.raises(ConfigError, match="features=True"):
        save_features(tmp_path / "g.npy", vitrail.predict(model, photos))
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith((".", "f"))) == [
        "f.npy",
        "f.parquet",
    ]


def test_the_answers_are_those_of_evaluation(photos: Path) -> None:
    from vitrail.evaluation.answers import answers

    model, source = guessing(names=NAMES), open_data(photos)["all"]
    expected = answers(model, source, InferenceOptions(group=CPU, batch_size=16, cache=False))
    found = vitrail.predict(model, photos)
    assert found.names == [os.path.join(photos, source.name(int(index))) for index in expected.samples]
    for each, classes, shares in zip(found, expected.classes, expected.probabilities, strict=True):
        assert each.top(5) == [(NAMES[number], float(share)) for number, share in zip(classes, shares, strict=True)]


def test_a_name_of_a_fresh_model_is_told_from_a_checkpoint(photos: Path) -> None:
    with pytest.raises(CheckpointError, match="ViT-B/16 is a fresh model, which knows nothing yet"):
        vitrail.predict("ViT-B/16", photos)
    with pytest.raises(CheckpointError, match="the name of weights; got a ViT"):
        locate(guessing())


def test_the_model_in_the_box_is_planned_as_a_model_in_memory() -> None:
    boxed, held = vitrail.plan("vitrail-ti8"), vitrail.plan(vitrail.load("vitrail-ti8"))
    assert boxed.name == "vitrail-ti8"
    assert boxed.config == held.config
    assert vitrail.plan("vitrail-ti8", classes=3).config.classes == 3


def test_help_names_the_silent_reporter() -> None:
    assert "= SILENT" in str(signature(vitrail.inspect))
