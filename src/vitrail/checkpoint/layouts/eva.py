"""timm's EVA-02 and DINOv3, with rotary positions that no tensor shows, and BEiT; and these in their authors' names."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from vitrail.checkpoint.adapt import Request
from vitrail.checkpoint.archives.base import Entry, Headers
from vitrail.checkpoint.layouts import timm_parts
from vitrail.checkpoint.layouts.base import Dialect, Found, Row, read_note
from vitrail.checkpoint.layouts.inference import (
    DINOV3_HEADS,
    DOUBT,
    find_head,
    find_heads,
    is_last,
    noted_grid,
    offset_grid,
    take_beside,
)
from vitrail.checkpoint.layouts.vit_rows import Missing, TorchNames, alike, vit_rows
from vitrail.config import BiasPositions, LearnedPositions, PatchStem, RotaryPositions, ViTConfig
from vitrail.errors import CheckpointError, ConfigError, ShapeError

BLOCK = "blocks.0."
OFFSETS = "relative_position_bias_table"
NAMES = TorchNames(
    patches="patch_embed.proj",
    token="cls_token",
    registers="reg_token",
    table="pos_embed",
    layer="blocks.",
    attention_norm="norm1",
    qkv=("attn.qkv.",),
    out="attn.proj",
    mlp_norm="norm2",
    expand="mlp.fc1",
    contract="mlp.fc2",
    scales=("gamma_1", "gamma_2"),
    offsets=f"attn.{OFFSETS}",
    shared_offsets=f"rel_pos_bias.{OFFSETS}",
    qk_norms=("attn.q_norm", "attn.k_norm"),
    inner_norms=("attn.norm", "mlp.norm"),
    norm="norm",
    pooled_norm="fc_norm",
    head="head",
)
APART = replace(NAMES, qkv=("attn.q_proj.", "attn.k_proj.", "attn.v_proj."))
PACKED = replace(NAMES, biases=("attn.q_bias", "attn.v_bias"))
AUTHORS = replace(NAMES, registers="storage_tokens", scales=("ls1.gamma", "ls2.gamma"))
SPOKEN = {"apart": APART, "packed": PACKED, "authors": AUTHORS}
GATES = {"mlp.w1": {"gate": "mlp.w1", "expand": "mlp.w2", "contract": "mlp.w3"}, **timm_parts.GATES}
OWN = ("patch_embed.", "blocks.", "norm.", "fc_norm.", "head.", "rope", "attn_pool.", "norm_pre.", "rel_pos_bias.")
REFERENCE = 16  # patches a side that EVA-02's angles are those of, in every published model
# Heads by depth, width and MLP width: of EVA-02, then of DINOv3 and LingBot, which differ from a ViT's of one shape.
PUBLISHED = {(12, 192, 512): 3, (12, 384, 1024): 6, (12, 768, 2048): 12, (24, 1024, 2730): 16, (40, 1408, 6144): 16}
PUBLISHED |= DINOV3_HEADS
LINGBOT = ((12, 384), (12, 768), (24, 1024))  # depth and width, which a DINOv3 of timm has too
LINGBOT_GIANT = (40, 1536)
ENORMOUS = (64, 1792)  # of EVA-02's CLIP alone, whose norms come after attention and MLP
POOLED = (
    "the file is a DINOv3 of timm, whose answer is the mean of its patches, or a LingBot, whose answer is its class "
    "token; no tensor shows which. Say pooling=mean or pooling=token."
)


def is_eva(headers: Headers) -> bool:
    """Tell whether a file with timm's patches and blocks is one of EVA, or of DINOv3."""
    marks = ("attn.q_proj.weight", "attn.q_bias", "gamma_1", NAMES.offsets)
    whole = ("storage_tokens", NAMES.shared_offsets)
    return any(name in headers for name in (*whole, *(BLOCK + mark for mark in marks)))


