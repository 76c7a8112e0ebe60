"""timm's names for ViT, DeiT, hybrids and BiT, which MAE and DINO share: packed attention, exact GELU."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isfinite
from typing import Any

from vitrail.checkpoint.adapt import Request
from vitrail.checkpoint.archives.base import Entry, Headers
from vitrail.checkpoint.layouts import eva, timm_parts
from vitrail.checkpoint.layouts.base import (
    Dialect,
    Found,
    Holds,
    Layout,
    Row,
    common_prefix,
    read_note,
)
from vitrail.checkpoint.layouts.codecs import POINT, SAME, pair, resnet_parts
from vitrail.checkpoint.layouts.inference import (
    DOUBT,
    file_grid,
    find_head,
    find_heads,
    is_last,
    is_square,
    noted,
    read_activation,
    take_beside,
)
from vitrail.checkpoint.layouts.vit_rows import TorchNames, vit_rows
from vitrail.config import (
    BiasPositions,
    BiTConfig,
    HybridStem,
    LearnedPositions,
    ModelConfig,
    NoPositions,
    PatchStem,
    RotaryPositions,
    Stem,
    ViTConfig,
)
from vitrail.config.parts import reads_token
from vitrail.errors import CheckpointError

ACTIVATIONS = {
    "quick_gelu": "quick-gelu",
    "silu": "silu",
    "gelu": "gelu",
    "gelu_tanh": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "relu": "relu",
}
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
    "rel_pos": "relative positions",
    "rope.": "rotary positions",
    "running_mean": "batch norms",
    ".lambda_q1": "differential attention",
}
# What stands in a ViT of timm before the first dot; other layers there were put beside it.
OWN = ("patch_embed.", "blocks.", "norm.", "head.", "pre_logits.", *(mark for mark in STRANGERS if mark[-1] == "."))
OWN += ("shared_rel_pos.", "head_dist.", "norm_pre.", "fc_norm.", "attn_pool.")
# MAE's decoder and mask, DINO's projection head: of pre-training alone.
PRETRAINING = ("mask_token", "decoder_", "head.mlp.", "head.last_layer.")


def recognize(entries: Mapping[str, Entry]) -> str | None:
    """Find the prefix of a ViT's names, or of a BiT's."""
    for first in ("blocks.0.attn.qkv.weight", "blocks.0.attn.q_proj.weight"):
        vit = common_prefix(entries, first)
        if vit is not None and f"{vit}patch_embed.proj.weight" in entries:
            return vit
    bit = common_prefix(entries, "stages.0.blocks.0.conv1.weight")
    return bit if bit is not None and f"{bit}stem.conv.weight" in entries else None


def infer(headers: Headers, hints: Request, documents: Mapping[str, Any]) -> Found:
    """Read the configuration off names and shapes; what they leave open is as timm's models of this kind have it."""
    if eva.is_eva(headers):
        return eva.infer(headers, hints, documents)
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
    elif dialect.get("eva"):
        return eva.rows(config, dialect)
    else:
        stem = _resnet_rows(config, "patch_embed.backbone.") if isinstance(config.stem, HybridStem) else ()
        names = timm_parts.names_of(replace(NAMES, hidden=dialect["hidden"] or "", head=dialect["head"]), dialect)
        found = vit_rows(config, names, stem, missing=timm_parts.to_missing(dialect))
    return (row.under(dialect["prefix"]) for row in found)


def usual_dialect(config: ModelConfig) -> Dialect:
    """Speak as timm does today."""
    usual = {"prefix": "", "folded": False, "hidden": None, "head": NAMES.head, "gate": None, "registers": None}
    usual |= {"eva": None}
    if isinstance(config, BiTConfig):
        return usual
    if isinstance(config.positions, RotaryPositions | BiasPositions):
        return usual | eva.usual_dialect(config)
    registers = ("dist_token" if config.pooling == "distilled" else "reg_token") if config.registers else None
    return usual | {"registers": registers, "missing": timm_parts.usual_missing(config)}


def _head(headers: Headers) -> tuple[str | None, set[str]]:
    """Find the classifier; it reads the tanh layer where there is one."""
    last = (*HIDDEN, "norm", "fc_norm", "blocks.0.norm1")
    hidden = next((name for name in last if f"{name}.weight" in headers), "norm")
    return find_head(headers.shapes, ("head.",), headers.shapes.get(f"{hidden}.weight", (0,))[0])


