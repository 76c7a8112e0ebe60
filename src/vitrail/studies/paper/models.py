"""Table 1: the models, counted, beside what the authors' code has."""

from vitrail.figures.studies import Panel, Series
from vitrail.studies.reading import Finding, Plot, Reading, Table, exactly
from vitrail.studies.scales import Scale
from vitrail.studies.table import Cell, Count, Network, Results, Study

# Parameters with 1,000 classes at 224 pixels (the authors' tests), and Table 1's millions.
PUBLISHED = {
    "ViT-Ti/16": 5_717_416,
    "ViT-S/16": 22_050_664,
    "ViT-S/32": 22_878_952,
    "ViT-B/8": 86_576_872,
    "ViT-B/16": 86_567_656,
    "ViT-B/32": 88_224_232,
    "ViT-L/16": 304_326_632,
    "ViT-L/32": 306_535_400,
    "ViT-H/14": 632_045_800,
    "R+ViT-Ti/16": 6_337_704,
    "R26+ViT-S/32": 36_431_912,
    "R26+ViT-B/32": 101_383_976,
    "R50+ViT-B/16": 98_659_112,
    "R50+ViT-L/32": 328_994_856,
}
TABLE_1 = {"ViT-B/16": "86M", "ViT-L/16": "307M", "ViT-H/14": "632M"}


def cells(scale: Scale) -> list[Cell]:
    """Count each model; the same at every scale."""
    return [Cell(at={"model": name}, work=Count(network=Network(model=name))) for name in PUBLISHED]


def read(results: Results, scale: Scale) -> Reading:
    """Compare every count."""
    counted = {name: int(results.where(model=name).first("parameters")) for name in PUBLISHED}
    work = {name: float(results.where(model=name).first("gmacs")) for name in PUBLISHED}
    rows = [
        [name, f"{counted[name]:,}", f"{published:,}", TABLE_1.get(name, ""), f"{work[name]:.2f}"]
        for name, published in PUBLISHED.items()
    ]
    columns = ["model", "parameters here", "in the authors' code", "Table 1", "GMACs"]
    finding = Finding(
        says="models whose parameters are not as many as in the authors' code",
        estimate=exactly(float(sum(counted[name] != published for name, published in PUBLISHED.items()))),
        expects="equal",
        unit="models",
        margin=0.5,
        published="0",
    )
    names = list(PUBLISHED)
    panels = [
        Panel(
            title=title,
            x_label="million parameters",
            y_label="",
            categories=names,
            series=[Series(name="", x=range(len(names)), y=[values[name] / 1e6 for name in names])],
            published=published,
        )
        for title, values, published in (("counted here", counted, False), ("the authors' code", PUBLISHED, True))
    ]
    plot = Plot("models", "Parameters", "Parameters with 1,000 classes at 224 pixels.", panels)
    tables = [Table("Models, 1,000 classes at 224 pixels", columns, rows)]
    return Reading(findings=[finding], tables=tables, plots=[plot])


STUDY = Study(
    name="models",
    title="The models are the paper's",
    paper="Table 1",
    claim="Every model has as many parameters as the authors' own.",
    cells=cells,
    read=read,
    caveat="Table 1's 307 million of ViT-L is that of L/32 with its head.",
    seeded=False,
)
