"""Tables of names as files and in commands: strict, bounded, whatever is in them; a layout of one's own."""

import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import strangers_more as more
import torch
from PIL import Image
from stranger_files import IMAGES, assert_same, made, output, table_of, told, written

import vitrail
from vitrail.cli import main
from vitrail.config.name_tables import LARGEST, NamesTable, combinations, expand, read_names
from vitrail.errors import CheckpointError, ConfigError, VitrailError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(made("from scratch"), tmp_path / "x.pth")


@pytest.fixture
def table(path: Path) -> NamesTable:
    return told("from scratch", table_of(path))


@pytest.fixture
def toml(table: NamesTable, tmp_path: Path) -> Path:
    (tmp_path / "names.toml").write_text(table.text())
    return tmp_path / "names.toml"


def test_a_layout_of_ones_own_is_a_table(table: NamesTable, toml: Path, path: Path, tmp_path: Path) -> None:
    model = vitrail.load(path, names=toml)
    done = vitrail.convert(path, tmp_path / "other.pth", layout=str(toml), names=table, classes=5, image_size=32)
    assert done.config.classes == 5
    again = vitrail.load(tmp_path / "other.pth", names=table)
    assert again.config.image_size == (32, 32)
    vitrail.convert(path, tmp_path / "run", layout="vitrail", names=toml)
    assert_same(output(vitrail.load(tmp_path / "run")), output(model))
    vitrail.convert(tmp_path / "run", tmp_path / "back.pth", layout=str(toml))
    state, back = torch.load(path), torch.load(tmp_path / "back.pth")
    assert state.keys() == back.keys()
    assert all(torch.equal(state[name], back[name]) for name in state)
    assert len(list(tmp_path.glob("*.pth"))) == 3


def test_a_model_that_the_table_does_not_mean_is_not_written(table: NamesTable, toml: Path, tmp_path: Path) -> None:
    shape: dict[str, Any] = {"depth": 2, "width": 24, "mlp_width": 40, "heads": 3, "image_size": 16, "patch": 4}
    shape |= {"classes": 7, "epsilon": 1e-5}
    own = vitrail.create("ViT-Ti/16", **shape)  # GELU in its tanh form
    with pytest.raises(CheckpointError, match="says activation = 'gelu'; the model has 'gelu-tanh'"):
        vitrail.save(own, tmp_path / "own.pth", layout=str(toml))
    other = vitrail.create("ViT-Ti/16", **shape, activation="gelu", layer_scale=1.0)
    with pytest.raises(CheckpointError, match=r"says nothing of blocks.\{layer\}.attention_scale.weight"):
        vitrail.save(other, tmp_path / "own.pth", layout=str(toml))
    assert not (tmp_path / "own.pth").exists()
    vitrail.save(vitrail.create("ViT-Ti/16", **shape, activation="gelu"), tmp_path / "own.pth", layout=str(toml))


def test_one_tensor_for_two_parameters_is_written_while_they_agree(tmp_path: Path) -> None:
    path = written(made("one norm"), tmp_path / "x.pth")
    table = told("one norm", table_of(path))
    model = vitrail.load(path, names=table)
    (tmp_path / "t.toml").write_text(table.text())
    with torch.no_grad():
        model.get_parameter("blocks.1.mlp_norm.weight").add_(1)
    with pytest.raises(CheckpointError, match="two parameters of ours, which differ"):
        vitrail.save(model, tmp_path / "y.pth", layout=str(tmp_path / "t.toml"))


CHANGES: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (
        lambda each: each["names"].update({"head.weight": "clasifier.weight"}),
        "'clasifier.weight' for head.weight; the file ",
    ),
    (lambda each: each["names"].update({"head.wait": "pos_emb"}), "no place for what the table names: head.wait"),
    (lambda each: each["names"].pop("norm.bias"), "says nothing of norm.bias"),
    (lambda each: each["names"].pop("head.weight"), r"no place for what the table names: head.bias|says nothing of"),
    (lambda each: each["names"].update({"head.weight": "pos_emb"}), "must be a matrix"),
    (lambda each: each["model"].update({"heads": 5}), "heads"),
    (lambda each: each["model"].update({"image_size": [20, 20]}), "pos_emb is"),
    (lambda each: each["reading"].update({"linear": "in out"}), "."),
    (lambda each: each["reading"].update({"patch": "channel row column"}), "reads it as a matrix"),
    (lambda each: each.update({"left_out": ["pos_emb"]}), "both reads and leaves out"),
    (lambda each: each["names"].update({"blocks.{layer}.mlp.contract.weight": "pos_emb"}), "matrix"),
    (lambda each: each["names"].update({"blocks.{layer}.attention.qkv.weight": []}), "query, key and value"),
    (lambda each: each["names"].update({"class_token": []}), "constant|no tensor"),
]


