"""Sections of docs/results.md from what `benchmarks/recipes.py NAME --keep results/recipes/NAME.tar.gz` kept."""

import json
import re
import tarfile
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.evaluation.results import over_seeds
from vitrail.ops.metrics import mean_interval

HERE = Path(__file__).parent


class Kept:
    """What was kept of a recipe: JSON files by their paths in it."""

    def __init__(self, path: Path) -> None:
        with tarfile.open(path) as archive:
            members = [each for each in archive.getmembers() if each.name.endswith((".json", ".jsonl"))]
            self.files = {each.name: file.read().decode() for each in members if (file := archive.extractfile(each))}
        self.asked = self.document("recipe.json")
        self.seeds = sorted({int(found[1]) for name in self.files if (found := re.match(r"[^/]+-(\d+)/", name))})

    def document(self, name: str) -> Any:  # noqa: ANN401
        """Read a JSON file."""
        return json.loads(self.files[name])

    def of_seeds(self, run: str, file: str) -> list[Any]:
        """Read a file of a run for every seed."""
        return [self.document(f"{run}-{seed}/{file}") for seed in self.seeds]

    def minutes(self, run: str) -> str:
        """Give the minutes of the slowest seed, from its first step to the last line of its log."""
        return f"{max(map(self._seconds, [f'{run}-{seed}' for seed in self.seeds])) / 60:.1f} min"

    def length(self, run: str) -> str:
        """Say how long a run was, and at which size."""
        asked = self.document(f"{run}-{self.seeds[0]}/training.json")["training"]
        long = f"{asked['epochs']:g} epochs" if asked["epochs"] else f"{asked['steps']:,} steps"
        return f"{long} at {asked['image_size'][0]} pixels"

    def command(self) -> str:
        """Write the command of all of it."""
        words = "".join(f" --word '{word}'" for word in self.asked["words"])
        return f"`python benchmarks/recipes.py {self.asked['recipe']} --data SETS --out RUNS{words}`"

    def ran(self) -> str:
        """Say how it was run."""
        seeds = ", ".join(map(str, self.seeds))
        words = f"{'seeds' if len(self.seeds) > 1 else 'seed'} {seeds}, on one H200"
        return f"{self.command()}, {words}{', all at once, time of the slowest' if len(self.seeds) > 1 else ''}"

    def _seconds(self, run: str) -> float:
        log = [json.loads(line) for line in self.files[f"{run}/log.jsonl"].splitlines()]
        first = next(line for line in log if line["kind"] == "train")
        before = first["images"] / first["time"]["images_per_second"]
        return before + log[-1]["time"]["clock"] - first["time"]["clock"]


def sections(folder: Path = HERE) -> str:
    """Give the sections of the recipes that were run, in their order; nothing of the others."""
    found = [(folder / "recipes" / f"{name}.tar.gz", write) for name, write in SECTIONS.items()]
    said = "".join(write(Kept(path)) for path, write in found if path.exists())
    path = folder / "corruptions" / "evaluation.json"
    return said + (corruptions(json.loads(path.read_text())) if path.exists() else "")


def cifar10(kept: Kept) -> str:
    """Say what carries a plain ViT on CIFAR-10 with no other images."""
    rows = []
    for run, what in (("mae", "MAE, no labels"), ("32", "labels"), ("48", "labels"), ("56", "labels")):
        right = [each["metrics"].get("test_accuracy") for each in kept.of_seeds(run, "summary.json")]
        shown = "" if None in right else listed(right)
        rows.append((f"{what}, {kept.length(run)}", shown, kept.minutes(run)))
    words = f"""CIFAR-10's 50,000 training images and nothing else, a plain ViT of 4x4 patches, each row from the
    weights of the one before; the 10,000 test images were measured once for each seed, at the end:
    {kept.ran()}. What was chosen, on 5,000 training images kept back, is in LOG.md."""
    return headed("CIFAR-10 from scratch, MAE first", words, ("what", "% of the test images", "time"), rows)


def soups(kept: Kept) -> str:
    """Say what a mean of fine-tunings is worth, beside the one that validation images chose."""
    members = "abcdef"
    greedy, uniform = kept.of_seeds("greedy", "soup.json"), kept.of_seeds("uniform", "soup.json")
    tested = {
        name: [measured(each) for each in kept.of_seeds(f"{name}-test", "evaluation.json")]
        for name in (*members, "greedy", "uniform")
    }
    best = [Path(each["members"][0]["name"]).name.rpartition("-")[0] for each in greedy]
    chosen = [tested[name][place] for place, name in enumerate(best)]
    mean = [sum(each) / len(members) for each in zip(*(tested[name] for name in members), strict=True)]
    taken = ", ".join(str(sum(member["taken"] for member in each["members"])) for each in greedy)
    rows = [
        ("the six members, their mean", "", listed(mean), ""),
        ("the member that the validation images chose", on(greedy, best=True), listed(chosen), ""),
        ("uniform soup", on(uniform), listed(tested["uniform"]), difference(tested["uniform"], chosen)),
        (
            f"greedy soup, of {taken} members",
            on(greedy),
            listed(tested["greedy"]),
            difference(tested["greedy"], chosen),
        ),
    ]
    words = f"""Oxford-IIIT Pet at 128 pixels: six fine-tunings of the model in the box for every seed, which differ in
    learning rate and RandAugment, and soups of them ({greedy[0]["images"]} validation images, cut from
    those to train on; test images at the end): {kept.ran()}."""
    heads = ("what", "% of the validation images", "% of the test images", "above the chosen member")
    return headed("Soups", words, heads, rows)


