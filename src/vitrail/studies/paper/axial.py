"""Figure 13 (Appendix D.6): axial attention against attention over all tokens."""

from vitrail.figures.studies import Panel
from vitrail.studies.reading import Finding, Plot, Reading, Table, curve, exactly, paired, percent, points, shown
from vitrail.studies.scales import Scale
from vitrail.studies.table import Cell, Network, Results, Study

PATCHES = {"smoke": (16, 8), "cpu": (14, 7), "gpu": (16, 8), "paper": (32, 16)}
KINDS = {"full": "ViT", "axial": "Axial-ViT"}


def cells(scale: Scale) -> list[Cell]:
    """Both kinds at two patch sides, alike but for attention; neither has a class token."""
    fields, made = scale.networks["ViT"].fields, []
    letters = "B" if scale.name == "paper" else "Ti"
    for patch in PATCHES[scale.name]:
        for kind, word in KINDS.items():
            network = Network(model=f"{word}-{letters}/{patch}", fields={**fields, "pooling": "mean"})
            made.append(scale.pretrain({"attention": kind, "patch": patch}, network))
    return made


def read(results: Results, scale: Scale) -> Reading:
    """Compare the two at each patch side, in accuracy and in compute."""
    by = {kind: {patch: results.where(attention=kind, patch=patch) for patch in PATCHES[scale.name]} for kind in KINDS}
    findings, rows = [], []
    for patch in PATCHES[scale.name]:
        one, other = by["axial"][patch], by["full"][patch]
        findings.append(
            Finding(
                says=f"axial against full attention, patches of {patch}",
                estimate=paired(points(one, scale.metric), points(other, scale.metric)),
                expects="more",
                published="Axial-B/32 and B/16 are ahead of ViT-B/32 and B/16",
            )
        )
        findings.append(
            Finding(
                says=f"compute of axial over that of full attention, patches of {patch}",
                estimate=exactly(float(one.first("exaflops")) / float(other.first("exaflops")) - 1),
                expects="more",
                unit="times more",
                published="more compute",
            )
        )
    for kind, words in KINDS.items():
        for patch, part in by[kind].items():
            shape = f"{part.first('parameters') / 1e6:.2f}", f"{part.first('gmacs'):.3f}"
            rows.append([words, f"{patch}", *shape, shown(percent(part)), shown(percent(part, "fewshot"))])
    columns = ["model", "patch", "million parameters", "GMACs", "accuracy, %", f"{scale.shots}-shot, %"]
    plot = Plot(
        "axial",
        "Accuracy against compute",
        "Means over seeds with 95 % intervals. The paper has a figure alone (Fig. 13), no numbers.",
        [
            Panel(
                title=scale.upstream.name,
                x_label="compute, exaFLOPs",
                y_label="accuracy, %",
                log_x=True,
                series=[
                    curve(words, [(float(part.first("exaflops")), part) for part in by[kind].values()])
                    for kind, words in KINDS.items()
                ],
            )
        ],
    )
    return Reading(findings=findings, tables=[Table("Axial against full attention", columns, rows)], plots=[plot])


STUDY = Study(
    name="axial",
    title="Axial attention buys accuracy with compute",
    paper="Figure 13, Appendix D.6",
    claim="Axial ViTs are better than ViTs of the same shape, and cost more compute, as each block has two MLPs.",
    cells=cells,
    read=read,
    caveat="An axial model of the same depth has twice the layers; the paper compares them so too.",
)