@pytest.mark.parametrize(("change", "said"), CHANGES)
def test_a_table_that_does_not_fit_its_file_is_refused(
    change: Callable[[dict[str, Any]], object], said: str, path: Path, table: NamesTable
) -> None:
    document = table.document()
    change(document)
    with pytest.raises(CheckpointError, match=said):
        vitrail.load(path, names=document)


def test_tensors_beside_the_model_are_named_or_left_out(path: Path, table: NamesTable, tmp_path: Path) -> None:
    state = torch.load(path) | {"ema.step": torch.tensor(3), "aux.weight": torch.zeros(3, 5)}
    torch.save(state, tmp_path / "more.pth")
    with pytest.raises(CheckpointError, match=r"says nothing of 2 tensors: aux\.weight, ema\.step"):
        vitrail.load(tmp_path / "more.pth", names=table)
    model = vitrail.load(tmp_path / "more.pth", names=table.document() | {"left_out": ["aux.*", "ema.step"]})
    assert model.card.provenance is not None
    assert model.card.provenance.left_out == ("aux.weight", "ema.step")


TEXTS = {
    "": "begins with vitrail = 'names 1'",
    "vitrail = 'names 1'": "must have 1 to",
    "vitrail = 'names 2'\n[names]\na = 'b'": "begins with",
    "not = [toml": "is no TOML",
    "a = " + "[" * 100_000: "is no TOML",
    "vitrail = 'names 1'\n[names]\na = 3": "must be a tensor's name",
    "vitrail = 'names 1'\n[nmaes]\na = 'b'": "Did you mean 'names'",
    "vitrail = 'names 1'\n[model]\nheds = 3\n[names]\na = 'b'": "Did you mean 'heads'",
    "vitrail = 'names 1'\n[model]\nheads = 1e9\n[names]\na = 'b'": "heads must be a whole number from 1",
    "vitrail = 'names 1'\n[model]\nheads = " + "9" * 5000 + "\n[names]\na = 'b'": "heads must be|is no TOML",
    "vitrail = 'names 1'\n[model]\nheads = ['?', 3, 'x']\n[names]\na = 'b'": "heads must be",
    "vitrail = 'names 1'\n[model]\nimage_size = [0, 3]\n[names]\na = 'b'": "image_size must be",
    "vitrail = 'names 1'\n[reading]\nqkv = true\n[names]\na = 'b'": "qkv must be one of",
    "vitrail = 'names 1'\n[names]\na = 'x{layer}{lair}'": "unknown slot",
    "vitrail = 'names 1'\n[names]\na = '" + "x" * 2000 + "'": "at most 1,000 signs",
    "vitrail = 'names 1'\n[checked]\na = [1]\n[names]\na = 'b'": "checked",
    "vitrail = 'names 1'\n[names]\n" + "\n".join(f"a{i} = 'b'" for i in range(3000)): "must have 1 to 2,000",
}


@pytest.mark.parametrize(("text", "said"), TEXTS.items(), ids=range(len(TEXTS)))
def test_what_is_no_table_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(ConfigError, match=said) as refused:
        read_names(tmp_path / "x.toml")
    assert len(str(refused.value)) < 700


def test_files_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    (tmp_path / "large.toml").write_bytes(b"#" * (LARGEST + 1))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    for name, said in (("large", "at most"), ("bytes", "no TOML"), ("none", "No such file")):
        with pytest.raises(ConfigError, match=said):
            read_names(tmp_path / f"{name}.toml")
    with pytest.raises(ConfigError, match="cannot read"):
        read_names(tmp_path)
    with pytest.raises(ConfigError, match="names must be a table"):
        read_names(3)


