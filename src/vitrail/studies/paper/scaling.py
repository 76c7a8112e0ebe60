"""Figure 5, Table 6 (Section 4.4): accuracy against compute for ViT, hybrid and BiT, and laws of the loss."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vitrail.figures.studies import Panel, Series
from vitrail.ops.scaling import Bootstrap, at_bound, bootstrap_law
from vitrail.studies.reading import (
    EQUAL,
    Estimate,
    Finding,
    Plot,
    Reading,
    Table,
    curve,
    estimate,
    paired,
    percent,
    points,
    shown,
)
from vitrail.studies.scales import FAMILIES, Scale, bit, hybrid, vit
from vitrail.studies.table import Cell, Done, Network, Results, Study

LENGTHS = {"smoke": (1.0, 1.5, 2.0), "cpu": (0.25, 0.5, 1.0), "gpu": (0.25, 0.5, 1.0), "paper": (1.0,)}
SIZES: dict[str, dict[str, tuple[Network, ...]]] = {
    "smoke": {
        "ViT": (vit(8, 32, 1), vit(8, 64, 2), vit(4, 64, 2)),
        "hybrid": (hybrid((1,), 32, 2, 32, 1), hybrid((1,), 32, 2, 64, 2)),
        "BiT": (bit((1,), 32), bit((1, 1), 32)),
    },
    "cpu": {
        "ViT": (vit(7, 32, 4), vit(7, 64, 4), vit(7, 96, 4), vit(7, 160, 4)),
        "hybrid": (
            *(hybrid((1,), 32, 2, 32, 2), hybrid((1,), 32, 2, 64, 2)),
            *(hybrid((1,), 32, 2, 96, 3), hybrid((1,), 32, 2, 160, 4)),
        ),
        "BiT": (bit((1,), 32), bit((1, 1), 32), bit((1, 1, 1), 32), bit((1, 1, 1, 1), 32)),
    },
    "gpu": {
        "ViT": (vit(8, 64, 6), vit(8, 128, 6), vit(8, 192, 6), vit(8, 256, 6)),
        "hybrid": (
            *(hybrid((1, 1), 32, 1, 64, 4), hybrid((1, 1), 32, 1, 128, 4)),
            *(hybrid((1, 1), 32, 1, 192, 6), hybrid((1, 1), 32, 1, 256, 6)),
        ),
        "BiT": (bit((1, 1, 1, 1), 32), bit((2, 2, 2, 2), 32), bit((3, 4, 6, 3), 32), bit((2, 2, 2, 2), 64)),
    },
}
# Table 6: epochs, ImageNet accuracy, exaFLOPs.
TABLE_6 = {
    "ViT": (
        *(("ViT-B/32", 7, 80.73, 55.0), ("ViT-B/16", 7, 84.15, 224.0), ("ViT-L/32", 7, 84.37, 196.0)),
        *(("ViT-L/16", 7, 86.30, 783.0), ("ViT-L/16", 14, 87.12, 1567.0), ("ViT-H/14", 14, 88.08, 4262.0)),
    ),
    "hybrid": (
        *(("R50+ViT-B/32", 7, 84.90, 106.0), ("R50+ViT-B/16", 7, 85.58, 274.0), ("R50+ViT-L/32", 7, 85.68, 246.0)),
        *(("R50+ViT-L/16", 7, 86.60, 859.0), ("R50+ViT-L/16", 14, 87.12, 1668.0)),
    ),
    "BiT": (
        *(("BiT-R50x1", 7, 77.54, 50.0), ("BiT-R50x2", 7, 82.12, 199.0), ("BiT-R101x1", 7, 80.67, 96.0)),
        *(("BiT-R152x1", 7, 81.88, 141.0), ("BiT-R152x2", 7, 84.97, 563.0), ("BiT-R152x2", 14, 85.56, 1126.0)),
        ("BiT-R200x3", 14, 87.22, 3306.0),
    ),
}
DRAWS = {"smoke": 20}  # of the bootstrap; else
USUAL_DRAWS = 200
PLACES = 64  # of compute at which families are compared


def cells(scale: Scale) -> list[Cell]:
    """Each size of each family for each length; at the paper's scale, the rows of Table 6."""
    if scale.name == "paper":
        return [
            scale.pretrain(
                {"family": family, "size": name, "length": epochs}, Network(model=name), epochs=float(epochs), few=False
            )
            for family in FAMILIES
            for name, epochs, _, _ in TABLE_6[family]
        ]
    made = []
    for family in FAMILIES:
        for size, network in enumerate(SIZES[scale.name][family], 1):
            for length in LENGTHS[scale.name]:
                place = {"family": family, "size": size, "length": length}
                made.append(scale.pretrain(place, network, length=length, few=False))
    return made


