"""Weights in and out: recognised by contents, read strictly, adapted purely, written whole."""

from vitrail.checkpoint.describe import Description, describe
from vitrail.checkpoint.load import load
from vitrail.checkpoint.save import convert, save

__all__ = ["Description", "convert", "describe", "load", "save"]
