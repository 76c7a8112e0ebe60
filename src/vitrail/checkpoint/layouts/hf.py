"""Hugging Face's names for ViT, with the config.json that says what tensors do not: heads, GELU form, epsilon."""

from collections.abc import Iterator, Mapping
from typing import Any

from vitrail.checkpoint.archives.base import Entry
from vitrail.checkpoint.layouts.base import Dialect, FileHints, Found, Headers, Holds, Layout, Row, common_prefix
from vitrail.checkpoint.layouts.codecs import FLAT, PATCHES, TABLE, THREE, pair
from vitrail.checkpoint.layouts.inference import file_grid, find_heads
from vitrail.config import LearnedPositions, ModelConfig, PatchStem, ViTConfig, as_size
from vitrail.errors import CheckpointError

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "relu": "relu",
}
MODEL_TYPES = ("vit", "vit_mae", "vit_msn")
# The parts of a layer: as files are written, and as the modules of version 5 are called.
PARTS = {
    "written": {
        "layer": "encoder.layer.",
        "query": "attention.attention.query",
        "key": "attention.attention.key",
        "value": "attention.attention.value",
        "out": "attention.output.dense",
        "expand": "intermediate.dense",
        "contract": "output.dense",
    },
    "modules": {
        "layer": "layers.",
        "query": "attention.q_proj",
        "key": "attention.k_proj",
        "value": "attention.v_proj",
        "out": "attention.o_proj",
        "expand": "mlp.fc1",
        "contract": "mlp.fc2",
    },
}
# Masked pre-training's: of no use to a classifier.
PRETRAINING = ("decoder.", "embeddings.mask_token")


STRANGERS = {
    "distillation_token": "a distillation token",
    "register_tokens": "register tokens",
    "lambda": "layer scale",
    "relative_position": "relative positions",
}


def recognize(entries: Mapping[str, Entry]) -> str | None:
    """Find the prefix of the encoder's names: `vit.` beside a classifier, none in a bare model."""
    return common_prefix(entries, "embeddings.patch_embeddings.projection.weight")


def infer(headers: Headers, hints: FileHints, documents: Mapping[str, Any]) -> Found:
    """Read the configuration off names, shapes and config.json."""
    said = documents.get("config.json", {})
    kind = said.get("model_type", "vit")
    if kind not in MODEL_TYPES:
        raise CheckpointError(f"config.json is of a {kind!r} model; expected one of {', '.join(MODEL_TYPES)}.")
    names = next((names for names, parts in PARTS.items() if _has(headers, parts)), None)
    if names is None:
        raise CheckpointError(
            "the file's names are no ViT's of transformers: expected 'encoder.layer.0.attention.attention.query...' "
            "and others like it."
        )
    parts, left_out = PARTS[names], headers.take(*PRETRAINING)
    layer = parts["layer"]
    for mark, what in STRANGERS.items():
        if name := next((name for name in headers.shapes if mark in name), None):
            raise CheckpointError(
                f"{headers.prefix + name!r}: the file's model has {what}, which transformers' ViT lacks."
            )
    width, channels, patch, across = headers.shape("embeddings.patch_embeddings.projection.weight", 4)
    if patch != across:
        raise CheckpointError(f"patches must be square; the file has {patch}x{across}.")
    stem = PatchStem(patch=patch)
    heads, notes = find_heads(width, hints, documents, said.get("num_attention_heads"))
    count = headers.shape("embeddings.position_embeddings", 3)[1]
    hints = _with_size(hints, said, patch, count)
    (rows, cols), _ = file_grid(count, stem, hints, class_entry=True)
    classes = _classes(headers)
    pooler = "pooler.dense.weight"
    if classes is not None:  # early files have a pooler beside the classifier, which does not read it
        left_out += headers.take("pooler.")
    if pooler in headers and said.get("pooler_act", "tanh") != "tanh":
        raise CheckpointError(f"the pooler's activation must be tanh; config.json says {said['pooler_act']!r}.")
    outside = {f"{_outer(headers.prefix)}classifier.{part}" for part in ("weight", "bias")}
    config = ViTConfig(
        stem=stem,
        depth=headers.count(layer, "layer", end="."),
        width=width,
        mlp_width=headers.shape(f"{layer}0.{parts['expand']}.weight", 2)[0],
        heads=heads,
        classes=classes,
        image_size=(rows * patch, cols * patch),
        channels=channels,
        positions=LearnedPositions(resampling=LAYOUT.holds.resampling),
        activation=_activation(said.get("hidden_act", "gelu")),  # pyright: ignore[reportArgumentType]
        qkv_bias=f"{layer}0.{parts['query']}.bias" in headers,
        pre_logits=headers.shape(pooler, 2)[0] if pooler in headers else None,
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
        dialect={"prefix": headers.prefix, "names": names},
        inferred=inferred,
        left_out=(*left_out, *(name for name in headers.outside if name not in outside)),
    )


