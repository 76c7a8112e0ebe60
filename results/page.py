"""Write docs/results.md from the files beside this one: `python results/page.py`. A test says that it is up to date."""

import itertools
import json
import runpy
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitrail.evaluation.results import Result, over_seeds, read_results

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results.md"
DEMO_SEEDS = (0, 1, 2)
HEAD = """Every number here is made by a command, and kept with its configuration, log and seed under `results/`; this
page is written from those files by `python results/page.py`, and a test compares the two. ± is the sample standard
deviation over seeds. All runs here ended with their last weights: where a command trains on data with a val split, add
`--set result=last`, as the best are taken today."""


def page() -> str:
    """Give the page."""
    recipes = runpy.run_path(str(HERE / "recipes.py"))["sections"]()
    head = f"# Results\n\n{paragraph(HEAD)}\n"
    return head + box() + demo() + pets() + cifar10() + recipes + objectives() + next_pixel()


def box() -> str:
    """Say how good the model in the box is."""
    found = document("vitrail-ti8/evaluation.json")
    low, high = found["interval"]
    rows = [
        (
            "accuracy, 10,000 validation images",
            f"{100 * found['accuracy']:.2f} ({100 * low:.2f} to {100 * high:.2f})",
            "`vitrail evaluate vitrail-ti8 tiny-imagenet --split val`",
        ),
        ("among the first five", f"{100 * found['top5']:.2f}", "the same"),
    ]
    few = read_results(HERE / "vitrail-ti8" / "fewshot.json")
    for shots in (1, 5, 10, 25):
        for probe, words in (("ridge", "least squares"), ("knn", "20 neighbours"), ("logistic", "logistic regression")):
            rows.append((f"{shots} of every class, {words}", percent(pick(few, shots, probe)), FEWSHOT))
    asked = document("vitrail-ti8/pretrain/training.json")["training"]
    steps = document("vitrail-ti8/pretrain/summary.json")["steps"]
    words = f"""`vitrail-ti8`: a ViT of 5.6 million parameters, pre-trained on Tiny-ImageNet's subset (50,000 images of
    64 pixels, 200 classes) for {asked["epochs"]:g} epochs ({steps:,} steps) with seed {asked["seed"]}, one run, on one
    H200 in 12 minutes beside other runs; its CARD.md has the command. Measured on two cores of a CPU. Few shots are
    three draws, of the classes that it was trained on."""
    words = f"## The model in the box\n{paragraph(words)}\n"
    return words + table(("what", "%", "command"), rows)


FEWSHOT = "`vitrail fewshot vitrail-ti8 tiny-imagenet`"


def demo() -> str:
    """Say what pre-training is worth in the demo."""
    runs = [document(f"demo/seed-{seed}.json") for seed in DEMO_SEEDS]
    rows = []
    for name, words in (("finetuned", "fine-tuned from the box"), ("scratch", "the same ViT from scratch")):
        seconds = max(run[name]["seconds"] for run in runs)
        rows.append((words, spread([run[name]["accuracy"] for run in runs]), f"{seconds:.0f} s"))
    rows.append(("difference, points", spread([run["difference"] for run in runs]), ""))
    words = """The sample in the box (a part of Fashion-MNIST: 2,000 images to train on, 1,000 to test), 32 pixels, 155
    steps of 64 images each: `vitrail demo --seed S`, seeds 0, 1, 2, two cores of a CPU, time of the slowest."""
    words = f"\n## Pre-training then fine-tuning, against starting from scratch\n{paragraph(words)}\n"
    return words + table(("what", "% of the test images", "time"), rows)


def pets() -> str:
    """Say what pre-training is worth on photographs of pets, and what a ResNet makes of them."""
    rows = []
    for side in (64, 128):
        for name, words in (
            ("box", "fine-tuned from `vitrail-ti8`"),
            ("scratch", "the same ViT from scratch"),
            ("bit", "BiT-R50x1 from scratch"),
        ):
            (found,) = read_results(HERE / "pets" / f"{name}-{side}" / "transfer.json")
            assert len(found.seeds) == SEEDS
            rows.append((words, str(side), percent(found), f"`{PETS[name]} --set image_size={side}`"))
    words = """Oxford-IIIT Pet, 37 breeds, 3,680 images to train on, 3,669 to test, 128 pixels at the shorter side;
    40 epochs of 28 steps of 128 images, seeds 0, 1, 2, on one H200 beside other runs, 75 to 112 seconds a run. The
    positions of the box's model are evaluated anew for 128 pixels. All are trained alike: the recipe `small` with crops
    of 30 to 100 % of the area and RandAugment (2, 9), which suits fine-tuning; from scratch, lighter augmentation
    learns faster in so few steps."""
    words = f"\n## Transfer to photographs of pets\n{paragraph(words)}\n"
    shared = "--recipe small --rates 1e-3 --batch 128 --set epochs=40 --set area=0.3,1"
    shared += " --set randaugment.layers=2 --set randaugment.magnitude=9"
    return words + table(("what", "pixels", "% of the test images", "command"), rows) + f"\nEach with `{shared}`.\n"


