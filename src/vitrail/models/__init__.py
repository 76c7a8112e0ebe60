"""PARAMETERS: the modules, one table of initialisations, and one `build` from configuration to module."""

from vitrail.models.bit import BiT
from vitrail.models.build import Model, build, create
from vitrail.models.vit import ViT

__all__ = ["BiT", "Model", "ViT", "build", "create"]
