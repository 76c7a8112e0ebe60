"""Figure 8 (Appendix D.2): a ViT made deeper, wider, with a larger MLP, or with smaller patches."""

import math

from vitrail.figures.studies import Panel
from vitrail.studies.reading import (
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
from vitrail.studies.scales import Scale
from vitrail.studies.table import Cell, Network, Results, Study

AXES = {"depth": "depth", "width": "width", "mlp": "MLP width", "patch": "patch side"}
# The base is the middle value of every axis; heads have as many features whatever the width.
VALUES: dict[str, dict[str, tuple[int, ...]]] = {
    "smoke": {"depth": (1, 2), "width": (32, 64), "mlp": (64, 128), "patch": (16, 8)},
    "cpu": {"depth": (2, 4, 8), "width": (48, 96, 192), "mlp": (192, 384, 768), "patch": (14, 7)},
    "gpu": {"depth": (3, 6, 12), "width": (96, 192, 384), "mlp": (384, 768, 1536), "patch": (16, 8, 4)},
    "paper": {
        "depth": (2, 4, 8, 16, 32, 64),
        "width": (256, 512, 1024, 2048, 4096),
        "mlp": (512, 1024, 2048, 4096, 8192),
        "patch": (32, 16, 8),
    },
}
BASE = {
    "smoke": {"depth": 1, "width": 32, "mlp": 64, "patch": 8, "head": 16},
    "cpu": {"depth": 4, "width": 96, "mlp": 384, "patch": 7, "head": 32},
    "gpu": {"depth": 6, "width": 192, "mlp": 768, "patch": 8, "head": 32},
    "paper": {"depth": 8, "width": 1024, "mlp": 2048, "patch": 32, "head": 64},
}


def network(shape: dict[str, int]) -> Network:
    """Give a ViT of a shape."""
    fields = {"depth": shape["depth"], "width": shape["width"], "mlp_width": shape["mlp"]}
    return Network(model=f"ViT-B/{shape['patch']}", fields={**fields, "heads": shape["width"] // shape["head"]})


def cells(scale: Scale) -> list[Cell]:
    """Change one axis at a time; the base stands in each, and is run once."""
    base, made = BASE[scale.name], [scale.pretrain({"axis": "base", "value": 0}, network(BASE[scale.name]))]
    for axis, values in VALUES[scale.name].items():
        for value in values:
            if value != base[axis]:
                made.append(scale.pretrain({"axis": axis, "value": value}, network({**base, axis: value})))
    return made


def read(results: Results, scale: Scale) -> Reading:
    """Compare what doubling the compute gains along each axis."""
    base, rows, slopes, series = BASE[scale.name], [], {}, []
    middle = results.where(axis="base")
    for axis, words in AXES.items():
        values = VALUES[scale.name][axis]
        parts = [middle if value == base[axis] else results.where(axis=axis, value=value) for value in values]
        compute = [float(part.first("exaflops")) for part in parts]
        for value, part in zip(values, parts, strict=True):
            rows.append(
                [words, f"{value}", f"{part.first('gmacs'):.3f}", shown(percent(part)), shown(percent(part, "fewshot"))]
            )
        slopes[axis] = slope_by_seed(compute, parts, scale.metric)
        series.append(curve(words, sorted(zip(compute, parts, strict=True), key=lambda each: each[0])))
    findings = [
        Finding(
            says="points for each doubling of compute by depth, less those by width",
            estimate=paired(slopes["depth"], slopes["width"]),
            expects="more",
            published="depth gains most, width least",
        ),
        *(
            Finding(
                says=f"points for each doubling of compute by {AXES[one]}, less those by {AXES[other]}",
                estimate=paired(slopes[one], slopes[other]),
                expects="more",
                published="depth gains most, width least",
            )
            for one, other in (("depth", "mlp"), ("mlp", "width"))
        ),
        Finding(
            says="points for each doubling of compute by smaller patches",
            estimate=_mean(slopes["patch"]),
            expects="more",
            published="smaller patches help, without more parameters",
        ),
    ]
    plot = Plot(
        "shape",
        "Accuracy against compute, one axis changed at a time",
        "Means over seeds with 95 % intervals. The paper has a figure alone (Fig. 8), no numbers.",
        [
            Panel(
                title=f"{scale.upstream.name}",
                x_label="compute, exaFLOPs",
                y_label="accuracy, %",
                log_x=True,
                series=series,
            )
        ],
    )
    gains = [[words, shown(_mean(slopes[axis]), 2)] for axis, words in AXES.items()]
    columns = ["axis", "value", "GMACs", "accuracy, %", f"{scale.shots}-shot, %"]
    tables = [
        Table("Points for each doubling of compute", ["axis", "points"], gains),
        Table("Accuracy by shape", columns, rows),
    ]
    return Reading(findings=findings, tables=tables, plots=[plot])


def slope_by_seed(compute: list[float], parts: list[Results], metric: str = "accuracy") -> dict[int, float]:
    """Give the points that a doubling of compute gains, by least squares, for each seed that has all values."""
    found = [points(part, metric) for part in parts]
    places = [math.log2(each) for each in compute]
    middle = sum(places) / len(places)
    square = sum((place - middle) ** 2 for place in places)
    return {
        seed: sum((place - middle) * values[seed] for place, values in zip(places, found, strict=True)) / square
        for seed in found[0]
        if all(seed in values for values in found)
    }


def _mean(values: dict[int, float]) -> Estimate | None:
    return estimate(list(values.values()))


STUDY = Study(
    name="shape",
    title="Depth gains most, width least, smaller patches help",
    paper="Figure 8, Appendix D.2",
    claim="More compute helps a ViT most as depth and least as width; smaller patches help without more parameters.",
    cells=cells,
    read=read,
    caveat="Short runs of small models: depth may need longer training than width to show what it gains.",
)
