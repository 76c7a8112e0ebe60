"""Weights in and out: recognised by contents, read strictly, adapted purely, written whole."""

from vitrail.checkpoint.describe import Description, describe
from vitrail.checkpoint.load import Checkpoint, load, open_checkpoint
from vitrail.checkpoint.save import convert, save

__all__ = ["Checkpoint", "Description", "convert", "describe", "load", "open_checkpoint", "save"]
