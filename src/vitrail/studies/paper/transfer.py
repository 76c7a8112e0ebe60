"""Tables 2 and 5 and Figure 2: ViT, hybrid and BiT of the same pre-training compute, on several targets."""

from vitrail.figures.studies import Panel, Series
from vitrail.ops.cost.counts import exaflops
from vitrail.studies.reading import Finding, Plot, Reading, Table, dots, mean_by_seed, paired, percent, points, shown
from vitrail.studies.scales import FAMILIES, Scale
from vitrail.studies.table import Cell, Network, Results, Study
from vitrail.studies.work import config_of

# Table 2, in per cent: ImageNet, ReaL, CIFAR-10, CIFAR-100, Pets, Flowers, VTAB; and TPUv3-core-days.
TABLE_2 = {
    "ViT-H/14 (JFT)": (88.55, 90.72, 99.50, 94.55, 97.56, 99.68, 77.63, 2500),
    "ViT-L/16 (JFT)": (87.76, 90.54, 99.42, 93.90, 97.32, 99.74, 76.28, 680),
    "ViT-L/16 (I21k)": (85.30, 88.62, 99.15, 93.25, 94.67, 99.61, 72.72, 230),
    "BiT-L (R152x4)": (87.54, 90.54, 99.37, 93.51, 96.62, 99.63, 76.29, 9900),
}
TARGETS_2 = ("ImageNet", "ReaL", "CIFAR-10", "CIFAR-100", "Pets", "Flowers", "VTAB")
PAPER = {"ViT": "ViT-L/16", "hybrid": "R50+ViT-L/16", "BiT": "BiT-R152x2"}


def cells(scale: Scale) -> list[Cell]:
    """One pre-training of each family, as long as makes their compute equal, and a fine-tuning on each target."""
    networks = (
        {family: Network(model=PAPER[family]) for family in FAMILIES} if scale.name == "paper" else scale.networks
    )
    work = {
        family: exaflops(config_of(network, scale.upstream.image_size, None), images=1)
        for family, network in networks.items()
    }
    made: list[Cell] = []
    for family in FAMILIES:
        length = work["ViT"] / work[family]
        first = scale.pretrain({"family": family, "on": "upstream"}, networks[family], length=length)
        made += [first, *(scale.finetune({"family": family, "on": each.name}, first, each) for each in scale.targets)]
    return made


def read(results: Results, scale: Scale) -> Reading:
    """Compare the families, on average over the targets."""
    targets = [each.name for each in scale.targets]
    by = {
        family: {name: results.where(family=family, on=name) for name in ("upstream", *targets)} for family in FAMILIES
    }
    means = {family: mean_by_seed([points(by[family][name]) for name in targets]) for family in FAMILIES}
    finding = Finding(
        says="ViT against BiT of the same pre-training compute, mean of the targets",
        estimate=paired(means["ViT"], means["BiT"]),
        expects="more",
        published="better on every target with a quarter of the compute (Table 2)",
    )
    few = f"{scale.shots}-shot"
    rows = [
        [family, f"{by[family]['upstream'].first('exaflops'):.3g}", shown(percent(by[family]["upstream"]))]
        + [shown(percent(by[family]["upstream"], "fewshot"))]
        + [shown(percent(by[family][name])) for name in targets]
        for family in FAMILIES
    ]
    columns = [
        "family",
        "pre-training, exaFLOPs",
        "upstream, %",
        f"{few} {scale.few.name}, %",
        *(f"{name}, %" for name in targets),
    ]
    paper = [[name, *(f"{value:.2f}" for value in values[:-1]), f"{values[-1]:,}"] for name, values in TABLE_2.items()]
    plot = Plot(
        "transfer",
        "Accuracy after fine-tuning",
        "Means over seeds with 95 % intervals. Beside it Table 2.",
        [
            Panel(
                title="fine-tuned here",
                x_label="accuracy, %",
                y_label="",
                categories=targets,
                series=[dots(family, [by[family][name] for name in targets]) for family in FAMILIES],
            ),
            Panel(
                title="Table 2",
                x_label="accuracy, %",
                y_label="",
                categories=TARGETS_2,
                series=[Series(name=name, x=range(7), y=values[:7]) for name, values in TABLE_2.items()],
                published=True,
            ),
        ],
    )
    tables = [
        Table("Accuracy after fine-tuning, the same pre-training compute", columns, rows),
        Table("The paper's Table 2", ["model", *(f"{name}, %" for name in TARGETS_2), "TPUv3-core-days"], paper),
    ]
    return Reading(findings=[finding], tables=tables, plots=[plot])


STUDY = Study(
    name="transfer",
    title="ViT transfers better for the same pre-training compute",
    paper="Tables 2 and 5, Figure 2",
    claim="Of models pre-trained with the same compute, ViT is better than BiT after fine-tuning.",
    cells=cells,
    read=read,
    caveat="The paper pre-trains on 1.3 to 300 million images; on little data ViT is behind BiT (Figure 3). Below its "
    "scale all are fine-tuned with Adam at one rate, not with SGD at the best of several.",
)
