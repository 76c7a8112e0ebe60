"""LoRA adapters of peft on a ViT: opened with their base, they answer as peft does."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peers import images, saved, stirred

import vitrail
from vitrail.errors import CheckpointError

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 100,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 5,
}


def adapted(folder: Path, config: Any = None, kind: str = "ViTForImageClassification", **options: Any) -> Any:
    """Write a base and an adapter on it; give the adapted model."""
    base: Any = stirred(getattr(transformers, kind)(config or transformers.ViTConfig(**SMALL)))
    saved(base, folder / "base")
    base.name_or_path = str(folder / "base")
    base.config._name_or_path = str(folder / "base")
    settings = {"r": 3, "lora_alpha": 7, "target_modules": ["q_proj", "v_proj"], "modules_to_save": ["classifier"]}
    model = peft.get_peft_model(base, peft.LoraConfig(**settings | options))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name or "modules_to_save" in name:  # the base stays as it was saved
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of peft's, which takes the bias of a change for a matrix
        model.save_pretrained(folder / "adapter")
    return model.eval()


WAYS: dict[str, dict[str, Any]] = {
    "queries and values": {},
    "rank-stabilized": {"use_rslora": True},
    "every matrix": {"target_modules": "all-linear", "modules_to_save": None},
    "ranks and alphas by patterns": {
        "rank_pattern": {"q_proj": 2},
        "alpha_pattern": {r".*layers\.1\.attention\.q_proj": 9, "v_proj": 5},
    },
    "DoRA, and the patches": {"use_dora": True, "target_modules": ["projection", "fc1", "k_proj"]},
    "all biases": {"bias": "all", "modules_to_save": None},
    "biases of its own": {"lora_bias": True, "target_modules": ["q_proj", "fc2"]},
    "whole layers": {"modules_to_save": ["o_proj", "layernorm_before", "classifier"]},
}


@pytest.mark.parametrize("options", WAYS.values(), ids=list(WAYS))
def test_an_adapter_and_its_base_answer_as_peft_does(options: dict[str, Any], tmp_path: Path) -> None:
    theirs, batch = adapted(tmp_path, **options), images(32, 32)
    ours, base = vitrail.load(tmp_path / "adapter"), vitrail.load(tmp_path / "base")
    with torch.inference_mode():
        expected = theirs(batch).logits
        torch.testing.assert_close(ours(batch), expected, atol=5e-5, rtol=0)
        assert (base(batch) - expected).abs().max() > 0.01
    came = ours.card.provenance
    assert came is not None
    assert "adapter" in came.source


def test_an_adapter_on_dinov2_is_merged_too(tmp_path: Path) -> None:
    shape = {name: value for name, value in SMALL.items() if name != "intermediate_size"}
    config = transformers.Dinov2Config(**shape, mlp_ratio=2)
    theirs, batch = adapted(tmp_path, config, "Dinov2ForImageClassification"), images(32, 32)
    with torch.inference_mode():
        torch.testing.assert_close(vitrail.load(tmp_path / "adapter")(batch), theirs(batch).logits, atol=5e-5, rtol=0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_dora": True}, r"holds A, B of '[^']+'; expected A, B, magnitude_vector"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights='pissa_niter_4', which changed its base before"),
        ({"alpha_pattern": {"(q+)+_proj": 3}}, r"alpha_pattern '\(q\+\)\+_proj' is not read"),
        ({"lora_alpha": "7"}, "alpha of .* must be a number; got '7'"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "has layer_replication=.*, which is not merged"),
        ({"fan_in_fan_out": True}, "has fan_in_fan_out=True, which is not merged"),
        ({"base_model_name_or_path": "nowhere"}, "base 'nowhere' is not there"),
        ({"base_model_name_or_path": None}, "does not say its base_model_name_or_path"),
    ],
)
def test_an_adapter_that_cannot_be_merged_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    adapted(tmp_path)
    path = tmp_path / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(CheckpointError, match=words):
        vitrail.load(tmp_path / "adapter")


def test_the_base_of_an_adapter_may_be_given(tmp_path: Path) -> None:
    theirs, batch = adapted(tmp_path), images(32, 32)
    (tmp_path / "base").rename(tmp_path / "elsewhere")
    with pytest.raises(
        CheckpointError, match=r"is not there\. Put it beside the adapter, or give it: .*convert --base"
    ):
        vitrail.load(tmp_path / "adapter")
    with torch.inference_mode():
        found = vitrail.load(tmp_path / "adapter", base=tmp_path / "elsewhere")(batch)
        torch.testing.assert_close(found, theirs(batch).logits, atol=5e-5, rtol=0)
    with pytest.raises(CheckpointError, match="is merged with a file of weights, not with a model"):
        vitrail.load(tmp_path / "adapter", base=vitrail.load(tmp_path / "elsewhere"))


def test_an_adapter_of_another_base_is_refused(tmp_path: Path) -> None:
    adapted(tmp_path)
    other = stirred(transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL | {"hidden_size": 64})))
    saved(other, tmp_path / "base")
    with pytest.raises(CheckpointError, match="it is of another base"):
        vitrail.load(tmp_path / "adapter")