def cifar10() -> str:
    """Say what a plain ViT learns of CIFAR-10 from nothing else."""
    rows = []
    for name in ("pretrain", "finetune", "again", "larger"):
        found = [document(f"cifar10/{name}-{seed}/summary.json")["metrics"] for seed in range(SEEDS)]
        asked = document(f"cifar10/{name}-0/training.json")
        what = f"{asked['training']['epochs']:g} epochs at {asked['training']['image_size'][0]} pixels"
        first = name == "pretrain"
        rows.append(
            (
                f"{what}, {'from scratch' if first else 'from there on'}",
                spread([each["test_accuracy"] for each in found]),
                slowest(f"cifar10/{name}"),
                f"`{command_of(asked['command'], data='cifar10', model='ViT-Ti/4' if first else 'RUN')}`",
            )
        )
    words = """CIFAR-10, 50,000 images to train on, 10,000 to test, no other data: a plain ViT of 5.5 million parameters
    (4x4 patches, 7 layers, width 256), then fine-tuned at 48 and at 56 pixels with its positions evaluated anew, as
    the paper does (weights were kept in 16 bit between the first three); seeds 0, 1, 2, all three at once on one H200,
    the last two rows beside other runs, time of the slowest. How strong augmentation is was chosen with 5,000 training
    images kept back; the last row was run after the one before it was seen, and no other. LOG.md has what else was
    tried."""
    words = f"\n## CIFAR-10 from scratch\n{paragraph(words)}\n"
    return words + table(("what", "% of the test images", "time", "command"), rows)


