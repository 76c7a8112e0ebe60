"""Our own names: those of the modules, with the configuration beside them or in the file's notes."""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from vitrail.checkpoint.archives import Entry
from vitrail.checkpoint.layouts.base import Asked, Dialect, Found, Headers, Holds, Layout, Row, read_note
from vitrail.checkpoint.layouts.codecs import SAME
from vitrail.config import ModelConfig, ViTConfig, decode
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import skeleton
from vitrail.ops.cost.counts import parameters


def recognize(entries: Mapping[str, Entry]) -> str | None:
    """Tell our names from others'."""
    ours = "blocks.0.attention.qkv.weight" in entries or {"root.weight", "stages.0.0.conv1.weight"} <= entries.keys()
    return "" if ours else None


def infer(headers: Headers, asked: Asked, documents: Mapping[str, Any]) -> Found:
    """Read the configuration that was written with the weights."""
    document = documents.get("config.json", {}).get("model") or read_note(documents)
    if not document:
        raise CheckpointError(
            "the weights have Vitrail's names but come without their configuration. Give the run folder that holds "
            "config.json and weights.safetensors."
        )
    if asked.grid is not None:
        raise CheckpointError("a file of Vitrail's own says its grid. Leave grid out.")
    try:
        config = decode(document)
    except ConfigError as error:
        raise CheckpointError(f"the configuration beside the weights cannot be: {error}") from error
    _check_size(headers, config)
    return Found(config=config, dialect={})


def _check_size(headers: Headers, config: ModelConfig) -> None:
    """Refuse a configuration that is far larger than the file before a module is made of it."""
    stem = config.stem if isinstance(config, ViTConfig) else config
    parts = sum(getattr(stem, "units", ())) + (config.layers if isinstance(config, ViTConfig) else 0)
    held = sum(prod(shape) for shape in headers.shapes.values())
    stages = len(getattr(stem, "units", ()))
    if parts > 2 * len(headers.shapes) or stages > 16 or parameters(config).total > 2 * held + 10_000_000:
        raise CheckpointError(
            "the configuration beside the weights is of another model, far larger than the file. Copy both again."
        )


def rows(config: ModelConfig, dialect: Dialect) -> Iterator[Row]:
    """Give the row of every parameter: itself."""
    for name, tensor in skeleton(config).state_dict().items():
        yield Row(name, (name,), tuple(tensor.shape), SAME)


LAYOUT = Layout(
    name="vitrail",
    title="Vitrail's own names",
    recognize=recognize,
    infer=infer,
    rows=rows,
    dialect=lambda config: {},
    holds=Holds(),
)
