"""PARAMETERS: the modules, one table of initialisations, and one `build` from configuration to module."""

from vitrail.models.base import Model, eval_mode
from vitrail.models.build import build, create, find_device, skeleton
from vitrail.models.encoder import give_keys
from vitrail.models.resnet import BiT
from vitrail.models.vit import ViT

__all__ = ["BiT", "Model", "ViT", "build", "create", "eval_mode", "find_device", "give_keys", "skeleton"]
