"""A long-tailed half of Tiny-ImageNet, 100 to 1, with what makes up for it and without.

`python benchmarks/long_tail.py --data SETS --out results/long-tail [--jobs 8] [--device cuda]`

SETS holds tiny-imagenet. A ViT is pre-trained on every second class; of the other 100 classes the most frequent has
all of its images, the rarest a hundredth, and those between fall evenly by their logarithm. The ViT is fine-tuned on
these, three seeds each, by what is said against uneven classes, and measured on validation images, as many of every
class. Many, some and few are thirds of the classes by their images. About four minutes of an H200.
"""

import json
import time
from typing import Any

from side_by_side import mean_and_spread, options, packed, read, run_all, say

METHODS: dict[str, dict[str, Any]] = {
    "none": {},
    "logit_adjustment=1": {"logit_adjustment": 1.0},
    "class_weights=balanced": {"class_weights": "balanced"},
    "class_weights=effective": {"class_weights": "effective"},
    "sampling=balanced": {"sampling": "balanced"},
}
RATIO = 100
NETWORK = {"model.depth": 6, "model.positions": "sinusoidal-2d"}
USUAL: dict[str, Any] = {"quiet": True, "compile": "off", "workers": 0, "validation_share": 0.0, "result": "last"}


def halves(data: str, half: str, most: int | None) -> dict[str, Any]:
    """Give the train and test images of a half; of the second half, long-tailed."""
    import numpy as np

    from vitrail.data.open import open_data
    from vitrail.data.source import Subset
    from vitrail.studies.sets import few_of_each, half_of

    splits = open_data(data)
    train, test = splits["train"], next(splits[name] for name in ("test", "val") if name in splits)
    train, test = (half_of(source, "first" if half == "first" else "second") for source in (train, test))
    train = few_of_each(train, most)
    if half == "first":
        return {"train": train, "test": test}
    labels = np.asarray(train.labels)
    classes = len(train.class_names)
    order = np.random.default_rng(0).permutation(classes)  # so that names say nothing of how frequent a class is
    most = int(np.bincount(labels).max())
    counts = [max(round(most * RATIO ** (-place / max(classes - 1, 1))), 1) for place in range(classes)]
    kept = [np.flatnonzero(labels == label)[:count] for label, count in zip(order, counts, strict=True)]
    return {"train": Subset(train, np.sort(np.concatenate(kept))), "test": test}


def one(asked: dict[str, Any]) -> dict[str, Any]:
    """Pre-train, or fine-tune and measure."""
    import numpy as np

    import vitrail

    start = time.perf_counter()
    splits = halves(asked["data"], asked["half"], asked["per_class"])
    how = {**USUAL, "device": asked["device"], "steps": asked["steps"], "seed": asked["seed"]}
    how |= {"augment_on": "device"} if asked["device"] == "cuda" else {}
    if asked["half"] == "first":
        fields = {**how, **NETWORK, "image_size": 64, "batch_size": 256, "learning_rate": 1e-3, "recipe": "small"}
        run = vitrail.pretrain(splits, model="ViT-Ti/8", out=asked["out"], **fields)
        return {"accuracy": run.metrics["test_accuracy"], "seconds": time.perf_counter() - start}
    fields = {**how, **METHODS[asked["method"]], "batch_size": 128, "learning_rate": 5e-4, "recipe": "small"}
    run = vitrail.finetune(splits, model=asked["out"], **fields)
    found = vitrail.evaluate(run, {"test": splits["test"]}, fresh=True, device=asked["device"])
    shares = np.array([line["accuracy"] for line in found.classes])
    order = np.argsort(-np.bincount(np.asarray(splits["train"].labels), minlength=len(shares)), kind="stable")
    thirds = dict(zip(("many", "some", "few"), np.array_split(shares[order], 3), strict=True))
    parts = {name: float(part.mean()) for name, part in thirds.items()}
    balanced = float(shares.mean())
    return {"balanced_accuracy": balanced, "macro_f1": found.macro_f1, **parts, "images": len(splits["train"])}


def main() -> None:
    """Pre-train once, then every method and seed beside each other; write all of it and a table."""
    parser = options(__doc__ or "", "tiny-imagenet", "results/long-tail", steps=1000)
    parser.add_argument("--pretrain-steps", type=int, default=4000)
    given = read(parser, one)
    if given is None:
        return
    images = packed(given.data / "tiny-imagenet", given.out / "images", 64)
    base = {"data": str(images), "device": given.device, "out": str(given.out / "pretrained")}
    base |= {"per_class": given.per_class}
    begin = {**base, "half": "first", "seed": 0, "steps": given.pretrain_steps}
    (begun,) = run_all(__file__, [begin], 1)
    asked = [
        {**base, "half": "second", "method": method, "seed": seed, "steps": given.steps}
        for seed in range(given.seeds)
        for method in METHODS
    ]
    measured = run_all(__file__, asked, given.jobs)
    rows = []
    for method in METHODS:
        runs = [each for each in measured if each["method"] == method]
        names = ("balanced_accuracy", "macro_f1", "many", "some", "few")
        numbers = {name: mean_and_spread([each[name] for each in runs]) for name in names}
        rows.append({"method": method, **numbers, "seeds": [each["balanced_accuracy"] for each in runs]})
    document = {"format": "vitrail long tail 1", "ratio": RATIO, "images": measured[0]["images"], "rows": rows}
    document |= {"pretrained": begun["accuracy"], "device": given.device, "steps": given.steps}
    (given.out / "long-tail.json").write_text(json.dumps(document, indent=2) + "\n")
    say(
        "| against uneven classes | balanced accuracy, % | macro F1, % | many | some | few |\n|---|---|---|---|---|---|"
    )
    for row in rows:
        cells = (f"{100 * row[name][0]:.2f} ± {100 * row[name][1]:.2f}" for name in ("balanced_accuracy", "macro_f1"))
        parts = (f"{100 * row[name][0]:.1f}" for name in ("many", "some", "few"))
        say(f"| {row['method']} | {' | '.join((*cells, *parts))} |")


if __name__ == "__main__":
    main()
