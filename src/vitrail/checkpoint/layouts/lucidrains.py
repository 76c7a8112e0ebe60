"""lucidrains' vit-pytorch: ViT and SimpleViT, of today and of before version 1."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isqrt
from typing import Any

from vitrail.checkpoint.adapt import Request
from vitrail.checkpoint.archives.base import Entry, Headers
from vitrail.checkpoint.layouts.base import Codec, Dialect, Found, Holds, Layout, Row, common_prefix, read_note
from vitrail.checkpoint.layouts.codecs import SAME, pair
from vitrail.checkpoint.layouts.inference import file_grid, find_head, is_square, noted_grid
from vitrail.checkpoint.layouts.vit_rows import Missing, TorchNames, vit_rows
from vitrail.config import LearnedPositions, ModelConfig, PatchStem, Sinusoidal2DPositions, ViTConfig
from vitrail.errors import CheckpointError

LAYER = "transformer.layers."
ONE_HEAD = "attention.out.weight"
TODAY = TorchNames(
    patches="to_patch_embedding.2",
    token="cls_token",
    table="pos_embedding",
    layer=LAYER,
    attention_norm="0.norm",
    qkv=("0.to_qkv.",),
    out="0.to_out.0",
    mlp_norm="1.net.0",
    expand="1.net.1",
    contract="1.net.4",
    norm="transformer.norm",
    pooled_norm="mlp_head.0",
    head="mlp_head",
)
WRAPPED = replace(TODAY, qkv=("0.fn.to_qkv.",), out="0.fn.to_out.0", mlp_norm="1.norm", expand="1.fn.net.0")
KINDS = {
    "vit": TODAY,
    "simple": replace(TODAY, out="0.to_out", contract="1.net.3", head="linear_head", pooled_norm="linear_head.0"),
    "wrapped": replace(WRAPPED, contract="1.fn.net.3"),
}


def recognize(entries: Mapping[str, Entry]) -> str | None:
    """Find the prefix of a ViT of vit-pytorch."""
    found = [common_prefix(entries, f"{LAYER}0.{names.qkv[0]}weight") for names in KINDS.values()]
    prefix = next((prefix for prefix in found if prefix is not None), None)
    known = prefix is not None and any(f"{prefix}to_patch_embedding.{place}.weight" in entries for place in (1, 2))
    return prefix if known else None


def infer(headers: Headers, hints: Request, documents: Mapping[str, Any]) -> Found:
    """Read the configuration off names and shapes; heads, and the grid of fixed positions, must be said."""
    kind = "wrapped" if f"{LAYER}0.0.fn.to_qkv.weight" in headers else "simple" if "cls_token" not in headers else "vit"
    names, first = KINDS[kind], f"{LAYER}0."
    normed = "to_patch_embedding.2.weight" in headers
    kernel = "to_patch_embedding.2" if normed else "to_patch_embedding.1"
    width, values = headers.shape(f"{kernel}.weight", 2)
    stem, channels = _patches(values, headers, hints, normed=normed)
    attention = headers.shape(f"{first}{names.qkv[0]}weight", 2)[0] // 3
    heads = hints.fields.get("heads", read_note(documents).get("heads"))
    if not isinstance(heads, int) or isinstance(heads, bool) or heads < 1 or attention % heads:
        raise CheckpointError(
            f"the file does not say how many heads share its {attention} features (vit-pytorch's own heads have 64: "
            f"that would be {attention // 64}). Say heads=... that divides them; got {heads!r}."
        )
    token, positions, size, placed = _tokens(headers, hints, documents, stem, kind)
    old = f"{names.norm}.weight" not in headers
    head = names.pooled_norm.removesuffix(".0") + ".1" if old else names.head
    found, strange = find_head(headers.shapes, (f"{head}.",), width)
    left_out = headers.take(*strange) if strange else ()
    if old and f"{names.pooled_norm}.weight" not in headers:
        raise CheckpointError("the file lacks the last norm of a ViT of vit-pytorch, in the encoder or in its head.")
    config = ViTConfig(
        stem=stem,
        depth=headers.count(LAYER, "layer", end="."),
        width=width,
        mlp_width=headers.shape(f"{first}{names.expand}.weight", 2)[0],
        heads=heads,
        attention_width=None if attention == width else attention,
        classes=headers.rows(f"{found}.weight") if found else None,
        image_size=size,
        channels=channels,
        positions=positions,
        pooling="token" if token else "mean",
        final_norm="pooled" if old else "tokens",
        activation="gelu",
        qkv_bias=False,
        epsilon=1e-5,
    )
    lacking = ["attention.out"] if f"{first}{names.out}.bias" not in headers else []
    if heads == 1 and attention == width and f"{first}{names.out}.weight" not in headers:
        lacking.append(ONE_HEAD)  # which vit-pytorch gives no output layer
    axes = len(headers.shapes.get("cls_token", (1, 1, 1)))
    dialect = {"prefix": headers.prefix, "kind": kind, "kernel": kernel, "head": found or head, "axes": axes}
    said = f"{heads} heads as said; exact GELU and epsilon 1e-5, as vit-pytorch has"
    if channels == 1 and stem.patch % 2 == 0:
        said += (
            f"; patches of {stem.patch} pixels of 1 channel (of {stem.patch // 2} of 4 they would have as many values)"
        )
    if token and axes == 3:
        said += "; the class token is the representation, as its pool='cls'"
    return Found(
        config=config,
        dialect=dialect | {"missing": {"biases": lacking, "placed": placed}},
        inferred=(said,),
        left_out=(*left_out, *_empty(headers), *headers.outside),
    )


def _empty(headers: Headers) -> tuple[str, ...]:
    """Leave out a class token of no rows, as a mean's file has."""
    return headers.take("cls_token") if 0 in headers.shapes.get("cls_token", (1,)) else ()