def selftrain(kept: Kept) -> str:
    """Say what images without labels are worth to a model of few labels."""
    alone = [measured(each) for each in kept.of_seeds("alone-test", "evaluation.json")]
    rounds = [each["rounds"] for each in kept.of_seeds("rounds", "selftrain.json")]
    rows = [("the tenth with labels alone", "", "", "", listed(alone), "")]
    for number in range(len(rounds[0])):
        each = [found[number] for found in rounds]
        right = [measured(found) for found in kept.of_seeds(f"round-{number + 1}-test", "evaluation.json")]
        taken, labeled = (round(float(np.mean([found[name] for found in each]))) for name in ("taken", "labeled"))
        rows.append(
            (
                f"student {number + 1}",
                f"{taken:,} of {labeled:,}",
                spread([found["confidence"] for found in each]),
                spread([found["correct"] for found in each]),
                listed(right),
                difference(right, alone),
            )
        )
    words = f"""Tiny-ImageNet's subset with the labels of a tenth of its training images (25 of each class), the rest
    without: MAE on all of them, then fine-tuning on the tenth, and three rounds of Noisy Student that
    begin with the same and are as long, {kept.length("alone")}. Labels that images have were used to
    count what of those given is right, and for nothing else; validation images were measured at the
    end: {kept.ran()}."""
    heads = (
        "model",
        "images labelled",
        "confidence, %",
        "right, %",
        "% of the validation images",
        "above the tenth alone",
    )
    return headed("Self-training", words, heads, rows)


def box(kept: Kept) -> str:
    """Say how long the parts of the box's making were."""
    rows = [
        (what, kept.length(run), kept.minutes(run))
        for run, what in (
            ("teacher-mae", "teacher, MAE"),
            ("teacher", "teacher, labels"),
            ("student-mae", "student, MAE"),
            ("student", "student, labels and the teacher"),
        )
    ]
    words = f"""The model in the box was distilled from a larger one, both of Tiny-ImageNet's 50,000 training images
    alone: {kept.ran()}."""
    return headed("How the box was made", words, ("what", "length", "time"), rows)


def corruptions(document: dict[str, Any]) -> str:
    """Say how far models fall under corruptions, side by side."""
    found = document["corruptions"]
    models = found["models"]
    names = [Path(each["model"]).name for each in models]
    rows: list[Sequence[str]] = []
    for what, pick in (
        ("clean", lambda each: each["clean"]),
        ("mean of 15", mean_of),
        *map(picking, models[0]["corruptions"]),
    ):
        points = [pick(each) for each in models]
        rows.append((what, *(f"{100 * p['error']:.1f}" for p in points), *(shown(p["calibration"]) for p in points)))
    words = f"""The 15 corruptions of ImageNet-C at severities {", ".join(map(str, found["severities"]))}, made by
    `vitrail evaluate MODEL DATA --corruptions --beside OTHER` on {models[0]["clean"]["images"]:,}
    images: wrong answers and the expected calibration error, in per cent;
    [evaluation.md](evaluation.md#corruptions) says how they differ from the published images."""
    heads = ("corruption", *(f"wrong, {name}" for name in names), *(f"calibration, {name}" for name in names))
    return headed("Under corruptions", words, heads, rows)


def picking(name: str) -> tuple[str, Callable[[Any], Any]]:
    """Pick a corruption of a model."""
    return name.replace("_", " "), lambda each: each["corruptions"][name]


def mean_of(model: Any) -> Any:  # noqa: ANN401
    """Give the means over the corruptions."""
    return {"error": model["mean_error"], "calibration": model["mean_calibration"]}


def measured(document: dict[str, Any]) -> float:
    """Give the accuracy of an evaluation."""
    return next(row["value"] for row in document["results"] if row["metric"] == "accuracy")


def on(soup: Sequence[dict[str, Any]], *, best: bool = False) -> str:
    """Give the accuracy of soups on the validation images, or that of their best members."""
    return spread([(each["members"][0] if best else each)["accuracy"] for each in soup])


def spread(values: Sequence[float]) -> str:
    """Write a mean and deviation over seeds."""
    mean, deviation = over_seeds(values)
    return f"{100 * mean:.1f}" + ("" if deviation is None else f" ± {100 * deviation:.1f}")


def listed(values: Sequence[float]) -> str:
    """Write a mean and deviation over seeds, with two digits, and what each seed had."""
    mean, deviation = over_seeds(values)
    if deviation is None:
        return f"{100 * mean:.2f}"
    return f"{100 * mean:.2f} ± {100 * deviation:.2f} ({', '.join(f'{100 * value:.2f}' for value in values)})"


def difference(values: Sequence[float], others: Sequence[float]) -> str:
    """Write the mean difference, seed by seed, with its interval of 95 % where there are several."""
    apart = 100 * (np.array(values) - np.array(others))
    low, high = mean_interval(apart)
    return f"{apart.mean():+.2f}" + (f" ({low:+.2f} to {high:+.2f})" if len(apart) > 1 else "")


def shown(share: float | None) -> str:
    """Write a share that may be unknown."""
    return "" if share is None else f"{100 * share:.1f}"


def headed(title: str, words: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a section: its title, its words as the other pages break them, and its table."""
    lines = [heads, ["---"] * len(heads), *rows]
    text = textwrap.fill(" ".join(words.split()), 120, break_on_hyphens=False)
    return f"\n## {title}\n{text}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


SECTIONS: dict[str, Callable[[Kept], str]] = {"cifar10": cifar10, "soups": soups, "selftrain": selftrain, "box": box}

if __name__ == "__main__":
    print(sections())  # noqa: T201
