"""timm's names for ViT, DeiT, hybrids and BiT, which MAE and DINO share: packed attention, exact GELU."""

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, assert_never

from vitrail.checkpoint.archives.base import Entry
from vitrail.checkpoint.layouts.base import (
    SAME,
    Dialect,
    FileHints,
    Found,
    Headers,
    Holds,
    Layout,
    Row,
    common_prefix,
    read_note,
)
from vitrail.checkpoint.layouts.codecs import FLAT, PATCH_TABLE, PATCHES, POINT, TABLE, pair, units_of
from vitrail.checkpoint.layouts.inference import file_grid, find_heads, is_square, noted_grid
from vitrail.config import BiTConfig, HybridStem, LearnedPositions, ModelConfig, PatchStem, Stem, ViTConfig
from vitrail.errors import CheckpointError
from vitrail.ops.cost.counts import Convolution, convolutions

STEM = {"epsilon": 1e-5, "filter_rule": "variance", "filter_epsilon": 1e-8}
BIT = {"epsilon": 1e-5, "filter_epsilon": 1e-8}
# What other ViTs of timm have, and this one cannot have.
STRANGERS = {
    "dist_token": "a distillation token",
    "head_dist.": "a distillation head",
    "reg_token": "register tokens",
    "norm_pre.": "a norm before the blocks, as CLIP",
    "fc_norm.": "a norm after pooling",
    "attn_pool.": "attention pooling",
    "rel_pos": "relative positions",
    "q_norm.": "norms of queries and keys",
    "rope.": "rotary positions",
    "mlp.fc1_g.": "a gated MLP",
    "mlp.w12.": "a gated MLP",
    "running_mean": "batch norms",
}
# MAE's decoder and mask, DINO's projection head: of pre-training alone.
PRETRAINING = ("mask_token", "decoder_", "head.mlp.", "head.last_layer.")


def recognize(entries: Mapping[str, Entry]) -> str | None:
    """Find the prefix of a ViT's names, or of a BiT's."""
    vit = common_prefix(entries, "blocks.0.attn.qkv.weight")
    if vit is not None and f"{vit}patch_embed.proj.weight" in entries:
        return vit
    bit = common_prefix(entries, "stages.0.blocks.0.conv1.weight")
    return bit if bit is not None and f"{bit}stem.conv.weight" in entries else None


def infer(headers: Headers, hints: FileHints, documents: Mapping[str, Any]) -> Found:
    """Read the configuration off names and shapes; what they leave open is as timm's models of this kind have it."""
    left_out = headers.take(*PRETRAINING)
    for mark, what in STRANGERS.items():
        if name := next((name for name in headers.shapes if mark in name), None):
            raise CheckpointError(
                f"{headers.prefix + name!r}: the file's model has {what}, which the paper's ViT and BiT do not have."
            )
    if "patch_embed.proj.weight" not in headers:
        found = _infer_bit(headers, hints)
    else:
        found = _infer_vit(headers, hints, documents)
    outside = tuple(name for name in headers.outside if name not in left_out)
    return Found(config=found.config, dialect=found.dialect, inferred=found.inferred, left_out=(*left_out, *outside))


def rows(config: ModelConfig, dialect: Dialect) -> Iterator[Row]:
    """Give the row of every parameter."""
    for row in _bit_rows(config) if isinstance(config, BiTConfig) else _vit_rows(config, dialect):
        yield row._replace(theirs=tuple(dialect["prefix"] + name for name in row.theirs))


def default_dialect(config: ModelConfig) -> Dialect:
    """Speak as timm does today."""
    return {"prefix": "", "folded": False, "hidden": None}


