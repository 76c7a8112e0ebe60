"""torchvision's names for ViT: exact GELU, a pre-training layer where there is one."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from vitrail.checkpoint.adapt import Request
from vitrail.checkpoint.archives.base import Headers
from vitrail.checkpoint.layouts.base import Dialect, Found, Holds, Layout, Row, common_prefix, read_note
from vitrail.checkpoint.layouts.inference import (
    DOUBT,
    file_grid,
    find_head,
    find_heads,
    is_last,
    noted,
    noted_grid,
    take_beside,
)
from vitrail.checkpoint.layouts.vit_rows import TorchNames, vit_rows
from vitrail.config import LearnedPositions, ModelConfig, PatchStem, ViTConfig
from vitrail.errors import CheckpointError

LAYER = "encoder.layers.encoder_layer_"
NUMERICS = "GELU in its exact form and epsilon 1e-6, as torchvision's ViTs have"
OWN = ("conv_proj.", "encoder.", "heads.")  # what stands before the first dot; other layers there were put beside it
# The MLP's two layers, of today and of before version 0.13.
MLPS = {"mlp.0": "mlp.3", "mlp.linear_1": "mlp.linear_2"}
NAMES = TorchNames(
    patches="conv_proj",
    token="class_token",
    table="encoder.pos_embedding",
    layer=LAYER,
    attention_norm="ln_1",
    qkv=("self_attention.in_proj_",),
    out="self_attention.out_proj",
    mlp_norm="ln_2",
    expand="mlp.0",
    contract="mlp.3",
    norm="encoder.ln",
    hidden="heads.pre_logits",
    head="heads.head",
)


def infer(headers: Headers, hints: Request, documents: Mapping[str, Any]) -> Found:
    """Read the configuration off names and shapes."""
    if "conv_proj.weight" not in headers:
        raise CheckpointError(
            "the file's ViT has a stem of convolutions in place of patches, which no paper's ViT has."
        )
    width, channels, patch = headers.patches("conv_proj.weight")
    stem = PatchStem(patch=patch)
    (rows, cols), _ = file_grid(
        headers.shape("encoder.pos_embedding", 3)[1], stem, noted_grid(documents, stem, hints), class_entry=True
    )
    first = next((name for name in MLPS if f"{LAYER}0.{name}.weight" in headers), "mlp.0")
    shape = headers.count(LAYER, "layer", end="."), width, headers.shape(f"{LAYER}0.{first}.weight", 2)[0]
    heads, notes = find_heads(shape, hints, documents)
    left_out = take_beside(headers, OWN)
    hidden = headers.rows("heads.pre_logits.weight")
    after = {name: each for name, each in headers.shapes.items() if not name.startswith("heads.pre_logits.")}
    head, strange = find_head(after, ("heads.",), hidden or width)
    left_out += headers.take(*strange)
    if head and not is_last(headers, headers.prefix + head, (*left_out, *headers.outside), NAMES.table, channels):
        left_out, head, notes = left_out + headers.take(f"{head}."), None, (*notes, DOUBT)
    config = ViTConfig(
        stem=stem,
        depth=shape[0],
        width=width,
        mlp_width=shape[2],
        heads=heads,
        classes=headers.rows(f"{head}.weight"),
        image_size=(rows * patch, cols * patch),
        channels=channels,
        positions=LearnedPositions(resampling=LAYOUT.holds.resampling),
        activation=noted(documents, "activation", "gelu"),
        epsilon=noted(documents, "epsilon", 1e-6),
        pre_logits=hidden,
    )
    return Found(
        config=config,
        dialect={"prefix": headers.prefix, "mlp": first, "headless": head is None, "head": head or NAMES.head},
        inferred=(*notes, *([] if read_note(documents) else [NUMERICS])),
        left_out=(*left_out, *headers.outside),
    )


def rows(config: ModelConfig, dialect: Dialect) -> Iterator[Row]:
    """Give the row of every parameter."""
    assert isinstance(config, ViTConfig)
    names = replace(NAMES, expand=dialect["mlp"], contract=MLPS[dialect["mlp"]], head=dialect["head"])
    return (row.under(dialect["prefix"]) for row in vit_rows(config, names))


LAYOUT = Layout(
    name="torchvision",
    title="torchvision's names",
    recognize=lambda entries: common_prefix(entries, f"{LAYER}0.self_attention.in_proj_weight"),
    infer=infer,
    rows=rows,
    dialect=lambda config: {"prefix": "", "mlp": "mlp.0", "headless": False, "head": NAMES.head},
    holds=Holds(headless=False, rectangles=False, resampling="bicubic-corners"),
)
