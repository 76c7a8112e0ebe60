"""How good a model is: accuracy, few-shot, transfer, VTAB, identity; every image counted once."""

from vitrail.evaluation.shots import fewshot

__all__ = ["fewshot"]
