"""Figure 12 (Appendix D.5): images a second by image size, and the largest batch that fits."""

import math
from typing import Any

from vitrail.figures.studies import Panel, Series
from vitrail.studies.reading import Estimate, Finding, Plot, Reading, Table, estimate, exactly
from vitrail.studies.scales import Scale, bit, vit
from vitrail.studies.table import Cell, Network, Results, Speed, Study

MODELS: dict[str, dict[str, Network]] = {
    "smoke": {"ViT": vit(8, 32, 1), "BiT": bit((1,), 32)},
    "cpu": {"ViT-Ti/16": Network(model="ViT-Ti/16"), "BiT-R50, half as wide": bit((3, 4, 6, 3), 32)},
    "gpu": {
        name: Network(model=name)
        for name in ("ViT-B/32", "ViT-B/16", "ViT-L/32", "ViT-L/16", "BiT-R50x1", "BiT-R50x2", "BiT-R152x2")
    },
}
SIDES = {"smoke": (32, 64), "cpu": (64, 128, 224, 384), "gpu": (64, 128, 224, 384, 512)}
PAIRS = {  # of about the same compute: a ViT, and a ResNet
    "smoke": (("ViT", "BiT"),),
    "cpu": (("ViT-Ti/16", "BiT-R50, half as wide"),),
    "gpu": (("ViT-B/32", "BiT-R50x1"), ("ViT-B/16", "BiT-R50x2"), ("ViT-L/16", "BiT-R152x2")),
}
HARDLY = 3  # power of the side, between 2 of the products by token and 4 of token against token
MEMORY = {"smoke": 1.0, "cpu": 4.0}  # GiB; else what the device has
TIMED: dict[str, dict[str, Any]] = {"smoke": {"most": 8, "seconds": 0.05}, "cpu": {"most": 64}}


def cells(scale: Scale) -> list[Cell]:
    """Each model at each side."""
    name = "gpu" if scale.name == "paper" else scale.name
    return [
        Cell(
            at={"model": model, "side": side},
            work=Speed(network=network, image_size=side, memory=MEMORY.get(name), **TIMED.get(name, {})),
        )
        for model, network in MODELS[name].items()
        for side in SIDES[name]
    ]


def read(results: Results, scale: Scale) -> Reading:
    """See how time grows with the side, and compare the largest batches."""
    name = "gpu" if scale.name == "paper" else scale.name
    models, sides = MODELS[name], SIDES[name]
    at = {model: {side: results.where(model=model, side=side) for side in sides} for model in models}
    vits = [model for model in models if model.startswith("ViT")]
    findings = [
        Finding(
            says=f"{model}: power of the side by which time grows, {sides[-2]} to {sides[-1]} pixels, above {HARDLY}",
            estimate=_less(growth(at[model][sides[-2]], at[model][sides[-1]], sides[-2], sides[-1]), HARDLY),
            expects="less",
            unit="of the power",
            published="the bi-quadratic growth only begins at the largest models and sizes",
        )
        for model in vits
    ]
    usual = 224 if 224 in sides else sides[-1]
    for one, other in PAIRS[name]:
        both = [float(at[model][usual].first("largest_batch")) for model in (one, other)]
        findings.append(
            Finding(
                says=f"predicted: largest batch of {one} over that of {other} at {usual} pixels, above 1",
                estimate=exactly(both[0] / max(both[1], 1) - 1),
                expects="more",
                unit="times",
                published="large ViTs have a clear advantage",
            )
        )
    rows = []
    for model, each in at.items():
        for side, found in each.items():
            rate, largest = f"{found.first('images_per_second'):,.0f}", f"{found.first('largest_batch'):,}"
            rows.append([model, f"{side}", f"{found.first('gmacs'):.2f}", rate, largest])
    columns = ["model", "side, pixels", "GMACs", "images a second", "largest batch of a training step"]
    labels = {"x_label": "side of the images, pixels", "log_x": True, "log_y": True}
    plot = Plot(
        "speed",
        "Speed and memory by image size",
        "Left: forward passes at the best batch. Right: the largest batch whose training step fits, as predicted.",
        [
            Panel(title="speed", y_label="images a second", series=_series(at, "images_per_second"), **labels),
            Panel(title="memory", y_label="largest batch", series=_series(at, "largest_batch"), **labels),
        ],
    )
    return Reading(findings=findings, tables=[Table("Speed and memory by image size", columns, rows)], plots=[plot])


def growth(small: Results, large: Results, side: int, larger: int) -> Estimate | None:
    """Give the power of the side by which the seconds of an image grow, of every repeat."""
    one, two = small.first("repeats"), large.first("repeats")
    return estimate([math.log(fast / slow) / math.log(larger / side) for fast, slow in zip(one, two, strict=True)])


def _less(found: Estimate | None, value: float) -> Estimate | None:
    return None if found is None else estimate([each - value for each in found.values])


def _series(at: dict[str, dict[int, Results]], number: str) -> list[Series]:
    return [
        Series(name=model, x=list(each), y=[max(float(found.first(number)), 0.5) for found in each.values()])
        for model, each in at.items()
    ]


STUDY = Study(
    name="speed",
    title="ViT's cost grows late, and it holds larger batches",
    paper="Figure 12, Appendix D.5",
    claim="The bi-quadratic growth of ViT's cost with the image size is hardly seen at usual sizes, and its memory "
    "holds larger batches than that of ResNets of like compute.",
    cells=cells,
    read=read,
    caveat="The paper's is a TPUv3 core; the largest batch is predicted from the memory model, which LOG.md measures.",
    seeded=False,
)
