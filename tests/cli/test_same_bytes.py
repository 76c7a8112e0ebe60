"""A command only turns flags into its function's arguments: the same names and defaults, and the same files."""

import inspect
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from evaluating import Pictures, guessing, write_folder

import vitrail
from vitrail.cli import app, main
from vitrail.cli.options import READERS
from vitrail.cli.render import in_flags
from vitrail.config.serving import Serving
from vitrail.verbs.predict import embeddings
from vitrail.verbs.predictions import save_features

VERBS = {"data check": "check_data", "data pack": "pack_data", "models": "list_models", "recipes": "list_recipes"}
OWN = {"demo": {"shapes"}, "describe": {"tensors"}, "plan": {"models", "compare"}, "predict": {"csv", "embed", "out"}}
OWN |= {"study": {"dry_run"}}  # which is study_costs


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("home")
    write_folder(root / "photos", Pictures(41))
    vitrail.save(guessing(), root / "run")
    return root


def command_of(name: str) -> Any:
    return getattr(app.import_module(f"vitrail.cli.{app.COMMANDS[name]}"), name.split()[-1])


def arguments_of(verb: str) -> tuple[dict[str, Any], bool]:
    """The defaults of a function's keywords, those that it takes as a group too, and whether it takes any field."""
    function = Serving if verb == "serve" else getattr(vitrail, verb)
    parameters = inspect.signature(function).parameters
    found = {name: each.default for name, each in parameters.items() if each.kind is not each.VAR_KEYWORD}
    rest = [each for each in parameters.values() if each.kind is each.VAR_KEYWORD]
    groups = [group for each in rest for group in get_args(each.annotation)]
    usual = {"precision": "float32", "engine": "auto", "bad_image_limit": 0.01}
    usual |= {"fresh": False, "keep_aspect_ratio": False}
    found |= {name: usual.get(name) for group in groups for name in get_type_hints(group)}
    return found, (bool(rest) and not groups) or verb == "serve"


@pytest.mark.parametrize("name", app.COMMANDS)
def test_a_flag_is_a_keyword_of_the_function_with_its_default(name: str) -> None:
    arguments, fields = arguments_of(VERBS.get(name, name))
    for option, parameter in inspect.signature(command_of(name)).parameters.items():
        if option in {"quiet", "as_json", "settings", *OWN.get(name, ())}:
            continue
        assert option in arguments or fields, f"{name} has {option}"
        if parameter.default not in (parameter.empty, None) and option in arguments:
            said = parameter.default
            if isinstance(said, str) and option in READERS:
                said = READERS[option](option, said)
            usual = arguments[option]
            assert np.array_equal(np.ravel(said), np.ravel([usual])) or said == (usual, usual)


def test_predict_writes_the_same_answers_and_features(home: Path, tmp_path: Path) -> None:
    command = ["predict", str(home / "run"), str(home / "photos"), "--top", "2", "--quiet"]
    assert main([*command, "--csv", str(tmp_path / "a.csv"), "--embed", str(tmp_path / "a.parquet")]) == 0
    found = vitrail.predict(home / "run", home / "photos", top=2, features=True)
    found.save_csv(tmp_path / "b.csv")
    save_features(tmp_path / "b.parquet", found)
    assert main([*command, "--embed", str(tmp_path / "a.npy")]) == 0
    save_features(tmp_path / "b.npy", embeddings(home / "run", home / "photos"))
    for suffix in ("csv", "parquet", "npy"):
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_fewshot_writes_the_same_document(home: Path, tmp_path: Path) -> None:
    more = ["--shots", "1,all", "--seeds", "5", "--probes", "ridge,knn", "--knn", "3", "--quiet"]
    assert main(["fewshot", str(home / "run"), str(home / "photos"), *more, "--out", str(tmp_path / "a")]) == 0
    options: dict[str, Any] = {"shots": (1, "all"), "seeds": (5,), "probes": ("ridge", "knn"), "neighbors": 3}
    vitrail.fewshot(str(home / "run"), str(home / "photos"), **options, out=tmp_path / "b")
    assert (tmp_path / "a" / "fewshot.json").read_bytes() == (tmp_path / "b" / "fewshot.json").read_bytes()


def test_convert_writes_the_same_weights(home: Path, tmp_path: Path) -> None:
    more = ["--layout", "timm", "--lossy", "--classes", "4", "--image-size", "56"]
    assert main(["convert", str(home / "run"), str(tmp_path / "a.safetensors"), *more]) == 0
    adapted: dict[str, Any] = {"layout": "timm", "lossy": True, "classes": 4, "image_size": (56, 56)}
    vitrail.convert(home / "run", tmp_path / "b.safetensors", **adapted)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_transfer_writes_the_same_weights(tmp_path: Path) -> None:
    small = {"model.depth": 1, "model.width": 24, "model.heads": 3, "model.mlp_width": 29}
    texts = [*(f"{name}={value}" for name, value in small.items()), "image_size=28"]
    flags = [part for text in texts for part in ("--set", text)]
    command = ["transfer", "sample", "--model", "ViT-Ti/14", "--recipe", "small", "--rates", "0.01", "--seeds", "3"]
    more = ["--steps", "2", "--batch", "16", "--workers", "0", "--device", "cpu", "--quiet", *flags]
    assert main([*command, *more, "--out", str(tmp_path / "a")]) == 0
    run: dict[str, Any] = {"steps": 2, "batch_size": 16, "workers": 0, "device": "cpu", "quiet": True, **small}
    run["image_size"] = (28, 28)
    vitrail.transfer("sample", model="ViT-Ti/14", recipe="small", rates=(0.01,), seeds=(3,), out=tmp_path / "b", **run)
    one, other = (sorted((tmp_path / name).rglob("weights.safetensors")) for name in "ab")
    assert len(one) == len(other) > 0
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]


@pytest.mark.parametrize(
    ("name", "message", "said"),
    [
        ("convert", "or say that it may: lossy=True.", "or say that it may: --lossy."),
        ("convert", "Give classes=... too.", "Give --classes ... too."),
        ("verify", "Take far=0.01.", "Take --far 0.01."),
        ("finetune", "allow more: bad_image_limit=0.05.", "allow more: bad_image_limit=0.05."),
        ("finetune", "Set layer_decay=none.", "Give --set layer_decay=none."),
        ("finetune", "raise it, set clip_norm=1.", "raise it, give --set clip_norm=1."),
        ("finetune", "or precision=float32; see", "or --precision float32; see"),
        ("finetune", "Give another folder.", "Give another folder (--out)."),
        ("finetune", "another with model=..., or", "another with --model ..., or"),
        ("finetune", "better, with image_size=96", "better, with --set image_size=96"),
        ("evaluate", "got 'batch_size=3'", "got 'batch_size=3'"),
    ],
)
def test_a_message_speaks_of_flags(name: str, message: str, said: str) -> None:
    assert in_flags(message, command_of(name)) == said
