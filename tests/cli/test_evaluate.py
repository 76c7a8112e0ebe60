"""`vitrail evaluate`: what it says, writes and refuses, alone and on two processes."""

import csv
import io
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evaluating import CPU, NAMES, Pictures, guessing, logits_of, write_folder
from files.servers import Served, Server
from killed_runs import Runs, warm
from PIL import Image

import vitrail
from vitrail.cli import main
from vitrail.data.open import open_data
from vitrail.data.sources.memory import MemorySource
from vitrail.errors import ConfigError
from vitrail.evaluation.results import read_results
from vitrail.runtime.inference import InferenceOptions
from vitrail.train.measuring import measure_accuracy

IMAGES = 41  # which no batch below goes into


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, one of many classes, one that names none, and images in folders."""
    root = tmp_path_factory.mktemp("home")
    write_folder(root / "images" / "test", Pictures(IMAGES))
    vitrail.save(guessing(names=NAMES), root / "one")
    vitrail.save(guessing(seed=1, names=NAMES), root / "two")
    vitrail.save(guessing(None), root / "none")
    return root


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with warm(tmp_path_factory.mktemp("runs")) as made:
        yield made


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["evaluate", *map(str, arguments), "--json", "--quiet"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    capsys.readouterr()
    assert main(["evaluate", *map(str, arguments)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    return " ".join(shown.err.split())


def test_the_document_says_what_measuring_while_training_says(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluated(capsys, home / "one", home / "images", "--batch", "7")
    model, source = vitrail.load(home / "one"), open_data(home / "images")["test"]
    expected = measure_accuracy(model, source, InferenceOptions(group=CPU))
    assert {name: found[name] for name in expected} == pytest.approx(dict(expected), rel=1e-5)
    assert 0 < found["accuracy"] < found["top5"] < 1
    assert found["split"] == "test"
    assert found["run"] == str(home / "one")


def test_people_see_a_headline_and_where_it_errs_in_80_columns(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluated(capsys, home / "one", home / "images")
    assert main(["evaluate", str(home / "one"), str(home / "images"), "--worst", "3"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    low, high = found["interval"]
    line = f"accuracy {found['accuracy']:.2%} of 41 images (test), 95% interval {low:.2%} to {high:.2%}"
    assert line in shown
    for words in ("top-5 accuracy", "loss", "calibration error", "by class", "mistaken most often"):
        assert words in shown
    assert f"most confident of {found['worst']['wrong']} wrong answers" in shown
    assert shown.count(".png") == 3
    assert found["worst"]["images"][0]["name"] in shown


def test_what_is_written_is_the_document_and_a_line_for_each_image(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "folder"
    found = evaluated(capsys, home / "one", home / "images", "--out", out)
    assert json.loads((out / "evaluation.json").read_text()) == found
    rows = {row.metric: row for row in read_results(out / "evaluation.json")}
    assert rows.keys() == {"accuracy", "balanced_accuracy", "macro_f1", "top5", "loss", "ece"}
    assert rows["accuracy"].value == found["accuracy"]
    lines = list(csv.DictReader(io.StringIO((out / "predictions.csv").read_text())))
    assert len(lines) == len({line["name"] for line in lines}) == IMAGES
    assert sum(line["right"] == "true" for line in lines) == round(found["accuracy"] * IMAGES)
    logits = logits_of(vitrail.load(home / "one"), Pictures(IMAGES))
    for line in lines:  # files are called by the numbers of the images that they were written from
        assert line["answer"] == NAMES[logits[int(Path(line["name"]).stem)].argmax()]


def test_answers_are_kept_unless_fresh_ones_are_asked_for(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = evaluated(capsys, home / "one", home / "images")
    again = evaluated(capsys, home / "one", home / "images")
    fresh = evaluated(capsys, home / "one", home / "images", "--fresh")
    assert [found.pop("time")["reused"] for found in (first, again, fresh)] == [0, IMAGES, 0]
    assert first == again == fresh


def test_another_model_is_compared_on_the_same_images(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (evaluated(capsys, home / name, home / "images") for name in ("one", "two"))
    found = evaluated(capsys, home / "one", home / "images", "--against", home / "two")["against"]
    assert found["difference"] == pytest.approx(one["accuracy"] - two["accuracy"])
    counts = (found["both_right"], len(found["only_this"]), len(found["only_other"]), found["both_wrong"])
    assert sum(counts) == IMAGES
    assert counts[0] + counts[1] == round(one["accuracy"] * IMAGES)
    assert main(["evaluate", str(home / "one"), str(home / "images"), "--against", str(home / "two")]) == 0
    shown = capsys.readouterr().out
    assert f"difference {100 * found['difference']:+.2f} points" in shown
    assert f"correct: both {counts[0]}, only this {counts[1]}, only the other {counts[2]}, neither {counts[3]}" in shown


def test_labels_of_a_file_take_the_place_of_the_datas(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = logits_of(vitrail.load(home / "one"), Pictures(IMAGES)).argmax(axis=1)
    real = tmp_path / "real.json"
    table = {f"{i:03d}.png": [] if i < 4 else [NAMES[answer]] for i, answer in enumerate(answers)}
    real.write_text(json.dumps(table))
    found = evaluated(capsys, home / "one", home / "images", "--labels", real)
    assert (found["accuracy"], found["images"], found["not_counted"]) == (1, 37, 4)
    assert found["by_the_datas_labels"] == {
        name: evaluated(capsys, home / "one", home / "images")[name] for name in found["by_the_datas_labels"]
    }
    assert found["results"][0]["setting"]["labels"] == str(real)
    assert main(["evaluate", str(home / "one"), str(home / "images"), "--labels", str(real)]) == 0
    assert "4 images have no label there and do not count" in capsys.readouterr().out


def test_a_mapping_measures_on_data_of_other_classes(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Pictures(IMAGES, ("cat", "dog", "eel"), seed=9)
    write_folder(tmp_path / "other", source)
    assert "which of the model's classes each of the data's is" in refused(capsys, home / "one", tmp_path / "other")
    table = tmp_path / "map.json"
    table.write_text(json.dumps({"Cat": "a; b; c", "dog": [3, "e"]}))
    found = evaluated(capsys, home / "one", tmp_path / "other", "--mapping", table)
    answers = logits_of(vitrail.load(home / "one"), source).argmax(axis=1)
    counted = source.labels < 2
    right = np.where(source.labels == 0, answers < 3, np.isin(answers, (3, 4)))[counted]
    assert found["accuracy"] == pytest.approx(right.mean())
    assert (found["images"], found["not_counted"]) == (counted.sum(), (~counted).sum())
    assert "loss" not in found
    assert found["classes"][2] == {"name": "eel", "images": 0, "accuracy": None}
    assert main(["evaluate", str(home / "one"), str(tmp_path / "other"), "--mapping", str(table)]) == 0
    assert "are of classes without a mapping and do not count" in capsys.readouterr().out


def test_what_cannot_be_decoded_is_said(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = write_folder(tmp_path / "images", Pictures(IMAGES))
    (images / "a" / "bro[ken].png").write_bytes(b"no image")
    assert "1 of 42 images cannot be read, over the limit of 1.0%" in refused(capsys, home / "one", images)
    for _ in range(2):  # kept rows or not
        assert main(["evaluate", str(home / "one"), str(images), "--limit", "0.03"]) == 0
        shown = capsys.readouterr().out
        assert "1 images could not be decoded, such as" in shown
        assert "a/bro[ken].png: " in shown
        assert "of 41 images (all)" in shown


def test_many_classes_are_shown_by_their_worst(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = tuple(f"[class] {number:02d}" for number in range(23))
    write_folder(tmp_path / "images", Pictures(97, names))
    vitrail.save(guessing(23, names=names), tmp_path / "run")
    found = evaluated(capsys, tmp_path / "run", tmp_path / "images")
    assert main(["evaluate", str(tmp_path / "run"), str(tmp_path / "images"), "--worst", "0"]) == 0
    shown = capsys.readouterr().out
    assert "the 10 worst of 23" in shown
    assert max(map(len, shown.splitlines())) <= 80
    worst = min(found["classes"], key=lambda line: line["accuracy"])
    assert worst["name"] in shown
    assert len(found["confusion"]["matrix"]) == 23


REFUSALS = [
    (("--labels", "x.json", "--mapping", "y.json"), "labels and mapping both say what is correct"),
    (("--labels", "nowhere.json"), "cannot read nowhere.json: No such file"),
    (("--precision", "fp4"), "precision must be one of 'float32', 'bfloat16', 'float8', 'int8'; got 'fp4'"),
    (("--limit", "1.5"), "bad_image_limit must be at least 0 and under 1; got 1.5"),
    (("--batch", "0"), "batch_size must be a whole number, at least 1; got 0"),
    (("--worst", "-1"), "worst must be a whole number, at least 0; got -1"),
    (("--split", "val"), "there is no split 'val'. There are: test."),
    (("--against", "nowhere"), "nowhere"),
]


@pytest.mark.parametrize(("options", "message"), REFUSALS)
def test_what_is_wrong_is_said_before_anything_is_computed(
    options: tuple[str, ...],
    message: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("vitrail.evaluation.answers.cached_outputs", lambda *_: pytest.fail("computes"))
    assert message in refused(capsys, home / "one", home / "images", *options)


def test_models_that_do_not_fit_are_refused(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no classifier" in refused(capsys, home / "none", home / "images")
    assert "vitrail fewshot" in refused(capsys, home / "one", home / "images", "--against", home / "none")
    vitrail.save(guessing(5), tmp_path / "five")
    assert "the model has 5 classes, the data 7" in refused(capsys, tmp_path / "five", home / "images")


def test_numbers_that_are_none_are_said(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = guessing(names=NAMES)
    with torch.no_grad():
        next(model.head.parameters())[0] = torch.nan
    monkeypatch.setattr("vitrail.verbs.opening.load", lambda *_, **__: model)
    assert main(["evaluate", str(home / "one"), str(home / "images")]) == 0
    assert "41 images have no answer, as the logits are NaN: they count as wrong" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.slow
def test_two_processes_answer_as_one_and_the_first_speaks(home: Path, tmp_path: Path, runs: Runs) -> None:
    said = []
    for ranks in (1, 2):
        out = str(tmp_path / str(ranks))
        command = ["evaluate", str(home / "one"), str(home / "images"), "--out", out, "--batch", "6", "--device", "cpu"]
        ended = runs.all([*command, "--fresh"], ranks=ranks)
        assert [one.status for one in ended] == [0] * ranks, ended
        said.append(ended[0].said.replace(out, ""))
        assert all(one.said == "" for one in ended[1:])
    assert said[0] == said[1]
    one, two = ((tmp_path / name / "predictions.csv").read_text() for name in "12")
    assert one == two
    assert len(one.splitlines()) == IMAGES + 1
    kept = [runs.all([*command[:3], "--json", "--quiet"], ranks=2)[0] for _ in range(2)]  # kept by two, used by two
    assert [json.loads(one.said)["time"]["reused"] for one in kept] == [0, IMAGES]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server of two shards of the same images, which may be asked."""
    for name in ("VITRAIL_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    made, source = Server(), Pictures(IMAGES)
    for shard, samples in enumerate((range(17), range(17, IMAGES))):
        body = io.BytesIO()
        with tarfile.open(fileobj=body, mode="w") as tar:
            for sample in samples:
                png = io.BytesIO()
                Image.fromarray(MemorySource.read(source, sample)).save(png, "PNG")
                label = NAMES[source.labels[sample]].encode()
                for name, data in ((f"{sample:03d}.png", png.getvalue()), (f"{sample:03d}.txt", label)):
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
        made.files[f"/s-{shard}.tar"] = Served(body.getvalue())
    made.files["/classes.txt"] = Served("\n".join(NAMES).encode())
    with made.running():
        yield made


def test_shards_of_a_server_are_evaluated_like_files(
    home: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    found = evaluated(capsys, home / "one", server.url("s-{0..1}.tar"))
    expected = evaluated(capsys, home / "one", home / "images")
    assert {name: found[name] for name in ("accuracy", "top5", "images")} == {
        name: expected[name] for name in ("accuracy", "top5", "images")
    }
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert {line["name"][:8] for line in found["worst"]["images"]} <= {"s-0.tar/", "s-1.tar/"}


def test_another_image_size_is_that_of_the_model_loaded_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, source = vitrail.load(home / "one"), open_data(home / "images")["test"]
    side = 2 * model.config.image_size[0]
    found = evaluated(capsys, home / "one", home / "images", "--image-size", str(side))
    expected = measure_accuracy(vitrail.load(home / "one", image_size=side), source, InferenceOptions(group=CPU))
    assert {name: found[name] for name in expected} == pytest.approx(dict(expected), rel=1e-5)
    assert found["loss"] != evaluated(capsys, home / "one", home / "images")["loss"]
    assert found["results"][0]["setting"]["image_size"] == side


def test_the_function_and_the_command_write_the_same_bytes(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated(capsys, home / "one", home / "images")  # so that both take the same from the cache
    printed = evaluated(capsys, home / "one", home / "images", "--against", home / "two", "--out", tmp_path / "command")
    found = vitrail.evaluate(home / "one", home / "images", against=home / "two", out=tmp_path / "function")
    for name in ("evaluation.json", "predictions.csv"):
        ours, theirs = ((tmp_path / folder / name).read_bytes() for folder in ("function", "command"))
        assert without_time(ours) == without_time(theirs)
    assert json.loads(json.dumps(found.document()["results"])) == printed["results"]
    assert found.accuracy == printed["accuracy"]
    assert found.predictions == (tmp_path / "function" / "predictions.csv").read_bytes()
    assert f"accuracy {found.accuracy:.2%} of 41 images (test)" in repr(found) == str(found)
    in_memory = vitrail.evaluate(vitrail.load(home / "one"), {"test": open_data(home / "images")["test"]})
    assert (in_memory.accuracy, in_memory.loss, in_memory.confusion) == (found.accuracy, found.loss, found.confusion)
    assert in_memory.document()["run"] == str(home / "one")


def without_time(data: bytes) -> bytes:
    """What a file says, without the seconds that it took."""
    return re.sub(rb'"seconds": [0-9.]+', b"", data)


def test_options_of_earlier_versions_work(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new, old = ("--bad-image-limit", "--batch-size"), ("--limit", "--batch")
    for limit, batch in (new, old):
        assert evaluated(capsys, home / "one", home / "images", limit, "0.2", batch, "5")["images"] == IMAGES
    assert main(["evaluate", "--help"]) == 0
    assert "--limit" not in capsys.readouterr().out


def test_a_model_in_memory_keeps_its_size_and_its_device(home: Path) -> None:
    model = vitrail.load(home / "one")
    with pytest.raises(ConfigError, match=r"the model reads images of \(8, 12\); got image_size=16"):
        vitrail.evaluate(model, home / "images", image_size=16)
    with pytest.raises(ConfigError, match="the model is on cpu; got device=meta"):
        vitrail.evaluate(model, home / "images", device="meta")
