"""Figure 9 (Appendix D.3): a class token against the mean of the tokens, at several learning rates."""

from vitrail.figures.studies import Panel
from vitrail.studies.reading import EQUAL, Finding, Plot, Reading, Table, best, curve, paired, percent, points, shown
from vitrail.studies.scales import Scale
from vitrail.studies.table import Cell, Network, Results, Study

POOLINGS = {"token": "class token", "mean": "mean of the tokens"}
RATES = {
    "smoke": (3e-4, 3e-3),
    "cpu": (3e-4, 1e-3, 3e-3),
    "gpu": (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3),
    "paper": (1e-4, 3e-4, 8e-4, 3e-3),
}


def cells(scale: Scale) -> list[Cell]:
    """Each pooling with each rate."""
    base, made = scale.networks["ViT"], []
    for pooling in POOLINGS:
        network = Network(model=base.model, fields={**base.fields, "pooling": pooling})
        for rate in RATES[scale.name]:
            made.append(scale.pretrain({"pooling": pooling, "rate": rate}, network, learning_rate=rate))
    return made


def read(results: Results, scale: Scale) -> Reading:
    """Compare the two, each at its own best rate."""
    rates = RATES[scale.name]
    by = {pooling: {rate: results.where(pooling=pooling, rate=rate) for rate in rates} for pooling in POOLINGS}
    chosen = {pooling: best(by[pooling], scale.metric) for pooling in POOLINGS}
    rows = [
        [f"{rate:g}", *(shown(percent(by[pooling][rate])) for pooling in POOLINGS)]
        + [shown(percent(by[pooling][rate], "fewshot")) for pooling in POOLINGS]
        for rate in rates
    ]
    columns = ["learning rate", *(f"{words}, %" for words in POOLINGS.values())]
    columns += [f"{words}, {scale.shots}-shot, %" for words in POOLINGS.values()]
    own = paired(*(points(by[pooling][chosen[pooling]], scale.metric) for pooling in ("mean", "token")))
    finding = Finding(
        says=f"mean at its best rate ({chosen['mean']:g}) against class token at its own ({chosen['token']:g})",
        estimate=own,
        expects="equal",
        margin=EQUAL,
        published="the curves meet, each at another rate",
    )
    plot = Plot(
        "head",
        "Accuracy by learning rate",
        "Means over seeds with 95 % intervals. The paper has a figure alone (Fig. 9), no numbers.",
        [
            Panel(
                title=f"{scale.upstream.name}",
                x_label="learning rate",
                y_label="accuracy, %",
                log_x=True,
                series=[curve(words, list(by[pooling].items())) for pooling, words in POOLINGS.items()],
            )
        ],
    )
    edges = [POOLINGS[pooling] for pooling in POOLINGS if chosen[pooling] in (rates[0], rates[-1])]
    notes = [f"The best rate of {name} lies at the edge of those tried." for name in edges]
    tables = [Table("Accuracy by learning rate", columns, rows)]
    return Reading(findings=[finding], tables=tables, plots=[plot], notes=notes)


STUDY = Study(
    name="head",
    title="A class token and pooling are equal, each at its own rate",
    paper="Figure 9, Appendix D.3",
    claim="A class token and the mean of all tokens classify equally well, once the rate is chosen for each.",
    cells=cells,
    read=read,
    caveat="Rates are chosen by the images that are reported on, for both alike.",
)
