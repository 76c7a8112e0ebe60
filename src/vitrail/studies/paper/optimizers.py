"""Table 7 (Appendix D.1): ResNets pre-trained with SGD or with Adam, then fine-tuned."""

from typing import Any

from vitrail.config.recipe import SGD
from vitrail.figures.studies import Panel, Series
from vitrail.studies.reading import (
    Finding,
    Plot,
    Reading,
    Table,
    best,
    dots,
    mean_by_seed,
    paired,
    percent,
    points,
    shown,
)
from vitrail.studies.scales import Scale
from vitrail.studies.table import Cell, Network, Results, Study

RATES = {
    "smoke": {"Adam": (1e-3,), "SGD": (0.03,)},
    "cpu": {"Adam": (1e-3, 3e-3), "SGD": (0.03, 0.1)},
    "gpu": {"Adam": (5e-4, 1e-3, 2e-3), "SGD": (0.03, 0.1, 0.3)},
    "paper": {"Adam": (1e-3,), "SGD": (0.48,)},  # BiT's own rate: 0.03 for every 256 images of a batch
}
DECAY = 1e-4  # of SGD, as BiT has it
# Table 7: R50 and R152x2 pre-trained with Adam and with SGD, mean of five targets.
TABLE_7 = {"R50": {"Adam": 89.33, "SGD": 88.79}, "R152x2": {"Adam": 94.01, "SGD": 93.72}}


def cells(scale: Scale) -> list[Cell]:
    """Each optimizer at each rate, then fine-tuned on the first two targets."""
    made: list[Cell] = []
    networks = {"BiT": scale.networks["BiT"]}
    if scale.name == "paper":
        networks = {"R50": Network(model="BiT-R50x1"), "R152x2": Network(model="BiT-R152x2")}
    for model, network in networks.items():
        for kind, rates in RATES[scale.name].items():
            for rate in rates:
                made += _one(scale, {"model": model, "optimizer": kind, "rate": rate}, network)
    return made


def _one(scale: Scale, at: dict[str, str | float], network: Network) -> list[Cell]:
    rate = float(at["rate"])
    fields: dict[str, Any] = {"learning_rate": rate}
    if at["optimizer"] == "SGD":
        fields["optimizer"] = SGD(learning_rate=rate, weight_decay=DECAY)
    first = scale.pretrain({**at, "on": "upstream"}, network, **fields)
    targets = scale.targets if scale.name == "paper" else scale.targets[:2]
    return [first, *(scale.finetune({**at, "on": images.name}, first, images) for images in targets)]


def read(results: Results, scale: Scale) -> Reading:
    """Compare the two, each at the rate that is best upstream."""
    rates, rows, findings, notes = RATES[scale.name], [], [], []
    targets = [name for name in results.values("on") if name != "upstream"]
    for model in results.values("model"):
        of = results.where(model=model)
        chosen = {
            kind: best({rate: of.where(optimizer=kind, rate=rate, on="upstream") for rate in rates[kind]})
            for kind in rates
        }
        notes += [
            f"{model}: the best rate of {kind}, {chosen[kind]:g}, lies at the edge of those tried."
            for kind in rates
            if len(rates[kind]) > 1 and chosen[kind] in (rates[kind][0], rates[kind][-1])
        ]
        for kind in rates:
            for rate in rates[kind]:
                at = of.where(optimizer=kind, rate=rate)
                mark = " (taken)" if rate == chosen[kind] else ""
                upstream = at.where(on="upstream")
                rows.append(
                    [model, kind, f"{rate:g}{mark}", shown(percent(upstream)), shown(percent(upstream, "fewshot"))]
                    + [shown(percent(at.where(on=target))) for target in targets]
                )
        means = {
            kind: mean_by_seed([points(of.where(optimizer=kind, rate=chosen[kind], on=name)) for name in targets])
            for kind in rates
        }
        findings.append(
            Finding(
                says=f"{model} pre-trained with Adam against SGD, mean of the targets",
                estimate=paired(means["Adam"], means["SGD"]),
                expects="more",
                published="+0.5 points (R50), +0.3 points (R152x2)",
            )
        )
    columns = [
        "model",
        "optimizer",
        "rate",
        "upstream, %",
        f"{scale.shots}-shot, %",
        *(f"{name}, %" for name in targets),
    ]
    published = [[name, f"{row['Adam']:.2f}", f"{row['SGD']:.2f}"] for name, row in TABLE_7.items()]
    tables = [
        Table("Accuracy by the optimizer of pre-training", columns, rows),
        Table("The paper's Table 7, mean of five targets", ["model", "Adam, %", "SGD, %"], published),
    ]
    return Reading(findings=findings, tables=tables, plots=[plot_of(results, targets)], notes=notes)


def plot_of(results: Results, targets: list[str]) -> Plot:
    """Draw every optimizer and rate on every target, beside Table 7."""
    runs = {
        f"{model}, {kind} {rate:g}": results.where(model=model, optimizer=kind, rate=rate)
        for model in results.values("model")
        for kind in results.values("optimizer")
        for rate in results.where(optimizer=kind).values("rate")
    }
    series = [dots(name, [part.where(on=name) for part in runs.values()]) for name in ("upstream", *targets)]
    means = [value for row in TABLE_7.values() for value in row.values()]
    published = Series(name="mean of five targets", x=range(len(means)), y=means)
    return Plot(
        "optimizers",
        "Accuracy by the optimizer of pre-training",
        "Means over seeds with 95 % intervals, by optimizer and rate. Beside it Table 7.",
        [
            Panel(title="here", x_label="accuracy, %", y_label="", categories=list(runs), series=series),
            Panel(
                title="Table 7",
                x_label="accuracy, %",
                y_label="",
                categories=[f"{model}, {kind}" for model, row in TABLE_7.items() for kind in row],
                series=[published],
                published=True,
            ),
        ],
    )


STUDY = Study(
    name="optimizers",
    title="Adam pre-trains ResNets better than SGD",
    paper="Table 7, Appendix D.1",
    claim="ResNets that are pre-trained with Adam transfer slightly better than with SGD, their usual optimizer.",
    cells=cells,
    read=read,
    caveat="The paper's difference is half a point after 300 million images; rates are chosen by upstream accuracy.",
)
