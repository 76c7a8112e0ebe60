"""OpenAI's and OpenCLIP's CLIP, and lucidrains' vit-pytorch: their own answers, from their own names."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peers import images, saved, stirred
from reference.openclip import Tower
from torch import Tensor, nn

import vitrail
from vitrail.config import PatchStem, ViTConfig
from vitrail.errors import CheckpointError

SHAPES: dict[str, dict[str, int]] = {
    "small": {"side": 40, "patch": 8, "width": 48, "depth": 3, "heads": 4, "wide": 100, "out": 12},
    "other": {"side": 48, "patch": 16, "width": 64, "depth": 2, "heads": 2, "wide": 72, "out": 20},
}


def assert_equal(ours: Tensor, theirs: Tensor) -> None:
    assert theirs.abs().max() > 0.05
    torch.testing.assert_close(ours, theirs, atol=5e-5, rtol=0)


def clip_state(tower: Tower, prefix: str = "visual.") -> dict[str, Tensor]:
    """The tower's tensors beside some of a text tower's, as they are published."""
    held = {f"{prefix}{name}": tensor for name, tensor in tower.state_dict().items()}
    text = {
        "transformer.resblocks.0.attn.in_proj_weight": torch.zeros(24, 8),
        "positional_embedding": torch.zeros(7, 8),
    }
    return held | (text if prefix else {})


@pytest.mark.parametrize("quick", [True, False], ids=["quick-gelu", "gelu"])
@pytest.mark.parametrize("shape", SHAPES)
def test_clips_image_tower_is_read_in_its_authors_names(shape: str, quick: bool, tmp_path: Path) -> None:
    sizes = SHAPES[shape]
    theirs = stirred(Tower(**sizes, quick=quick))
    torch.save(clip_state(theirs), tmp_path / "clip.pth")  # pyright: ignore[reportArgumentType]
    word = "quick-gelu" if quick else "gelu"
    with pytest.raises(CheckpointError, match=r"activation=quick-gelu.*activation=gelu.*Say activation="):
        vitrail.load(tmp_path / "clip.pth", heads=sizes["heads"])
    ours = vitrail.load(tmp_path / "clip.pth", heads=sizes["heads"], activation=word)
    side, patch = sizes["side"], sizes["patch"]
    for size in ((side, side), (side + patch, side + patch), (side - patch, side + 2 * patch)):
        with torch.inference_mode():
            assert_equal(ours(images(*size)), theirs(images(*size)))
    assert ours.config.representation == sizes["out"]
    assert ours.card.provenance is not None
    assert "transformer.resblocks.0.attn.in_proj_weight" in ours.card.provenance.left_out


def test_openais_own_numbers_and_openclips_document_say_the_activation(tmp_path: Path) -> None:
    theirs = stirred(Tower(**SHAPES["small"], quick=True))
    numbers = {"input_resolution": torch.tensor(40.0), "vocab_size": torch.tensor(60.0)}
    torch.save(clip_state(theirs) | numbers, tmp_path / "openai.pth")  # pyright: ignore[reportArgumentType]
    batch = images(40, 40)
    with torch.inference_mode():
        assert_equal(vitrail.load(tmp_path / "openai.pth", heads=4)(batch), theirs(batch))
    folder = tmp_path / "openclip"
    folder.mkdir()
    torch.save(clip_state(theirs), folder / "open_clip_pytorch_model.bin")  # pyright: ignore[reportArgumentType]
    tower = {"vision_cfg": {"head_width": 12}, "quick_gelu": True}
    how = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "resize_mode": "squash"}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": tower, "preprocess_cfg": how}))
    ours = vitrail.load(folder)
    assert (ours.card.preprocessing.mean, ours.card.preprocessing.resize) == ((0.1, 0.2, 0.3), "squash")
    with torch.inference_mode():
        assert_equal(ours(batch), theirs(batch))
    assumed = vitrail.load(tmp_path / "openai.pth", heads=4).card
    assert assumed.assumed
    assert assumed.preprocessing.mean[0] == 0.48145466


VITS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViT", {"image_size": 64, "patch_size": 16, "dim": 48, "depth": 3, "heads": 4, "mlp_dim": 100}),
    "vit, mean of a rectangle": (
        "ViT",
        {"image_size": (64, 32), "patch_size": 8, "dim": 128, "depth": 2, "heads": 2, "mlp_dim": 80}
        | {"pool": "mean", "channels": 1},
    ),
    "one head, five channels": (  # which has no output layer in its attention
        "ViT",
        {"image_size": 40, "patch_size": 8, "dim": 32, "depth": 2, "heads": 1, "mlp_dim": 60}
        | {"dim_head": 32, "channels": 5},
    ),
    "simple": (
        "SimpleViT",
        {"image_size": 64, "patch_size": 16, "dim": 48, "depth": 3, "heads": 4, "mlp_dim": 100, "dim_head": 12},
    ),
    "simple, a rectangle": (
        "SimpleViT",
        {"image_size": (32, 64), "patch_size": 8, "dim": 64, "depth": 2, "heads": 3, "mlp_dim": 80},
    ),
}


@pytest.mark.parametrize("name", VITS)
def test_lucidrains_vits_give_their_logits(name: str, tmp_path: Path) -> None:
    vit_pytorch = pytest.importorskip("vit_pytorch")
    kind, options = VITS[name]
    theirs = stirred(getattr(vit_pytorch, kind)(**options, num_classes=7))
    path, size = saved(theirs, tmp_path / "w.pth"), options["image_size"]
    ours = vitrail.load(path, heads=options["heads"], image_size=size)
    batch = images(*(size if isinstance(size, tuple) else (size, size)), channels=options.get("channels", 3))
    with torch.inference_mode():
        assert_equal(ours(batch), theirs(batch))
    assert isinstance(ours.config, ViTConfig)
    assert isinstance(ours.config.stem, PatchStem)
    assert ours.config.stem.norms
    vitrail.save(ours, tmp_path / "own")
    assert torch.equal(vitrail.load(tmp_path / "own")(batch), ours(batch))


def test_lucidrains_vits_must_be_told_their_heads_and_a_fixed_grid(tmp_path: Path) -> None:
    vit_pytorch = pytest.importorskip("vit_pytorch")
    kind, options = VITS["simple"]
    path = saved(stirred(getattr(vit_pytorch, kind)(**options, num_classes=7)), tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match=r"how many heads share its 48 features .* Say heads="):
        vitrail.load(path, image_size=64)
    with pytest.raises(CheckpointError, match=r"fixed positions and does not say of which grid\. Say image_size="):
        vitrail.load(path, heads=4)


class Written(nn.Module):
    """A ViT as people write it around torch's own encoder."""

    def __init__(self, *, first: bool, activation: str, last: bool, token: bool, embedded: bool) -> None:
        super().__init__()
        self.to_patches = nn.Conv2d(3, 48, 8, 8)
        self.cls = nn.Parameter(torch.randn(1, 1, 48)) if token else None
        self.embedded = embedded
        if embedded:
            self.pos = nn.Embedding(16 + token, 48)
        else:
            self.pos_table = nn.Parameter(torch.randn(1, 16 + token, 48))
        layer = nn.TransformerEncoderLayer(48, 4, 72, activation=activation, batch_first=True, norm_first=first)
        norm = nn.LayerNorm(48) if last else None
        self.transformer = nn.TransformerEncoder(layer, 3, norm=norm, enable_nested_tensor=False)
        self.out = nn.Linear(48, 5)

    def forward(self, batch: Tensor) -> Tensor:
        tokens = self.to_patches(batch).flatten(2).transpose(1, 2)
        if self.cls is not None:
            tokens = torch.cat([self.cls.expand(len(tokens), -1, -1), tokens], dim=1)
        tokens = self.transformer(tokens + (self.pos.weight if self.embedded else self.pos_table))
        return self.out(tokens[:, 0] if self.cls is not None else tokens.mean(dim=1))


