"""Reading and describing transformers' families: what config.json says, what tensors show, and what neither does."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from math import isqrt
from typing import Any

from vitrail.checkpoint.adapt import Request
from vitrail.checkpoint.archives.base import Headers
from vitrail.checkpoint.layouts.base import Dialect, Found, Row, read_note
from vitrail.checkpoint.layouts.hf_families import FAMILIES, GATED, GATED_APART, Family
from vitrail.checkpoint.layouts.inference import (
    DINOV3_HEADS,
    DOUBT,
    find_head,
    find_heads,
    is_last,
    is_square,
    noted,
    offset_grid,
)
from vitrail.checkpoint.layouts.vit_rows import Missing, TorchNames, vit_rows
from vitrail.config import BiasPositions, LearnedPositions, NoPositions, PatchStem, RotaryPositions, ViTConfig, as_size
from vitrail.errors import CheckpointError

ACTIVATIONS = {
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_new", "gelu_fast"), "gelu-tanh"),
    "quick_gelu": "quick-gelu",
    "relu": "relu",
    **dict.fromkeys(("silu", "swish"), "silu"),
}
PRETRAINING = ("embeddings.mask_token", "embeddings.position_ids", "logit_scale", "logit_bias")
CLIP_DOUBT = (
    "CLIP's image towers have one of two activations, and the file does not say which. Say activation=quick-gelu "
    "(OpenAI's, MetaCLIP's and DFN's) or activation=gelu (LAION's)."
)


def infer(kind: str, headers: Headers, hints: Request, documents: Mapping[str, Any]) -> Found:
    """Read the configuration of a family off names, shapes and config.json."""
    family, top = FAMILIES[kind], documents.get("config.json", {})
    said = _vision(family, top)
    told = {**family.defaults, **said} if top else dict(said)
    spoken = next((word for word, names in family.names.items() if _first(names) in headers), None)
    if spoken is None:
        raise CheckpointError(
            f"the file's names are those of no {kind} of transformers: {_first(family.names['written'])!r} lacks."
        )
    names, left_out = family.names[spoken], headers.take(*PRETRAINING)
    gated, names = _gated(headers, names)
    if kind == "siglip" and len(headers.shapes[f"{names.patches}.weight"]) == 2:
        raise CheckpointError(
            "the file is a SigLIP 2 for images of any shape (NaFlex), whose positions go to each image's own; no model "
            "here has them. Take one of fixed size, such as google/siglip2-base-patch16-224."
        )
    width, channels, patch = headers.patches(f"{names.patches}.weight")
    depth = headers.count(names.layer, "layer", end=".")
    block = f"{names.layer}0."
    mlp_width = headers.shape(f"{block}{names.contract}.weight", 2)[1]
    known = DINOV3_HEADS if kind == "dinov3_vit" else {}
    shape = depth, width, mlp_width
    offsets = _offsets(headers, names)
    said_heads = headers.shape(offsets, 2)[1] if offsets else told.get("num_attention_heads")
    heads, notes = find_heads(shape, hints, documents, said_heads, known=known)
    registers = _registers(headers, names)
    if not registers and names.registers in headers:
        left_out += headers.take(names.registers)
    token = names.token in headers
    if offsets:
        grid = offset_grid(headers.shape(offsets, 2)[0], PatchStem(patch=patch), Request())
        size = (grid[0] * patch, grid[1] * patch)
        table = family.resampling if names.table in headers else None
        at = "shared" if offsets == names.shared_offsets else "layers"
        positions: Any = BiasPositions(at=at, resampling="bilinear", table=table)
    elif kind == "beit" and names.table not in headers:
        size, positions = as_size(told.get("image_size", 224)), NoPositions()
    elif not family.rotary:
        headers.shape(names.table, names.table_axes)
        grid = _grid(headers.shapes[names.table][-2] - token - (0 if family.missing.placed else registers))
        size = (grid[0] * patch, grid[1] * patch)
        positions = LearnedPositions(resampling=family.resampling)
    else:
        size = hints.image_size or as_size(told.get("image_size", 224))
        size = (size[0] // patch * patch, size[1] // patch * patch)
        positions = RotaryPositions(period=float(told.get("rope_theta", 100.0)))
    fields: dict[str, Any] = {
        "stem": PatchStem(patch=patch),
        "depth": depth,
        "width": width,
        "mlp_width": mlp_width,
        "heads": heads,
        "image_size": size,
        "channels": channels,
        "positions": positions,
        "registers": registers,
        "class_token": token,
        "first_norm": bool(names.first_norm) and f"{names.first_norm}.weight" in headers,
        "mlp": "gated" if gated else "plain",
        "activation": _activation(kind, told, hints, documents, gated=gated),
        "epsilon": told.get("layer_norm_eps", noted(documents, "epsilon", family.defaults["layer_norm_eps"])),
        "qkv_bias": any(f"{block}{name}bias" in headers for name in names.qkv),
        "layer_scale": _scale(documents) if names.scales and f"{block}{names.scales[0]}" in headers else None,
        "dropout": said.get("hidden_dropout_prob", 0.0),
        "attention_dropout": said.get("attention_probs_dropout_prob", said.get("attention_dropout", 0.0)),
    }
    head, more, rest = _head(headers, names, width, channels)
    outside = tuple(name for name in headers.outside if name not in rest)
    fields |= more
    unused: tuple[str, ...] = ()
    if "pooling" not in more:
        pooling, final_norm = family.pooling[bool(fields["classes"])], family.final_norm[bool(fields["classes"])]
        if names.pooled_norm and f"{names.norm}.weight" not in headers:
            pooling, final_norm = "mean", "pooled" if f"{names.pooled_norm}.weight" in headers else "none"
        fields |= {"pooling": pooling, "final_norm": final_norm}
        if pooling != "attention" and names.pool is not None:
            unused += headers.take("head.")
        if final_norm == "none":
            unused += headers.take(f"{names.norm}.")
        if pooling == "attention" and names.pool is not None and names.pool.probe not in headers:
            fields |= {"pooling": "mean", "final_norm": "tokens"}
            notes = (*notes, "the mean of the tokens is the representation, since the file has no attention pooling")
    if fields["classes"] and not more.get("doubtless") and not is_last(headers, head, outside, names.table, channels):
        fields["classes"], notes = None, (*notes, DOUBT)
        fields |= {"pooling": family.pooling[0], "final_norm": family.final_norm[0]}
    fields.pop("doubtless", None)
    left_out += headers.take(*[name for name in headers.shapes if name.endswith("relative_position_index")])
    key_bias = fields["qkv_bias"] and f"{block}{names.qkv[1]}bias" not in headers
    query, _, value = (name.rstrip(".") for name in names.qkv)
    known = {"attention.query": query, "attention.value": value} if fields["qkv_bias"] else {}
    known |= {"attention.out": names.out, "mlp.expand": names.expand, "mlp.contract": names.contract}
    absent = tuple(ours for ours, name in known.items() if f"{block}{name}.bias" not in headers)
    missing = replace(family.missing, key_bias=key_bias, biases=(*family.missing.biases, *absent))
    inferred = (
        notes if top or read_note(documents) else (*notes, f"epsilon {fields['epsilon']:g}, as transformers' default")
    )
    dialect = {"prefix": headers.prefix, "names": spoken, "head": "classifier", "family": kind}
    dialect["resampling"] = family.resampling
    return Found(
        config=ViTConfig(**fields),
        dialect=dialect | {"missing": _plain(missing), "packed": gated and not names.gate},
        inferred=inferred,
        left_out=(*left_out, *unused, *outside),
    )


def rows(config: ViTConfig, dialect: Dialect) -> Iterator[Row]:
    """Give the row of every parameter."""
    family, prefix = FAMILIES[dialect["family"]], dialect["prefix"]
    names = family.names[dialect["names"]]
    if config.mlp == "gated":
        names = replace(names, **(GATED if dialect["packed"] else GATED_APART))
    if config.pooling == "distilled":
        names = replace(names, head="cls_classifier", second_head="distillation_classifier")
    given = dialect["missing"]
    missing = Missing(biases=tuple(given["biases"]), key_bias=given["key_bias"], placed=given["placed"])
    outer = prefix[: prefix[:-1].rfind(".") + 1]
    for row in vit_rows(config, names, missing=missing):
        yield row.under(outer if row.ours.startswith(("head.", "projection.")) else prefix)


def _plain(missing: Missing) -> dict[str, Any]:
    return {**asdict(missing), "biases": list(missing.biases)}


def usual_dialect(kind: str, config: ViTConfig) -> Dialect:
    """Speak as files of a family are written today."""
    family = FAMILIES[kind]
    classified = bool(config.classes) or config.projection is not None
    key_bias = kind in ("dinov3_vit", "beit") and config.qkv_bias
    return {
        "prefix": family.inside if classified else "",
        "names": "written",
        "head": "classifier",
        "family": kind,
        "resampling": family.resampling,
        "missing": _plain(replace(family.missing, key_bias=key_bias)),
        "packed": kind in ("dinov2", "dinov2_with_registers") and config.mlp == "gated",
    }


def _vision(family: Family, top: Mapping[str, Any]) -> Mapping[str, Any]:
    kind = top.get("model_type", family.model_types[0])
    if kind not in (*family.model_types, "siglip2") and not (kind == "siglip2_vision_model"):
        raise CheckpointError(
            f"config.json is of a {kind!r} model; its tensors are those of {' or '.join(family.model_types[:2])}."
        )
    found = top.get("vision_config", top)
    return found if isinstance(found, dict) else {}


def _first(names: TorchNames) -> str:
    return f"{names.layer}0.{names.qkv[0]}weight"


def _gated(headers: Headers, names: TorchNames) -> tuple[bool, TorchNames]:
    for change, mark in ((GATED, "expand"), (GATED_APART, "gate")):
        if f"{names.layer}0.{change[mark]}.weight" in headers:
            return True, replace(names, **change)
    return False, names


def _offsets(headers: Headers, names: TorchNames) -> str:
    """Find the biases of offsets, of the first layer or of all."""
    each = f"{names.layer}0.{names.offsets}"
    return next((name for name in (each, names.shared_offsets) if names.offsets and name in headers), "")


def _registers(headers: Headers, names: TorchNames) -> int:
    return headers.shape(names.registers, 3)[1] if names.registers and names.registers in headers else 0


def _grid(count: int) -> tuple[int, int]:
    """Give the square that transformers takes a table for, whatever images it was made for."""
    if not is_square(count):
        raise CheckpointError(
            f"the file's {count} positions are no square grid, and transformers' models of this kind have squares."
        )
    return isqrt(count), isqrt(count)


def _scale(documents: Mapping[str, Any]) -> float:
    said = documents.get("config.json", {})
    said = said.get("layerscale_value", said.get("layer_scale_init_value", 1.0))
    return float(said) if isinstance(said, int | float) else 1.0


def _activation(
    kind: str, told: Mapping[str, Any], hints: Request, documents: Mapping[str, Any], *, gated: bool
) -> str:
    """Find the activation: DINOv2's gates have their own; CLIP's is one of two where nothing says it."""
    if gated and kind.startswith("dinov2"):
        return "silu"
    known = told.get("hidden_act")
    if known is None:
        if (given := hints.fields.get("activation", read_note(documents).get("activation"))) is not None:
            return str(given)
        if kind == "clip":
            raise CheckpointError(CLIP_DOUBT)
        if gated:
            raise CheckpointError("the file does not say the activation of its gates. Say activation=silu or gelu.")
        known = FAMILIES[kind].defaults["hidden_act"]
    if not isinstance(known, str) or known not in ACTIVATIONS:
        raise CheckpointError(f"config.json says hidden_act={known!r}; this ViT has one of {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[known]


def _head(
    headers: Headers, names: TorchNames, width: int, channels: int
) -> tuple[str | None, dict[str, Any], set[str]]:
    """Find the classifier, or both, or a projection; with the tensors of it that lie outside the encoder's prefix."""
    outer = headers.prefix[: headers.prefix[:-1].rfind(".") + 1]
    every = headers.everything
    pair = [
        f"{outer}{name}.{part}" for name in ("cls_classifier", "distillation_classifier") for part in ("weight", "bias")
    ]
    if all(name in every for name in pair):
        fields = {"classes": every[pair[0]][0], "pooling": "distilled", "final_norm": "tokens", "doubtless": True}
        return None, fields, set(pair)
    projection = f"{outer}{names.projection}" if names.projection else ""
    if projection in every:
        fields = {"classes": None, "projection": every[projection][0], "pooling": "token", "final_norm": "tokens"}
        return None, fields, {projection}
    head, _ = find_head(every, (f"{outer}classifier.",), width)
    if head is None and f"{outer}classifier.weight" in every:  # DINOv2's reads two vectors
        shape = every[f"{outer}classifier.weight"]
        if len(shape) == 2 and shape[1] == 2 * width and every.get(f"{outer}classifier.bias") == shape[:1]:
            head = f"{outer}classifier"
    if head is None:
        return None, {"classes": None} | _pooler(headers, names), set()
    if not names.pooled_norm:
        headers.take("pooler.")
    return head, {"classes": every[f"{head}.weight"][0]}, {f"{head}.weight", f"{head}.bias"}


def _pooler(headers: Headers, names: TorchNames) -> dict[str, Any]:
    hidden = headers.rows(f"{names.hidden}.weight") if names.hidden else None
    return {} if hidden is None else {"pre_logits": hidden}
