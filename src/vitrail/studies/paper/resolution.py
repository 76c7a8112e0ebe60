"""Section 3.2: fine-tuning on larger images, with positions that are resampled or drawn anew."""

from dataclasses import replace

from vitrail.figures.studies import Panel
from vitrail.studies.reading import Finding, Plot, Reading, Table, curve, paired, percent, points, shown
from vitrail.studies.scales import Scale
from vitrail.studies.table import Cell, Results, Study

TIMES = {"smoke": (1, 2), "cpu": (1, 2), "gpu": (1, 1.5, 2), "paper": (1, 384 / 224)}
POSITIONS = {"resampled": "resampled", "fresh": "drawn anew"}


def sides(scale: Scale) -> list[int]:
    """Give the sides to fine-tune at: that of pre-training first."""
    return [round(scale.upstream.image_size * times) for times in TIMES[scale.name]]


def cells(scale: Scale) -> list[Cell]:
    """One pre-training, and a fine-tuning for each side and kind of positions."""
    first = scale.pretrain(
        {"side": scale.upstream.image_size, "positions": "pre-trained"}, scale.networks["ViT"], few=False
    )
    made = [first]
    for side in sides(scale):
        images = replace(scale.targets[0], image_size=side)
        for kind in POSITIONS:
            fresh = {"fresh_positions": True} if kind == "fresh" else {}
            made.append(scale.finetune({"side": side, "positions": kind}, first, images, **fresh))
    return made


def read(results: Results, scale: Scale) -> Reading:
    """Compare sides, and positions at the largest."""
    own, *_, largest = every = sides(scale)
    by = {kind: {side: results.where(side=side, positions=kind) for side in every} for kind in POSITIONS}
    findings = [
        Finding(
            says=f"fine-tuning at {largest} pixels against {own}, positions resampled",
            estimate=paired(points(by["resampled"][largest]), points(by["resampled"][own])),
            expects="more",
            published="it is often beneficial",
        ),
        Finding(
            says=f"positions resampled against drawn anew, at {largest} pixels",
            estimate=paired(points(by["resampled"][largest]), points(by["fresh"][largest])),
            expects="more",
            published="as they are, positions may no longer be meaningful",
        ),
    ]
    rows = [[f"{side}", *(shown(percent(by[kind][side])) for kind in POSITIONS)] for side in every]
    columns = ["side, pixels", *(f"positions {words}, %" for words in POSITIONS.values())]
    plot = Plot(
        "resolution",
        "Accuracy by the image size of fine-tuning",
        f"Pre-trained at {own} pixels. Means over seeds with 95 % intervals.",
        [
            Panel(
                title=scale.targets[0].name,
                x_label="side of the images in fine-tuning, pixels",
                y_label="accuracy, %",
                log_x=True,
                series=[curve(f"positions {words}", list(by[kind].items())) for kind, words in POSITIONS.items()],
            )
        ],
    )
    return Reading(findings=findings, tables=[Table("Accuracy by image size", columns, rows)], plots=[plot])


STUDY = Study(
    name="resolution",
    title="Fine-tuning on larger images helps, if positions are resampled",
    paper="Section 3.2",
    claim="Fine-tuning on larger images than those of pre-training helps, and resampled positions make it work.",
    cells=cells,
    read=read,
    caveat="A larger side also means more tokens, so more compute in fine-tuning; that is the paper's comparison too.",
)