def read(results: Results, scale: Scale) -> Reading:
    """Compare families at equal compute; fit laws without the largest run of each, and see whether they foretell it."""
    runs = {family: runs_of(results.where(family=family)) for family in FAMILIES}
    laws = {family: held_out(each, DRAWS.get(scale.name, USUAL_DRAWS)) for family, each in runs.items()}
    findings = [
        Finding(
            says="ViT against BiT at the same compute, mean over what both have",
            estimate=estimate(list(advantage(runs["ViT"], runs["BiT"]).values())),
            expects="more",
            published="ViT needs 2 to 4 times less compute",
        ),
        Finding(
            says="hybrid against ViT in the lower half of the compute that both have",
            estimate=estimate(list(advantage(runs["hybrid"], runs["ViT"], (0.0, 0.5)).values())),
            expects="more",
            published="hybrids are ahead for small models",
        ),
        Finding(
            says=f"hybrid against ViT in the upper half; equal: within {EQUAL:g}",
            estimate=estimate(list(advantage(runs["hybrid"], runs["ViT"], (0.5, 1.0)).values())),
            expects="equal",
            margin=EQUAL,
            published="the difference vanishes for larger models",
        ),
        Finding(
            says="the largest ViT against the one before it, of the same images",
            estimate=last_gain(runs["ViT"]),
            expects="more",
            published="no saturation within the range tried",
        ),
    ]
    return Reading(
        findings=findings,
        tables=[*law_tables(laws), run_table(runs)],
        plots=[compute_plot(runs, scale), *law_plots(runs, laws)],
        notes=[foretold(family, found) for family, found in laws.items()],
    )


Run = tuple[dict[str, float], Results]  # what seeds share: parameters, images, exaflops; and the runs


def runs_of(results: Results) -> list[Run]:
    """Gather the seeds of each run, by rising compute."""
    groups: dict[tuple[object, ...], list[Done]] = {}
    for done in results.done:
        groups.setdefault((done.cell.at["size"], done.cell.at["length"]), []).append(done)
    made = [Results(each) for each in groups.values()]
    names = ("parameters", "images", "exaflops", "gmacs")
    return sorted((({name: float(part.first(name)) for name in names}, part) for part in made), key=_compute)


def _compute(run: Run) -> float:
    return run[0]["exaflops"]


def front(runs: Sequence[Run], seed: int) -> tuple[list[float], list[float]]:
    """Give the best accuracy that a compute buys, with a seed: log compute, and points that never fall.

    It goes on to the largest run that ended, also where that is no better.
    """
    found = ((shared["exaflops"], points(part).get(seed)) for shared, part in runs)
    ended = [(math.log(compute), value) for compute, value in found if value is not None]
    x, y = [], []
    for place, value in ended:
        if not y or value > y[-1]:
            x.append(place)
            y.append(value)
    if ended and ended[-1][0] > x[-1]:
        x.append(ended[-1][0])
        y.append(y[-1])
    return x, y


def advantage(one: Sequence[Run], other: Sequence[Run], share: tuple[float, float] = (0.0, 1.0)) -> dict[int, float]:
    """Give the mean difference of two families' best accuracy over a share of the compute that both have, by seed."""
    seeds = sorted(
        {seed for _, part in one for seed in points(part)} & {seed for _, part in other for seed in points(part)}
    )
    found = {}
    for seed in seeds:
        (x, y), (u, v) = front(one, seed), front(other, seed)
        if not x or not u:
            continue
        low, high = max(x[0], u[0]), min(x[-1], u[-1])
        if high <= low:
            continue
        places = np.linspace(low + share[0] * (high - low), low + share[1] * (high - low), PLACES)
        found[seed] = float((np.interp(places, x, y) - np.interp(places, u, v)).mean())
    return found


def last_gain(runs: Sequence[Run]) -> Estimate | None:
    """Give what the largest model gains over the next one, trained as long."""
    most = max(shared["images"] for shared, _ in runs)
    longest = sorted((run for run in runs if run[0]["images"] == most), key=lambda run: run[0]["parameters"])
    return paired(points(longest[-1][1]), points(longest[-2][1])) if len(longest) > 1 else None


class Foretold(NamedTuple):
    """A law of all runs but the largest, that run, and what the law says of its loss, with the ends of 95 %."""

    law: Bootstrap | None  # none of too few runs
    largest: Run
    said: tuple[float, float, float] | None


def held_out(runs: Sequence[Run], draws: int) -> Foretold:
    """Fit a law without the run of the most compute, and predict it."""
    ended = [run for run in runs if run[1].by_seed("loss")]
    if not ended:
        return Foretold(None, runs[-1], None)
    *others, largest = ended
    rows = [
        (shared["parameters"], shared["images"], loss)
        for shared, part in others
        for loss in part.by_seed("loss").values()
    ]
    if len({row[:2] for row in rows}) < 6:
        return Foretold(None, largest, None)
    parameters, images, losses = (np.array(column) for column in zip(*rows, strict=True))
    law = bootstrap_law(parameters, images, losses, draws=draws)
    return Foretold(law, largest, law.predict(largest[0]["parameters"], largest[0]["images"]))


