"""Look inside a model: what it holds, and what it does with an image."""

from vitrail.inspection.walk import Step, walk

__all__ = ["Step", "walk"]
