"""Files as people have them: heads of their own, checkpoints of trainers, whole modules; and what is no ViT."""

import argparse
import collections
import copy
import io
import json
import logging
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peers import hf_model, images, stirred, torchvision_model
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils import prune

import vitrail
from vitrail.config import ViTConfig
from vitrail.errors import CheckpointError
from vitrail.models import Model

pytest.importorskip("timm")
pytest.importorskip("transformers")
BATCH = images(32, 32)
TOLD: dict[str, Any] = {"heads": 4}  # which no tensor shows


def timm_vit() -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return stirred(VisionTransformer(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4, num_classes=7))


def torchvision_vit() -> nn.Module:
    shape = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 4, "hidden_dim": 64, "mlp_dim": 96}
    return torchvision_model(**shape, num_classes=7)


def hf_vit() -> nn.Module:
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    return hf_model("ViTForImageClassification", **shape, image_size=32, patch_size=8, num_labels=7)


MODELS: dict[str, Callable[[], nn.Module]] = {"timm": timm_vit, "torchvision": torchvision_vit, "hf": hf_vit}
LINEAR = {
    "linear": lambda: nn.Linear(64, 7),
    "sequential": lambda: nn.Sequential(nn.Linear(64, 7)),
    "dropout": lambda: nn.Sequential(nn.Dropout(0.1), nn.Linear(64, 7)),
}
OTHERS = {
    "mlp": lambda: nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 7)),
    "layer norm": lambda: nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 7)),
    "batch norm": lambda: nn.Sequential(nn.BatchNorm1d(64, affine=False), nn.Linear(64, 7)),
    "no bias": lambda: nn.Linear(64, 7, bias=False),
}
PLACES = {"timm": ("head",), "torchvision": ("heads", "heads.head"), "hf": ("classifier",)}
CASES = [(layout, place) for layout, places in PLACES.items() for place in places]


def with_head(layout: str, place: str, head: nn.Module) -> nn.Module:
    model = MODELS[layout]()
    model.set_submodule(place, stirred(head))
    return model.eval()


def output(model: nn.Module) -> Tensor:
    with torch.inference_mode():
        found = model(BATCH)
    return getattr(found, "logits", found)


def assert_gives(path: Path, expected: Tensor) -> Model:
    ours = vitrail.load(path, **TOLD)
    torch.testing.assert_close(output(ours), expected, atol=1e-4, rtol=0)
    return ours


@pytest.mark.parametrize(("layout", "place"), CASES)
def test_a_linear_head_is_the_classifier_wherever_it_lies(layout: str, place: str, tmp_path: Path) -> None:
    for name, head in LINEAR.items():
        model, path = with_head(layout, place, head()), tmp_path / f"{name}.pth"
        torch.save(model.state_dict(), path)
        ours = assert_gives(path, output(model))
        assert ours.card.provenance is not None
        assert ours.card.provenance.left_out == ()
        if layout != "hf":  # which writes what transformers opens
            vitrail.save(ours, tmp_path / "back.pth", layout=layout, overwrite=True)
            assert torch.load(tmp_path / "back.pth").keys() == model.state_dict().keys()