def foretold(family: str, found: Foretold) -> str:
    """Say whether the largest run fell where the law says."""
    law, (_, part), said = found
    if law is None or said is None:
        return f"{family}: too few runs to fit a law."
    losses = part.by_seed("loss")
    inside = sum(said[1] <= loss <= said[2] for loss in losses.values())
    mean = sum(losses.values()) / max(len(losses), 1)
    bound = [name for name in ("parameters", "images") if at_bound(getattr(law.law, name))]
    edge = f" The exponent of {' and of '.join(bound)} lies at the edge of what is searched." if bound else ""
    return (
        f"{family}: the law of the other runs predicts a loss of {said[0]:.3f} ({said[1]:.3f} to {said[2]:.3f}) for "
        f"the largest; it was {mean:.3f}, inside the interval with {inside} of {len(losses)} seeds.{edge}"
    )


def law_tables(laws: dict[str, Foretold]) -> list[Table]:
    """Write the laws' numbers with their intervals."""
    rows = []
    for family, (law, _, _) in laws.items():
        if law is not None:
            numbers = [("least", law.law.least), ("parameters", law.law.parameters), ("images", law.law.images)]
            factors = [f"{law.law.of_parameters:.3g}", f"{law.law.of_images:.3g}"]
            rows.append([family, *(f"{value:.2f} ({_range(law, name)})" for name, value in numbers), *factors])
    columns = ["family", "E, least loss", "a, of parameters", "b, of images", "A", "B"]
    title = "Loss = E + A N^-a + B D^-b, without the largest run; with 95 % of bootstrap draws"
    return [Table(title, columns, rows)] if rows else []


def _range(law: Bootstrap, name: str) -> str:
    low, high = law.interval(name)
    return f"{low:.2f} to {high:.2f}"


def run_table(runs: dict[str, list[Run]]) -> Table:
    """Write every run."""
    rows = []
    for family, each in runs.items():
        for shared, part in each:
            size = f"{shared['parameters'] / 1e6:.2f}", f"{shared['images'] / 1e3:,.0f}", f"{shared['exaflops']:.3g}"
            loss = shown(estimate(list(part.by_seed("loss").values())), 3)
            rows.append([family, *size, shown(percent(part)), loss])
    columns = ["family", "million parameters", "thousand images", "exaFLOPs", "accuracy, %", "loss"]
    return Table("Accuracy against compute", columns, rows)


def compute_plot(runs: dict[str, list[Run]], scale: Scale) -> Plot:
    """Draw accuracy against compute, beside Table 6."""
    measured = [
        curve(family, [(shared["exaflops"], part) for shared, part in each], joined=False)
        for family, each in runs.items()
    ]
    paper = [
        Series(name=family, x=[row[3] for row in rows], y=[row[2] for row in rows], joined=False)
        for family, rows in TABLE_6.items()
    ]
    labels = {"x_label": "compute, exaFLOPs", "y_label": "accuracy, %", "log_x": True}
    return Plot(
        "compute",
        "Accuracy against compute",
        "Each mark is a model trained for some time: means over seeds with 95 % intervals. Beside it Table 6.",
        [
            Panel(title=scale.upstream.name, series=measured, **labels),
            Panel(title="ImageNet, Table 6", series=paper, published=True, **labels),
        ],
    )


def law_plots(runs: dict[str, list[Run]], laws: dict[str, Foretold]) -> list[Plot]:
    """Draw measured losses against what the laws say of them."""
    series = []
    for family, each in runs.items():
        law = laws[family][0]
        if law is not None:
            said = [float(law.law.loss(shared["parameters"], shared["images"])) for shared, _ in each]
            losses = [list(part.by_seed("loss").values()) for _, part in each]
            pairs = [(x, sum(y) / len(y)) for x, y in zip(said, losses, strict=True) if y]
            series.append(Series(name=family, x=[x for x, _ in pairs], y=[y for _, y in pairs], joined=False))
    plot = Plot(
        "law",
        "Measured loss against the law's",
        "The law of each family is fitted to all its runs but the one of the most compute.",
        [Panel(title="loss", x_label="loss that the law says", y_label="loss measured", series=series)],
    )
    return [plot] if series else []


STUDY = Study(
    name="scaling",
    title="ViT gives more for the same compute",
    paper="Figure 5, Table 6, Section 4.4",
    claim="For the same compute ViT is better than BiT; hybrids are ahead for small budgets alone; nothing saturates.",
    cells=cells,
    read=read,
    caveat="Images are seen several times, so that D counts repeated ones; models have a few million parameters.",
)
