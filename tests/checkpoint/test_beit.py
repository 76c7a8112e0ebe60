"""BEiT and data2vec in the names of timm and transformers: their own answers, at other sizes too, and written back."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peers import images, saved, stirred
from safetensors.torch import load_file
from torch import Tensor

import vitrail
from vitrail import inspection
from vitrail.config import BiasPositions, ViTConfig
from vitrail.errors import CheckpointError

timm = pytest.importorskip("timm")
transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {"embed_dim": 48, "depth": 3, "num_heads": 4, "img_size": 64, "patch_size": 16}
OTHER = SMALL | {"embed_dim": 66, "depth": 2, "num_heads": 3, "img_size": 56, "patch_size": 8, "in_chans": 2}
BIASED = {"use_abs_pos_emb": False, "use_rel_pos_bias": True}
TIMM: dict[str, dict[str, Any]] = {
    "beit": BIASED | {"init_values": 0.1, "num_classes": 7},
    "beit without layer scale": BIASED | {"num_classes": 0},
    "shared, with a table": {"use_shared_rel_pos_bias": True, "init_values": 1e-5, "num_classes": 5, "mlp_ratio": 2.5},
    "class token, no biases": BIASED | {"global_pool": "token", "qkv_bias": False, "num_classes": 5},
}
MEAN = {"use_relative_position_bias": True}
HF: dict[str, tuple[str, dict[str, Any]]] = {
    "beit": ("Beit", MEAN),
    "class token": ("Beit", MEAN | {"use_mean_pooling": False, "layer_scale_init_value": 0.0, "hidden_act": "relu"}),
    "shared, with a table": (
        "Beit",
        {"use_shared_relative_position_bias": True, "use_absolute_position_embeddings": True},
    ),
    "a table alone": ("Beit", {"use_absolute_position_embeddings": True, "layer_norm_eps": 1e-5}),
    "data2vec": ("Data2VecVision", MEAN),
}


def beit(name: str, shape: dict[str, Any]) -> Any:
    from timm.models.beit import Beit

    return stirred(Beit(**shape, **TIMM[name]))


def timms_at(theirs: Any, name: str, shape: dict[str, Any], size: tuple[int, int]) -> Any:
    """The same model for images of another size, as timm makes it of a checkpoint."""
    from timm.models.beit import Beit, checkpoint_filter_fn

    options: dict[str, Any] = {**shape, **TIMM[name], "img_size": size}
    other = Beit(**options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of timm's own interpolation
        other.load_state_dict(checkpoint_filter_fn(theirs.state_dict(), other))
    return other.eval()


def sizes_of(side: int, patch: int) -> list[tuple[int, int]]:
    return [(side, side), (side + 2 * patch, side + 2 * patch), (side - patch, side + 3 * patch)]


def assert_equal(ours: Tensor, theirs: Tensor) -> None:
    assert theirs.abs().max() > 0.05
    torch.testing.assert_close(ours, theirs, atol=5e-5, rtol=0)


@pytest.mark.parametrize("shape", [SMALL, OTHER], ids=["small", "other"])
@pytest.mark.parametrize("name", TIMM)
def test_timms_beit_gives_timms_answers_and_goes_out_as_it_came(
    name: str, shape: dict[str, Any], tmp_path: Path
) -> None:
    theirs = beit(name, shape)
    ours = vitrail.load(saved(theirs, tmp_path / "w.safetensors"))  # biases say how many heads there are
    for size in sizes_of(shape["img_size"], shape["patch_size"]):
        batch = images(*size, channels=shape.get("in_chans", 3))
        with torch.no_grad():
            expected = timms_at(theirs, name, shape, size)(batch)
            assert_equal(ours(batch), expected)
            assert_equal(vitrail.load(tmp_path / "w.safetensors", image_size=size)(batch), expected)
    vitrail.save(ours, tmp_path / "again.safetensors", layout="timm")
    held, before = load_file(tmp_path / "again.safetensors"), load_file(tmp_path / "w.safetensors")
    assert held.keys() == before.keys()
    assert all(torch.equal(held[key], before[key]) for key in held)


def test_the_authors_files_hold_index_buffers_and_a_mask_beside(tmp_path: Path) -> None:
    theirs = beit("beit", SMALL)
    held = theirs.state_dict() | {"mask_token": torch.zeros(1, 1, 48)}
    held |= {f"blocks.{layer}.attn.relative_position_index": torch.zeros(17, 17).long() for layer in range(3)}
    torch.save({"module": held}, tmp_path / "beit.pth")
    ours, batch = vitrail.load(tmp_path / "beit.pth"), images(64, 64)
    with torch.no_grad():
        assert_equal(ours(batch), theirs(batch))
    assert ours.card.provenance is not None
    assert "mask_token" in str(ours.card.provenance.left_out)


@pytest.mark.parametrize("classes", [0, 5])
@pytest.mark.parametrize("shape", [SMALL, OTHER], ids=["small", "other"])
@pytest.mark.parametrize("name", HF)
def test_transformers_beit_gives_its_answers_and_is_written_back(
    name: str, shape: dict[str, Any], classes: int, tmp_path: Path
) -> None:
    kind, options = HF[name]
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=shape["embed_dim"],
        num_hidden_layers=shape["depth"],
        num_attention_heads=shape["num_heads"],
        intermediate_size=100,
        image_size=shape["img_size"],
        patch_size=shape["patch_size"],
        num_channels=shape.get("in_chans", 3),
        num_labels=classes,
        **options,
    )
    made = getattr(transformers, f"{kind}ForImageClassification" if classes else f"{kind}Model")
    theirs = stirred(made(config) if classes else made(config, add_pooling_layer=True))
    ours = vitrail.load(saved(theirs, tmp_path / "model"))
    again = None
    if kind == "Beit":
        vitrail.save(ours, tmp_path / "again", layout="hf")
        again = made.from_pretrained(tmp_path / "again").eval()
    for size in sizes_of(shape["img_size"], shape["patch_size"]):
        batch = images(*size, channels=shape.get("in_chans", 3))
        with torch.no_grad():
            expected = answer(theirs, batch)
            assert_equal(ours(batch), expected)
            if again is not None:
                torch.testing.assert_close(answer(again, batch), expected, atol=1e-6, rtol=0)


def answer(theirs: Any, batch: Tensor) -> Tensor:
    out = theirs(batch)
    return out.logits if "logits" in out else out.pooler_output


def test_a_data2vec_without_a_pooler_is_the_mean_of_its_patches(tmp_path: Path) -> None:
    config = transformers.Data2VecVisionConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=3, intermediate_size=80, image_size=32, patch_size=8
    )
    theirs = stirred(transformers.Data2VecVisionModel(config))
    ours, batch = vitrail.load(saved(theirs, tmp_path / "model")), images(32, 32)
    with torch.no_grad():
        found: Any = theirs(batch)
        assert_equal(ours(batch), found.last_hidden_state[:, 1:].mean(1))


def test_biases_of_a_rectangle_are_read_with_its_grid(tmp_path: Path) -> None:
    shape = SMALL | {"img_size": (48, 96)}
    theirs = beit("beit", shape)
    path, batch = saved(theirs, tmp_path / "w.safetensors"), images(48, 96)
    with pytest.raises(CheckpointError, match=r"58 biases of offsets are those of no square grid.*grid=\(rows, cols\)"):
        vitrail.load(path)
    told: dict[str, Any]
    for told in ({"grid": (3, 6)}, {"image_size": (48, 96)}):
        ours = vitrail.load(path, **told)
        assert isinstance(ours.config, ViTConfig)
        assert isinstance(ours.config.positions, BiasPositions)
        assert ours.config.grid == (3, 6)
        with torch.no_grad():
            assert_equal(ours(batch), theirs(batch))


def test_a_folder_for_timm_cannot_say_biases_of_offsets(tmp_path: Path) -> None:
    ours = vitrail.load(saved(beit("beit", SMALL), tmp_path / "w.safetensors"))
    with pytest.raises(vitrail.ConfigError, match="say nothing of gates, rotary positions, biases of offsets"):
        vitrail.save(ours, tmp_path / "folder", layout="timm")


def test_each_heads_biases_are_shown_by_rows_and_columns(tmp_path: Path) -> None:
    theirs = beit("beit", SMALL)
    ours = vitrail.load(saved(theirs, tmp_path / "w.safetensors"))
    found = inspection.offset_biases(ours, table=1)
    table = theirs.blocks[1].attn.relative_position_bias_table.detach()
    assert found.shape == (4, 7, 7)
    assert found[2, 3, 3] == table[24, 2]  # no offset: the middle of 49
    assert found[3, 0, 6] == table[6, 3]
    with pytest.raises(vitrail.ConfigError, match="positions=bias alone"):
        inspection.offset_biases(vitrail.create("ViT-Ti/16", depth=1))
