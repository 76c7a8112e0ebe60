"""The layouts of others and our own, recognised by names alone, never by the file's name."""

from collections.abc import Mapping
from typing import Any

from vitrail.checkpoint.archives import Archive
from vitrail.checkpoint.layouts import google, hf, own, timm, torchvision
from vitrail.checkpoint.layouts.base import Asked, Dialect, Found, Headers, Holds, Layout, Row
from vitrail.errors import CheckpointError, ConfigError, ShapeError

__all__ = ["LAYOUTS", "Asked", "Dialect", "Found", "Holds", "Layout", "Row", "find_layout", "recognize"]

LAYOUTS: dict[str, Layout] = {
    layout.name: layout for layout in (own.LAYOUT, google.LAYOUT, timm.LAYOUT, hf.LAYOUT, torchvision.LAYOUT)
}


def find_layout(name: str) -> Layout:
    """Find a layout by its name."""
    if name not in LAYOUTS:
        raise ConfigError(f"layout must be one of {', '.join(LAYOUTS)}; got {name!r}.")
    return LAYOUTS[name]


def recognize(archive: Archive, asked: Asked, documents: Mapping[str, Any]) -> tuple[Layout, Found]:
    """Find the layout of a file and read what model it holds."""
    for layout in LAYOUTS.values():
        prefix = layout.recognize(archive.entries)
        if prefix is None:
            continue
        try:
            found = layout.infer(Headers(archive.entries, prefix), asked, documents)
        except (ConfigError, ShapeError) as error:
            raise CheckpointError(f"the file's shapes make no model: {error}") from error
        return layout, found
    some = ", ".join(sorted(archive.entries)[:4])
    raise CheckpointError(
        "the file is no ViT, hybrid or BiT in any layout that is known: "
        f"{', '.join(layout.title for layout in LAYOUTS.values())}; got {len(archive.entries)} tensors such as {some}."
    )
