"""The image tower of CLIP in the names of OpenAI and of OpenCLIP."""

from collections.abc import Iterator, Mapping
from typing import Any

from vitrail.checkpoint.adapt import Request
from vitrail.checkpoint.archives.base import Entry, Headers
from vitrail.checkpoint.layouts.base import Dialect, Found, Holds, Layout, Row, common_prefix, read_note
from vitrail.checkpoint.layouts.inference import file_grid, find_heads, noted_grid
from vitrail.checkpoint.layouts.vit_rows import Missing, TorchNames, vit_rows
from vitrail.config import LearnedPositions, ModelConfig, PatchStem, ViTConfig
from vitrail.errors import CheckpointError

DOCUMENT = "open_clip_config.json"
NAMES = TorchNames(
    patches="conv1",
    token="class_embedding",
    token_axes=1,
    table="positional_embedding",
    table_axes=2,
    layer="transformer.resblocks.",
    attention_norm="ln_1",
    qkv=("attn.in_proj_",),
    out="attn.out_proj",
    mlp_norm="ln_2",
    expand="mlp.c_fc",
    contract="mlp.c_proj",
    scales=("ls_1.gamma", "ls_2.gamma"),
    first_norm="ln_pre",
    norm="ln_post",
    head="",
    projection="proj",
    turned=True,
)
OPENAI = ("input_resolution", "context_length", "vocab_size")  # numbers that OpenAI's files carry
DOUBT = (
    "the names are those of OpenAI's CLIP (activation=quick-gelu, as MetaCLIP's and DFN's) and of OpenCLIP "
    "(activation=gelu, as LAION's), and the file does not say which it is. Say activation=..."
)


def recognize(entries: Mapping[str, Entry]) -> str | None:
    """Find the prefix of an image tower: visual., or nothing where it is alone."""
    prefix = common_prefix(entries, "class_embedding")
    known = prefix is not None and f"{prefix}transformer.resblocks.0.attn.in_proj_weight" in entries
    return prefix if known else None


def infer(headers: Headers, hints: Request, documents: Mapping[str, Any]) -> Found:
    """Read the configuration off names, shapes, and OpenCLIP's own document where there is one."""
    headers.refuse({"attn_pool.": "attention pooling", "ln_attn.": "norms inside its attention"}, "which CLIP lacks")
    width, channels, patch = headers.patches("conv1.weight")
    tower = documents.get(DOCUMENT, {}).get("model_cfg", {})
    tower = tower if isinstance(tower, dict) else {}
    vision = tower.get("vision_cfg", {})
    block = f"{NAMES.layer}0."
    wide = headers.shape(f"{block}{NAMES.expand}.weight", 2)[0]
    shape = headers.count(NAMES.layer, "layer", end="."), width, wide
    head_width = vision.get("head_width", 64) if vision else None
    heads, notes = find_heads(shape, hints, documents, width // head_width if head_width else None)
    stem = PatchStem(patch=patch)
    count = headers.shape("positional_embedding", 2)[0]
    (rows, cols), _ = file_grid(count, stem, noted_grid(documents, stem, hints), class_entry=True)
    projected = "proj" in headers
    config = ViTConfig(
        stem=stem,
        depth=shape[0],
        width=width,
        mlp_width=wide,
        heads=heads,
        classes=None,
        image_size=(rows * patch, cols * patch),
        channels=channels,
        positions=LearnedPositions(resampling=LAYOUT.holds.resampling),
        activation=_activation(headers, hints, documents, tower),
        layer_scale=1e-5 if f"{block}{NAMES.scales[0]}" in headers else None,
        first_norm="ln_pre.weight" in headers,
        projection=headers.shape("proj", 2)[1] if projected else None,
        epsilon=read_note(documents).get("epsilon", 1e-5),
    )
    biases = ["embedding.projection"] if "conv1.bias" not in headers else []
    dialect = {"prefix": headers.prefix, "missing": {"biases": biases, "placed": None}}
    inferred = (*notes, f"{config.activation} and epsilon {config.epsilon:g}, as CLIP's towers have")
    return Found(config=config, dialect=dialect, inferred=inferred, left_out=tuple(headers.outside))


def _activation(headers: Headers, hints: Request, documents: Mapping[str, Any], tower: Mapping[str, Any]) -> Any:  # noqa: ANN401
    told = hints.fields.get("activation", read_note(documents).get("activation"))
    if told is not None:
        return told
    if tower:
        return "quick-gelu" if tower.get("quick_gelu") else "gelu"
    if any(name in headers.everything for name in OPENAI):
        return "quick-gelu"
    raise CheckpointError(DOUBT)


def rows(config: ModelConfig, dialect: Dialect) -> Iterator[Row]:
    """Give the row of every parameter."""
    assert isinstance(config, ViTConfig)
    missing = Missing(biases=tuple(dialect["missing"]["biases"]))
    return (row.under(dialect["prefix"]) for row in vit_rows(config, NAMES, missing=missing))


LAYOUT = Layout(
    name="openclip",
    title="OpenAI's and OpenCLIP's names for CLIP",
    recognize=recognize,
    infer=infer,
    rows=rows,
    dialect=lambda config: {"prefix": "visual.", "missing": {"biases": ["embedding.projection"], "placed": None}},
    holds=Holds(resampling="bicubic-antialias"),
    writes=False,
)
