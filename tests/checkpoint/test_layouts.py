"""Every pair of layouts: what goes from one to the other comes back to the bit, or is refused with what is lost."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import FAMILIES, family, images_for
from peers import hf_model, images, saved, timm_model, torchvision_model
from safetensors.torch import load_file
from torch import Tensor

import vitrail
from vitrail.config import Card, ViTConfig
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import Model

LAYOUTS = ("google", "timm", "hf", "torchvision", "vitrail")
NAMES = {"google": "w.npz", "timm": "w.safetensors", "hf": "hf", "torchvision": "w.pth", "vitrail": "run"}


def path_of(folder: Path, layout: str) -> Path:
    folder.mkdir(exist_ok=True)
    return folder / NAMES[layout]


def tensors_of(path: Path) -> dict[str, Tensor]:
    if path.is_dir():
        path = path / ("weights.safetensors" if (path / "weights.safetensors").exists() else "model.safetensors")
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    return torch.load(path) if path.suffix == ".pth" else load_file(path)


def assert_same(path: Path, other: Path) -> None:
    left, right = tensors_of(path), tensors_of(other)
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


HEADS: dict[str, dict[str, Any]] = {"timm": {"heads": 3}, "torchvision": {"heads": 3}}  # of what is written there


# Models that each layout of others holds at home, and one of ours.
def written(layout: str, folder: Path) -> Path:
    path = path_of(folder, layout)
    shape = {"image_size": 64, "patch_size": 16}
    match layout:
        case "google":
            vitrail.save(family("vit", image_size=(20, 20)), path, layout="google")
        case "timm":
            saved(timm_model("vit_tiny_patch16_224", img_size=64, depth=2, num_classes=7), path)
        case "hf":
            options = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 60}
            saved(hf_model("ViTForImageClassification", **shape, **options, num_labels=7), path)
        case "torchvision":
            rest = {"num_layers": 2, "num_heads": 3, "hidden_dim": 192, "mlp_dim": 60, "num_classes": 7}
            saved(torchvision_model(**shape, **rest), path)
        case _:
            vitrail.save(family("vit-relative"), path)
    return path


# What each loses in each: nothing, or words of the refusal.
PAIRS = {
    ("google", "timm"): "activation is gelu-tanh",
    ("google", "hf"): None,
    ("google", "torchvision"): "activation is gelu-tanh",
    ("timm", "google"): "activation is gelu, and the layout means gelu-tanh",
    ("timm", "hf"): None,
    ("timm", "torchvision"): None,
    ("hf", "google"): "activation is gelu, .*epsilon is 1e-12, and the layout means 1e-06",
    ("hf", "timm"): "epsilon is 1e-12",
    ("hf", "torchvision"): "epsilon is 1e-12",
    ("torchvision", "google"): "activation is gelu",
    ("torchvision", "timm"): None,
    ("torchvision", "hf"): None,
    **{(layout, "vitrail"): None for layout in LAYOUTS},
    **{("vitrail", layout): "positions are RelativePositions" for layout in LAYOUTS if layout != "vitrail"},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_comes_back_in_its_own_layout_tensor_by_tensor(layout: str, tmp_path: Path) -> None:
    source = written(layout, tmp_path / "in")
    told = HEADS.get(layout, {})
    vitrail.convert(source, path_of(tmp_path / "out", layout), layout=layout, **told)
    assert_same(source, tmp_path / "out" / NAMES[layout])
    vitrail.save(vitrail.load(source, **told), path_of(tmp_path / "model", layout), layout=layout)
    assert_same(source, tmp_path / "model" / NAMES[layout])


@pytest.mark.parametrize(("start", "other"), PAIRS)
def test_every_pair_comes_back_to_the_bit_or_is_refused(start: str, other: str, tmp_path: Path) -> None:
    source, middle = written(start, tmp_path / "in"), path_of(tmp_path / "middle", other)
    lost, told = PAIRS[start, other], HEADS.get(start, {})
    if lost is None:
        vitrail.convert(source, middle, layout=other, **told)
        ours, there = vitrail.load(source, **told), vitrail.load(middle, **told)
        batch = images_for(ours)
        torch.testing.assert_close(ours(batch), there(batch), atol=0, rtol=0)
        vitrail.convert(middle, path_of(tmp_path / "back", start), layout=start, **told)
        assert_same(source, tmp_path / "back" / NAMES[start])
        return
    with pytest.raises(CheckpointError, match=lost):
        vitrail.convert(source, middle, layout=other, **told)
    assert list(middle.parent.iterdir()) == []
    if start != "vitrail":
        report = vitrail.convert(source, middle, layout=other, lossy=True, **told)
        assert report.lost
        config = report.config
        assert isinstance(config, ViTConfig)
        vitrail.load(middle, heads=config.heads)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_family_is_held_exactly_or_refused(name: str, layout: str, tmp_path: Path) -> None:
    numerics: dict[str, Any] = {}
    if name.startswith("vit") and name != "vit-original" and layout in ("timm", "torchvision"):
        numerics = {"activation": "gelu"}
    if layout == "torchvision" and not name.startswith(("hybrid", "bit")):
        numerics["image_size"] = (20, 20)
    model = family(name, **numerics)
    path = path_of(tmp_path / "out", layout)
    try:
        vitrail.save(model, path, layout=layout)
    except CheckpointError as error:
        message = str(error)
        assert f"the layout {layout} cannot hold this model" in message or "would lose something" in message
        assert list(path.parent.iterdir()) == []
        assert layout != "vitrail"
        return
    asked: dict[str, Any] = {"heads": 3} if path.suffix == ".pth" else {}
    back = vitrail.load(path, image_size=model.config.image_size, **asked)
    assert same_but_for_resampling(model, back)
    for key, tensor in model.state_dict().items():
        assert torch.equal(back.state_dict()[key], tensor), key


def same_but_for_resampling(model: Model, back: Model) -> bool:
    from vitrail.checkpoint.layouts.vit_rows import alike
    from vitrail.config import BiasPositions, LearnedPositions, override

    if isinstance(model.config, ViTConfig) and isinstance(model.config.positions, BiasPositions):
        return alike(back.config) == alike(model.config)  # written by a reader that says every part
    if isinstance(model.config, ViTConfig) and isinstance(model.config.positions, LearnedPositions):
        return override(back.config, {"positions": model.config.positions}) == model.config
    return back.config == model.config


def test_what_is_lost_is_said_and_the_rest_is_kept(tmp_path: Path) -> None:
    scaled = family("vit", layer_scale=0.1, qkv_bias=False, image_size=(20, 20))
    with pytest.raises(CheckpointError, match=r"layer scale, .*no biases of query, key and value"):
        vitrail.save(scaled, tmp_path / "w.npz", layout="google")
    report = vitrail.save(scaled, tmp_path / "w.npz", layout="google", lossy=True)
    assert len(report.lost) == 2
    batch = images_for(scaled)
    torch.testing.assert_close(vitrail.load(tmp_path / "w.npz")(batch), scaled(batch), atol=1e-5, rtol=0)

    hidden = family("vit-hidden", image_size=(20, 20), activation="gelu")
    for layout, words in (("hf", "its classifier"), ("timm", "its pre-training head")):
        path = path_of(tmp_path, layout)
        with pytest.raises(CheckpointError, match=words):
            vitrail.save(hidden, path, layout=layout)
        vitrail.save(hidden, path, layout=layout, lossy=True)
    batch = images_for(hidden)
    torch.testing.assert_close(vitrail.load(tmp_path / "hf")(batch), hidden.represent(batch), atol=1e-6, rtol=0)
    torch.testing.assert_close(
        vitrail.load(tmp_path / "w.safetensors")(batch), hidden.tokens(batch)[:, 0], atol=1e-6, rtol=0
    )
    headless = family("vit", classes=None, activation="gelu", image_size=(20, 20))
    with pytest.raises(CheckpointError, match="it has no classifier"):
        vitrail.save(headless, tmp_path / "w.pth", layout="torchvision")


def test_transformers_opens_what_is_written_and_gives_our_logits(tmp_path: Path) -> None:
    import transformers

    model = family("vit", activation="gelu-tanh", epsilon=1e-5)
    vitrail.save(model, tmp_path / "hf", layout="hf")
    theirs = transformers.ViTForImageClassification.from_pretrained(tmp_path / "hf").eval()
    batch = images_for(model)
    with torch.inference_mode():
        torch.testing.assert_close(theirs(batch).logits, model(batch), atol=5e-5, rtol=0)
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "hf", backend="pil")
    pixels = processor(np.full((12, 20, 3), 255, dtype=np.uint8), return_tensors="pt")["pixel_values"]
    assert pixels.shape == (1, 3, 12, 20)
    torch.testing.assert_close(pixels, torch.ones_like(pixels))
    bare = family("vit-hidden", classes=None)
    vitrail.save(bare, tmp_path / "bare", layout="hf")
    theirs = transformers.ViTModel.from_pretrained(tmp_path / "bare").eval()
    with torch.inference_mode():
        torch.testing.assert_close(theirs(batch).pooler_output, bare(batch), atol=5e-5, rtol=0)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_timm_and_torchvision_open_what_is_written_and_give_our_logits(suffix: str, tmp_path: Path) -> None:
    model = family("vit", image_size=(64, 64), patch=16, width=192, activation="gelu")
    vitrail.save(model, tmp_path / f"timm{suffix}", layout="timm")
    vitrail.save(model, tmp_path / f"tv{suffix}", layout="torchvision")
    by_timm = timm_model("vit_tiny_patch16_224", img_size=64, depth=2, mlp_ratio=40 / 192, num_classes=7)
    shape = {"image_size": 64, "patch_size": 16, "num_layers": 2, "num_heads": 3, "hidden_dim": 192, "mlp_dim": 40}
    by_torchvision = torchvision_model(**shape, num_classes=7)
    for theirs, name in ((by_timm, "timm"), (by_torchvision, "tv")):
        path = tmp_path / f"{name}{suffix}"
        theirs.load_state_dict(load_file(path) if suffix == ".safetensors" else torch.load(path), strict=True)
        with torch.inference_mode():
            torch.testing.assert_close(theirs(images(64, 64)), model(images(64, 64)), atol=5e-5, rtol=0)


def test_precision_is_kept_or_changed_when_asked(tmp_path: Path) -> None:
    source = saved(timm_model("test_vit").half(), tmp_path / "half.safetensors")
    vitrail.convert(source, tmp_path / "back.safetensors", layout="timm")
    assert_same(source, tmp_path / "back.safetensors")
    vitrail.convert(source, tmp_path / "w.npz", layout="google", lossy=True, dtype="bfloat16")
    vitrail.convert(source, tmp_path / "full.safetensors", layout="timm", dtype="float32")
    assert {tensor.dtype for tensor in load_file(tmp_path / "full.safetensors").values()} == {torch.float32}
    assert {parameter.dtype for parameter in vitrail.load(source).parameters()} == {torch.float32}
    with pytest.raises(ConfigError, match="dtype must be one of float32, float16, bfloat16; got 'int8'"):
        vitrail.convert(source, tmp_path / "no.safetensors", layout="timm", dtype="int8")


def test_names_that_do_not_fit_the_layout_are_refused_before_any_work(tmp_path: Path) -> None:
    model = family("vit")
    for layout, name, words in (
        ("google", "w.safetensors", r"is a file that ends in \.npz"),
        ("timm", "w.npz", r"ends in \.safetensors or \.pth"),
        ("hf", "w.safetensors", "the layout hf is a folder"),
        ("vitrail", "w.npz", "the layout vitrail is a folder"),
        ("tim", "w.pth", r"layout must be one of vitrail, google, timm, hf, torchvision, or a table .*; got 'tim'"),
    ):
        with pytest.raises(ConfigError, match=words):
            vitrail.save(model, tmp_path / name, layout=layout)
        with pytest.raises(ConfigError, match=words):
            vitrail.convert(tmp_path / "nothing", tmp_path / name, layout=layout)
    vitrail.save(model, tmp_path / "w.npz", layout="google")
    before = (tmp_path / "w.npz").read_bytes()
    with pytest.raises(CheckpointError, match=r"exists already\. Choose another name, or give overwrite=True"):
        vitrail.save(family("vit-mean"), tmp_path / "w.npz", layout="google")
    assert (tmp_path / "w.npz").read_bytes() == before
    vitrail.save(family("vit-mean"), tmp_path / "w.npz", layout="google", overwrite=True)
    assert (tmp_path / "w.npz").read_bytes() != before


def test_a_model_that_has_diverged_or_has_no_weights_is_not_written(tmp_path: Path) -> None:
    model = family("vit")
    with torch.no_grad():
        model.get_parameter("norm.bias")[3] = torch.nan
    with pytest.raises(CheckpointError, match=r"'norm.bias' holds numbers that are not finite"):
        vitrail.save(model, tmp_path / "run")
    with pytest.raises(ConfigError, match="the model is on the meta device"):
        vitrail.save(vitrail.create("ViT-Ti/16", device="meta"), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_what_the_tensors_do_not_say_is_said_when_they_are_written(tmp_path: Path) -> None:
    wide = family("vit", image_size=(8, 32), activation="gelu")  # 2x8 patches, 3 heads of 8
    notes = vitrail.save(wide, tmp_path / "w.pth", layout="timm").notes
    assert "how many heads share its width of 24" in notes[0]
    assert vitrail.load(tmp_path / "w.pth", heads=3, grid=(2, 8)).config.image_size == (8, 32)
    notes = vitrail.save(wide, tmp_path / "w.npz", layout="google", lossy=True).notes
    assert notes[0] == "from the tensors alone a reader takes a grid of (4, 4): tell it grid=(2, 8)"
    vitrail.save(wide, tmp_path / "w.safetensors", layout="timm")  # which has a place for notes
    back = vitrail.load(tmp_path / "w.safetensors")
    assert isinstance(back.config, ViTConfig)
    assert (back.config.heads, back.config.image_size) == (3, (8, 32))
    mean = family("vit-mean", image_size=(64, 64), patch=16, width=768, heads=12, activation="gelu")
    assert "16 heads" in vitrail.save(mean, tmp_path / "mean.pth", layout="timm").notes[0]
    vitrail.save(mean, tmp_path / "mean.safetensors", layout="timm")
    again = vitrail.load(tmp_path / "mean.safetensors").config
    assert isinstance(again, ViTConfig)
    assert again.heads == 12


def test_refusals_come_before_any_weight_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = written("google", tmp_path / "in")
    loading = sys.modules["vitrail.checkpoint.load"]
    monkeypatch.setattr(loading, "read_weights", lambda *_: pytest.fail("weights were read"))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "photo.jpg").write_bytes(b"x")
    for layout, name in (("timm", "t.safetensors"), ("hf", "taken"), ("vitrail", "taken")):
        with pytest.raises(CheckpointError):
            vitrail.convert(source, tmp_path / name, layout=layout)
    with pytest.raises(ConfigError):
        vitrail.convert(source, tmp_path / "x", layout="vitrail", keep_hidden=True)


def test_fields_set_otherwise_than_the_file_means_them_are_reported(tmp_path: Path) -> None:
    source = written("timm", tmp_path / "in")
    model = vitrail.load(source, heads=3, activation="gelu-tanh", epsilon=1e-5, dropout=0.1)
    assert model.card.provenance is not None
    assert model.card.provenance.changes == (
        "activation set to gelu-tanh, where the file means gelu",
        "epsilon set to 1e-05, where the file means 1e-06",
        "dropout set to 0.1, where the file means 0.0",
    )


def test_preprocessing_follows_the_channels_and_what_is_dropped_is_said(tmp_path: Path) -> None:
    source = written("torchvision", tmp_path / "in")
    report = vitrail.convert(source, tmp_path / "hf", layout="hf", channels=1, heads=3)
    assert any("squashes images" in note for note in report.notes)
    import json

    processor = json.loads((tmp_path / "hf" / "preprocessor_config.json").read_text())
    assert processor["image_mean"] == pytest.approx([0.449])
    with pytest.raises(ConfigError, match="1 class names for 7 classes"):
        vitrail.save(vitrail.load(source, heads=3), tmp_path / "x", layout="hf", card=Card(class_names=("a",)))


def test_home_is_a_place_and_missing_folders_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    vitrail.save(family("vit"), "~/deep/run")
    vitrail.save(family("vit"), "~/deeper/still/w.npz", layout="google")
    assert vitrail.load("~/deep/run").config == family("vit").config
    assert (tmp_path / "deeper" / "still" / "w.npz").is_file()


def test_many_threads_may_read_one_archive(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from vitrail.checkpoint.archives.base import open_archive

    model = family("vit", image_size=(20, 20), activation="gelu")
    vitrail.save(model, tmp_path / "w.npz", layout="google", lossy=True)
    vitrail.save(model, tmp_path / "w.pth", layout="timm")
    for name in ("w.npz", "w.pth"):
        with open_archive(tmp_path / name) as archive, ThreadPoolExecutor(16) as threads:
            expected = {key: archive.read(key) for key in archive.entries}
            keys = list(archive.entries) * 40
            for key, tensor in zip(keys, threads.map(archive.read, keys), strict=True):
                assert torch.equal(tensor, expected[key])
