"""What VTAB comes to: its tasks beside Table 9, means of its groups and of all."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from vitrail.evaluation.results import Result, document_of, over_seeds
from vitrail.evaluation.sweep import setting_of
from vitrail.evaluation.vtab import GROUPS, PAPER, TASKS, Measured, VtabPlan, departures, odd_data

ALL = "all tasks"


class Mean(NamedTuple):
    """A mean over the tasks of a group, or of all, that ran; the paper's are over the same tasks, in percent."""

    what: str
    ran: int
    of: int
    value: float
    spread: float | None
    paper: tuple[float, ...]

    @property
    def title(self) -> str:
        """Say whether all of its tasks are there."""
        return "mean" if self.ran == self.of else f"mean of {self.ran} of {self.of}"


def means(measured: Sequence[Measured]) -> list[Mean]:
    """Give the means of the groups that have tasks, then that of all; each seed's first, then over the seeds."""
    found = []
    for what in (*GROUPS, ALL):
        some = [one for one in measured if what in (one.task.group, ALL)]
        if not some:
            continue
        seeds = zip(*([score.accuracy for score in one.scores] for one in some), strict=True)
        value, spread = over_seeds([over_seeds(each)[0] for each in seeds])
        paper = tuple(over_seeds([one.task.paper[row] for one in some])[0] for row in range(len(PAPER)))
        of = sum(what in (task.group, ALL) for task in TASKS)
        found.append(Mean(what, len(some), of, value, spread, paper))
    return found


def vtab_document(plan: VtabPlan, measured: Sequence[Measured]) -> dict[str, Any]:
    """Give the document of the command; means are results only where all their tasks ran."""
    common: dict[str, Any] = {"task": "vtab", "model": plan.task.model, "seeds": plan.seeds}
    more = {"rate": plan.task.training.optimizer.learning_rate, "measured_on": "val" if plan.select else "test"}
    setting = setting_of(plan.task.training, **more)
    rows = []
    for one in measured:
        value, spread = over_seeds([score.accuracy for score in one.scores])
        images, trained = one.scores[0].images, {**setting, "group": one.task.group, "training_images": one.trained_on}
        rows.append(
            Result(
                **common,
                data=one.task.key,
                metric="accuracy",
                value=value,
                spread=spread,
                images=images,
                setting=trained,
            )
        )
    found = means(measured)
    rows += [
        Result(**common, data=mean.what, metric="mean accuracy", value=mean.value, spread=mean.spread, setting=setting)
        for mean in found
        if mean.ran == mean.of
    ]
    return document_of(
        "vtab",
        rows,
        means=[mean._asdict() for mean in found],
        paper={one.task.key: dict(zip(PAPER, one.task.paper, strict=True)) for one in measured},
        departures=[*departures(plan.task.training), *odd_data(measured, plan)],
    )
