"""Section 4.6: pre-training by masked patch prediction, against labels and against none."""

from dataclasses import replace

from vitrail.figures.studies import Panel, Series
from vitrail.studies.reading import Finding, Plot, Reading, Table, dots, paired, percent, points, shown
from vitrail.studies.scales import Scale
from vitrail.studies.table import Cell, Images, Results, Study

WAYS = {"scratch": "none", "labels": "labels", "masked-patch": "masked patches", "mae": "MAE (He et al., 2022)"}
WITHOUT_LABELS = {"label_smoothing": 0.0, "mixup": 0.0, "loss": "softmax", "head_bias": 0.0}
# At the paper's scale: the recipe and the images of pre-training.
RECIPES = {
    "scratch": ("i1k", "imagenet"),
    "labels": ("i21k/ViT-B/16", "imagenet-21k"),
    "masked-patch": ("masked-patch", "jft-300m"),
    "mae": ("mae", "imagenet"),
}
# ImageNet accuracy of ViT-B/16: Table 5, and Section 4.6.
PUBLISHED = {"none": 77.9, "labels": 84.0, "masked patches": 79.9}
TUNED = {"smoke": 1.0, "cpu": 2.0, "gpu": 6.0}  # times the usual steps of fine-tuning


def cells(scale: Scale) -> list[Cell]:
    """Pre-train in each way on half of the classes, and fine-tune on the other half; one without pre-training."""
    if scale.name == "paper":
        return as_published(scale)
    network = replace(scale.networks["ViT"], fields={**scale.networks["ViT"].fields, "pooling": "mean"})
    first, second = (replace(scale.upstream, half=half) for half in ("first", "second"))
    made: list[Cell] = []
    for way in WAYS:
        at = {"pre-training": way, "on": "second"}
        if way == "scratch":
            own = {**scale.tuning_fields, "image_size": second.image_size}
            length = TUNED[scale.name] * (scale.tuning_steps or 1) / (scale.steps or 1)
            made.append(scale.pretrain(at, network, images=second, length=length, few=False, **own))
            continue
        fields = {} if way == "labels" else {**WITHOUT_LABELS, "objective": way}
        begins = scale.pretrain({**at, "on": "first"}, network, images=first, few=False, **fields)
        made += [begins, scale.finetune(at, begins, second, length=TUNED[scale.name])]
    return made


def as_published(scale: Scale) -> list[Cell]:
    """Pre-train ViT-B/16 in each way by its own recipe, and fine-tune on ImageNet; "none" is ImageNet's own labels."""
    made: list[Cell] = []
    for way, (recipe, name) in RECIPES.items():
        at, images = {"pre-training": way}, Images(name=name, image_size=224)
        begins = scale.pretrain({**at, "on": "first"}, scale.networks["ViT"], images=images, recipe=recipe, few=False)
        made += [begins, scale.finetune({**at, "on": "second"}, begins, scale.targets[0])]
    return made


def read(results: Results, scale: Scale) -> Reading:
    """Compare masked patches with none and with labels, after fine-tuning."""
    by = {way: results.where(**{"pre-training": way, "on": "second"}) for way in WAYS}
    findings = [
        Finding(
            says="masked patches against no pre-training, after fine-tuning",
            estimate=paired(points(by["masked-patch"]), points(by["scratch"])),
            expects="more",
            published="+2 points",
        ),
        Finding(
            says="masked patches against labels, after fine-tuning",
            estimate=paired(points(by["masked-patch"]), points(by["labels"])),
            expects="less",
            published="-4 points",
        ),
    ]
    rows = [
        [words, shown(percent(by[way])), f"{PUBLISHED[words]:.1f}" if words in PUBLISHED else ""]
        for way, words in WAYS.items()
    ]
    names, series = list(WAYS.values()), [dots("", list(by.values()))]
    plot = Plot(
        "self-supervision",
        "Accuracy after fine-tuning, by pre-training",
        "Means over seeds with 95 % intervals; hollow marks are the paper's ViT-B/16 on ImageNet.",
        [
            Panel(title="here", x_label="accuracy, %", y_label="", categories=names, series=series),
            Panel(
                title="ImageNet, ViT-B/16",
                x_label="accuracy, %",
                y_label="",
                categories=names,
                series=[Series(name="", x=range(len(PUBLISHED)), y=list(PUBLISHED.values()))],
                published=True,
            ),
        ],
    )
    table = Table("Accuracy after fine-tuning", ["pre-training", "accuracy, %", "the paper, %"], rows)
    return Reading(findings=findings, tables=[table], plots=[plot])


STUDY = Study(
    name="self-supervision",
    title="Masked patches are better than none, and worse than labels",
    paper="Section 4.6, Appendix B.1.2",
    claim="Pre-training by masked patch prediction is better than none, and worse than pre-training with labels.",
    cells=cells,
    read=read,
    caveat="Below the paper's scale labels are of few classes and of 1,000 or 25,000 images, not of thousands and of "
    "millions.",
)