def _infer_vit(headers: Headers, hints: FileHints, documents: Mapping[str, Any]) -> Found:
    width, inward, patch, across = headers.shape("patch_embed.proj.weight", 4)
    if patch != across:
        raise CheckpointError(f"patches must be square; 'patch_embed.proj.weight' has {patch}x{across}.")
    stem, channels = _stem(headers, patch, inward)
    token = "cls_token" in headers
    told = _model_args(documents, token=token)
    heads, notes = find_heads(width, hints, documents, told.get("num_heads"))
    if notes and width == 768 and not token:
        raise CheckpointError(
            "timm's ViTs of width 768 without a class token have 16 heads (vit_base_patch16_gap_224) or 12 (SigLIP's). "
            "Say heads=16 or heads=12."
        )
    count = headers.shape("pos_embed", 3)[1]
    scaled = "blocks.0.ls1.gamma" in headers
    # DeiT III has layer scale and no class position; others without one must say so.
    guess = is_square(count) and not is_square(count - 1) and scaled and hints.image_size is None
    (rows, cols), entry = file_grid(
        count, stem, noted_grid(documents, stem, hints), class_entry=False if guess or not token else None
    )
    hidden = next((name for name in ("pre_logits.fc", "pre_logits") if f"{name}.weight" in headers), None)
    config = ViTConfig(
        stem=stem,
        depth=headers.count("blocks.", "block", end="."),
        width=width,
        mlp_width=headers.shape("blocks.0.mlp.fc1.weight", 2)[0],
        heads=heads,
        classes=headers.shape("head.weight", 2)[0] if "head.weight" in headers else None,
        image_size=(rows * stem.stride, cols * stem.stride),
        channels=channels,
        positions=LearnedPositions(resampling=LAYOUT.holds.resampling),
        activation=told.get("activation", "gelu"),
        qkv_bias="blocks.0.attn.qkv.bias" in headers,
        layer_scale=_first_scale(documents) if scaled else None,
        pooling="token" if token else "mean",
        pre_logits=headers.shape(f"{hidden}.weight", 2)[0] if hidden else None,
    )
    folded = token and not entry
    form = "its exact form" if config.activation == "gelu" else "its tanh form"
    inferred = (*notes, f"GELU in {form} and epsilon 1e-6, as timm's ViTs have")
    if folded:
        inferred = (*inferred, "the class token has no position")
    return Found(
        config=config, dialect={"prefix": headers.prefix, "folded": folded, "hidden": hidden}, inferred=inferred
    )


def _model_args(documents: Mapping[str, Any], *, token: bool) -> dict[str, Any]:
    """Read what timm's own config.json says of heads, GELU form and pooling."""
    said = documents.get("config.json", {})
    given = said.get("model_args", {})
    given = given if isinstance(given, dict) else {}
    pooling = given.get("global_pool", said.get("global_pool", "token" if token else "avg"))
    if token and pooling != "token":
        raise CheckpointError(f"config.json says global_pool={pooling!r} beside a class token; expected 'token'.")
    forms = {"gelu": "gelu", "gelu_tanh": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "relu": "relu"}
    form = given.get("act_layer", "gelu")
    if not isinstance(form, str) or form not in forms:
        raise CheckpointError(f"config.json says act_layer={form!r}; this ViT has one of {', '.join(forms)}.")
    heads = given.get("num_heads")
    return {"activation": forms[form]} | ({} if heads is None else {"num_heads": heads})


def _first_scale(documents: Mapping[str, Any]) -> float:
    """Give the value that layer scale began with, which trained weights no longer show."""
    noted = read_note(documents).get("layer_scale")
    return float(noted) if isinstance(noted, int | float) and isfinite(noted) else 1e-6


def _stem(headers: Headers, patch: int, inward: int) -> tuple[Stem, int]:
    backbone = "patch_embed.backbone"
    for root in ("stem.conv", "conv"):
        if f"{backbone}.{root}.weight" in headers:
            first, channels, *_ = headers.shape(f"{backbone}.{root}.weight", 4)
            stages = headers.count(f"{backbone}.stages.", "stage", end=".", most=16) if root == "stem.conv" else 0
            units = tuple(
                headers.count(f"{backbone}.stages.{stage}.blocks.", "unit", end=".") for stage in range(stages)
            )
            return HybridStem(units=units, width=first, patch=patch, **STEM), channels  # pyright: ignore[reportArgumentType]
    if stranger := next((name for name in headers.shapes if name.startswith(backbone)), None):
        raise CheckpointError(
            f"{headers.prefix + stranger!r}: the file's hybrid has another stem than the paper's ResNets, "
            "which have standardised convolutions and GroupNorm."
        )
    return PatchStem(patch=patch), inward


def _infer_bit(headers: Headers, hints: FileHints) -> Found:
    if hints.grid is not None:
        raise CheckpointError(f"a BiT has no position table, so no grid; got grid={hints.grid}. Leave it out.")
    root, channels, *_ = headers.shape("stem.conv.weight", 4)
    stages = headers.count("stages.", "stage", end=".", most=16)
    config = BiTConfig(
        units=tuple(headers.count(f"stages.{stage}.blocks.", "unit", end=".") for stage in range(stages)),
        width=root,
        classes=headers.shape("head.fc.weight", 4)[0] if "head.fc.weight" in headers else None,
        channels=channels,
        image_size=hints.image_size or (224, 224),
        epsilon=BIT["epsilon"],
        filter_epsilon=BIT["filter_epsilon"],
    )
    inferred = ("epsilon 1e-5, of the filters 1e-8, as timm's BiT has",)
    return Found(config=config, dialect={"prefix": headers.prefix}, inferred=inferred)