@pytest.mark.parametrize("last", [True, False], ids=["final norm", "none"])
@pytest.mark.parametrize("first", [True, False], ids=["pre", "post"])
@pytest.mark.parametrize("token", [True, False], ids=["token", "mean"])
def test_an_encoder_of_torch_is_read_once_it_is_said_what_no_tensor_shows(
    first: bool,
    last: bool,
    token: bool,
    tmp_path: Path,
) -> None:
    activation = "gelu" if token else "relu"
    theirs = stirred(Written(first=first, activation=activation, last=last, token=token, embedded=not token))
    path = saved(theirs, tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match=r"does not say how many heads .*norm=pre.*activation=relu"):
        vitrail.load(path)
    told: dict[str, Any] = {"heads": 4, "norm": "pre" if first else "post", "activation": activation}
    if not token:
        with pytest.raises(CheckpointError, match=r"how tokens are pooled\. Say pooling=mean"):
            vitrail.load(path, **told)
        told["pooling"] = "mean"
    ours = vitrail.load(path, **told)
    with torch.inference_mode():
        assert_equal(ours(images(32, 32)), theirs(images(32, 32)))


def test_what_may_stand_in_several_places_around_an_encoder_is_refused(tmp_path: Path) -> None:
    theirs = stirred(Written(first=True, activation="gelu", last=False, token=True, embedded=False))
    held, told = theirs.state_dict(), {"heads": 4, "norm": "pre", "activation": "gelu"}
    more = {
        "several layers that may be its classifier": {"aux.weight": torch.zeros(3, 48), "aux.bias": torch.zeros(3)},
        "may stand before the layers": {"embed_norm.weight": torch.ones(48), "embed_norm.bias": torch.zeros(48)},
        "may be its class token": {"other": torch.zeros(1, 1, 48)},
        "one convolution that cuts patches; it has several": {"second.weight": torch.zeros(48, 3, 8, 8)},
    }
    for words, beside in more.items():
        torch.save(held | beside, tmp_path / "w.pth")
        with pytest.raises(CheckpointError, match=words):
            vitrail.load(tmp_path / "w.pth", **told)