def _patches(values: int, headers: Headers, hints: Request, *, normed: bool) -> tuple[PatchStem, int]:
    """Find the patch side and the channels of so many values: three channels, or one, or what the image size says."""
    for channels in (3, 1):
        side = isqrt(values // channels)
        if values % channels == 0 and side * side * channels == values:
            return PatchStem(patch=side, norms=normed), channels
    table = headers.shapes.get("pos_embedding", (0, 0))[-2]
    table -= "cls_token" in headers and headers.shapes["cls_token"][-2] > 0
    if hints.image_size is not None and table > 0 and is_square(table):
        side = hints.image_size[0] // isqrt(table)
        if side and values % (side * side) == 0:
            return PatchStem(patch=side, norms=normed), values // (side * side)
    raise CheckpointError(
        f"patches of {values} values are no squares of 3 channels or of 1. Of other channels say the "
        "image_size=... that the model was trained on, where that is a square."
    )


def _tokens(
    headers: Headers, hints: Request, documents: Mapping[str, Any], stem: PatchStem, kind: str
) -> tuple[bool, Any, tuple[int, int], int | None]:
    known = noted_grid(documents, stem, hints)
    if kind != "simple" and "pos_embedding" in headers:
        token = headers.shapes["cls_token"][-2] > 0 if "cls_token" in headers else False
        count = headers.shapes["pos_embedding"][-2]
        (rows, cols), _ = file_grid(count, stem, known, class_entry=token)
        return token, LearnedPositions(), (rows * stem.patch, cols * stem.patch), None
    if known.grid is None and hints.image_size is None:
        raise CheckpointError("the file has fixed positions and does not say of which grid. Say image_size=...")
    rows, cols = known.grid or stem.grid(*(hints.image_size or (0, 0)))
    return False, Sinusoidal2DPositions(code="simple"), (rows * stem.patch, cols * stem.patch), None


def rows(config: ModelConfig, dialect: Dialect) -> Iterator[Row]:
    """Give the row of every parameter."""
    assert isinstance(config, ViTConfig)
    axes = dialect["axes"]
    names = replace(
        KINDS[dialect["kind"]], patches=dialect["kernel"], head=dialect["head"], token_axes=axes, table_axes=axes
    )
    from vitrail.checkpoint.layouts.table_codecs import constant  # few files need it

    missing = Missing(biases=tuple(dialect["missing"]["biases"]))
    for row in vit_rows(config, names, missing=missing):
        if missing.has(ONE_HEAD) and row.ours.endswith(ONE_HEAD):
            row = row._replace(theirs=(), codec=constant(row.ours, row.shape))
        if row.ours == "embedding.projection.weight":  # a linear layer of flat patches, by row, column and channel
            shape = (config.width, config.stem.patch**2 * config.channels)
            row = row._replace(shape=shape, codec=Codec(SAME.read, SAME.write))
        yield row.under(dialect["prefix"])
    if isinstance(config.stem, PatchStem) and config.stem.norms:
        values = config.stem.patch**2 * config.channels
        for ours, place, wide in (("values_norm", 1, values), ("embedding_norm", 3, config.width)):
            for row in pair(f"embedding.{ours}", f"to_patch_embedding.{place}", (wide,)):
                yield row.under(dialect["prefix"])


LAYOUT = Layout(
    name="vit-pytorch",
    title="lucidrains' names (vit-pytorch)",
    recognize=recognize,
    infer=infer,
    rows=rows,
    dialect=lambda config: {
        "prefix": "",
        "kind": "vit",
        "kernel": "to_patch_embedding.2",
        "head": "mlp_head",
        "axes": 2,
    },
    holds=Holds(),
    writes=False,
)
