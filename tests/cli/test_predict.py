"""`vitrail predict`: what it shows, writes, refuses and exits with."""

import csv
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluating import NAMES, Pictures, guessing, write_folder

import vitrail
from vitrail.cli import main
from vitrail.verbs import predict as verbs

IMAGES = 31


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, one without a classifier, and images in folders."""
    root = tmp_path_factory.mktemp("home")
    write_folder(root / "photos", Pictures(IMAGES))
    vitrail.save(guessing(names=NAMES), root / "run")
    vitrail.save(guessing(None), root / "none")
    return root


def shown(capsys: pytest.CaptureFixture[str], *arguments: str | Path, status: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    assert main(["predict", *map(str, arguments)]) == status
    return capsys.readouterr()


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    out, err = shown(capsys, *arguments, status=1)
    assert out == ""
    return " ".join(err.split())


def test_the_command_gives_what_the_function_gives(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = vitrail.predict(home / "run", home / "photos", top=3)
    out, err = shown(capsys, home / "run", home / "photos", "--top", "3", "--quiet")
    assert out.splitlines() == [*found.table()]
    assert err == ""
    document = json.loads(shown(capsys, home / "run", home / "photos", "--json", "--top", "3")[0])
    assert [each["name"] for each in document["predictions"]] == found.names
    assert [[(best["label"], best["probability"]) for best in each["top"]] for each in document["predictions"]] == [
        each.top(3) for each in found
    ]
    assert document["failed"] == []
    rows, _ = shown(capsys, home / "run", home / "photos", "--csv", "-", "--top", "3")
    assert rows.encode() == found.csv()


def test_the_answers_are_those_of_evaluate_for_the_same_files(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(home / "run"), str(home / "photos"), "--out", str(tmp_path), "--quiet"]) == 0
    with (tmp_path / "predictions.csv").open() as file:
        evaluated = {row["name"]: (row["answer"], row["confidence"]) for row in csv.DictReader(file)}
    out, _ = shown(capsys, home / "run", home / "photos", "--csv", "-", "--quiet")
    predicted = [*csv.DictReader(io.StringIO(out))]
    names = [os.path.relpath(row["name"], home / "photos") for row in predicted]
    assert {name: (row["label"], row["probability"]) for name, row in zip(names, predicted, strict=True)} == evaluated


def test_bad_files_are_named_and_counted_in_the_exit_status(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "[red]text.jpg").write_text("hello")
    (tmp_path / "good.png").write_bytes(next((home / "photos").rglob("*.png")).read_bytes())
    out, err = shown(capsys, home / "run", tmp_path, "--quiet", status=1)
    assert "good.png" in out
    assert "[red]text.jpg: no image of a known format" in err
    assert "1 of 2 images could not be read" in err
    out, _ = shown(capsys, home / "run", tmp_path / "[red]text.jpg", "--json", status=1)
    assert json.loads(out)["failed"][0]["name"].endswith("[red]text.jpg")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\0"])
def test_paths_come_from_standard_input(
    end: str, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = sorted(map(str, (home / "photos").rglob("*.png")))[3:6]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((end.join(paths) + end).encode())))
    out, _ = shown(capsys, home / "run", "-", paths[0], "--csv", "-")
    assert [row["name"] for row in csv.DictReader(io.StringIO(out))] == [*paths, paths[0]]


def test_an_empty_standard_input_is_said(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
    assert "there are no paths on standard input" in refused(capsys, home / "run", "-")


def test_features_are_written_instead_of_the_table_or_beside_the_answers(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = shown(capsys, home / "none", home / "photos", "--embed", tmp_path / "f.npy")
    assert out == f"31 images, 24 features each: {tmp_path / 'f.npy'}\n"
    assert np.array_equal(np.load(tmp_path / "f.npy"), vitrail.embed(home / "none", home / "photos").numpy())
    shown(capsys, home / "run", home / "photos", "--embed", tmp_path / "g.npy", "--csv", tmp_path / "g.csv")
    found = vitrail.predict(home / "run", home / "photos", features=True)
    assert found.features is not None
    assert np.array_equal(np.load(tmp_path / "g.npy"), found.features.numpy())
    assert (tmp_path / "g.csv").read_bytes() == found.csv()


def test_what_cannot_be_is_refused_before_anything_is_computed(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(verbs, "outputs_of_stretch", never)
    run, photos = home / "run", home / "photos"
    assert "there is no image at" in refused(capsys, run, tmp_path / "nothing.jpg")
    assert "has none" in refused(capsys, run, tmp_path)
    assert "ends in .npy or .parquet" in refused(capsys, run, photos, "--embed", tmp_path / "f.txt")
    assert "create its folder first" in refused(capsys, run, photos, "--csv", tmp_path / "no" / "f.csv")
    assert "is a folder" in refused(capsys, run, photos, "--csv", tmp_path)
    assert "no plain file" in refused(capsys, run, photos, "--csv", "/dev/null")
    assert "standard output" in refused(capsys, run, photos, "--csv", "-", "--json")
    assert "no classifier" in refused(capsys, home / "none", photos)
    assert "top" in refused(capsys, run, photos, "--top", "0")
    assert "there is no file" in refused(capsys, tmp_path / "no-run", photos)
    assert [*tmp_path.glob(".*")] == []


def test_an_interrupted_command_writes_nothing(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    (tmp_path / "a.csv").write_text("older")
    monkeypatch.setattr(verbs, "outputs_of_stretch", interrupt)
    shown(capsys, home / "run", home / "photos", "--csv", tmp_path / "a.csv", status=130)
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["a.csv"]
    assert (tmp_path / "a.csv").read_text() == "older"


def test_the_help_teaches_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--help"]) == 0
    text = re.sub(r"\s+", " ", capsys.readouterr().out)
    for words in ("vitrail predict vitrail-ti8 cat.jpg", "exit status is then 1", "--embed", "--batch-size"):
        assert words in text
