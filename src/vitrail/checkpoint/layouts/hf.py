"""Hugging Face's names for ViT, with the config.json that says what tensors do not: heads, GELU form, epsilon."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from vitrail.checkpoint.adapt import Request
from vitrail.checkpoint.archives.base import Entry, Headers
from vitrail.checkpoint.layouts import hf_towers
from vitrail.checkpoint.layouts.base import Dialect, Found, Holds, Layout, Row, common_prefix
from vitrail.checkpoint.layouts.hf_families import family_of
from vitrail.checkpoint.layouts.inference import DOUBT, file_grid, find_head, find_heads, is_last, read_activation
from vitrail.checkpoint.layouts.vit_rows import TorchNames, vit_rows
from vitrail.config import LearnedPositions, ModelConfig, PatchStem, ViTConfig, as_size
from vitrail.errors import CheckpointError

MODEL_TYPES = ("vit", "vit_mae", "vit_msn")
# As files are written, and as the modules of version 5 are called.
WRITTEN = TorchNames(
    patches="embeddings.patch_embeddings.projection",
    token="embeddings.cls_token",
    table="embeddings.position_embeddings",
    layer="encoder.layer.",
    attention_norm="layernorm_before",
    qkv=("attention.attention.query.", "attention.attention.key.", "attention.attention.value."),
    out="attention.output.dense",
    mlp_norm="layernorm_after",
    expand="intermediate.dense",
    contract="output.dense",
    norm="layernorm",
    hidden="pooler.dense",
    head="classifier",
)
MODULES = replace(
    WRITTEN,
    layer="layers.",
    qkv=("attention.q_proj.", "attention.k_proj.", "attention.v_proj."),
    out="attention.o_proj",
    expand="mlp.fc1",
    contract="mlp.fc2",
)
# The patches of ViT, DeiT and DINOv2; of DINOv3; of CLIP and SigLIP.
PATCHES = (WRITTEN.patches, "embeddings.patch_embeddings", "embeddings.patch_embedding")
NAMES = {"written": WRITTEN, "modules": MODULES}
# Masked pre-training's: of no use to a classifier.
PRETRAINING = ("decoder.", "embeddings.mask_token")
STRANGERS = {
    "detection_tokens": "detection tokens, as YOLOS",
    "lambda": "layer scale",
    "relative_position": "relative positions",
}


def recognize(entries: Mapping[str, Entry]) -> str | None:
    """Find the prefix of a ViT's names, or of a family's."""
    found = [common_prefix(entries, f"{patches}.weight") for patches in PATCHES]
    return next((prefix for prefix in found if prefix is not None), None)


def infer(headers: Headers, hints: Request, documents: Mapping[str, Any]) -> Found:
    """Read the configuration off names, shapes and config.json."""
    if (family := family_of(headers)) is not None:
        return hf_towers.infer(family, headers, hints, documents)
    said = documents.get("config.json", {})
    kind = said.get("model_type", "vit")
    if kind not in MODEL_TYPES:
        raise CheckpointError(f"config.json is of a {kind!r} model; expected one of {', '.join(MODEL_TYPES)}.")
    headers.refuse(STRANGERS, "which transformers' ViT lacks")
    headers.shape(WRITTEN.token, 3)
    spoken = next((word for word, names in NAMES.items() if f"{names.layer}0.{names.qkv[0]}weight" in headers), None)
    if spoken is None:
        raise CheckpointError(
            "the file's names are no ViT's of transformers: expected 'encoder.layer.0.attention.attention.query...' "
            "and others like it."
        )
    names, left_out = NAMES[spoken], headers.take(*PRETRAINING)
    width, channels, patch = headers.patches(f"{names.patches}.weight")
    stem = PatchStem(patch=patch)
    mlp_width = headers.shape(f"{names.layer}0.{names.expand}.weight", 2)[0]
    shape = headers.count(names.layer, "layer", end="."), width, mlp_width
    heads, notes = find_heads(shape, hints, documents, said.get("num_attention_heads"))
    count = headers.shape("embeddings.position_embeddings", 3)[1]
    hints = _with_size(hints, said, patch, count)
    (rows, cols), _ = file_grid(count, stem, hints, class_entry=True)
    outer, pooler = _outer(headers.prefix), "pooler.dense.weight"
    head, _ = find_head(headers.everything, (f"{outer}classifier.",), width)
    if head is not None and pooler in headers and not said:
        head, doubt = None, "a classifier beside a pooler: which of them it reads is not said, so both are left out"
        notes, left_out = (*notes, doubt), left_out + headers.take("pooler.")
    outside = {f"{head}.{part}" for part in ("weight", "bias")}
    beside = tuple(name for name in headers.outside if name not in outside)
    if head and not is_last(headers, head, beside, names.table, channels):
        head, notes = None, (*notes, DOUBT)
    if head is not None:  # early files have a pooler beside the classifier, which does not read it
        left_out += headers.take("pooler.")
    if pooler in headers and said.get("pooler_act", "tanh") != "tanh":
        raise CheckpointError(f"the pooler's activation must be tanh; config.json says {said['pooler_act']!r}.")
    outside = outside if head else set[str]()
    config = ViTConfig(
        stem=stem,
        depth=shape[0],
        width=width,
        mlp_width=mlp_width,
        heads=heads,
        classes=None if head is None else headers.everything[f"{head}.weight"][0],
        image_size=(rows * patch, cols * patch),
        channels=channels,
        positions=LearnedPositions(resampling=LAYOUT.holds.resampling),
        activation=read_activation(said, "hidden_act", hf_towers.ACTIVATIONS),
        qkv_bias=f"{names.layer}0.{names.qkv[0]}bias" in headers,
        pre_logits=headers.rows(pooler),
        dropout=said.get("hidden_dropout_prob", 0.0),
        attention_dropout=said.get("attention_probs_dropout_prob", 0.0),
        epsilon=said.get("layer_norm_eps", 1e-12),
    )
    inferred = (
        notes if said else (*notes, "exact GELU and epsilon 1e-12, transformers' defaults: there is no config.json")
    )
    if "image_size" in said and as_size(said["image_size"]) != config.image_size and hints.image_size is None:
        height, width = config.image_size
        inferred = (*inferred, f"image size {height}x{width}: what is left over beside whole patches is not read")
    return Found(
        config=config,
        dialect={"prefix": headers.prefix, "names": spoken, "head": (head or "").removeprefix(outer) or WRITTEN.head},
        inferred=inferred,
        left_out=(*left_out, *(name for name in headers.outside if name not in outside)),
    )


def rows(config: ModelConfig, dialect: Dialect) -> Iterator[Row]:
    """Give the row of every parameter."""
    assert isinstance(config, ViTConfig)
    if dialect.get("family"):
        yield from hf_towers.rows(config, dialect)
        return
    prefix = dialect["prefix"]
    for row in vit_rows(config, replace(NAMES[dialect["names"]], head=dialect["head"])):
        yield row.under(_outer(prefix) if row.ours.startswith("head.") else prefix)


def config_document(config: ViTConfig, class_names: tuple[str, ...] | None, dialect: Dialect) -> dict[str, Any]:
    """Give the config.json that transformers opens."""
    from vitrail.checkpoint.layouts.hf_documents import WORDS, document, labels  # of what is written alone

    if (family := dialect.get("family")) is not None:
        return document(family, config, class_names, dialect)
    assert isinstance(config.stem, PatchStem)
    height, width = config.image_size
    return {
        "architectures": ["ViTForImageClassification" if config.classes else "ViTModel"],
        "model_type": "vit",
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "intermediate_size": config.mlp_width,
        "hidden_act": WORDS[config.activation],
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "initializer_range": 0.02,
        "layer_norm_eps": config.epsilon,
        "image_size": height if height == width else [height, width],
        "patch_size": config.stem.patch,
        "num_channels": config.channels,
        "qkv_bias": config.qkv_bias,
        "encoder_stride": config.stem.patch,
        "pooler_act": "tanh",
        "pooler_output_size": config.pre_logits or config.width,
        **labels(config, class_names),
    }


def _family(config: ModelConfig) -> str | None:
    from vitrail.checkpoint.layouts.hf_documents import family_for

    return family_for(config) if isinstance(config, ViTConfig) else None


def usual_dialect(config: ModelConfig) -> Dialect:
    """Speak as files are written today: a classifier beside `vit.`, or a bare model; or as those of a family."""
    if (family := _family(config)) is not None:
        assert isinstance(config, ViTConfig)
        return hf_towers.usual_dialect(family, config)
    return {"prefix": "vit." if config.classes else "", "names": "written", "head": WRITTEN.head}


def _outer(prefix: str) -> str:
    """Find what stands before both the encoder and the classifier: the encoder's prefix without its own name."""
    return prefix[: prefix[:-1].rfind(".") + 1]


def _with_size(hints: Request, said: Mapping[str, Any], patch: int, count: int) -> Request:
    """Take the grid of the image size that config.json says, unless the caller says one."""
    size = said.get("image_size")
    if size is None or hints.grid is not None:
        return hints
    height, width = as_size(size)
    if (height // patch) * (width // patch) != count - 1:
        raise CheckpointError(
            f"config.json says image_size={size}, which has {height // patch}x{width // patch} patches of {patch}; the "
            f"file's table has {count - 1}. Say the file's own with grid=(rows, cols)."
        )
    return replace(hints, grid=(height // patch, width // patch))


LAYOUT = Layout(
    name="hf",
    title="Hugging Face's names",
    recognize=recognize,
    infer=infer,
    rows=rows,
    dialect=usual_dialect,
    whole=lambda config: _family(config) is not None,
    holds=Holds(
        activations=("gelu", "gelu-tanh", "relu", "quick-gelu", "silu"),
        epsilon=None,
        hidden="headless",
        bias_free=True,
        resampling="bicubic",
    ),
)
