"""Models whose positions are computed are written to other layouts as the table that they come to."""

from pathlib import Path
from typing import Any

import pytest
import torch
from families import family, images_for
from safetensors.torch import load_file

import vitrail
from vitrail.config import LearnedPositions, ViTConfig
from vitrail.errors import CheckpointError

NAMES = {"google": "w.npz", "timm": "w.safetensors", "hf": "hf", "torchvision": "w.safetensors"}
FIXED = ("sinusoidal", "sinusoidal-2d", "learned-2d", "none")


@pytest.mark.parametrize("layout", NAMES)
@pytest.mark.parametrize("positions", FIXED)
def test_positions_of_any_kind_are_written_as_a_table(positions: str, layout: str, tmp_path: Path) -> None:
    numerics: dict[str, Any] = {"activation": "gelu"} if layout in ("timm", "torchvision") else {}
    for pooling in ("token", "mean") if layout in ("google", "timm") else ("token",):
        model = family("vit", positions=positions, image_size=(20, 20), pooling=pooling, **numerics)
        path = tmp_path / pooling / NAMES[layout]
        written = vitrail.save(model, path, layout=layout)
        assert written.lost == ()
        assert f"its positions ({positions}) are written as a table" in written.notes[0]
        again = vitrail.load(path)
        assert isinstance(again.config, ViTConfig)
        assert isinstance(again.config.positions, LearnedPositions)
        batch = images_for(model)
        with torch.inference_mode():
            torch.testing.assert_close(again(batch), model(batch), atol=1e-6, rtol=0)


def test_timm_gives_the_logits_of_a_model_whose_positions_are_computed(tmp_path: Path) -> None:
    from timm.models.vision_transformer import VisionTransformer

    model = family("vit", positions="sinusoidal-2d", image_size=(20, 20), activation="gelu")
    vitrail.save(model, tmp_path / "w.pth", layout="timm")
    shape: dict[str, Any] = {"embed_dim": 24, "depth": 2, "num_heads": 3, "mlp_ratio": 40 / 24, "num_classes": 7}
    theirs = VisionTransformer(img_size=20, patch_size=4, **shape).eval()
    theirs.load_state_dict(torch.load(tmp_path / "w.pth"))
    batch = images_for(model)
    with torch.inference_mode():
        torch.testing.assert_close(theirs(batch), model(batch), atol=5e-5, rtol=0)


def test_the_model_in_the_box_goes_out_and_comes_back(tmp_path: Path) -> None:
    import timm

    model = vitrail.load("vitrail-ti8")
    batch = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(3)) * 2 - 1
    assert vitrail.convert("vitrail-ti8", tmp_path / "w.npz", layout="google").lost == ()
    with pytest.raises(
        CheckpointError,
        match=r"activation is gelu-tanh.*, unless it is a folder.* Take the layouts vitrail or google, which can",
    ):
        vitrail.convert("vitrail-ti8", tmp_path / "w.safetensors", layout="timm")
    assert (
        "activation is gelu-tanh"
        in vitrail.convert("vitrail-ti8", tmp_path / "w.safetensors", layout="timm", lossy=True).lost[0]
    )
    for name in ("w.npz", "w.safetensors"):  # in which a note of ours says the activation
        with torch.inference_mode():
            torch.testing.assert_close(vitrail.load(tmp_path / name)(batch), model(batch), atol=1e-6, rtol=0)
    assert vitrail.convert("vitrail-ti8", tmp_path / "timm", layout="timm").lost == ()
    theirs: Any = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    with torch.inference_mode():
        torch.testing.assert_close(theirs(batch), model(batch), atol=5e-5, rtol=0)
        torch.testing.assert_close(vitrail.load(tmp_path / "timm")(batch), model(batch), atol=1e-6, rtol=0)
    vitrail.convert("vitrail-ti8", tmp_path / "half.safetensors", layout="timm", lossy=True, dtype="float16")
    assert {tensor.dtype for tensor in load_file(tmp_path / "half.safetensors").values()} == {torch.float16}
    for layout, path in (("torchvision", tmp_path / "w.pth"), ("hf", tmp_path / "hf")):
        with pytest.raises(CheckpointError) as caught:
            vitrail.convert("vitrail-ti8", path, layout=layout)
        assert "its pooling is mean, and the layout has token alone" in str(caught.value)
        assert "Take the layouts vitrail or google, which can (timm would with lossy=True)." in str(caught.value)
