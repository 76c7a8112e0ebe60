"""timm's names for ViT, DeiT, hybrids and BiT, which MAE and DINO share: packed attention, exact GELU."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isfinite
from typing import Any

from vitrail.checkpoint.adapt import Request
from vitrail.checkpoint.archives.base import Entry, Headers
from vitrail.checkpoint.layouts.base import (
    Dialect,
    Found,
    Holds,
    Layout,
    Row,
    common_prefix,
    read_note,
)
from vitrail.checkpoint.layouts.codecs import POINT, SAME, TorchNames, pair, resnet_parts, vit_rows
from vitrail.checkpoint.layouts.inference import (
    DOUBT,
    file_grid,
    find_head,
    find_heads,
    is_last,
    is_square,
    noted,
    noted_grid,
    read_activation,
    take_beside,
)
from vitrail.config import BiTConfig, HybridStem, LearnedPositions, ModelConfig, PatchStem, Stem, ViTConfig
from vitrail.errors import CheckpointError

ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "relu": "relu"}
STEM = {"epsilon": 1e-5, "filter_rule": "variance", "filter_epsilon": 1e-8}
BIT = {"epsilon": 1e-5, "filter_epsilon": 1e-8}
NAMES = TorchNames(
    patches="patch_embed.proj",
    token="cls_token",
    table="pos_embed",
    layer="blocks.",
    attention_norm="norm1",
    qkv=("attn.qkv.",),
    out="attn.proj",
    mlp_norm="norm2",
    expand="mlp.fc1",
    contract="mlp.fc2",
    scales=("ls1.gamma", "ls2.gamma"),
    norm="norm",
    hidden="pre_logits",
    head="head",
)
WITHOUT_TOKEN = (
    "timm's ViTs of width 768 without a class token have 16 heads (vit_base_patch16_gap_224) or 12 (SigLIP's). "
    "Say heads=16 or heads=12."
)
HIDDEN = ("pre_logits.fc", "pre_logits")  # the tanh layer of timm's old files
# What other ViTs of timm have, and this one cannot have.
STRANGERS = {
    "attn.q_bias": "biases of queries and values alone, as EVA and BEiT",
    "gamma_1": "other parts in its blocks, as BEiT, CaiT and DINOv3",
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
# What stands in a ViT of timm before the first dot; other layers there were put beside it.
OWN = ("patch_embed.", "blocks.", "norm.", "head.", "pre_logits.", *(mark for mark in STRANGERS if mark[-1] == "."))
# MAE's decoder and mask, DINO's projection head: of pre-training alone.
PRETRAINING = ("mask_token", "decoder_", "head.mlp.", "head.last_layer.")


def recognize(entries: Mapping[str, Entry]) -> str | None:
    """Find the prefix of a ViT's names, or of a BiT's."""
    vit = common_prefix(entries, "blocks.0.attn.qkv.weight")
    if vit is not None and f"{vit}patch_embed.proj.weight" in entries:
        return vit
    bit = common_prefix(entries, "stages.0.blocks.0.conv1.weight")
    return bit if bit is not None and f"{bit}stem.conv.weight" in entries else None


def infer(headers: Headers, hints: Request, documents: Mapping[str, Any]) -> Found:
    """Read the configuration off names and shapes; what they leave open is as timm's models of this kind have it."""
    left_out, notes = headers.take(*PRETRAINING), ()
    vit, head = "patch_embed.proj.weight" in headers, None
    if vit:
        left_out += take_beside(headers, OWN)
        head, strange = _head(headers)
        left_out += headers.take(*strange)
        channels = headers.shape("patch_embed.proj.weight", 4)[1]
        if head and not is_last(headers, headers.prefix + head, (*left_out, *headers.outside), NAMES.table, channels):
            left_out, head, notes = left_out + headers.take(f"{head}."), None, (DOUBT,)
    headers.refuse(STRANGERS, "which the paper's ViT and BiT do not have")
    found = _infer_vit(headers, hints, documents, head) if vit else _infer_bit(headers, hints)
    return replace(found, inferred=(*found.inferred, *notes), left_out=(*left_out, *headers.outside))


def rows(config: ModelConfig, dialect: Dialect) -> Iterator[Row]:
    """Give the row of every parameter."""
    if isinstance(config, BiTConfig):
        found = _bit_rows(config)
    else:
        stem = _resnet_rows(config, "patch_embed.backbone.") if isinstance(config.stem, HybridStem) else ()
        names = replace(NAMES, hidden=dialect["hidden"] or "", head=dialect["head"])
        found = vit_rows(config, names, stem, folded=dialect["folded"])
    return (row.under(dialect["prefix"]) for row in found)


def _head(headers: Headers) -> tuple[str | None, set[str]]:
    """Find the classifier; it reads the tanh layer where there is one."""
    hidden = next((name for name in HIDDEN if f"{name}.weight" in headers), "norm")
    return find_head(headers.shapes, ("head.",), headers.shapes.get(f"{hidden}.weight", (0,))[0])


