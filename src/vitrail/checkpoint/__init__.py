"""Weights from files: recognised by their contents, loaded strictly, adapted in a separate pure step."""

from vitrail.checkpoint.load import load

__all__ = ["load"]
