"""The paper's studies, and plans for one's own."""

from vitrail.studies.plan import Plan, make_plan

__all__ = ["Plan", "make_plan"]