def infer(headers: Headers, hints: Request, documents: Mapping[str, Any]) -> Found:
    """Read the configuration off names and shapes; positions are as the published models of these parts have them."""
    authors = "storage_tokens" in headers
    spoken = "authors" if authors else "apart" if f"{BLOCK}attn.q_proj.weight" in headers else "packed"
    left_out = headers.take("mask_token", *(("rope_embed.periods",) if authors else ()))
    buffers = ("attn.qkv.bias_mask", "relative_position_index")
    left_out += headers.take(*[name for name in headers.shapes if name.endswith(buffers)])
    left_out += take_beside(headers, OWN)
    headers.refuse(
        {
            "rope": "angles of its own",
            **({} if NAMES.shared_offsets in headers else {"rel_pos": "relative positions"}),
            "attn_pool": "attention pooling",
            "norm_pre.": "a norm before its blocks",
            "attn.gate.": "gated attention",
            "attn.qkv.bias": "biases of keys",
        }
        if not authors
        else {"local_cls_norm": "another norm"},
        "which no published EVA-02, DINOv3 or BEiT has",
    )
    width, channels, patch = headers.patches("patch_embed.proj.weight")
    gate = next((name for name in GATES if f"{BLOCK}{name}.weight" in headers), None)
    last = GATES[gate]["contract"] if gate and "contract" in GATES[gate] else "mlp.fc2"
    wide = headers.shape(f"{BLOCK}{last}.weight", 2)[1]
    gated = gate is not None or headers.shape(f"{BLOCK}mlp.fc1.weight", 2)[0] == 2 * wide
    shape = headers.count("blocks.", "block", end="."), width, wide
    told = documents.get("config.json", {})
    args = told.get("model_args", {}) if isinstance(told.get("model_args"), dict) else {}
    offsets = next((name for name in (BLOCK + NAMES.offsets, NAMES.shared_offsets) if name in headers), None)
    said = headers.shape(offsets, 2)[1] if offsets else args.get("num_heads")
    heads, notes = find_heads(shape, hints, documents, said, known=PUBLISHED)
    names = SPOKEN[spoken]
    registers = headers.shape(names.registers, 3)[1] if names.registers in headers else 0
    token = "cls_token" in headers
    biased = (
        f"{BLOCK}attn.q_bias" in headers or f"{BLOCK}attn.q_proj.bias" in headers or f"{BLOCK}attn.qkv.bias" in headers
    )
    fields: dict[str, Any] = {"registers": registers, "class_token": token, "qkv_bias": biased, "width": width}
    positions, size, placed = _positions(headers, hints, documents, fields, patch, gated=gated)
    dino = isinstance(positions, RotaryPositions) and positions.places == "share"
    head, strange = find_head(headers.shapes, ("head.",), width)
    left_out += headers.take(*strange)
    if head and not is_last(headers, headers.prefix + head, (*left_out, *headers.outside), NAMES.table, channels):
        left_out, head, notes = left_out + headers.take(f"{head}."), None, (*notes, DOUBT)
    norm = "tokens" if "norm.weight" in headers else "pooled" if "fc_norm.weight" in headers else "none"
    pooling, said = _pooling(headers, hints, documents, norm=norm, dino=dino, biased=biased, authors=authors)
    inner = [f"{BLOCK}{part}.norm.weight" in headers for part in ("attn", "mlp")]
    branch = timm_parts.architecture_of(documents).startswith("eva02_enormous") or shape[:2] == ENORMOUS
    epsilon = read_note(documents).get("epsilon", 1e-5 if dino else 1e-6)
    config = ViTConfig(
        **fields,
        stem=PatchStem(patch=patch),
        depth=shape[0],
        mlp_width=wide,
        heads=heads,
        classes=headers.rows(f"{head}.weight"),
        image_size=size,
        channels=channels,
        positions=positions,
        mlp="gated" if gated else "plain",
        activation="silu" if gated else "gelu",
        inner_norm="both" if all(inner) else "mlp" if inner[1] else "none",
        qk_norm=f"{BLOCK}attn.q_norm.weight" in headers,
        layer_scale=1e-5 if any(BLOCK + name in headers for name in ("gamma_1", "ls1.gamma")) else None,
        norm="branch" if branch else "pre",
        final_norm=norm,
        pooling=pooling,
        epsilon=epsilon,
    )
    of = "DINOv3" if dino else "EVA-02" if isinstance(positions, RotaryPositions) else "BEiT" if offsets else "EVA"
    inferred = (*notes, *said, f"the positions, {config.activation} and epsilon {epsilon:g} are {of}'s")
    inferred += () if gated or dino or offsets else (f"norm={config.norm}: where its norms are",)
    dialect: dict[str, Any] = {"prefix": headers.prefix, "eva": spoken, "gate": gate, "head": head or "head"}
    dialect |= {"folded": False, "hidden": None, "registers": None}
    key_bias = biased and not authors
    dialect["missing"] = {"biases": [], "key_bias": key_bias, "placed": placed}
    return Found(config=config, dialect=dialect, inferred=inferred, left_out=(*left_out, *headers.outside))


