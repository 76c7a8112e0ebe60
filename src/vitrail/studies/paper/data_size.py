"""Figures 3 and 4 (Section 4.3): ViT, hybrid and BiT on growing parts of the data, with early stopping."""

from vitrail.figures.studies import Panel, Series
from vitrail.studies.reading import Finding, Plot, Reading, Table, curve, paired, percent, points, shown
from vitrail.studies.scales import Scale, bit, hybrid, vit
from vitrail.studies.sets import count_of
from vitrail.studies.table import Cell, Images, Network, Results, Study

PER_CLASS = {"smoke": (4, 8), "cpu": (20, 60, 200), "gpu": (8, 25, 80, 250), "paper": (492, 1640, 4920, 16565)}
PATIENCE = 3  # evaluations, of eight
MODELS: dict[str, dict[str, Network]] = {
    "smoke": {"ViT, small": vit(8, 32, 1), "ViT, larger": vit(8, 32, 2), "hybrid": hybrid((1,), 32, 2, 32, 1)}
    | {"BiT": bit((1,), 32)},
    "cpu": {"ViT, small": vit(7, 32, 3), "ViT, larger": vit(7, 64, 6), "hybrid": hybrid((1,), 32, 1, 64, 2)}
    | {"BiT": bit((1, 1, 1), 32)},
    "gpu": {"ViT, small": vit(8, 128, 4), "ViT, larger": vit(8, 192, 7), "hybrid": hybrid((1, 1), 32, 1, 192, 6)}
    | {"BiT": bit((2, 2, 2, 2), 64)},
    "paper": {"ViT, small": Network(model="ViT-b/32"), "ViT, larger": Network(model="ViT-L/16")}
    | {"hybrid": Network(model="R50+ViT-B/32"), "BiT": Network(model="BiT-R152x2")},
}
SMALL, LARGER, BIT = "ViT, small", "ViT, larger", "BiT"
# Table 5: ImageNet after pre-training on ImageNet, ImageNet-21k and JFT-300M.
TABLE_5 = {
    "ViT-B/16": (77.91, 83.97, 84.15),
    "ViT-B/32": (73.38, 81.28, 80.73),
    "ViT-L/16": (76.53, 85.15, 87.12),
    "ViT-L/32": (71.16, 80.99, 84.37),
}
SIZES_5 = (1.28e6, 14.2e6, 303e6)


def cells(scale: Scale) -> list[Cell]:
    """Each model on each part; the same training for all."""
    made = []
    for name, network in MODELS[scale.name].items():
        for count in PER_CLASS[scale.name]:
            images = Images(name=scale.upstream.name, image_size=scale.upstream.image_size, per_class=count)
            place = {"model": name, "per_class": count}
            made.append(scale.pretrain(place, network, images=images, patience=PATIENCE))
    return made


def read(results: Results, scale: Scale) -> Reading:
    """Compare ViT and BiT on the least and on the most images, and larger with smaller ViTs."""
    counts, models = PER_CLASS[scale.name], MODELS[scale.name]
    at = {name: {count: results.where(model=name, per_class=count) for count in counts} for name in models}
    size = {count: count_of(Images(name=scale.upstream.name, image_size=0, per_class=count)) for count in counts}
    least, most = counts[0], counts[-1]
    of = {name: {count: points(at[name][count], scale.metric) for count in (least, most)} for name in models}
    behind, ahead = (paired(of[LARGER][count], of[BIT][count]) for count in (least, most))
    gain = {
        count: {
            seed: value - of[SMALL][count][seed]
            for seed, value in of[LARGER][count].items()
            if seed in of[SMALL][count]
        }
        for count in (least, most)
    }
    findings = [
        Finding(
            says=f"{LARGER}, against BiT on {size[least]:,} images", estimate=behind, expects="less", published="behind"
        ),
        Finding(
            says=f"{LARGER}, against BiT on {size[most]:,} images", estimate=ahead, expects="more", published="ahead"
        ),
        Finding(
            says="what a larger ViT gains over a small one, on most images less on least",
            estimate=paired(gain[most], gain[least]),
            expects="more",
            published="larger models need more images",
        ),
    ]
    rows = [
        [name, *(shown(percent(at[name][count])) for count in counts)]
        + [shown(percent(at[name][count], "fewshot")) for count in (least, most)]
        for name in models
    ]
    columns = ["model", *(f"{size[count]:,} images, %" for count in counts)]
    columns += [f"{scale.shots}-shot after {size[count]:,}, %" for count in (least, most)]
    plot = Plot(
        "data-size",
        "Accuracy by images to learn from",
        "Best of a run's evaluations, chosen by the images that are reported, as in the paper; means over seeds with "
        "95 % intervals, all of one subset. Beside it Table 5: "
        "ImageNet accuracy after pre-training on ImageNet, ImageNet-21k and JFT-300M.",
        [
            Panel(
                title=scale.upstream.name,
                x_label="images to learn from",
                y_label="accuracy, %",
                log_x=True,
                series=[curve(name, [(size[count], at[name][count]) for count in counts]) for name in models],
            ),
            Panel(
                title="ImageNet, Table 5",
                x_label="images to pre-train on",
                y_label="accuracy, %",
                log_x=True,
                series=[Series(name=name, x=SIZES_5, y=values) for name, values in TABLE_5.items()],
                published=True,
            ),
        ],
    )
    return Reading(findings=findings, tables=[Table("Accuracy by images to learn from", columns, rows)], plots=[plot])


STUDY = Study(
    name="data-size",
    title="With more images, ViT overtakes ResNets",
    paper="Figures 3 and 4, Section 4.3",
    claim="The curves cross: ViT is behind BiT on little data and ahead on much; larger models need more images.",
    cells=cells,
    read=read,
    caveat="In the paper ViT overtakes BiT between 30 and 300 million images; the sets of smaller scales have 2,000 or "
    "50,000, so that the crossing lies far outside.",
)