def _vit_rows(config: ViTConfig, dialect: Dialect) -> Iterator[Row]:
    width = config.width
    match config.stem:
        case PatchStem(patch=side):
            shape = (width, config.channels, side, side)
            yield from pair("embedding.projection", "patch_embed.proj", shape, PATCHES)
        case HybridStem(patch=side) as stem:
            shape = (width, stem.channels, side, side)
            yield from pair("embedding.patches.projection", "patch_embed.proj", shape, PATCHES)
            yield from _hybrid_rows(config, stem)
        case _:
            assert_never(config.stem)
    if config.class_tokens:
        yield Row("class_token", ("cls_token",), (1, 1, width), FLAT)
    folded = dialect["folded"]
    table = (1, config.tokens - folded, width)
    yield Row("positions.table.0", ("pos_embed",), table, PATCH_TABLE if folded else TABLE)
    for index in range(config.depth):
        ours = theirs = f"blocks.{index}"
        yield from pair(f"{ours}.attention_norm", f"{theirs}.norm1", (width,))
        yield Row(f"{ours}.attention.qkv.weight", (f"{theirs}.attn.qkv.weight",), (3 * width, width), SAME)
        if config.qkv_bias:
            yield Row(f"{ours}.attention.qkv.bias", (f"{theirs}.attn.qkv.bias",), (3 * width,), SAME)
        yield from pair(f"{ours}.attention.out", f"{theirs}.attn.proj", (width, width))
        yield from pair(f"{ours}.mlp_norm", f"{theirs}.norm2", (width,))
        yield from pair(f"{ours}.mlp.expand", f"{theirs}.mlp.fc1", (config.mlp_width, width))
        yield from pair(f"{ours}.mlp.contract", f"{theirs}.mlp.fc2", (width, config.mlp_width))
        if config.layer_scale is not None:
            yield Row(f"{ours}.attention_scale.weight", (f"{theirs}.ls1.gamma",), (width,), SAME)
            yield Row(f"{ours}.mlp_scale.weight", (f"{theirs}.ls2.gamma",), (width,), SAME)
    yield from pair("norm", "norm", (width,))
    if config.pre_logits:
        yield from pair("hidden", dialect["hidden"], (config.pre_logits, width))
    if config.classes:
        yield from pair("head", "head", (config.classes, config.representation))


def _hybrid_rows(config: ViTConfig, stem: HybridStem) -> Iterator[Row]:
    root, *others = convolutions(config)
    ours, theirs = "embedding.resnet", "patch_embed.backbone"
    first = f"{theirs}.stem" if stem.units else theirs
    yield _kernel(f"{ours}.root", f"{first}.conv", root)
    yield from pair(f"{ours}.root_norm", f"{first}.norm", (root.outward,))
    for stage, index, unit in units_of(others):
        mine, other = f"{ours}.stages.{stage}.{index}", f"{theirs}.stages.{stage}.blocks.{index}"
        for part, conv in unit.items():
            number = {"first": 1, "second": 2, "third": 3, "shortcut": 0}[part]
            names = (f"conv{number}", f"norm{number}") if number else ("shortcut.0", "shortcut.1")
            peers = (f"conv{number}", f"norm{number}") if number else ("downsample.conv", "downsample.norm")
            yield _kernel(f"{mine}.{names[0]}", f"{other}.{peers[0]}", conv)
            yield from pair(f"{mine}.{names[1]}", f"{other}.{peers[1]}", (conv.outward,))


def _bit_rows(config: BiTConfig) -> Iterator[Row]:
    root, *others = convolutions(config)
    yield _kernel("root", "stem.conv", root)
    for stage, index, unit in units_of(others):
        ours, theirs = f"stages.{stage}.{index}", f"stages.{stage}.blocks.{index}"
        for part, conv in unit.items():
            if part == "shortcut":
                yield _kernel(f"{ours}.shortcut", f"{theirs}.downsample.conv", conv)
                continue
            number = {"first": 1, "second": 2, "third": 3}[part]
            yield _kernel(f"{ours}.conv{number}", f"{theirs}.conv{number}", conv)
            yield from pair(f"{ours}.norm{number}", f"{theirs}.norm{number}", (conv.inward,))
    yield from pair("norm", "norm", (config.representation,))
    if config.classes:
        yield from pair("head", "head.fc", (config.classes, config.representation, 1, 1), POINT)


def _kernel(ours: str, theirs: str, conv: Convolution) -> Row:
    shape = (conv.outward, conv.inward, conv.kernel, conv.kernel)
    return Row(f"{ours}.weight", (f"{theirs}.weight",), shape, SAME)


LAYOUT = Layout(
    name="timm",
    title="timm's names, which MAE and DINO share",
    recognize=recognize,
    infer=infer,
    rows=rows,
    dialect=default_dialect,
    holds=Holds(
        families=("vit", "hybrid", "bit"),
        poolings=("token", "mean"),
        hidden="no",
        layer_scale=True,
        bias_free=True,
        resampling="bicubic-antialias",
        stem=STEM,
        bit=BIT,
    ),
)