def _infer_vit(headers: Headers, hints: Request, documents: Mapping[str, Any], head: str | None) -> Found:
    width, inward, patch = headers.patches("patch_embed.proj.weight")
    stem, channels = _stem(headers, patch, inward)
    token = "cls_token" in headers
    told = _model_args(documents, token=token)
    activation = noted(documents, "activation", read_activation(told, "act_layer", ACTIVATIONS))
    shape = headers.count("blocks.", "block", end="."), width, headers.shape("blocks.0.mlp.fc1.weight", 2)[0]
    doubt = WITHOUT_TOKEN if width == 768 and not token else ""
    heads, notes = find_heads(shape, hints, documents, told.get("num_heads"), doubt)
    count = headers.shape("pos_embed", 3)[1]
    scaled = "blocks.0.ls1.gamma" in headers
    # DeiT III has layer scale and no class position; others without one must say so.
    guess = is_square(count) and not is_square(count - 1) and scaled and hints.image_size is None
    (rows, cols), entry = file_grid(
        count, stem, noted_grid(documents, stem, hints), class_entry=False if guess or not token else None
    )
    hidden = next((name for name in HIDDEN if f"{name}.weight" in headers), None)
    config = ViTConfig(
        stem=stem,
        depth=shape[0],
        width=width,
        mlp_width=shape[2],
        heads=heads,
        classes=headers.rows(f"{head}.weight"),
        image_size=(rows * stem.stride, cols * stem.stride),
        channels=channels,
        positions=LearnedPositions(resampling=LAYOUT.holds.resampling),
        activation=activation,
        epsilon=noted(documents, "epsilon", 1e-6),
        qkv_bias="blocks.0.attn.qkv.bias" in headers,
        layer_scale=_first_scale(documents) if scaled else None,
        pooling="token" if token else "mean",
        pre_logits=headers.rows(f"{hidden}.weight"),
    )
    folded = token and not entry
    form = "its exact form" if config.activation == "gelu" else "its tanh form"
    inferred = notes if read_note(documents) else (*notes, f"GELU in {form} and epsilon 1e-6, as timm's ViTs have")
    if folded:
        inferred = (*inferred, "the class token has no position")
    dialect = {"prefix": headers.prefix, "folded": folded, "hidden": hidden, "head": head or NAMES.head}
    return Found(config=config, dialect=dialect, inferred=inferred)


def _model_args(documents: Mapping[str, Any], *, token: bool) -> dict[str, Any]:
    """Read the arguments that timm's own config.json has; refuses a pooling that the tensors do not show."""
    said = documents.get("config.json", {})
    given = said.get("model_args", {})
    given = given if isinstance(given, dict) else {}
    pooling = given.get("global_pool", said.get("global_pool", "token" if token else "avg"))
    if token and pooling != "token":
        raise CheckpointError(f"config.json says global_pool={pooling!r} beside a class token; expected 'token'.")
    return given


def _first_scale(documents: Mapping[str, Any]) -> float:
    """Give the value that layer scale began with, which trained weights no longer show."""
    noted = read_note(documents).get("layer_scale")
    return float(noted) if isinstance(noted, int | float) and isfinite(noted) else 1e-6


def _stem(headers: Headers, patch: int, inward: int) -> tuple[Stem, int]:
    backbone = "patch_embed.backbone"
    for root in ("stem.conv", "conv"):
        if f"{backbone}.{root}.weight" in headers:
            first, channels, *_ = headers.shape(f"{backbone}.{root}.weight", 4)
            units = headers.units(f"{backbone}.stages.", ".blocks.", end=".") if root == "stem.conv" else ()
            return HybridStem(units=units, width=first, patch=patch, **STEM), channels  # pyright: ignore[reportArgumentType]
    if stranger := next((name for name in headers.shapes if name.startswith(backbone)), None):
        raise CheckpointError(
            f"{headers.prefix + stranger!r}: the file's hybrid has another stem than the paper's ResNets, "
            "which have standardised convolutions and GroupNorm."
        )
    return PatchStem(patch=patch), inward


def _infer_bit(headers: Headers, hints: Request) -> Found:
    if hints.grid is not None:
        raise CheckpointError(f"a BiT has no position table, so no grid; got grid={hints.grid}. Leave it out.")
    root, channels, *_ = headers.shape("stem.conv.weight", 4)
    config = BiTConfig(
        units=headers.units("stages.", ".blocks.", end="."),
        width=root,
        classes=headers.shape("head.fc.weight", 4)[0] if "head.fc.weight" in headers else None,
        channels=channels,
        image_size=hints.image_size or (224, 224),
        epsilon=BIT["epsilon"],
        filter_epsilon=BIT["filter_epsilon"],
    )
    inferred = ("epsilon 1e-5, of the filters 1e-8, as timm's BiT has",)
    return Found(config=config, dialect={"prefix": headers.prefix}, inferred=inferred)


def _resnet_rows(config: ModelConfig, prefix: str) -> Iterator[Row]:
    stem = config.stem if isinstance(config, ViTConfig) else config
    for part in resnet_parts(config):
        theirs, number = prefix, part.number or ""
        if part.place is not None:
            theirs += f"stages.{part.place[0]}.blocks.{part.place[1]}." + ("" if part.number else "downsample.")
        elif getattr(stem, "units", ()):
            theirs += "stem."
        conv = part.conv
        shape = (conv.outward, conv.inward, conv.kernel, conv.kernel)
        yield Row(part.kernel, (f"{theirs}conv{number}.weight",), shape, SAME)
        if part.norm:
            yield from pair(part.norm, f"{theirs}norm{number}", (part.width,))


def _bit_rows(config: BiTConfig) -> Iterator[Row]:
    yield from _resnet_rows(config, "")
    yield from pair("norm", "norm", (config.representation,))
    if config.classes:
        yield from pair("head", "head.fc", (config.classes, config.representation, 1, 1), POINT)


LAYOUT = Layout(
    name="timm",
    title="timm's names, which MAE and DINO share",
    recognize=recognize,
    infer=infer,
    rows=rows,
    dialect=lambda config: {"prefix": "", "folded": False, "hidden": None, "head": NAMES.head},
    holds=Holds(
        families=("vit", "hybrid", "bit"),
        documented=("gelu-tanh", "relu"),
        poolings=("token", "mean"),
        hidden="no",
        layer_scale=True,
        bias_free=True,
        resampling="bicubic-antialias",
        stem=STEM,
        bit=BIT,
    ),
)