def _positions(
    headers: Headers,
    hints: Request,
    documents: Mapping[str, Any],
    fields: Mapping[str, Any],
    patch: int,
    *,
    gated: bool,
) -> tuple[Any, tuple[int, int], int | None]:
    """Find positions, the image size, and how many of the tokens before the patches have an entry in a table."""
    leading = fields["class_token"] + fields["registers"]
    if offsets := next((name for name in (BLOCK + NAMES.offsets, NAMES.shared_offsets) if name in headers), None):
        known = noted_grid(documents, PatchStem(patch=patch), hints)
        rows, cols = offset_grid(headers.shape(offsets, 2)[0], PatchStem(patch=patch), known)
        biases = BiasPositions(
            at="layers" if offsets.startswith(BLOCK) else "shared",
            table="bicubic-antialias" if "pos_embed" in headers else None,
        )
        return biases, (rows * patch, cols * patch), None
    if "pos_embed" in headers:
        choices = [leading, 0] if leading else [0]
        count = headers.shape("pos_embed", 3)[1]
        known = timm_parts.documented_grid(documents, PatchStem(patch=patch), hints, count, leading)
        (rows, cols), entries = timm_parts.table_grid(count, PatchStem(patch=patch), known, choices)
        size, placed = (rows * patch, cols * patch), None if entries == leading else entries
        if not gated:  # EVA, before EVA-02
            return LearnedPositions(resampling="bicubic-antialias"), size, placed
        eva = {"period": 10_000.0, "places": "steps", "pairs": "neighbors", "reference": REFERENCE}
        return RotaryPositions(**eva, table="bicubic-antialias"), size, placed
    said = [(high // patch * patch, wide // patch * patch) for high, wide in timm_parts.sizes_said(documents)]
    size = hints.image_size or next((each for each in said if all(each)), (16 * patch, 16 * patch))
    if fields["class_token"] and fields["registers"]:
        return RotaryPositions(), size, None
    if fields["registers"]:
        return RotaryPositions(period=10_000.0, places="steps", pairs="neighbors", reference=REFERENCE), size, None
    raise CheckpointError(
        "the file has no position table and no registers: its rotary positions may be of several kinds "
        "(vit_*_rope_*), and no tensor shows which."
    )


def _pooling(
    headers: Headers,
    hints: Request,
    documents: Mapping[str, Any],
    *,
    norm: str,
    dino: bool,
    biased: bool,
    authors: bool,
) -> tuple[Any, tuple[str, ...]]:
    told = documents.get("config.json", {})
    args = told.get("model_args", {}) if isinstance(told.get("model_args"), dict) else {}
    said = args.get("global_pool", told.get("global_pool"))
    known = {"avg": "mean", "token": "token", "max": "max"}
    if said is not None and said not in known:
        raise CheckpointError(f"config.json says global_pool={said!r}; this ViT has one of {', '.join(known)}.")
    given = hints.fields.get("pooling", read_note(documents).get("pooling", known.get(str(said))))
    if given is not None:
        return given, ()
    if authors:
        return "token", ()
    if norm == "pooled" or "cls_token" not in headers:
        return "mean", ()
    if not dino:
        return "token", ()
    shape = headers.count("blocks.", "block", end="."), headers.shape("patch_embed.proj.weight", 4)[0]
    if biased and shape in LINGBOT:
        raise CheckpointError(POOLED)
    if not biased and shape == LINGBOT_GIANT:
        return "token", ("the class token is the representation, as timm's LingBot has it",)
    return "mean", ("the mean of the patches is the representation, as timm's DINOv3 has it",)


def rows(config: ViTConfig, dialect: Dialect) -> Iterator[Row]:
    """Give the row of every parameter."""
    names = replace(SPOKEN[dialect["eva"]], head=dialect["head"])
    if dialect["gate"]:
        names = replace(names, **GATES[dialect["gate"]])
    said = dialect["missing"]
    missing = Missing(biases=tuple(said["biases"]), key_bias=said["key_bias"], placed=said["placed"])
    return (row.under(dialect["prefix"]) for row in vit_rows(config, names, missing=missing))


def holds(config: ViTConfig) -> bool:
    """Tell whether timm's EVA or BEiT holds this model whole: a file of it would be read back alike."""
    if not isinstance(config.positions, RotaryPositions | BiasPositions) or not isinstance(config.stem, PatchStem):
        return False
    try:
        written = list(rows(config, usual_dialect(config)))
        entries = {name: Entry(shape, torch.float32) for row in written for name, shape in row.shapes().items()}
        told = {"heads": config.heads, "pooling": config.pooling}
        request = Request(fields=told, image_size=config.image_size, grid=config.grid)
        found = infer(Headers(entries, ""), request, {})
    except (CheckpointError, ConfigError, ShapeError):
        return False
    return alike(found.config) == alike(config) and not found.left_out


def usual_dialect(config: ViTConfig) -> dict[str, Any]:
    """Speak as timm does today: packed matrices, and gates apart where a norm follows them or DINOv3 has them."""
    dino = isinstance(config.positions, RotaryPositions) and config.positions.places == "share"
    apart = config.mlp == "gated" and (config.inner_norm != "none" or dino)
    missing = {"biases": [], "key_bias": config.qkv_bias, "placed": None}
    said = {"prefix": "", "eva": "apart" if config.inner_norm != "none" else "packed", "head": "head"}
    return said | {"gate": "mlp.fc1_g" if apart else None, "missing": missing}
