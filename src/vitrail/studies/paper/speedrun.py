"""How many minutes of one GPU a plain ViT needs, from nothing, to an accuracy: no convolutions, no other images."""

from typing import Any

from vitrail.config.recipe import Adam, Mimetic, Muon
from vitrail.figures.studies import Panel, Series
from vitrail.studies.reading import Finding, Plot, Reading, Table, estimate, paired, percent, points, shown
from vitrail.studies.scales import Scale, vit
from vitrail.studies.table import Cell, Images, Network, Results, Study, Train

CIFAR = Images(name="cifar10", image_size=32)
GOALS = {"smoke": 0.0, "cpu": 70.0, "gpu": 94.0, "paper": 94.0}  # per cent of the test images
EPOCHS = {"smoke": (1,), "cpu": (20, 40), "gpu": (60, 90, 120), "paper": (60, 90, 120)}
NETWORKS = {"smoke": vit(8, 32, 2), "cpu": vit(7, 96, 4), "gpu": vit(4, 384, 8), "paper": vit(4, 384, 8)}
MUON = Muon(learning_rate=2e-3, weight_decay=0.1, betas=(0.9, 0.99))
OPTIMIZERS = {"Muon": MUON, "AdamW": Adam(learning_rate=1e-3, weight_decay=0.1, betas=(0.9, 0.99))}
# What changes of the recipe for small data, and is the same at every length.
FIELDS: dict[str, Any] = {
    "schedule.warmup_epochs": 3.0,
    "batch_size": 1024,
    "crop_area": (0.5, 1.0),
    "cutmix": 0.5,
    "mixup": 0.0,
    "label_smoothing": 0.1,
    "stochastic_depth": 0.05,
    "ema.decay": 0.998,
    "initialization": Mimetic(),
    "validation_share": 0.0,
    "result": "last",
    "keep": 1,
}
SMALLER = {"smoke": 8, "cpu": 64}  # batches
AIM = 3.0  # minutes


def cells(scale: Scale) -> list[Cell]:
    """Muon at every length, and AdamW at the longest; measured on the test images at the end alone."""
    images = CIFAR if scale.name in ("gpu", "paper") else scale.upstream
    network = NETWORKS[scale.name]
    shape = {**network.fields, "positions": "sinusoidal-2d", "pooling": "mean", "class_token": False}
    lengths = EPOCHS[scale.name]
    asked = [("Muon", epochs) for epochs in lengths] + [("AdamW", lengths[-1])]
    fields = {**FIELDS, "image_size": images.image_size}
    fields["batch_size"] = SMALLER.get(scale.name, FIELDS["batch_size"])
    if scale.name == "smoke":
        fields["schedule.warmup_epochs"] = 0.0
    return [
        Cell(
            at={"optimizer": name, "epochs": epochs},
            work=Train(
                network=Network(model=network.model, fields=shape),
                images=images,
                recipe="small",
                fields={
                    **fields,
                    "optimizer": OPTIMIZERS[name],
                    "epochs": epochs,
                    "evaluate_every": 10**6,
                    "save_every": 10**6,
                },
                timed=True,
            ),
        )
        for name, epochs in asked
    ]


def read(results: Results, scale: Scale) -> Reading:
    """Say which lengths reach the accuracy, and in how many minutes."""
    goal, rows = GOALS[scale.name], []
    reached: list[tuple[float, str]] = []
    for name in results.values("optimizer"):
        for epochs in results.where(optimizer=name).values("epochs"):
            of = results.where(optimizer=name, epochs=epochs)
            accuracy = percent(of)
            minutes, whole, aside = (estimate([*of.by_seed(word).values()]) for word in ("minutes", "in_all", "aside"))
            enough = accuracy is not None and accuracy.mean >= goal
            if enough and minutes is not None:
                reached.append((minutes.mean, f"{name}, {epochs} epochs"))
            rows.append(
                [
                    name,
                    str(epochs),
                    shown(accuracy),
                    shown(minutes, 2),
                    shown(aside, 2),
                    shown(whole, 2),
                    "yes" if enough else "no",
                ]
            )
    longest = EPOCHS[scale.name][-1]
    both = [results.where(optimizer=name, epochs=longest) for name in OPTIMIZERS]
    finding = Finding(
        says=f"Muon against AdamW, {longest} epochs of each",
        estimate=paired(points(both[0]), points(both[1])),
        expects="more",
        published="trained a language model 1.35 times as fast (Jordan et al., 2024)",
    )
    fastest = min(reached, default=None)
    notes = [
        f"{goal:g} % in {fastest[0]:.2f} minutes of training steps ({fastest[1]}); under {AIM:g} is asked for."
        if fastest
        else f"No length reached {goal:g} %."
    ]
    columns = ["optimizer", "epochs", "test accuracy, %", "minutes of steps", "minutes aside", "minutes in all"]
    table = Table(f"From nothing to {goal:g} % of the test images", [*columns, "reached"], rows)
    return Reading(findings=[finding], tables=[table], plots=[plot_of(results, goal)], notes=notes)


def plot_of(results: Results, goal: float) -> Plot:
    """Draw accuracy over minutes."""
    series = []
    for name in results.values("optimizer"):
        of = [results.where(optimizer=name, epochs=each) for each in results.where(optimizer=name).values("epochs")]
        pairs = [(estimate([*each.by_seed("minutes").values()]), percent(each)) for each in of]
        known = sorted((time.mean, found.mean) for time, found in pairs if time is not None and found is not None)
        series.append(Series(name=name, x=[x for x, _ in known], y=[y for _, y in known]))
    panel = Panel(title="here", x_label="minutes of training steps", y_label="test accuracy, %", series=series)
    return Plot("speedrun", "Accuracy over minutes", f"Means over seeds; {goal:g} % is asked for.", [panel])


STUDY = Study(
    name="speedrun",
    title="Minutes of one GPU to 94 % of CIFAR-10 with a plain ViT",
    paper="beside Section 4.5",
    claim="A plain ViT without convolutions or other images reaches 94 % of CIFAR-10's test images in under 3 minutes.",
    cells=cells,
    read=read,
    caveat="Minutes are of the training steps by the clock; compiling, opening, measuring and saving are aside.",
)