@pytest.mark.parametrize(("layout", "place"), CASES)
def test_any_other_head_is_left_out_and_said(
    layout: str, place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, head in OTHERS.items():
        model, path = with_head(layout, place, head()), tmp_path / f"{name}.pth"
        torch.save(model.state_dict(), path)
        bare = with_head(layout, place, nn.Identity())
        bare.load_state_dict({key: value for key, value in model.state_dict().items() if key in bare.state_dict()})
        ours = assert_gives(path, output(bare))
        assert ours.config.classes is None
        assert ours.card.provenance is not None
        assert {*ours.card.provenance.left_out} == model.state_dict().keys() - bare.state_dict().keys()
        assert f"left out, since the model has no place for it: {place}" in caplog.text
        assert output(vitrail.load(path, classes=3, **TOLD)).shape == (2, 3)


class Beside(nn.Module):
    """A ViT under a name, with other layers beside it."""

    def __init__(self, name: str, model: nn.Module, **others: nn.Module) -> None:
        super().__init__()
        for place, module in {name: model, **others}.items():
            setattr(self, place, stirred(module))


def features(layout: str, model: nn.Module) -> Tensor:
    bare = copy.deepcopy(model)
    bare.set_submodule(PLACES[layout][0], nn.Identity())
    return output(bare)


@pytest.mark.parametrize("layout", MODELS)
def test_layers_beside_the_encoder_are_left_out_whatever_their_name(layout: str, tmp_path: Path) -> None:
    bare = with_head(layout, PLACES[layout][0], nn.Identity())
    others = {"out_layer": nn.Linear(64, 3), "bn": nn.BatchNorm1d(64), "criterion": nn.Sequential(nn.LayerNorm(7))}
    wrapped = Beside("backbone", bare, **others).state_dict()
    expected = output(bare)
    names = {name for name in wrapped if not name.startswith("backbone.")}
    states = [wrapped]
    if layout != "hf":  # of a subclass, whose parts have no prefix
        states.append({name.removeprefix("backbone."): value for name, value in wrapped.items()})
    for state in states:
        torch.save(state, tmp_path / "x.pth")
        ours = assert_gives(tmp_path / "x.pth", expected)
        assert ours.card.provenance is not None
        assert (ours.config.classes, {*ours.card.provenance.left_out}) == (None, names)


@pytest.mark.parametrize("inward", [64, 7])
@pytest.mark.parametrize("layout", MODELS)
def test_a_classifier_that_another_layer_may_follow_or_replace_does_not_answer(
    layout: str, inward: int, tmp_path: Path
) -> None:
    model = MODELS[layout]()
    wrapped = Beside("vit", model, fc=nn.Linear(inward, 3)).state_dict()  # reads the features, or the classifier
    torch.save(wrapped, tmp_path / "x.pth")
    ours = assert_gives(tmp_path / "x.pth", features(layout, model))
    assert ours.card.provenance is not None
    assert ours.config.classes is None
    kept = {f"vit.{PLACES[layout][0]}.", "fc."}
    assert {*ours.card.provenance.left_out} == {name for name in wrapped if name.startswith(tuple(kept))}
    assert any("which of them does is not said" in note for note in ours.card.provenance.inferred)


CHANGES: dict[str, Callable[[], nn.Module]] = {
    "gray to color": lambda: nn.Conv2d(1, 3, 1),
    "norm of the images": lambda: nn.BatchNorm2d(3),
    "norm of the classes": lambda: nn.BatchNorm1d(7),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("layout", MODELS)
def test_a_classifier_does_not_answer_where_a_layer_may_change_its_images_or_its_answers(
    layout: str, change: str, tmp_path: Path
) -> None:
    model = MODELS[layout]()
    torch.save(Beside("vit", model, adapter=CHANGES[change]()).state_dict(), tmp_path / "x.pth")
    ours = assert_gives(tmp_path / "x.pth", features(layout, model))
    assert ours.card.provenance is not None
    assert ours.config.classes is None
    assert "adapter.weight" in ours.card.provenance.left_out


def test_class_weights_beside_a_classifier_leave_it_in_place(tmp_path: Path) -> None:
    for layout in ("timm", "torchvision"):
        model = MODELS[layout]()
        torch.save({**model.state_dict(), "criterion.weight": torch.ones(7)}, tmp_path / "x.pth")
        ours = assert_gives(tmp_path / "x.pth", output(model))
        assert ours.card.provenance is not None
        assert ours.card.provenance.left_out == ("criterion.weight",)


def test_of_several_models_an_average_or_a_teacher_answers(tmp_path: Path) -> None:
    model, other = timm_vit(), stirred(timm_vit())
    with torch.no_grad():
        [part.mul_(1.1) for part in other.parameters()]
    for names in (("ema.module.", "model."), ("net_ema.", "net."), ("teacher.", "student."), ("base.", "momentum.")):
        state = {
            name + key: value
            for name, each in zip(names, (model, other), strict=True)
            for key, value in each.state_dict().items()
        }
        torch.save(dict(sorted(state.items(), reverse=True)), tmp_path / "x.pth")
        ours = assert_gives(tmp_path / "x.pth", output(model))
        assert ours.card.provenance is not None
        assert all(name.startswith(names[1]) for name in ours.card.provenance.left_out)


def test_a_classifier_beside_a_pooler_is_not_guessed_to_read_it_or_not(tmp_path: Path) -> None:
    state = hf_vit().state_dict()
    pooler = {"vit.pooler.dense.weight": torch.eye(64), "vit.pooler.dense.bias": torch.zeros(64)}
    torch.save(state | pooler, tmp_path / "x.pth")
    ours = vitrail.load(tmp_path / "x.pth", **TOLD)
    assert ours.config.classes is None
    assert ours.card.provenance is not None
    assert any("which of them it reads is not said" in note for note in ours.card.provenance.inferred)
    assert {*pooler, "classifier.weight", "classifier.bias"} == {*ours.card.provenance.left_out}


class Wrapped(nn.Module):
    """A model inside another one, with a buffer of the trainer's and one that is not saved."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("class_weights", torch.ones(7))
        self.register_buffer("seen", torch.ones(7), persistent=False)


def checkpoints(model: nn.Module) -> dict[str, object]:
    """What trainers save, with all that they put beside the weights."""
    state, namespace = model.state_dict(), argparse.Namespace(lr=1e-3, out=Path("x"), kind=nn.Linear)
    optimizer = torch.optim.AdamW(model.parameters())
    found = model(BATCH)
    getattr(found, "logits", found).sum().backward()
    optimizer.step()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    beside = {
        "epoch": 3,
        "args": namespace,
        "best": np.float64(0.5),
        "scores": np.arange(3),
        "rng": np.random.get_state(),
    }
    sets = {"set": {1, 2}, "counter": collections.Counter("ab"), "deque": collections.deque([1]), ("a", 1): np.int64(3)}
    averaged = torch.optim.swa_utils.AveragedModel(model)
    return {
        "bare": state,
        "parameters": {name: nn.Parameter(value) for name, value in state.items()},
        "namespace": {"model": state, **beside},
        "states": {
            "model_state_dict": state,
            "optimizer_state_dict": optimizer.state_dict(),
            "metrics": sets,
            **beside,
        },
        "objects": {"model_state": state, "optimizer": optimizer, "scheduler": schedule, **beside},
        "other name": {"vit_weights": state, **beside},
        "parallel": {"model": {f"module.{name}": value for name, value in state.items()}, **beside},
        "compiled": {f"module._orig_mod.{name}": value for name, value in state.items()},
        "compiled blocks": {name.replace("mlp.", "_orig_mod.mlp."): value for name, value in state.items()},
        "sharded": {
            f"_fsdp_wrapped_module.{name}".replace("mlp.", "_checkpoint_wrapped_module.mlp."): value
            for name, value in state.items()
        },
        "seeds": {
            "model": state,
            "torch_rng": torch.get_rng_state(),
            "cuda_rng": torch.zeros(4),
            "loss": torch.ones(()),
        },
        "head apart": {"encoder_state": state, "head_state": nn.Linear(64, 3).state_dict()},
        "tuple": (state, optimizer.state_dict(), 3),
        "long numbers": {"model": state, "n": 1 << 3000, "bytes": bytearray(b"x"), "text": "x" * 300},
        "lightning": {"state_dict": Wrapped(model).state_dict(), "hyper_parameters": namespace, "callbacks": {}},
        "averaged": averaged.state_dict(),
        "module": model,
        "module beside": {"model": model, **beside},
        "module inside": Wrapped(nn.DataParallel(model)),
        "averaged module": {"ema": averaged, "epoch": 3},
    }


@pytest.mark.parametrize("layout", MODELS)
def test_checkpoints_of_trainers_and_whole_modules_are_read(layout: str, tmp_path: Path) -> None:
    model = MODELS[layout]()
    made = checkpoints(model)
    expected = output(model.cpu())  # DataParallel takes it to a GPU, where there is one
    for name, saved in made.items():
        if layout != "timm" and name not in ("states", "lightning", "module inside"):
            continue  # the names of the weights are all that differs
        ways: list[dict[str, Any]] = [{}]
        if layout == "timm" and name in ("states", "objects", "module inside"):
            ways += [{"_use_new_zipfile_serialization": False}, {"pickle_protocol": 4}]
        if name == "long numbers":
            ways = [{"pickle_protocol": 2}, {"pickle_protocol": 5}]
        for way in ways:
            torch.save(saved, tmp_path / "x.pth", **way)
            ours = assert_gives(tmp_path / "x.pth", expected)
            assert ours.config.classes == 7, name


def test_a_folder_of_transformers_is_not_in_doubt(tmp_path: Path) -> None:
    model = hf_vit()
    model.save_pretrained(tmp_path)  # pyright: ignore[reportCallIssue]
    state = {**model.state_dict(), "vit.pooler.dense.weight": torch.eye(64), "vit.pooler.dense.bias": torch.zeros(64)}
    save_file(state, tmp_path / "model.safetensors")
    ours = vitrail.load(tmp_path)
    assert isinstance(ours.config, ViTConfig)
    torch.testing.assert_close(output(ours), output(model), atol=1e-4, rtol=0)


def zipped(*names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            zipped("x/data.pkl", "x/constants.pkl", "x/code/a.py"),
            r"TorchScript.*torch\.jit\.load\(FILE\)\.state_dict\(\)",
        ),
        (zipped("config.json", "metadata.json", "model.weights.h5"), "of Keras.*safetensors or .pth that it was made"),
        (b"\x89HDF\r\n\x1a\n" + bytes(40), "HDF5 file .* of Keras"),
        (b"GGUF\x03\x00\x00\x00" + bytes(40), "GGUF, quantised weights of llama.cpp"),
        (b"\x08\x08\x12\x07pytorch\x1a\x052.1.0:", "an ONNX graph.*checkpoint that it was exported from"),
        (b"\x1c\x00\x00\x00TFL3" + bytes(40), "TensorFlow Lite"),
        (b"\x81\xa6params\x82" + bytes(40), r"Flax \(msgpack\)\. Take the"),
        (zipped("run/model.pth", "run/log.txt"), "a zip archive of files. Unpack it"),
        (bytes(257) + b"ustar" + bytes(40), "a tar archive. Unpack it"),
        (b"Rar!\x1a\x07" + bytes(40), "a compressed file. Unpack it"),
    ],
    ids=["TorchScript", "Keras", "HDF5", "GGUF", "ONNX", "TFLite", "Flax", "zip", "tar", "rar"],
)
def test_files_of_other_kinds_are_named_with_what_to_do(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "x.pth").write_bytes(content)
    for call in (vitrail.load, vitrail.describe):
        with pytest.raises(CheckpointError, match=words):
            call(tmp_path / "x.pth")


def altered(model: nn.Module, way: str) -> object:
    """Give the state of a model that was saved while something was done to its weights."""
    layers = [layer for layer in model.modules() if type(layer) is nn.Linear]
    match way:
        case "quantised":
            return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8).state_dict()
        case "LoRA":
            return {**model.state_dict(), "blocks.0.attn.qkv.lora_A": torch.zeros(4, 64)}
        case "float8":
            return {name: value.to(torch.float8_e4m3fn) for name, value in model.state_dict().items()}
    for layer in layers:
        match way:
            case "pruned":
                prune.l1_unstructured(layer, "weight", 0.5)
            case "parametrized":
                torch.nn.utils.parametrizations.weight_norm(layer)
    return model.state_dict()


@pytest.mark.filterwarnings("ignore:.*quantiz")  # torch is about to drop what many files were made with
@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("pruned", r"a pruned model.*torch\.nn\.utils\.prune\.remove"),
        ("parametrized", "parametrized weights.*remove_parametrizations"),
        ("quantised", "a model of quantised weights. Save the model as it was before"),
        ("LoRA", "LoRA layers beside its weights. Merge them"),
        ("float8", "made of float8_e4m3fn, which no weight is"),
    ],
)
def test_weights_that_were_altered_are_named_with_what_to_do(way: str, words: str, tmp_path: Path) -> None:
    for layout in ("timm", "torchvision"):
        if way == "LoRA" and layout != "timm":
            continue
        torch.save(altered(MODELS[layout](), way), tmp_path / "x.pth")
        with pytest.raises(CheckpointError, match=words):
            vitrail.load(tmp_path / "x.pth", **TOLD)


@pytest.mark.parametrize("kept", [40, 300, 1000])
def test_a_file_of_early_torch_that_is_cut_is_damaged_and_asks_for_no_trust(kept: int, tmp_path: Path) -> None:
    torch.save(timm_vit().state_dict(), tmp_path / "x.pth", _use_new_zipfile_serialization=False)
    (tmp_path / "x.pth").write_bytes((tmp_path / "x.pth").read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"is damaged: its pickle .* Copy or download it again") as refused:
        vitrail.load(tmp_path / "x.pth", **TOLD)
    assert "trust" not in str(refused.value)


def test_folders_of_trainers_are_opened_or_say_which_to_give(tmp_path: Path) -> None:
    model = timm_vit()
    (tmp_path / "run").mkdir()
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "training_args.bin"):
        torch.save({"state": {}}, tmp_path / "run" / name)
    for name in ("last.ckpt", "model_best.pth.tar"):
        torch.save({"state_dict": model.state_dict()}, tmp_path / "run" / name)
        assert_gives(tmp_path / "run", output(model))
        (tmp_path / "run" / name).unlink()
    save_file(model.state_dict(), tmp_path / "run" / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"no weights\. Give one of those in it that have some: run"):
        vitrail.load(tmp_path)
    (tmp_path / "__0_0.distcp").touch()
    with pytest.raises(CheckpointError, match=r"a sharded checkpoint of torch\.distributed.*dcp_to_torch_save"):
        vitrail.load(tmp_path)


def test_models_of_other_kinds_are_named(tmp_path: Path, untyped: None) -> None:
    import timm

    for name, words in (
        ("resnet18", "It looks like a ResNet with batch norms"),
        ("swin_tiny_patch4_window7_224", "It looks like Swin"),
    ):
        with torch.device("meta"):
            names = timm.create_model(name).state_dict()
        save_file({key: torch.zeros([1] * value.ndim) for key, value in names.items()}, tmp_path / "x.safetensors")
        with pytest.raises(CheckpointError, match=words):
            vitrail.load(tmp_path / "x.safetensors")
    for key, words in (
        ("vision_model.encoder.layers.0.self_attn.q_proj.weight", "a part of CLIP or SigLIP of transformers"),
        ("backbone.patch_embed.projection.weight", "a ViT of MMPretrain"),
        ("encoder.layers.0.self_attn.in_proj_weight", r"torch's nn\.TransformerEncoder"),
    ):
        save_file({key: torch.zeros(1, 1)}, tmp_path / "x.safetensors")
        with pytest.raises(CheckpointError, match=words):
            vitrail.load(tmp_path / "x.safetensors")
    (tmp_path / "adapter").mkdir()
    query = "base_model.model.vit.encoder.layer.0.attention.attention.query"
    lora = {f"{query}.lora_A.weight": torch.zeros(4, 64), f"{query}.lora_B.weight": torch.zeros(64, 4)}
    save_file(lora, tmp_path / "adapter" / "adapter_model.safetensors")
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    with pytest.raises(CheckpointError, match=r"does not say its base_model_name_or_path: give it: .*base=\.\.\."):
        vitrail.load(tmp_path / "adapter")


@pytest.fixture(autouse=True)
def audible(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="vitrail")


class Normalize(nn.Module):
    def __init__(self, mean: list[float], deviation: list[float], shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(shape))
        self.register_buffer("std", torch.tensor(deviation).view(shape))

    def forward(self, levels: Tensor) -> Tensor:
        mean, deviation = (self.get_buffer(name).view(1, -1, 1, 1) for name in ("mean", "std"))
        return (levels - mean) / deviation


MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def in_front(layer: nn.Module, place: str) -> nn.Module:
    names = {"sequential": ("0", "1"), "named": ("normalizer", "vit"), "inside": ("normalize", "")}[place]
    model = timm_vit()
    if not names[1]:
        model.add_module(names[0], layer)
        return model
    return nn.Sequential(collections.OrderedDict({names[0]: layer, names[1]: model}))


@pytest.mark.parametrize("place", ["sequential", "named", "inside"])
@pytest.mark.parametrize("shape", [(3,), (1, 3, 1, 1)])
def test_a_normalization_in_front_of_a_model_is_how_it_reads_images(
    place: str, shape: tuple[int, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = in_front(Normalize(MEAN, DEVIATION, shape), place)
    torch.save(model.state_dict(), tmp_path / "w.pth")
    caplog.set_level(logging.WARNING)
    loaded = vitrail.load(tmp_path / "w.pth", **TOLD)
    how, came = loaded.card.preprocessing, loaded.card.provenance
    assert (list(how.mean), list(how.deviation)) == (MEAN, DEVIATION)
    assert came is not None
    assert came.assumed == ("resize", "crop_share")
    assert came.left_out == ()
    assert any("of a layer in front of the model" in note for note in came.inferred)
    assert "assumed squashed" in caplog.text
    assert "mean" not in caplog.text
    photo = torch.randint(0, 256, (32, 32, 3), dtype=torch.uint8)
    levels = photo.permute(2, 0, 1)[None] / 255
    with torch.inference_mode():
        expected = model(levels) if place != "inside" else model(Normalize(MEAN, DEVIATION, (1, 3, 1, 1))(levels))
        assert torch.allclose(loaded(loaded.preprocess(photo.numpy())), expected, atol=1e-4)
    assert vitrail.describe(tmp_path / "w.pth", **TOLD).card.preprocessing == how
    vitrail.convert(tmp_path / "w.pth", tmp_path / "run", layout="vitrail", **TOLD)
    assert vitrail.load(tmp_path / "run").card.preprocessing == how


@pytest.mark.parametrize(
    "layer",
    [
        Normalize([123.7, 116.3, 103.5], [58.4, 57.1, 57.4], (3, 1, 1)),
        Normalize([0.5], [float("nan")], (1,)),
        Normalize([0.5] * 3, [0.0] * 3, (3,)),
    ],
)
def test_levels_that_are_none_from_0_to_1_are_left_out_and_assumed(layer: nn.Module, tmp_path: Path) -> None:
    torch.save(nn.Sequential(layer, timm_vit()).state_dict(), tmp_path / "w.pth")
    card = vitrail.load(tmp_path / "w.pth", **TOLD).card
    assert card.provenance is not None
    assert card.provenance.left_out == ("0.mean", "0.std")
    assert card.assumed == ("mean", "deviation", "resize", "crop_share")


def test_a_normalization_behind_a_model_is_none_of_its_images(tmp_path: Path) -> None:
    torch.save(nn.Sequential(timm_vit(), Normalize([0.5], [0.5], (1,))).state_dict(), tmp_path / "w.pth")
    card = vitrail.load(tmp_path / "w.pth", **TOLD).card
    assert "mean" in card.assumed
    gray = vitrail.create("ViT-Ti/8", image_size=16, channels=1, depth=1, classes=3, activation="gelu")
    vitrail.save(gray, tmp_path / "gray.pth", layout="timm")
    held = torch.load(tmp_path / "gray.pth")
    one = {"0.mean": torch.tensor([0.1307]), "0.std": torch.tensor([0.3081])}
    torch.save(one | {f"1.{name}": tensor for name, tensor in held.items()}, tmp_path / "mnist.pth")
    assert vitrail.load(tmp_path / "mnist.pth", heads=3).card.preprocessing.mean == (0.1307,)
