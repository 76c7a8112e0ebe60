"""ViTs around torch's own nn.TransformerEncoder: its layers by name, whatever stands around them by shape."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from vitrail.checkpoint.adapt import Request
from vitrail.checkpoint.archives.base import Entry, Headers
from vitrail.checkpoint.layouts.base import Dialect, Found, Holds, Layout, Row, read_note
from vitrail.checkpoint.layouts.inference import file_grid, noted_grid
from vitrail.checkpoint.layouts.vit_rows import Missing, TorchNames, vit_rows
from vitrail.config import LearnedPositions, ModelConfig, PatchStem, ViTConfig
from vitrail.errors import CheckpointError

FIRST = re.compile(r"(.*?)layers\.0\.self_attn\.in_proj_weight")
OPEN = {
    "heads": "how many heads share its width",
    "norm": "whether norms come before attention and MLP (norm=pre, norm_first=True in torch) or after (norm=post)",
    "activation": "the activation (activation=relu, torch's default, or gelu)",
}


def recognize(entries: Mapping[str, Entry]) -> str | None:
    """Tell whether a file has the layers of one nn.TransformerEncoder; what stands around it has no prefix."""
    found = {match[1] for name in entries if (match := FIRST.fullmatch(name))}
    alone = len(found) == 1 and f"{min(found)}layers.0.linear1.weight" in entries
    decoder = any(".multihead_attn." in name for name in entries)
    return "" if alone and not decoder else None


def infer(headers: Headers, hints: Request, documents: Mapping[str, Any]) -> Found:
    """Read what names and shapes show; what they do not must be said."""
    before = next(match[1] for name in headers.shapes if (match := FIRST.fullmatch(name)))
    layer, first = f"{before}layers.", f"{before}layers.0."
    width = headers.shape(f"{first}self_attn.in_proj_weight", 2)[1]
    note = read_note(documents)
    said = {name: hints.fields.get(name, note.get(name)) for name in OPEN}
    if unsaid := [what for name, what in OPEN.items() if said[name] is None]:
        raise CheckpointError(f"the file has torch's own nn.TransformerEncoder, and does not say {'; '.join(unsaid)}.")
    around = {name: shape for name, shape in headers.shapes.items() if not name.startswith(layer)}
    patches = _one(around, "convolution that cuts patches", lambda shape: len(shape) == 4 and shape[0] == width)
    _, channels, patch = headers.patches(patches)
    stem = PatchStem(patch=patch)
    tokens = [name for name, shape in around.items() if shape in ((1, 1, width), (1, width))]
    if len(tokens) > 1:
        raise CheckpointError(f"the file has several tensors that may be its class token: {', '.join(tokens)}.")
    tables = [name for name, shape in around.items() if shape[-1:] == (width,) and _is_table(shape)]
    tables = [name for name in tables if "pos" in name.lower()]
    table = _one({name: around[name] for name in tables}, "position table, with 'pos' in its name", lambda shape: True)
    count = headers.shapes[table][-2]
    (rows, cols), _ = file_grid(count, stem, noted_grid(documents, stem, hints), class_entry=bool(tokens))
    norm = _final_norm(around, before, width)
    heads = [name for name, shape in around.items() if len(shape) == 2 and shape[1] == width and name != table]
    heads = [name.removesuffix(".weight") for name in heads if f"{name.removesuffix('weight')}bias" in around]
    if len(heads) > 1:
        raise CheckpointError(f"the file has several layers that may be its classifier: {', '.join(heads)}.")
    pooling = hints.fields.get("pooling", note.get("pooling", "token" if tokens else None))
    if pooling is None:
        raise CheckpointError("the file has no class token, and does not say how tokens are pooled. Say pooling=mean.")
    config = ViTConfig(
        stem=stem,
        depth=headers.count(layer, "layer", end="."),
        width=width,
        mlp_width=headers.shape(f"{first}linear1.weight", 2)[0],
        heads=_whole(said["heads"], width),
        classes=around[f"{heads[0]}.weight"][0] if heads else None,
        image_size=(rows * patch, cols * patch),
        channels=channels,
        positions=LearnedPositions(),
        norm=said["norm"],  # pyright: ignore[reportArgumentType]
        activation=said["activation"],  # pyright: ignore[reportArgumentType]
        class_token=bool(tokens),
        final_norm="tokens" if norm else "none",
        pooling=pooling,  # pyright: ignore[reportArgumentType]
        epsilon=note.get("epsilon", 1e-5),
    )
    names = {"patches": patches.removesuffix(".weight"), "token": tokens[0] if tokens else "", "table": table}
    names |= {"layer": layer, "norm": norm, "head": heads[0] if heads else ""}
    axes = {"token_axes": len(around[tokens[0]]) if tokens else 3, "table_axes": len(around[table])}
    lacking = [] if f"{names['patches']}.bias" in around else ["embedding.projection"]
    dialect = {"prefix": "", "parts": names, "axes": axes, "missing": {"biases": lacking, "placed": None}}
    inferred = ("epsilon 1e-5, torch's default", f"what stands around the layers, by shape: {_listed(names)}")
    return Found(config=config, dialect=dialect, inferred=inferred, left_out=tuple(headers.outside))


def _is_table(shape: tuple[int, ...]) -> bool:
    return (len(shape) == 3 and shape[0] == 1 and shape[1] > 1) or (len(shape) == 2 and shape[0] > 1)


def _one(shapes: Mapping[str, tuple[int, ...]], what: str, fits: Any) -> str:  # noqa: ANN401
    found = [name for name, shape in shapes.items() if fits(shape)]
    if len(found) != 1:
        some = f"several: {', '.join(found[:4])}" if found else "none"
        raise CheckpointError(f"beside torch's nn.TransformerEncoder the file must have one {what}; it has {some}.")
    return found[0]


def _final_norm(around: Mapping[str, tuple[int, ...]], before: str, width: int) -> str:
    """Find the norm after the layers: the encoder's own, or the only one outside; nothing where there is none."""
    norms = [
        name.removesuffix(".weight")
        for name, shape in around.items()
        if name.endswith(".weight") and shape == (width,) and around.get(f"{name.removesuffix('weight')}bias") == shape
    ]
    if not norms:
        return ""
    if len(norms) > 1:
        raise CheckpointError(f"the file has several norms beside its layers, whose places are not said: {norms}.")
    if norms != [f"{before}norm"] and re.search(r"pre|patch|embed|input|stem", norms[0]):
        raise CheckpointError(f"the file's norm {norms[0]!r} may stand before the layers: its place is not said.")
    return norms[0]


def _whole(heads: object, width: int) -> int:
    if not isinstance(heads, int) or isinstance(heads, bool) or heads < 1 or width % heads:
        raise CheckpointError(f"heads must be a whole number that divides the width {width}; got {heads!r}.")
    return heads


def _listed(names: Mapping[str, str]) -> str:
    return ", ".join(f"{part} {name}" for part, name in names.items() if name and part != "layer")


def rows(config: ModelConfig, dialect: Dialect) -> Iterator[Row]:
    """Give the row of every parameter."""
    assert isinstance(config, ViTConfig)
    names = TorchNames(
        **dialect["parts"],
        **dialect["axes"],
        attention_norm="norm1",
        qkv=("self_attn.in_proj_",),
        out="self_attn.out_proj",
        mlp_norm="norm2",
        expand="linear1",
        contract="linear2",
    )
    return vit_rows(config, names, missing=Missing(biases=tuple(dialect["missing"]["biases"])))


LAYOUT = Layout(
    name="torch-encoder",
    title="layers of torch's nn.TransformerEncoder",
    recognize=recognize,
    infer=infer,
    rows=rows,
    dialect=lambda config: {"prefix": ""},
    holds=Holds(),
    writes=False,
)
