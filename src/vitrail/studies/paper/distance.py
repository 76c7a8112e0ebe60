"""Figures 6, 7 and 11 (Section 4.5, Appendix D.7): filters, positions, and how far heads attend, of ViT and hybrid."""

from collections.abc import Callable

from vitrail.figures.studies import Panel, Series
from vitrail.studies.reading import Estimate, Finding, Plot, Reading, Table, estimate, paired, shown
from vitrail.studies.scales import Scale
from vitrail.studies.table import Cell, Look, Results, Study

FAMILIES = ("ViT", "hybrid")
COUNT = {"smoke": 8, "cpu": 64}  # images; else 128
EVERYWHERE = 0.52  # of the side: the mean distance of two random points of a square (0.5214)
GLOBAL = 0.75  # of that, from which attention is called global


def cells(scale: Scale) -> list[Cell]:
    """Train both, and look inside."""
    made = []
    for family in FAMILIES:
        first = scale.pretrain({"family": family, "what": "train"}, scale.networks[family], few=False)
        look = Look(begins=first.name, images=scale.upstream, count=COUNT.get(scale.name, 128))
        made += [first, Cell(at={"family": family, "what": "look"}, work=look)]
    return made


def read(results: Results, scale: Scale) -> Reading:
    """Look at the lowest layer's heads: the farthest of ViT, and the nearest of both."""
    by = {family: results.where(family=family, what="look") for family in FAMILIES}
    far = {family: heads(found, max) for family, found in by.items()}
    near = {family: heads(found, min) for family, found in by.items()}
    found = {name: by["ViT"].by_seed(f"similarity_{name}") for name in ("neighbors", "others")}
    findings = [
        Finding(
            says="ViT: distance of the farthest head of the lowest layer, less three quarters of a uniform one's",
            estimate=_less(far["ViT"], GLOBAL * EVERYWHERE),
            expects="more",
            unit="of the side",
            published="some heads attend to most of the image already in the lowest layers",
        ),
        Finding(
            says="the nearest head of the lowest layer, hybrid against ViT",
            estimate=paired(near["hybrid"], near["ViT"]),
            expects="more",
            unit="of the side",
            published="highly localized attention is less pronounced in hybrids",
        ),
        Finding(
            says="ViT: cosine of the positions of neighbors, less that of distant ones",
            estimate=paired(found["neighbors"], found["others"]),
            expects="more",
            unit="cosine",
            published="closer patches have more similar positions",
        ),
    ]
    rows = []
    for family, each in by.items():
        layers = each.first("distances")
        for layer in range(len(layers)):
            values = [
                (min(seed[layer]), sum(seed[layer]) / len(seed[layer]), max(seed[layer])) for seed in _seeds(each)
            ]
            rows.append(
                [family, f"{layer + 1}", *(shown(estimate(list(part)), 3) for part in zip(*values, strict=True))]
            )
    columns = ["family", "layer", "nearest head", "mean", "farthest head"]
    plot = Plot(
        "distance",
        "How far heads attend, by layer",
        "Each mark is a head of one seed: its mean attention distance as a share of the side of the image (Fig. 11). "
        "The dotted line is attention to everything alike.",
        [
            Panel(
                title=family,
                x_label="layer",
                y_label="attention distance, share of the side",
                series=[
                    Series(
                        name=f"seed {number}",
                        x=[layer + 1 for layer, values in enumerate(seed) for _ in values],
                        y=[value for values in seed for value in values],
                        joined=False,
                    )
                    for number, seed in enumerate(_seeds(each))
                ],
                marks=[EVERYWHERE],
            )
            for family, each in by.items()
        ],
    )
    table = Table("Mean attention distance, as a share of the side", columns, rows)
    return Reading(findings=findings, tables=[table], plots=[plot])


def heads(results: Results, choose: Callable[[list[float]], float]) -> dict[int, float]:
    """Give the distance of one head of the lowest layer, by seed."""
    return {int(done.cell.at["seed"]): choose(done.numbers["distances"][0]) for done in results.done}


def _seeds(results: Results) -> list[list[list[float]]]:
    return [done.numbers["distances"] for done in results.done]


def _less(values: dict[int, float], value: float) -> Estimate | None:
    return estimate([each - value for each in values.values()])


STUDY = Study(
    name="distance",
    title="Heads attend globally already low down",
    paper="Figures 6, 7 and 11, Section 4.5 and Appendix D.7",
    claim="Some heads of ViT's lowest layers attend to the whole image while others stay near; after convolutions "
    "(hybrid) fewer stay near; close patches have similar positions.",
    cells=cells,
    read=read,
    caveat="Grids of 8 by 8 patches leave little room between near and far.",
)