def rows(config: ModelConfig, dialect: Dialect) -> Iterator[Row]:
    """Give the row of every parameter."""
    assert isinstance(config, ViTConfig)
    assert isinstance(config.stem, PatchStem)
    width, side, prefix, parts = config.width, config.stem.patch, dialect["prefix"], PARTS[dialect["names"]]
    embeddings = f"{prefix}embeddings"
    patches = (width, config.channels, side, side)
    yield from pair("embedding.projection", f"{embeddings}.patch_embeddings.projection", patches, PATCHES)
    yield Row("class_token", (f"{embeddings}.cls_token",), (1, 1, width), FLAT)
    yield Row("positions.table.0", (f"{embeddings}.position_embeddings",), (1, config.tokens, width), TABLE)
    for index in range(config.depth):
        ours, theirs = f"blocks.{index}", f"{prefix}{parts['layer']}{index}"
        three = [f"{theirs}.{parts[part]}" for part in ("query", "key", "value")]
        yield from pair(f"{ours}.attention_norm", f"{theirs}.layernorm_before", (width,))
        weights, biases = (tuple(f"{name}.{kind}" for name in three) for kind in ("weight", "bias"))
        yield Row(f"{ours}.attention.qkv.weight", weights, (width, width), THREE)
        if config.qkv_bias:
            yield Row(f"{ours}.attention.qkv.bias", biases, (width,), THREE)
        yield from pair(f"{ours}.attention.out", f"{theirs}.{parts['out']}", (width, width))
        yield from pair(f"{ours}.mlp_norm", f"{theirs}.layernorm_after", (width,))
        yield from pair(f"{ours}.mlp.expand", f"{theirs}.{parts['expand']}", (config.mlp_width, width))
        yield from pair(f"{ours}.mlp.contract", f"{theirs}.{parts['contract']}", (width, config.mlp_width))
    yield from pair("norm", f"{prefix}layernorm", (width,))
    if config.pre_logits:
        yield from pair("hidden", f"{prefix}pooler.dense", (config.pre_logits, width))
    if config.classes:
        yield from pair("head", f"{_outer(prefix)}classifier", (config.classes, config.representation))


def default_dialect(config: ModelConfig) -> Dialect:
    """Speak as transformers writes: a classifier beside `vit.`, or a bare model."""
    return {"prefix": "vit." if config.classes else "", "names": "written"}


def config_document(config: ViTConfig, class_names: tuple[str, ...] | None) -> dict[str, Any]:
    """Give the config.json that transformers opens."""
    assert isinstance(config.stem, PatchStem)
    height, width = config.image_size
    words = {"gelu": "gelu", "gelu-tanh": "gelu_pytorch_tanh", "relu": "relu"}
    labels = class_names or tuple(f"LABEL_{index}" for index in range(config.classes or 0))
    document: dict[str, Any] = {
        "architectures": ["ViTForImageClassification" if config.classes else "ViTModel"],
        "model_type": "vit",
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "intermediate_size": config.mlp_width,
        "hidden_act": words[config.activation],
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
    }
    if config.classes:
        document["id2label"] = {str(index): label for index, label in enumerate(labels)}
        document["label2id"] = {label: index for index, label in enumerate(labels)}
    return document


def _outer(prefix: str) -> str:
    """Find what stands before both the encoder and the classifier: the encoder's prefix without its own name."""
    return prefix[: prefix[:-1].rfind(".") + 1]


def _has(headers: Headers, parts: Mapping[str, str]) -> bool:
    return f"{parts['layer']}0.{parts['query']}.weight" in headers


def _with_size(hints: FileHints, said: Mapping[str, Any], patch: int, count: int) -> FileHints:
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
    return FileHints(image_size=hints.image_size, grid=(height // patch, width // patch), fields=hints.fields)


def _classes(headers: Headers) -> int | None:
    """Count the classifier's classes; it stands outside the encoder's prefix."""
    name = f"{_outer(headers.prefix)}classifier.weight"
    shape = headers.everything.get(name)
    if shape is not None and len(shape) != 2:
        raise CheckpointError(f"{name!r} must have 2 axes; its shape is {shape}.")
    return None if shape is None else shape[0]


def _activation(word: object) -> str:
    if not isinstance(word, str) or word not in ACTIVATIONS:
        raise CheckpointError(f"config.json says hidden_act={word!r}; this ViT has one of {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[word]


LAYOUT = Layout(
    name="hf",
    title="Hugging Face's names",
    recognize=recognize,
    infer=infer,
    rows=rows,
    dialect=default_dialect,
    holds=Holds(
        activations=("gelu", "gelu-tanh", "relu"),
        epsilon=None,
        hidden="headless",
        bias_free=True,
        resampling="bicubic",
    ),
)