def test_a_damaged_table_ends_in_an_answer_or_a_refusal(path: Path, table: NamesTable) -> None:
    draw = random.Random(7)
    junk: list[Any] = ["", "?", "pos_emb", "blocks.{layer}", "{head}", [], ["?"], 0, -1, 10**30, 1e308, True, {}, [[]]]
    junk += [["cls_token"] * 3, "encoder_layers.{layer}.mlp.0.weight", None, "x" * 999, [16, 16], float("nan")]
    loaded = 0
    for _ in range(150):
        document = json.loads(json.dumps(table.document()))
        for _ in range(draw.randint(1, 2)):
            part = document[draw.choice(["model", "reading", "names"])]
            part[draw.choice([*part, "heads", "qkv", "head_input", "mlp"])] = draw.choice(junk)
        with suppress(VitrailError):
            vitrail.load(path, names=document)
            loaded += 1
    assert loaded < 60


def test_templates_and_ways_are_as_they_say() -> None:
    assert expand("a.{layer}.b{layer*2+1}.{head+1}", 3, 2) == "a.3.b7.3"
    ways = list(combinations({"a": (1, 2, 3), "b": ("x", "y")}, {"b": 2}))
    assert ways[:3] == [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}, {"a": 1, "b": "y"}]
    assert len(ways) == 6
    assert next(combinations({str(point): tuple(range(60)) for point in range(9)})) == {str(i): 0 for i in range(9)}


def test_commands_read_through_a_table(
    path: Path, toml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.fromarray(np.full((16, 16, 3), 90, dtype=np.uint8)).save(tmp_path / "a.png")
    assert main(["predict", str(path), str(tmp_path / "a.png"), "--names", str(toml), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    own = vitrail.load(path, names=toml)
    found = next(iter(vitrail.predict(own, str(tmp_path / "a.png"))))
    assert json.dumps(first).count(f"{found.probability:.4f}"[:5]) > 0
    assert main(["convert", str(path), str(tmp_path / "run"), "--layout", "vitrail", "--names", str(toml)]) == 0
    assert main(["plan", str(path), "--names", str(toml)]) == 0
    with pytest.raises(ConfigError, match="the model is in memory"):
        vitrail.load(own, names=toml)


def test_describe_proposes_checks_and_writes(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "in.npy", IMAGES.numpy())
    np.save(tmp_path / "out.npy", output(made("from scratch")).numpy())
    assert main(["describe", str(path)]) == 0
    said = capsys.readouterr().out
    assert 'heads = ["?", 8, 4, 12, 6, 3, 2, 1]' in said
    assert '"blocks.{layer}.attention.qkv.weight" = "encoder_layers.{layer}.attn.qkv.weight"' in said
    words = ["describe", str(path), "--write-names", str(tmp_path / "n.toml")]
    assert main(words) == 0
    assert read_names(tmp_path / "n.toml") == table_of(path)
    assert main(words) == 1  # it exists
    assert "exists already" in capsys.readouterr().err
    narrow = read_names(tmp_path / "n.toml").settled({"heads": 3, "scale": "head", "qkv": "part head feature"})
    (tmp_path / "n.toml").write_text(narrow.text())
    more_words = ["--names", str(tmp_path / "n.toml"), "--check", str(tmp_path / "in.npy"), str(tmp_path / "out.npy")]
    assert main([*words, *more_words, "--overwrite", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["proposal"]["agrees"]
    assert document["layout"] == "names"
    assert_same(output(vitrail.load(path, names=tmp_path / "n.toml")), output(made("from scratch")))
    (tmp_path / "out.npy").write_bytes(b"\x93NUMPY" + b"x" * 50)
    assert main([*words, *more_words, "--overwrite"]) == 1
    assert "is no array that numpy.save wrote" in capsys.readouterr().err


def test_arrays_of_others_are_read_with_bounds(path: Path, tmp_path: Path) -> None:
    good = tmp_path / "in.npy"
    np.save(good, IMAGES.numpy())
    np.save(tmp_path / "object.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "short.npy").write_bytes(good.read_bytes()[:-4])
    for name, said in (("object", "not numbers"), ("short", "are not those of"), ("none", "cannot read")):
        with pytest.raises(ConfigError, match=said):
            vitrail.describe(path, check=(good, tmp_path / f"{name}.npy"))
    with pytest.raises(ConfigError, match="check must be two"):
        vitrail.describe(path, check=(good,))  # pyright: ignore[reportArgumentType]


def test_every_known_point_of_a_stranger_is_one_that_a_table_has() -> None:
    assert more.KNOWN.keys() <= more.HELD.keys()
