"""Names that nobody has seen: a table is proposed, settled by trying, read and written; nothing is guessed silently."""

from pathlib import Path
from typing import Any

import pytest
import strangers_more as more
import torch
from safetensors.torch import load_file
from stranger_files import IMAGES, assert_same, few, made, output, table_of, told, written
from torch import Tensor

import vitrail
from vitrail.checkpoint.archives.base import Entry, open_archive
from vitrail.checkpoint.proposing.propose import propose
from vitrail.checkpoint.proposing.settle import settle
from vitrail.checkpoint.proposing.units import find_units
from vitrail.config.name_tables import Choices, read_names
from vitrail.errors import CheckpointError, ConfigError


@pytest.mark.parametrize("name", more.HELD)
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_proposal_is_right_and_goes_both_ways(name: str, suffix: str, tmp_path: Path) -> None:
    theirs = made(name)
    path = written(theirs, tmp_path / f"stranger{suffix}")
    table = told(name, table_of(path))
    ours = vitrail.load(path, names=table)
    logits = output(ours)
    assert_same(logits.softmax(1) if name == "probabilities" else logits, output(theirs))
    (tmp_path / "mine.toml").write_text(table.text())
    assert read_names(tmp_path / "mine.toml") == table
    exact = table.get("scale") == "head"  # or queries are multiplied by what no binary number is
    vitrail.save(ours, tmp_path / "back.safetensors", layout=str(tmp_path / "mine.toml"))
    back, state = load_file(tmp_path / "back.safetensors"), theirs.state_dict()
    assert back.keys() == state.keys()
    for each, tensor in state.items():
        torch.testing.assert_close(back[each], tensor, atol=0 if exact else 1e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", more.HELD)
def test_trying_finds_what_no_tensor_says(name: str, tmp_path: Path) -> None:
    theirs = made(name)
    path = written(theirs, tmp_path / "stranger.pth")
    found = vitrail.describe(path, check=(IMAGES, output(theirs))).proposal
    assert found is not None
    assert found.agrees, found.check
    assert found.table is not None
    logits = output(vitrail.load(path, names=found.table))
    assert_same(logits.softmax(1) if name == "probabilities" else logits, output(theirs))


@pytest.mark.parametrize("name", ["from scratch", "torch post relu", "no scale", "library attention"])
def test_trying_tells_a_few_choices_apart(name: str, tmp_path: Path) -> None:
    theirs = made(name)
    path = written(theirs, tmp_path / "stranger.pth")
    narrow = few(name, table_of(path))
    steps: list[tuple[int, int]] = []
    found = vitrail.describe(
        path, names=narrow, check=(IMAGES, output(theirs)), progress=lambda done, total: steps.append((done, total))
    )
    assert found.proposal is not None
    assert found.proposal.table is not None
    assert found.proposal.table == told(name, narrow).settled({}, checked=found.proposal.table.checked)
    assert found.proposal.table.checked["outputs"] == "logits"
    assert found.layout == "names"
    assert found.reason is None
    assert steps[0][0] == 1
    assert steps[-1][0] == steps[-1][1]
    assert_same(output(vitrail.load(path, names=found.proposal.table)), output(theirs))


@pytest.mark.parametrize("name", more.WRONG)
def test_what_no_table_can_say_is_never_taken_for_something_else(name: str, tmp_path: Path) -> None:
    theirs = made(name)
    path = written(theirs, tmp_path / "stranger.pth")
    found = vitrail.describe(path, names=few(name, table_of(path)), check=(IMAGES, output(theirs)))
    assert found.proposal is not None
    assert found.proposal.agrees is False
    assert "does something that no table can say; the nearest differs by" in found.proposal.check
    assert found.proposal.table is not None
    assert found.proposal.table.open  # still


def test_a_search_that_stops_early_does_not_say_that_it_tried_all(tmp_path: Path) -> None:
    theirs = made("from scratch")
    path = written(theirs, tmp_path / "x.pth")
    narrow = told("from scratch", table_of(path)).settled(
        {"heads": Choices((2, 4, 3)), "pooling": Choices(("mean", "token")), "activation": Choices(("relu", "gelu"))}
    )
    steps: list[tuple[int, int]] = []
    with open_archive(path) as archive:
        late = settle(archive, narrow, IMAGES, output(theirs), lambda *done: steps.append(done), seconds=0)
        found = settle(archive, narrow, IMAGES, output(theirs), lambda *done: None)
    assert not late.agrees
    assert "that were tried in 0 s, of 12, gives these outputs; the nearest differs by" in late.said[0]
    assert steps == [(1, 12), (12, 12)]
    assert found.agrees
    assert [found.table.get(name) for name in ("heads", "pooling", "activation")] == [3, "token", "gelu"]


@pytest.mark.slow
@pytest.mark.parametrize("name", more.WRONG)
def test_no_way_of_all_agrees_with_what_no_table_can_say(name: str, tmp_path: Path) -> None:
    theirs = made(name)
    found = vitrail.describe(written(theirs, tmp_path / "x.pth"), check=(IMAGES, output(theirs))).proposal
    assert found is not None
    assert found.agrees is False


JEONSWORLD = {
    "class_token": "transformer.embeddings.cls_token",
    "blocks.{layer}.attention.qkv.weight": [
        f"transformer.encoder.layer.{{layer}}.attn.{n}.weight" for n in ("query", "key", "value")
    ],
    "blocks.{layer}.attention.out.weight": "transformer.encoder.layer.{layer}.attn.out.weight",
    "blocks.{layer}.attention_norm.weight": "transformer.encoder.layer.{layer}.attention_norm.weight",
    "blocks.{layer}.mlp_norm.weight": "transformer.encoder.layer.{layer}.ffn_norm.weight",
    "blocks.{layer}.mlp.expand.weight": "transformer.encoder.layer.{layer}.ffn.fc1.weight",
    "blocks.{layer}.mlp.contract.weight": "transformer.encoder.layer.{layer}.ffn.fc2.weight",
    "norm.weight": "transformer.encoder.encoder_norm.weight",
    "head.weight": "head.weight",
    "positions.table.0": "transformer.embeddings.position_embeddings",
    "embedding.projection.weight": "transformer.embeddings.patch_embeddings.weight",
}
PRETRAINED = {
    "class_token": "class_token",
    "blocks.{layer}.attention.qkv.weight": [f"transformer.blocks.{{layer}}.attn.proj_{n}.weight" for n in "qkv"],
    "blocks.{layer}.attention.out.weight": "transformer.blocks.{layer}.proj.weight",
    "blocks.{layer}.attention_norm.weight": "transformer.blocks.{layer}.norm1.weight",
    "blocks.{layer}.mlp_norm.weight": "transformer.blocks.{layer}.norm2.weight",
    "blocks.{layer}.mlp.expand.weight": "transformer.blocks.{layer}.pwff.fc1.weight",
    "blocks.{layer}.mlp.contract.weight": "transformer.blocks.{layer}.pwff.fc2.weight",
    "norm.weight": "norm.weight",
    "head.weight": "fc.weight",
    "positions.table.0": "positional_embedding.pos_embedding",
    "embedding.projection.weight": "patch_embedding.weight",
}
SCRATCH = {
    "class_token": "embedding.cls_token",
    "blocks.{layer}.attention.qkv.weight": "encoder.blocks.{layer}.attention.qkv_projection.weight",
    "blocks.{layer}.attention.out.weight": "encoder.blocks.{layer}.attention.output_projection.weight",
    "blocks.{layer}.attention_norm.weight": "encoder.blocks.{layer}.layernorm_1.weight",
    "blocks.{layer}.mlp_norm.weight": "encoder.blocks.{layer}.layernorm_2.weight",
    "blocks.{layer}.mlp.expand.weight": "encoder.blocks.{layer}.mlp.dense_1.weight",
    "blocks.{layer}.mlp.contract.weight": "encoder.blocks.{layer}.mlp.dense_2.weight",
    "head.weight": "classifier.weight",
    "positions.table.0": "embedding.position_embeddings",
    "embedding.projection.weight": "embedding.patch_embeddings.projection.weight",
}
NUMBERS = {
    "class_token": "0.cls_token",
    "blocks.{layer}.attention.qkv.weight": "1.{layer}.0.fn.1.qkv.weight",
    "blocks.{layer}.attention.out.weight": "1.{layer}.0.fn.1.projection.weight",
    "blocks.{layer}.attention_norm.weight": "1.{layer}.0.fn.0.weight",
    "blocks.{layer}.mlp_norm.weight": "1.{layer}.1.fn.0.weight",
    "blocks.{layer}.mlp.expand.weight": "1.{layer}.1.fn.1.0.weight",
    "blocks.{layer}.mlp.contract.weight": "1.{layer}.1.fn.1.3.weight",
    "norm.weight": "2.1.weight",
    "head.weight": "2.2.weight",
    "positions.table.0": "0.positions",
    "embedding.projection.weight": "0.projection.0.weight",
}


@pytest.mark.parametrize("names", [JEONSWORLD, PRETRAINED, SCRATCH, NUMBERS])
@pytest.mark.parametrize("mlp", [96, 24])  # 24: every matrix of a block is a square, but a packed one
@pytest.mark.parametrize("order", ["file", "alphabet"])
def test_names_of_well_known_repositories_are_found(names: dict[str, Any], mlp: int, order: str) -> None:
    width, entries = 24, {}
    sides = {"out": (width, width), "expand": (mlp, width), "contract": (width, mlp), "head": (7, width)}
    sides |= {"class_token": (1, 1, width), "positions": (1, 17, width), "embedding": (width, 3, 4, 4)}
    for ours, theirs in names.items():
        several = [theirs] if isinstance(theirs, str) else theirs
        shape = next((side for word, side in sides.items() if word in ours), (width,))
        shape = (3 * width // len(several), width) if "qkv" in ours else shape
        for layer, name in [(layer, name) for name in several for layer in range(3)]:
            full = name.replace("{layer}", str(layer))
            entries[full] = Entry(shape, torch.float32)
            if full.endswith("weight"):
                entries[full.removesuffix("weight") + "bias"] = Entry(shape[:1], torch.float32)
    entries = dict(sorted(entries.items())) if order == "alphabet" else entries
    found = propose(entries)
    assert found.table is not None, found.reason
    document = found.table.document()["names"]
    assert {ours: document.get(ours) for ours in names} == names
    assert "norms" not in found.table.open
    assert not found.table.left_out


def test_letters_of_matrices_and_of_norms_are_told_apart() -> None:
    by_letters = {"a.w_2": (5, 7), "a.b_2": (7,), "a.ln_g": (5,), "a.ln_b": (5,)}
    assert [(unit.weight, unit.bias) for unit in find_units(by_letters)] == [("a.w_2", "a.b_2"), ("a.ln_g", "a.ln_b")]
    as_norm = {"a.a_2": (5,), "a.b_2": (5,)}  # of the annotated Transformer's norm
    assert [(unit.weight, unit.bias) for unit in find_units(as_norm)] == [("a.a_2", "a.b_2")]


REASONS = {
    "convolutions": "no",
    "language": "no layer that reads patches",
    "windows": "no attention and MLP",
    "two": "convolutions before its blocks or beside them",
}


@pytest.mark.parametrize("name", more.NONE)
def test_what_is_no_vit_gets_no_proposal(name: str, tmp_path: Path) -> None:
    found = vitrail.describe(written(made(name), tmp_path / "x.pth"))
    assert found.proposal is not None
    assert found.proposal.table is None
    assert REASONS[name] in found.proposal.reason
    assert f"no names are proposed: {found.proposal.reason}" in str(found)
    with pytest.raises(CheckpointError, match="there is no table of names to write"):
        vitrail.describe(tmp_path / "x.pth", write_names=tmp_path / "x.toml")
    assert not (tmp_path / "x.toml").exists()


OTHERS = ["swin_tiny_patch4_window7_224", "convnext_atto", "resnet18", "mixer_s32_224", "pvt_v2_b0", "cait_xxs24_224"]
OTHERS += ["levit_128s", "mobilevit_xxs", "crossvit_tiny_240", "xcit_nano_12_p16_224", "poolformer_s12", "pit_ti_224"]
OTHERS += ["beit_base_patch16_224", "coat_tiny", "twins_svt_small", "volo_d1_224", "maxvit_tiny_rw_224", "gmlp_s16_224"]


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_get_no_proposal(name: str) -> None:
    timm = pytest.importorskip("timm")
    with torch.device("meta"):
        model = timm.create_model(name)
    entries = {name: Entry(tuple(each.shape), each.dtype) for name, each in model.state_dict().items()}
    found = propose(entries)
    assert found.table is None, found.text()
    assert found.reason


def test_an_open_table_is_refused_and_says_what_to_do(tmp_path: Path) -> None:
    path = written(made("from scratch"), tmp_path / "x.pth")
    table = table_of(path)
    with pytest.raises(CheckpointError, match=r"leaves open: heads \(8, 4, .*--check"):
        vitrail.load(path, names=table)
    known: dict[str, Any] = {"heads": 3, "activation": "gelu", "epsilon": 1e-5, "norm": "pre", "pooling": "token"}
    with pytest.raises(CheckpointError, match=r"leaves open: final_norm \(tokens, pooled\); qkv"):
        vitrail.load(path, names=table, **known)
    rest = table.settled({"final_norm": "tokens", "qkv": "part head feature", "scale": "head", "class_entry": "first"})
    assert_same(output(vitrail.load(path, names=rest, **known)), output(made("from scratch")))


def test_a_table_that_nobody_checked_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(made("from scratch"), tmp_path / "x.pth")
    table = told("from scratch", table_of(path))
    vitrail.load(path, names=table, preprocessing="imagenet")
    assert [record.levelname for record in caplog.records if "which nobody has checked" in record.message] == [
        "WARNING"
    ]
    caplog.clear()
    checked = vitrail.describe(path, names=table, check=(IMAGES, output(made("from scratch")))).proposal
    assert checked is not None
    vitrail.load(path, names=checked.table, preprocessing="imagenet")
    assert not caplog.records


def test_what_images_do_not_tell_apart_stays_open(tmp_path: Path) -> None:
    theirs = made("from scratch")
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if ".qkv." in name:
                parameter[: 2 * more.D] = 0  # every token attends to all alike: heads change nothing
    path = written(theirs, tmp_path / "x.pth")
    table = told("from scratch", table_of(path)).settled(
        {"heads": Choices((3, 2)), "pooling": Choices(("mean", "token"))}
    )
    found = vitrail.describe(path, names=table, check=(IMAGES, output(theirs))).proposal
    assert found is not None
    assert found.agrees
    assert "do not tell heads 3 from 2: it stays open" in found.check
    assert found.table is not None
    assert found.table.open == {"heads": (3, 2)}
    assert not found.table.checked


@pytest.mark.parametrize(
    ("images", "outputs", "said"),
    [
        (IMAGES[0], torch.zeros(4, 7), "images must be float B C H W"),
        (IMAGES, torch.zeros(3, 7), "one row for each of the 4 images"),
        (IMAGES * float("nan"), torch.zeros(4, 7), "finite"),
        (IMAGES.to(torch.uint8), torch.zeros(4, 7), "images must be float"),
    ],
)
def test_arrays_that_do_not_go_together_are_refused(images: Tensor, outputs: Tensor, said: str, tmp_path: Path) -> None:
    path = written(made("from scratch"), tmp_path / "x.pth")
    with pytest.raises(ConfigError, match=said):
        vitrail.describe(path, check=(images, outputs))


def test_images_and_outputs_of_another_size_are_said(tmp_path: Path) -> None:
    path = written(made("from scratch"), tmp_path / "x.pth")
    table = few("from scratch", table_of(path))
    for images, outputs, said in (
        (torch.zeros(2, 3, 20, 20), torch.zeros(2, 7), "positions are of images of 16x16; these are 20x20"),
        (torch.zeros(2, 1, 16, 16), torch.zeros(2, 7), "3 channels; the images have 1"),
        (torch.zeros(2, 3, 16, 16), torch.zeros(2, 9), "the outputs have 9 columns"),
    ):
        found = vitrail.describe(path, names=table, check=(images, outputs)).proposal
        assert found is not None
        assert found.agrees is False
        assert said in found.check
