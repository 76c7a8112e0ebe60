"""Figures 6, 7 and 11 (Section 4.5, Appendix D.7): filters, positions, and how far heads attend, of ViT and hybrid."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from vitrail.figures import draw_filters, draw_tiles
from vitrail.figures.studies import Panel, Series
from vitrail.studies.reading import Estimate, Finding, Picture, Plot, Reading, Table, estimate, paired, shown
from vitrail.studies.scales import Scale
from vitrail.studies.table import Cell, Look, Results, Study, unpacked_numbers

FAMILIES = ("ViT", "hybrid")
FIRST = 8  # filters whose variance is added up
COUNT = {"smoke": 8, "cpu": 64}  # images; else 128
GLOBAL = 0.75  # of the distance of a head that attends to all alike, from which attention is called global
HIGHEST = 0.65  # of the side, on the axis of the plot: attention to all alike is at 0.52 or less


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
    far, near = ({family: heads(found, choose) for family, found in by.items()} for choose in (max, min))
    spread = {name: reach(by["ViT"], name) for name in ("distances", "fresh_distances")}
    found = {name: by["ViT"].by_seed(f"similarity_{name}") for name in ("neighbors", "others")}
    findings = [
        Finding(
            says=f"ViT: the farthest head of the lowest layer reaches over {GLOBAL:g} of a uniform one's distance, by",
            estimate=_less(far["ViT"], GLOBAL),
            expects="more",
            unit="of uniform",
            published="some heads attend to most of the image already in the lowest layers",
        ),
        Finding(
            says="ViT: farthest less nearest head of the lowest layer, against the same network untrained",
            estimate=paired(spread["distances"], spread["fresh_distances"]),
            expects="more",
            unit="of uniform",
            published="others have small distances in the low layers",
        ),
        Finding(
            says="the nearest head of the lowest layer, hybrid against ViT",
            estimate=paired(near["hybrid"], near["ViT"]),
            expects="more",
            unit="of uniform",
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
        for layer in range(len(each.first("distances")) if _seeds(each) else 0):
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
        "Each mark is a head of one seed: its mean attention distance as a share of the side of the image (Fig. 11), "
        "weights of the patches scaled to one. The dotted line is attention to everything alike.",
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
                marks=[float(each.first("uniform_distance"))],
                y_range=(0, HIGHEST),
            )
            for family, each in by.items()
            if _seeds(each)
        ],
    )
    tables = [Table("Mean attention distance, as a share of the side", columns, rows), weights_table(by)]
    return Reading(findings=findings, tables=tables, plots=[plot, *pictures(by)])


def weights_table(by: dict[str, Results]) -> Table:
    """Say how much few filters hold, and how alike positions are by where they lie."""
    names = [f"similarity_{name}" for name in ("neighbors", "line", "others")]
    rows = []
    for family, each in by.items():
        looked = [done.numbers["filter_shares"] for done in each.done if "filter_shares" in done.numbers]
        held = estimate([100 * sum(shares[:FIRST]) for shares in looked])
        alike = [shown(estimate(list(each.by_seed(name).values())), 3) for name in names]
        rows.append([family, shown(held), *alike])
    columns = ["family", f"variance in {FIRST} filters, %"]
    columns += [f"cosine, {words}" for words in ("neighbors", "the same row or column", "others")]
    return Table("Filters and positions", columns, rows)


def pictures(by: dict[str, Results]) -> Iterator[Picture]:
    """Show the filters and the positions of each family's first seed."""
    for family, each in by.items():
        numbers = each.done[0].numbers
        if "filters" not in numbers:
            continue
        filters, shares = unpacked_numbers(numbers["filters"]), np.array(numbers["filter_shares"])
        yield Picture(
            f"filters-{family}",
            f"Filters of {family}",
            f"Principal components of the first layer's filters, with their shares of the variance (Fig. 7 left); "
            f"seed 0. The first layer of a hybrid is a convolution of {filters.shape[-1]} pixels."
            if family == "hybrid"
            else "Principal components of the filters of a patch, with their shares of the variance (Fig. 7 left); "
            "seed 0.",
            partial(draw_filters, filters, shares),
        )
        if "similarity" in numbers:
            yield Picture(
                f"positions-{family}",
                f"Positions of {family}",
                "Cosine of each patch's position with all others, one tile a patch, at its place (Fig. 7 center); "
                "seed 0.",
                partial(draw_tiles, unpacked_numbers(numbers["similarity"])),
            )


def heads(results: Results, choose: Callable[[list[float]], float], name: str = "distances") -> dict[int, float]:
    """Give the distance of one head of the lowest layer, as a share of a uniform one's, by seed."""
    return {
        int(done.cell.at["seed"]): choose(done.numbers[name][0]) / done.numbers["uniform_distance"]
        for done in results.done
        if name in done.numbers
    }


def reach(results: Results, name: str) -> dict[int, float]:
    """Give how much farther the farthest head of the lowest layer attends than the nearest, by seed."""
    far, near = heads(results, max, name), heads(results, min, name)
    return {seed: far[seed] - near[seed] for seed in far}


def _seeds(results: Results) -> list[list[list[float]]]:
    return [done.numbers["distances"] for done in results.done if "distances" in done.numbers]


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
    caveat="Grids of few patches a side leave little room between near and far.",
)
