"""LoRA as a small file: what a run writes is its base and the changes, to the bit; another base is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from vitrail.checkpoint.archives.base import read_safetensors, write_safetensors
from vitrail.checkpoint.load import LORA as NOTE
from vitrail.checkpoint.lora_files import LORA_FILE, base_digest
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import Model


def small(seed: int = 0, **fields: Any) -> Model:
    model = vitrail.create(
        "ViT-Ti/8",
        image_size=16,
        classes=5,
        seed=seed,
        **{"depth": 2, "width": 24, "heads": 3, "mlp_width": 40, "activation": "gelu", **fields},
    )
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            noise = torch.Generator().manual_seed(number + 100 * seed)
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=noise))
    return model


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    vitrail.save(small(), folder / "base.safetensors", layout="timm")
    return folder / "base.safetensors"


@pytest.fixture(scope="module")
def run(base: Path, tmp_path_factory: pytest.TempPathFactory) -> vitrail.Run:
    labels = np.arange(30) % 3
    images = np.random.default_rng(0).integers(0, 256, (30, 24, 24, 3), dtype=np.uint8)
    fields: dict[str, Any] = {"adapt": "lora", "rank": 2, "matrices": "query,value,expand", "image_size": 24}
    out = tmp_path_factory.mktemp("lora") / "run"
    how: Any = {"steps": 5, "batch_size": 10, "quiet": True, "device": "cpu", "workers": 0, "lr": 1e-2}
    return vitrail.finetune((images, labels), model=base, out=out, **how, **fields)


def same(one: Model, other: Model) -> None:
    assert one.config == other.config
    for (name, ours), theirs in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name


def test_the_small_file_on_its_base_is_the_run_to_the_bit(run: vitrail.Run) -> None:
    assert run.folder is not None
    path = run.folder / LORA_FILE
    found = vitrail.load(path)
    same(found, run.model)
    assert found.card.class_names == run.model.card.class_names
    assert path.stat().st_size < (run.folder / "weights.safetensors").stat().st_size / 2
    tensors, _ = read_safetensors(path)
    assert all(".lora_" in name or name.startswith("head.") for name in tensors)


def test_its_base_may_be_elsewhere_and_in_memory(run: vitrail.Run, base: Path, tmp_path: Path) -> None:
    assert run.folder is not None
    moved = tmp_path / "moved.safetensors"
    moved.write_bytes(base.read_bytes())
    same(vitrail.load(run.folder / LORA_FILE, base=moved), run.model)
    same(vitrail.load(run.folder / LORA_FILE, base=vitrail.load(base)), run.model)
    larger = vitrail.load(run.folder / LORA_FILE, image_size=32)
    same(larger, vitrail.load(run.folder, image_size=32))
    assert vitrail.load(run.folder / LORA_FILE, classes=7).config.classes == 7


def test_it_goes_back_to_the_layout_of_its_base(run: vitrail.Run, tmp_path: Path) -> None:
    assert run.folder is not None
    vitrail.convert(run.folder / LORA_FILE, tmp_path / "whole.safetensors", layout="timm")
    found = vitrail.load(tmp_path / "whole.safetensors").state_dict()
    assert all(torch.equal(value, found[name]) for name, value in run.model.state_dict().items())
    found = vitrail.predict(run.folder / LORA_FILE, np.zeros((24, 24, 3), dtype=np.uint8))
    wanted = vitrail.predict(run, np.zeros((24, 24, 3), dtype=np.uint8))
    assert torch.equal(found.logits, wanted.logits)


def test_another_base_is_refused_with_what_to_do(run: vitrail.Run, base: Path, tmp_path: Path) -> None:
    assert run.folder is not None
    path = run.folder / LORA_FILE
    with pytest.raises(CheckpointError, match=r"is another base: digest .*vitrail finetune --adapt lora"):
        vitrail.load(path, base=small(seed=1))
    with pytest.raises(CheckpointError, match=r"is another base: its model is another"):
        vitrail.load(path, base=small(depth=3))
    changed = vitrail.load(base)
    with torch.no_grad():
        changed.get_parameter("blocks.1.mlp.contract.weight")[3, 5] += 1e-3
    with pytest.raises(CheckpointError, match=r"is another base: digest"):
        vitrail.load(path, base=changed)
    tensors, notes = read_safetensors(path)
    said = json.loads(notes[NOTE])
    gone = tmp_path / "gone.safetensors"
    write_safetensors(gone, tensors, {NOTE: json.dumps({**said, "base": "nowhere/base.safetensors"})})
    with pytest.raises(CheckpointError, match=r"holds changes of a base, nowhere/base.safetensors .*base=\.\.\."):
        vitrail.load(gone)
    same(vitrail.load(gone, base=base), run.model)
    with pytest.raises(ConfigError, match=r"is a whole model, and no changes of a base\. Leave base out"):
        vitrail.load(base, base=base)


def test_what_a_hostile_file_says_is_read_strictly(run: vitrail.Run, tmp_path: Path) -> None:
    assert run.folder is not None
    tensors, notes = read_safetensors(run.folder / LORA_FILE)
    said, path = json.loads(notes[NOTE]), tmp_path / "bad.safetensors"
    changes: list[dict[str, Any]] = [
        {"format": "other"},
        {"digest": 7},
        {"adapt": {"kind": "head"}},
        {"model": {}},
        {"class_names": "abc"},
        {"adapt": {**said["adapt"], "rank": 900}},
        {"adapt": {**said["adapt"], "rank": 3}},
    ]
    for change in changes:
        write_safetensors(path, tensors, {NOTE: json.dumps({**said, **change})})
        with pytest.raises(CheckpointError):
            vitrail.load(path)
    write_safetensors(path, tensors, {NOTE: "{"})
    with pytest.raises(CheckpointError, match="says wrongly which changes it holds"):
        vitrail.load(path)
    less = {name: value for name, value in tensors.items() if "lora_B.query" not in name}
    write_safetensors(path, less, notes)
    with pytest.raises(CheckpointError, match="does not hold the changes that it says"):
        vitrail.load(path)


def test_the_digest_is_of_what_stays_as_it_is() -> None:
    model = small()
    weights = dict(model.state_dict())
    before = base_digest(weights)
    assert base_digest({**weights, "head.weight": weights["head.weight"] + 1}) == before
    assert base_digest({**weights, "class_token": weights["class_token"] + 1}) != before


def test_memory_and_time_saved_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    images = np.zeros((12, 16, 16, 3), dtype=np.uint8)
    data = {"train": (images, np.arange(12) % 3), "val": (images, np.arange(12) % 3)}
    vitrail.finetune(data, model=small(), adapt="lora", rank=2, steps=1, workers=0, device="cpu")
    said = capsys.readouterr().err
    assert "adapt=lora trains" in said
    assert "gradients and the optimizer take" in said
    assert "67% of the arithmetic" in said


def test_changes_may_be_of_what_was_changed_but_not_of_themselves(run: vitrail.Run, tmp_path: Path) -> None:
    assert run.folder is not None
    labels, images = np.arange(12) % 2, np.zeros((12, 24, 24, 3), dtype=np.uint8)
    first = run.folder / LORA_FILE
    how: Any = {"adapt": "lora", "rank": 2, "steps": 2, "quiet": True, "device": "cpu", "workers": 0}
    again = vitrail.finetune((images, labels), model=first, out=tmp_path / "again", **how)
    same(vitrail.load(tmp_path / "again" / LORA_FILE), again.model)
    tensors, notes = read_safetensors(first)
    itself = tmp_path / "itself.safetensors"
    said = {**json.loads(notes[NOTE]), "base": str(itself)}
    write_safetensors(itself, tensors, {NOTE: json.dumps(said)})
    with pytest.raises(CheckpointError, match="it names itself as its base"):
        vitrail.load(itself)


def test_describe_says_what_it_changes_and_of_which_base(run: vitrail.Run, base: Path, tmp_path: Path) -> None:
    assert run.folder is not None
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes((run.folder / LORA_FILE).read_bytes())
    found = vitrail.describe(alone)
    assert found.layout == "lora"
    assert f"changes of rank 2 of query, value, expand, and a classifier, of the base {base}" in found.text()
    assert found.parameters == sum(tensor.numel() for tensor in read_safetensors(alone)[0].values())
    assert found.document()["class_names"] == ["0", "1", "2"]
