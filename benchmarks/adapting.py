"""Ways of adapting the box to 37 breeds of pets: accuracy, memory and time of each.

`python benchmarks/adapting.py --data SETS --out results/adapting [--steps 500] [--jobs 8] [--device cuda]`

SETS holds oxford-iiit-pet. The rate of each way is the best of its own three on a tenth of the training images, kept
back by content (seed 0); then three seeds at that rate, measured on the test images. What a step costs is measured
with nothing beside it. About four minutes of an H200.
"""

import json
import statistics
import time
from typing import Any

from side_by_side import mean_and_spread, options, packed, read, run_all, say

WAYS: dict[str, tuple[float, ...]] = {
    "full": (3e-4, 1e-3, 3e-3),
    "lora": (1e-3, 3e-3, 1e-2),
    "head": (3e-3, 1e-2, 3e-2),
    "norms": (1e-3, 3e-3, 1e-2),
    "last-2": (3e-4, 1e-3, 3e-3),
}
COST_STEPS = 60  # of which the first half is not counted
FIELDS: dict[str, Any] = {"recipe": "finetune/small", "batch_size": 64, "quiet": True, "compile": "off", "workers": 0}


def one(asked: dict[str, Any]) -> dict[str, Any]:
    """Train once, and say what came out."""
    import torch

    import vitrail
    from vitrail.data.open import open_data
    from vitrail.studies.sets import few_of_each

    splits = open_data(asked["data"])
    data = {name: few_of_each(splits[name], asked["per_class"]) for name in ("train", "test")}
    device = asked["device"]
    if asked["measures"] == "cost":
        rates: list[float] = []
        memory: list[int] = []

        def watch(record: Any) -> None:
            if record["kind"] == "train" and record["step"] > asked["steps"] // 2:
                rates.append(record["time"]["images_per_second"])
                memory.append(record["time"]["memory"] or 0)

        kept = {"validation_share": 0.0, "log_every": max(min(5, asked["steps"] // 4), 1), "callbacks": watch}
        run = vitrail.finetune({"train": data["train"]}, **arguments(asked), **kept)
        trained = run.history[0] if run.history else {}
        return {"images_per_second": statistics.median(rates), "memory": max(memory), "first": trained.get("loss")}
    start = time.perf_counter()
    parts = data if asked["measures"] == "test" else {"train": data["train"]}
    run = vitrail.finetune(parts, **arguments(asked), augment_on="device" if device == "cuda" else "auto")
    key = "test_accuracy" if asked["measures"] == "test" else "accuracy"
    found = {"accuracy": run.metrics[key], "step": run.result_step, "seconds": time.perf_counter() - start}
    return found | {"gpu": torch.cuda.get_device_name() if device == "cuda" else "cpu"}


def arguments(asked: dict[str, Any]) -> dict[str, Any]:
    """Give the arguments of a run."""
    names = ("adapt", "learning_rate", "seed", "steps", "device")
    return {"model": "vitrail-ti8", **FIELDS, **{name: asked[name] for name in names}}


def main() -> None:
    """Choose rates, measure seeds, then what each way costs; write all of it and a table."""
    given = read(options(__doc__ or "", "oxford-iiit-pet", "results/adapting", steps=500), one)
    if given is None:
        return
    images = packed(given.data / "oxford-iiit-pet", given.out / "images", 64)
    base = {"data": str(images), "device": given.device, "steps": given.steps, "per_class": given.per_class}
    tried = [
        {**base, "adapt": way, "learning_rate": rate, "seed": 0, "measures": "val"}
        for way, rates in WAYS.items()
        for rate in rates
    ]
    chosen: dict[str, dict[str, Any]] = {}
    for run in run_all(__file__, tried, given.jobs):
        if run["accuracy"] > chosen.get(run["adapt"], {"accuracy": -1})["accuracy"]:
            chosen[run["adapt"]] = run
    asked = [
        {**base, "adapt": way, "learning_rate": run["learning_rate"], "seed": seed, "measures": "test"}
        for way, run in chosen.items()
        for seed in range(given.seeds)
    ]
    measured = run_all(__file__, asked, given.jobs)
    costs = [{**each, "measures": "cost", "steps": min(COST_STEPS, given.steps)} for each in asked if each["seed"] == 0]
    alone = {each["adapt"]: each for each in run_all(__file__, costs, 1)}
    rows = []
    for way, run in chosen.items():
        shares = [each["accuracy"] for each in measured if each["adapt"] == way]
        mean, spread = mean_and_spread(shares)
        cost = alone[way]
        row = {"adapt": way, "learning_rate": run["learning_rate"], "accuracy": mean, "spread": spread, "seeds": shares}
        rows.append(row | {"images_per_second": cost["images_per_second"], "memory": cost["memory"]})
    document = {"format": "vitrail adapting 1", "steps": given.steps, "device": measured[0]["gpu"], "rows": rows}
    (given.out / "adapting.json").write_text(json.dumps(document, indent=2) + "\n")
    say("| way | rate | test accuracy, % | images a second | peak memory, MiB |\n|---|---|---|---|---|")
    for row in rows:
        share = f"{100 * row['accuracy']:.2f} ± {100 * row['spread']:.2f}"
        speed, memory = f"{row['images_per_second']:,.0f}", f"{row['memory'] / 2**20:,.0f}"
        say(f"| {row['adapt']} | {row['learning_rate']:g} | {share} | {speed} | {memory} |")


if __name__ == "__main__":
    main()
