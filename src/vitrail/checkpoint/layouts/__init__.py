"""The layouts of others and our own, recognised by the names of their tensors, never by the file's name."""

from vitrail.checkpoint.layouts import google, hf, timm, torchvision
from vitrail.checkpoint.layouts.base import OWN, Layout
from vitrail.errors import ConfigError

LAYOUTS: dict[str, Layout] = {
    layout.name: layout for layout in (OWN, google.LAYOUT, timm.LAYOUT, hf.LAYOUT, torchvision.LAYOUT)
}


def find_layout(name: str) -> Layout:
    """Find a layout by its name."""
    if name not in LAYOUTS:
        raise ConfigError(f"layout must be one of {', '.join(LAYOUTS)}; got {name!r}.")
    return LAYOUTS[name]