def objectives() -> str:
    """Say what pre-training with labels and without is worth, against starting from scratch."""
    rows, scratch = [], [each[-1] for each in tuned("scratch")]
    for name, words in (("scratch", "none"), ("labels", "labels"), ("masked-patch", "masked patches"), ("mae", "MAE")):
        found = tuned(name)
        last = [each[-1] for each in found]
        gained = [100 * (each[-1] - each[len(each) * 3 // 4 - 1]) for each in found]
        first = name == "scratch"
        run, data = ("finetune-scratch", "halves/second") if first else (f"pretrain-{name}", "halves/first")
        asked = document(f"objectives/{run}-0/training.json")["command"]
        rows.append(
            (
                words,
                spread(last),
                "" if first else difference(last, scratch),
                spread([max(each) for each in found]),
                f"{min(gained):+.1f} to {max(gained):+.1f}",
                slowest(f"objectives/{run}"),
                f"`{command_of(asked, data=data, model='ViT-Ti/8')}{HEADS if name == 'mae' else ''}`",
            )
        )
    asked = document("objectives/finetune-mae-0/training.json")["command"]
    tuning = f"`{command_of(asked, data='halves/second', model='RUN')}`"
    words = """Tiny-ImageNet's classes in two halves (`python results/objectives/halves.py tiny-imagenet halves`): a ViT
    of 5.6 million parameters (8x8 patches, 7 layers, width 256) is pre-trained on the 25,000 images of one half, then
    fine-tuned on 100 images of each of the 100 classes of the other, and measured on its 5,000 validation images; all
    are fine-tuned alike, 120 epochs, seeds 0, 1, 2, on one H200, several at once; the time is that of pre-training, or
    of training from scratch, of the slowest seed.
    Points above from scratch are the mean of the seeds' differences with its 95 % interval (Student's t). Every run was
    measured eight times: the best of these is given too, and what the last quarter of fine-tuning gained, least to
    most."""
    words = f"\n## Pre-training without labels\n{paragraph(words)}\n"
    heads = ("pre-training", "% after fine-tuning", "above from scratch", "best", "last quarter", "time", "command")
    return words + table(heads, rows) + f"\nEach pre-trained one was fine-tuned with {tuning}.\n"


def next_pixel() -> str:
    """Say what every layer of a model knows that learned to predict the next pixel."""
    rows = []
    for layer in (2, *range(4, 13)):
        found = [
            read_results(HERE / f"objectives/pretrain-next-pixel-{seed}/layer-{layer}.json") for seed in range(SEEDS)
        ]
        rows.append((str(layer), spread([only.value for (only,) in found])))
    last = [lines_of(f"objectives/pretrain-next-pixel-{seed}") for seed in range(SEEDS)]
    right = spread([[line["right"] for line in log if line["kind"] == "evaluation"][-1] for log in last])
    words = f"""The first of those halves again, at 32 pixels: ViT-Ti/1, made causal, reads an image pixel by pixel and
    learns to predict the colour of the next one, out of 512 (`vitrail pretrain halves/first --objective next-pixel
    --recipe next-pixel --epochs 45 --set validation_share=0 --set schedule.warmup_steps=500`, seeds 0, 1, 2,
    {slowest("objectives/pretrain-next-pixel")} on one H200, all three at once; of the colours of validation images it
    predicts {right} %). Logistic regression on the frozen features of every layer learns the 100 classes from the
    25,000 training images and is tested on the 5,000 validation images. As in iGPT, the best features are not those
    of the last layer."""
    words = f"\n## Next-pixel prediction, layer by layer\n{paragraph(words)}\n"
    command = "vitrail fewshot RUN halves/first --shots all --probes logistic --layer N"
    return words + table(("layer of 12", "% of the validation images"), rows) + f"\nEach with `{command}`.\n"


def tuned(name: str) -> list[list[float]]:
    """Give the accuracies of every seed on the way of its fine-tuning, by its log."""
    logs = [lines_of(f"objectives/finetune-{name}-{seed}") for seed in range(SEEDS)]
    return [[line["accuracy"] for line in log if line["kind"] == "evaluation"] for log in logs]


def difference(values: Sequence[float], others: Sequence[float]) -> str:
    """Write the mean difference, seed by seed, with its interval."""
    mean, deviation = over_seeds([value - other for value, other in zip(values, others, strict=True)])
    half = STUDENT * (deviation or 0) / SEEDS**0.5
    return f"{100 * mean:+.1f} ({100 * (mean - half):+.1f} to {100 * (mean + half):+.1f})"


def slowest(runs: str) -> str:
    """Give the most minutes that a seed took, from its first step to the last line of its log."""
    return f"{max(seconds_of(f'{runs}-{seed}') for seed in range(SEEDS)) / 60:.0f} min"


def seconds_of(run: str) -> float:
    """Give the time of a run; before the first line of its log are the steps that it tells of."""
    first, *_, last = lines_of(run)
    before = first["images"] / first["time"]["images_per_second"]
    return before + last["time"]["clock"] - first["time"]["clock"]


def lines_of(run: str) -> list[dict[str, Any]]:
    """Read a log."""
    return [json.loads(line) for line in (HERE / run / "log.jsonl").read_text().splitlines()]


def command_of(command: str, *, data: str, model: str) -> str:
    """Write a command with names for its places, and without what changes no result."""
    words = command.split()
    values = dict(itertools.pairwise(words))
    kept = [*words[:2], data, "--model", model]
    kept += ["--recipe", values["--recipe"], "--epochs", f"{float(values['--epochs']):g}", "--batch", values["--batch"]]
    said = [after for word, after in itertools.pairwise(words) if word == "--set"]
    idle = ("log_every", "save_every", "evaluate_every", "keep", "micro_batch", "augmenting")
    return " ".join(kept + [f"--set {text}" for text in said if text.partition("=")[0] not in idle])


SEEDS = 3
HEADS = " --set decoder_head_width=32"  # which those runs had, before it could be said
STUDENT = 4.303  # of 95 % and two degrees of freedom, so of three seeds
SHAPE = "--set model.pooling=mean --set model.positions=sinusoidal-2d --set model.width=256 --set model.mlp_width=1024"
SHAPE += " --set model.depth=7 --set model.heads=8"
PETS = {
    "box": "vitrail transfer pets --model vitrail-ti8 --set layer_decay=0.75",
    "scratch": f"vitrail transfer pets --model ViT-Ti/8 {SHAPE}",
    "bit": "vitrail transfer pets --model BiT-R50x1 --set stochastic_depth=0",
}


def paragraph(words: str) -> str:
    """Break lines as the other pages do."""
    return textwrap.fill(" ".join(words.split()), 120, break_on_hyphens=False) + "\n"


def document(name: str) -> dict[str, Any]:
    """Read a file of results."""
    return json.loads((HERE / name).read_text())


def pick(results: Sequence[Result], shots: int, probe: str) -> Result:
    """Find a few-shot result; that of least squares with the authors' l2."""
    (found,) = [
        row
        for row in results
        if row.setting["shots"] == shots
        and row.setting["probe"] == probe
        and (probe != "ridge" or row.setting["l2"] == 1024)
    ]
    return found


def percent(result: Result) -> str:
    """Write a result with its deviation."""
    return f"{100 * result.value:.1f} ± {100 * (result.spread or 0):.1f}"


def spread(values: Sequence[float]) -> str:
    """Write a mean and deviation over seeds."""
    mean, deviation = over_seeds(values)
    return f"{100 * mean:.1f} ± {100 * (deviation or 0):.1f}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page())
