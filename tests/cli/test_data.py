"""`vitrail.check_data` and `vitrail.pack_data` give what their commands print and write."""

import json
from pathlib import Path

import pytest
from evaluating import Pictures, write_folder

import vitrail
from vitrail.cli import main


def test_a_check_prints_what_the_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "images", Pictures(9))
    found = vitrail.check_data(folder)
    assert found.is_clean
    assert main(["data", "check", str(folder), "--quiet"]) == 0
    assert capsys.readouterr().out == f"{found}\n"
    assert main(["data", "check", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(found.document()))


def test_packing_writes_what_the_command_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, one, two = write_folder(tmp_path / "images", Pictures(9)), tmp_path / "one", tmp_path / "two"
    made = vitrail.pack_data(folder, one, image_size=(6, 5))
    assert [(part.path, part.images, part.skipped) for part in made.parts] == [(one, 9, [])]
    assert main(["data", "pack", str(folder), str(two), "--image-size", "6x5"]) == 0
    assert capsys.readouterr().out == f"{made}\n".replace(str(one), str(two))
    assert {path.name: path.read_bytes() for path in one.iterdir()} == {
        path.name: path.read_bytes() for path in two.iterdir()
    }
