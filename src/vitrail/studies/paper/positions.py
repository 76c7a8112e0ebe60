"""Table 8 (Appendix D.4): how tokens are told their places."""

from vitrail.figures.studies import Panel, Series
from vitrail.studies.reading import (
    Finding,
    Plot,
    Reading,
    Table,
    dots,
    mean_by_seed,
    paired,
    percent,
    points,
    shown,
)
from vitrail.studies.scales import Scale
from vitrail.studies.table import Cell, Network, Results, Study

KINDS = {"none": "none", "learned": "1-D", "learned-2d": "2-D", "relative": "relative"}
HALF = 0.5
PLACES = {"stem": "stem", "layers": "every layer", "shared": "every layer, shared"}
# Linear 5-shot accuracy on ImageNet of ViT-B/16, in per cent.
PUBLISHED = {
    ("none", "stem"): 61.382,
    ("learned", "stem"): 64.206,
    ("learned", "layers"): 63.964,
    ("learned", "shared"): 64.292,
    ("learned-2d", "stem"): 64.001,
    ("learned-2d", "layers"): 64.046,
    ("learned-2d", "shared"): 64.022,
    ("relative", "layers"): 64.032,
}


def cells(scale: Scale) -> list[Cell]:
    """A cell for each number of Table 8."""
    base = scale.networks["ViT"]
    made = []
    for kind, at in PUBLISHED:
        place = {} if kind == "none" else {"positions.at": at}
        network = Network(model=base.model, fields={**base.fields, "positions": kind, **place})
        made.append(scale.pretrain({"positions": kind, "at": at}, network))
    return made


def read(results: Results, scale: Scale) -> Reading:
    """Positions against none; the kinds against each other, where they are added first."""
    by = {key: results.where(positions=key[0], at=key[1]) for key in PUBLISHED}
    words = {(kind, at): (KINDS[kind], "" if kind == "none" else PLACES[at]) for kind, at in by}
    rows = [
        [*words[key], shown(percent(found)), shown(percent(found, "fewshot")), f"{PUBLISHED[key]:.1f}"]
        for key, found in by.items()
    ]
    columns = ["positions", "added", "accuracy, %", f"{scale.shots}-shot, %", "the paper, 5-shot, %"]
    accuracy = {key: points(found, scale.metric) for key, found in by.items()}
    informed = [values for key, values in accuracy.items() if key[0] != "none"]
    nothing = accuracy["none", "stem"]
    kinds = {kind: mean_by_seed([accuracy[key] for key in accuracy if key[0] == kind]) for kind in KINDS}
    effect = paired(mean_by_seed(informed), nothing)
    margin = HALF * abs(effect.mean) if effect else 0.0  # equal is what differs by less than half of what matters
    findings = [
        Finding(
            says="all with positions, on average, against none",
            estimate=effect,
            expects="more",
            published="+2.7 points",
        ),
        *(
            Finding(
                says=f"{KINDS[kind]} against 1-D, means of the layers it is added at; equal: within {margin:.1f}",
                estimate=paired(kinds[kind], kinds["learned"]),
                expects="equal",
                margin=margin,
                published=said,
            )
            for kind, said in (("learned-2d", "-0.1 points"), ("relative", "-0.1 points"))
        ),
    ]
    names = [KINDS[kind] if kind == "none" else f"{KINDS[kind]}, {PLACES[at]}" for kind, at in by]
    plot = Plot(
        "positions",
        "Accuracy by kind of positions",
        "Marks are means over seeds with 95 % intervals; hollow ones are Table 8.",
        [
            Panel(
                title=f"{scale.upstream.name}, accuracy",
                x_label="accuracy, %",
                y_label="",
                categories=names,
                series=[dots("accuracy", list(by.values()))],
            ),
            Panel(
                title="ImageNet, 5-shot",
                x_label="accuracy, %",
                y_label="",
                categories=names,
                series=[Series(name="Table 8", x=range(len(names)), y=list(PUBLISHED.values()))],
                published=True,
            ),
        ],
    )
    return Reading(findings=findings, tables=[Table("Accuracy by kind of positions", columns, rows)], plots=[plot])


STUDY = Study(
    name="positions",
    title="Positions matter, their kind does not",
    paper="Table 8, Appendix D.4",
    claim="A ViT that is told where its patches are is better than one that is not; how it is told does not matter.",
    cells=cells,
    read=read,
    caveat="Below the paper's scale patches are few (16 or 64, not 196), so that there is less to tell of their "
    "places, and accuracy is compared, not few shots.",
)