def _infer_vit(headers: Headers, hints: Request, documents: Mapping[str, Any], head: str | None) -> Found:
    width, inward, patch = headers.patches("patch_embed.proj.weight")
    stem, channels = _stem(headers, patch, inward)
    token = "cls_token" in headers
    told = _model_args(documents)
    parts = timm_parts.parts_of(headers, hints.fields.get("norm"), timm_parts.architecture_of(documents))
    gate, wide = timm_parts.gate_of(headers)
    parts["mlp"] = "gated" if timm_parts.is_gated(headers, gate, wide) else "plain"
    pooled = _pooling(documents, parts, token=token)
    shape = headers.count("blocks.", "block", end="."), width, wide
    doubt = WITHOUT_TOKEN if width == 768 and not token else ""
    heads, notes = find_heads(shape, hints, documents, told.get("num_heads"), doubt)
    scaled = "blocks.0.ls1.gamma" in headers
    # DeiT III has layer scale and no class position; others without one must say so.
    leading = token + parts["registers"]
    count = headers.shape("pos_embed", 3)[1] if "pos_embed" in headers else 0
    known = timm_parts.documented_grid(documents, stem, hints, count, leading)
    if not count:
        (rows, cols), entry = stem.grid(*(hints.image_size or (14 * stem.stride, 14 * stem.stride))), leading
    elif parts["registers"]:
        choices = [1] if "register_tokens" in headers else [0, leading]
        (rows, cols), entry = timm_parts.table_grid(count, stem, known, choices)
    else:
        guess = is_square(count) and not is_square(count - 1) and scaled and hints.image_size is None
        (rows, cols), entry = file_grid(count, stem, known, class_entry=False if guess or not token else None)
    fields = {"stem": stem, "width": width, **parts, **pooled}
    activation = timm_parts.activation_of(fields, told, hints, documents, (rows, cols), token=token)
    activation = activation or noted(documents, "activation", read_activation(told, "act_layer", ACTIVATIONS))
    hidden = next((name for name in HIDDEN if f"{name}.weight" in headers), None)
    config = ViTConfig(
        **fields,
        depth=shape[0],
        mlp_width=wide,
        heads=heads,
        classes=headers.rows(f"{head}.weight"),
        image_size=(rows * stem.stride, cols * stem.stride),
        channels=channels,
        positions=LearnedPositions(resampling=LAYOUT.holds.resampling) if "pos_embed" in headers else NoPositions(),
        activation=activation,
        epsilon=noted(documents, "epsilon", 1e-5 if parts["first_norm"] or parts["inner_norm"] != "none" else 1e-6),
        qkv_bias="blocks.0.attn.qkv.bias" in headers,
        layer_scale=_first_scale(documents) if scaled else None,
        pre_logits=headers.rows(f"{hidden}.weight"),
    )
    folded = bool(token and not entry)
    form = {"gelu": "GELU in its exact form", "gelu-tanh": "GELU in its tanh form"}.get(config.activation, activation)
    said = f"{form} and epsilon {config.epsilon:g}, as timm's ViTs have"
    inferred = notes if read_note(documents) else (*notes, said)
    if folded:
        inferred = (*inferred, "the class token has no position")
    dialect = {"prefix": headers.prefix, "folded": folded, "hidden": hidden, "head": head or NAMES.head, "gate": gate}
    dialect["registers"] = next((name for name in timm_parts.REGISTERS if name in headers), None)
    dialect["eva"] = None
    dialect["missing"] = timm_parts.missing_of(headers, placed=leading if folded else entry, leading=leading)
    return Found(config=config, dialect=dialect, inferred=inferred)


def _model_args(documents: Mapping[str, Any]) -> dict[str, Any]:
    """Read the arguments that timm's own config.json has."""
    given = documents.get("config.json", {}).get("model_args", {})
    return given if isinstance(given, dict) else {}


def _pooling(documents: Mapping[str, Any], parts: Mapping[str, Any], *, token: bool) -> dict[str, Any]:
    """Find what is pooled: as the tensors show it, as config.json says, or as timm's models of this kind have it."""
    said, noted_pooling = documents.get("config.json", {}), read_note(documents).get("pooling")
    given = said.get("model_args", {})
    pooling = (given if isinstance(given, dict) else {}).get("global_pool", said.get("global_pool"))
    shown = parts.get("pooling", "mean" if parts.get("final_norm") == "pooled" or not token else "token")
    meant = {"avg": "mean", "max": "max", "token": "token", "map": "attention"}.get(str(pooling), shown)
    if pooling not in (None, "", "avg", "max", "token", "map") or (
        isinstance(given, dict) and given.get("pool_include_prefix")
    ):
        raise CheckpointError(
            f"config.json says global_pool={pooling!r}, or pooling with prefix tokens, which no model here has."
        )
    if {meant, shown} & {"attention", "distilled"}:
        if meant != shown and not (shown == "distilled" and meant == "token"):
            raise CheckpointError(
                f"config.json says global_pool={pooling!r}; the tensors are those of pooling={shown!r}."
            )
        meant = shown
    if meant == "token" and not token:
        raise CheckpointError("config.json says global_pool='token'; the file has no class token.")
    found = str(noted_pooling or meant)
    return {"pooling": found, "class_token": None if token == reads_token(found) else token}


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
    dialect=usual_dialect,
    whole=lambda config: isinstance(config, ViTConfig) and eva.holds(config),
    holds=Holds(
        families=("vit", "hybrid", "bit"),
        documented=("gelu-tanh", "relu"),
        poolings=("token", "mean", "attention", "distilled"),
        parts=("registers", "first_norm", "final_norm", "class_token", "mlp", "inner_norm", "qk_norm"),
        hidden="no",
        layer_scale=True,
        bias_free=True,
        resampling="bicubic-antialias",
        stem=STEM,
        bit=BIT,
    ),
)
