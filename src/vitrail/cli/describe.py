"""`vitrail describe`: what a file of weights is, and anything odd about it."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from vitrail.cli.render import plain_table, working
from vitrail.cli.sizes import read_pair, read_size
from vitrail.config import ViTConfig, encode, read_settings, row

if TYPE_CHECKING:
    from vitrail.checkpoint.describe import Description, TensorStatistics

PARTS = ("embedding", "convolutions", "class token", "positions", "attention", "MLPs", "norms", "hidden", "head")

Source = Annotated[
    str, typer.Argument(metavar="FILE", help="A file or folder of weights, https://..., or hf:OWNER/NAME.")
]
ImageSize = Annotated[
    str | None, typer.Option(metavar="SIDE|HxW", help="Pixels that it was trained on, where its positions need it.")
]
GridOption = Annotated[str | None, typer.Option("--grid", metavar="ROWSxCOLS", help="Of its position table.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="What the file leaves open, such as heads=6.")
]
Tensors = Annotated[bool, typer.Option("--tensors", help="List every tensor.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]


def describe(
    source: Source,
    image_size: ImageSize = None,
    grid: GridOption = None,
    settings: Settings = None,
    tensors: Tensors = False,
    as_json: Json = False,
) -> None:
    """Say what a file of weights is: layout, architecture, shapes, numbers, and anything odd."""
    size = None if image_size is None else read_size(image_size)
    shape = None if grid is None else read_pair("--grid", grid)
    fields = read_fields(settings or [])
    from vitrail.checkpoint.describe import describe as look

    with working("reading ..."):
        found = look(source, image_size=size, grid=shape, **fields)
    if as_json:
        typer.echo(json.dumps(document(found), indent=2))
        return
    _show(found, every=tensors)


def read_fields(settings: Iterable[str]) -> dict[str, Any]:
    """Read `field=value` texts of fields that a file may leave open."""
    kind, values = row("R50+ViT-B/16")  # which has every part that a field may be in
    return read_settings(kind, values, settings)


def document(found: "Description") -> dict[str, Any]:
    """Give a description as a JSON object."""
    card = found.card
    return {
        "source": found.source,
        "container": found.container,
        "bytes": found.size,
        "layout": found.layout,
        "model": found.model,
        "config": None if found.config is None else encode(found.config),
        "grid": list(found.config.grid) if isinstance(found.config, ViTConfig) else None,
        "parameters": found.parameters,
        "inferred": list(card.provenance.inferred) if card.provenance else [],
        "left_out": list(card.provenance.left_out) if card.provenance else [],
        "changes": list(card.provenance.changes) if card.provenance else [],
        "class_names": None if card.class_names is None else list(card.class_names),
        "preprocessing": encode(card.preprocessing),
        "metrics": dict(card.metrics),
        "odd": list(found.odd),
        "reason": found.reason,
        "tensors": [
            {
                "name": tensor.name,
                "parameter": tensor.ours,
                "shape": list(tensor.shape),
                "dtype": tensor.dtype,
                "mean": tensor.mean,
                "deviation": tensor.deviation,
                "low": tensor.low,
                "high": tensor.high,
                "zeros": tensor.zeros,
                "not_finite": tensor.not_finite,
            }
            for tensor in found.tensors
        ],
    }


def summary(found: "Description") -> dict[str, str]:
    """Give the lines of a description, label by label."""
    config, card = found.config, found.card
    lines = {"file": f"{found.source} ({found.container}, {found.size / 1e6:,.1f} MB)"}
    if config is None:
        return {
            **lines,
            "layout": "not recognised",
            "tensors": f"{len(found.tensors):,}",
            "because": found.reason or "",
        }
    lines["layout"] = f"{found.layout}: {found.title}"
    if found.reason:
        lines["but"] = found.reason
    lines["model"] = found.model or "none of the paper's by name"
    if isinstance(config, ViTConfig):
        rows, cols = config.grid
        lines["shape"] = (
            f"{config.depth} layers, width {config.width}, MLP {config.mlp_width}, "
            f"{config.heads} heads of {config.head_width}"
        )
        lines["tokens"] = (
            f"{rows}x{cols} patches of {config.stem.stride} pixels at {config.image_size[0]}x{config.image_size[1]}, "
            f"{config.channels} channels, pooled by {config.pooling}"
        )
        lines["numerics"] = f"{config.activation}, epsilon {config.epsilon:g}"
        hidden = config.pre_logits
    else:
        lines["shape"] = f"units {', '.join(map(str, config.units))}, width {config.width}, {config.channels} channels"
        lines["numerics"] = f"epsilon {config.epsilon:g}, of the filters {config.filter_epsilon:g}"
        hidden = None
    before = f"a tanh layer of {hidden}, then " if hidden else ""
    how = "" if config.cosine_scale is None else f" by cosines, times {config.cosine_scale:g}"
    lines["head"] = f"{before}{config.classes:,} classes{how}" if config.classes else f"{before}no classifier"
    lines["parameters"] = f"{found.parameters:,} in {len(found.tensors):,} tensors"
    if card.class_names:
        lines["classes"] = ", ".join(card.class_names[:6]) + (", ..." if len(card.class_names) > 6 else "")
    if card.provenance:
        how = card.preprocessing
        mean, deviation = (" ".join(f"{value:g}" for value in values) for values in (how.mean, how.deviation))
        lines["preprocessing"] = f"{how.resize}, {how.interpolation}; mean {mean}, deviation {deviation}"
    if card.metrics:
        lines["metrics"] = ", ".join(f"{name} {value:g}" for name, value in card.metrics.items())
    return lines


def _show(found: "Description", *, every: bool) -> None:
    console = Console(soft_wrap=True, highlight=False)
    lines = summary(found)
    provenance = found.card.provenance
    notes = {
        "inferred": provenance.inferred if provenance else (),
        "changed": provenance.changes if provenance else (),
        "left out": provenance.left_out if provenance else (),
        "odd": found.odd,
    }
    wide = max(map(len, [*lines, *notes]))
    for label, text in lines.items():
        console.print(f"[bold]{label:<{wide}}[/]  ", end="")
        console.print(text, markup=False)
    for label, texts in notes.items():
        shown = texts[:8] if label == "left out" else texts
        for index, text in enumerate(shown):
            console.print(f"[bold]{'' if index else label:<{wide}}[/]  ", end="")
            console.print(text, markup=False)
        if len(shown) < len(texts):
            console.print(f"{'':<{wide}}  and {len(texts) - len(shown)} more")
    unknown = found.reason is not None
    if every or unknown:
        shown = found.tensors if every else found.tensors[:20]
        _table("shape", [(t.name, "x".join(map(str, t.shape)) or "one number", t.dtype, t) for t in shown])
        if unknown and not every and len(found.tensors) > 20:
            console.print(f"and {len(found.tensors) - 20} more; --tensors lists them all")
    else:
        _table("parameters", list(_parts(found)))


def _table(size: str, lines: list[tuple[str, str, str, "TensorStatistics"]]) -> None:
    table = plain_table("part", size, "type", "mean", "deviation", "low", "high", title="", numbers=4)
    table.columns[0].overflow = "fold"  # a name is of use only whole, and so is a number
    for column in table.columns[1:]:
        column.no_wrap = True
    for name, shape, kind, numbers in lines:
        values = (numbers.mean, numbers.deviation, numbers.low, numbers.high)
        table.add_row(name, shape, kind, *("" if value is None else f"{value:.3g}" for value in values))
    Console().print(table)


def _parts(found: "Description") -> Iterable[tuple[str, str, str, "TensorStatistics"]]:
    """Put the tensors of a part together: the stem, positions, attention, MLPs, norms, the head."""
    from vitrail.checkpoint.describe import together

    groups: dict[str, list[TensorStatistics]] = {part: [] for part in PARTS}
    for tensor in found.tensors:
        if tensor.ours is not None:
            groups.setdefault(_part(tensor.ours), []).append(tensor)
    for part, tensors in groups.items():
        if not tensors:
            continue
        kinds = ", ".join(sorted({tensor.dtype for tensor in tensors}))
        yield part, f"{sum(tensor.parameters for tensor in tensors):,}", kinds, together(tensors)


def _part(name: str) -> str:
    if "norm" in name or "_scale" in name:
        return "norms"
    marks = {"attention": "attention", "mlp": "MLPs", "stages.": "convolutions", "root": "convolutions"}
    start = name.split(".")[0].replace("_", " ")
    return next((part for mark, part in marks.items() if mark in name), start)
