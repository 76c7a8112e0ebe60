"""Segmentation and detection, measured: Oxford Pets with trimaps and head boxes, BCCD, synthetic scenes, and a U-Net.

    python benchmarks/dense.py prepare DATA build/dense                # folders and documents of the data, once
    python benchmarks/dense.py run build/dense --cases pets --seeds 0,1,2 --minutes 14 --jobs 3
    python benchmarks/dense.py table build/dense/runs
    python benchmarks/dense.py picture dense.jpg RUN=DATA RUN=DATA ...

DATA holds oxford-iiit-pet/ (parquet, trimaps.tar, head_boxes.json) and bccd/bccd.tar. Each run is `vitrail finetune`,
then `vitrail evaluate` on the test split, with a log of its own; --jobs of them at once. `pets-unet` trains
segmentation-models-pytorch's U-Net (ResNet-34, no weights from elsewhere) on the same images, with the same crops,
flips and colors, for the same minutes, and is measured by the same code. Where nothing can be installed, that library
is brought along: `pip install --no-deps --target carry/site segmentation-models-pytorch`, then PYTHONPATH=carry/site
(timm and torchvision must be there); without it `pets-unet` is left out, and said to be. Figures are in LOG.md.
"""

import argparse
import importlib.util
import json
import shlex
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from vitrail.runtime.machine import usable_cores
from vitrail.runtime.sharing import shared_gpu

HEADS_TEST, HEADS_VAL = 5, 10  # one of so many images with a head box is for testing, of the rest for choosing
# The model in the box, made fresh.
FRESH = ("--model", "ViT-Ti/8", "--set", "model.depth=7", "--set", "model.width=256", "--set", "model.heads=8")
FRESH += ("--set", "model.mlp_width=1024", "--set", "model.positions=sinusoidal-2d", "--set", "model.pooling=mean")
CROPS, DECAY = (0.2, 1.0), ("--set", "layer_decay=0.75")  # for some hundred passes over the images
LONG = ("--set", f"crop_area={CROPS[0]},{CROPS[1]}")
PETS = ("--set", "image_size=128", "--batch", "64", *LONG)
HEADS = (*PETS, "--set", "head.queries=20")
BCCD = ("--set", "image_size=288x384", "--batch", "16", *LONG)
UNET, UNET_SCRIPT = "segmentation_models_pytorch", str(Path(__file__).with_name("unet.py"))
# Data, task, and what is said to `vitrail finetune`.
CASES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "pets": ("pets", "segment", (*PETS, *DECAY)),
    "pets-linear": ("pets", "segment", (*PETS, *DECAY, "--set", "head=linear")),
    "pets-scratch": ("pets", "segment", (*PETS, *FRESH)),
    "pets-unet": ("pets", "segment", ()),
    "heads": ("heads", "detect", (*HEADS, *DECAY)),
    "heads-scratch": ("heads", "detect", (*HEADS, *FRESH)),
    "bccd": ("bccd", "detect", (*BCCD, *DECAY)),
    "bccd-scratch": ("bccd", "detect", (*BCCD, *FRESH)),
    "scenes-segment": ("synthetic", "segment", ()),
    "scenes-detect": ("synthetic", "detect", ()),
}


def prepare(data: Path, out: Path) -> None:
    """Write the data as folders of masks, COCO's JSON and Pascal VOC."""
    _pets(data / "oxford-iiit-pet", out)
    with tarfile.open(data / "bccd" / "bccd.tar") as archive:
        archive.extractall(out / "unpacked", filter="data")
    found = next((out / "unpacked").rglob("JPEGImages")).parent
    if not (out / "bccd").exists():
        found.rename(out / "bccd")


def _pets(source: Path, out: Path) -> None:
    import pyarrow.parquet as parquet

    names: dict[str, list[str]] = {}
    for split in ("train", "test"):
        folder = out / "pets" / split
        (folder / "images").mkdir(parents=True, exist_ok=True)
        rows = parquet.read_table(next(source.glob(f"{split}-*.parquet")), columns=["image"])["image"].to_pylist()
        names[split] = [Path(row["path"]).stem for row in rows]
        for name, row in zip(names[split], rows, strict=True):
            (folder / "images" / f"{name}.jpg").write_bytes(row["bytes"])
    with tarfile.open(source / "trimaps.tar") as archive:
        for member in archive.getmembers():
            if member.isfile() and member.name.endswith(".png"):
                path = out / "pets" / Path(member.name).parent.name / "masks" / Path(member.name).name
                path.parent.mkdir(parents=True, exist_ok=True)
                file = archive.extractfile(member)
                assert file is not None
                path.write_bytes(file.read())
    (out / "pets" / "classes.json").write_text(json.dumps({"1": "pet", "2": "background", "3": "edge"}))
    _heads(json.loads((source / "head_boxes.json").read_text()), out)


def _heads(boxes: Any, out: Path) -> None:
    """Write the boxes as one document a split, by the order of their names."""
    from PIL import Image

    folder = out / "heads" / "annotations"
    folder.mkdir(parents=True, exist_ok=True)
    link = out / "heads" / "images"
    if not link.exists():
        link.symlink_to((out / "pets" / "train" / "images").resolve())
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    documents = {
        split: {"images": [], "annotations": [], "categories": categories} for split in ("train", "val", "test")
    }
    for number, (name, (box, kind)) in enumerate(sorted(_rows(boxes)), start=1):
        split = "test" if number % HEADS_TEST == 0 else "val" if number % HEADS_VAL == 1 else "train"
        file = f"{Path(name).stem}.jpg"
        with Image.open(link / file) as image:
            width, height = image.size
        left, top, right, bottom = box
        documents[split]["images"].append({"id": number, "file_name": file, "width": width, "height": height})
        row = {"id": number, "image_id": number, "category_id": 1 + (kind == "dog"), "iscrowd": 0}
        size = [left, top, right - left, bottom - top]
        documents[split]["annotations"].append({**row, "bbox": size, "area": size[2] * size[3]})
    for split, document in documents.items():
        (folder / f"{split}.json").write_text(json.dumps(document))


def _rows(boxes: Any) -> Iterator[tuple[str, tuple[Sequence[float], str]]]:
    """Give name, box and kind of every row, however the file nests them."""
    for name, row in boxes.items() if isinstance(boxes, Mapping) else ((each["name"], each) for each in boxes):
        if isinstance(row, Mapping):
            box = row.get("box") or [row[edge] for edge in ("xmin", "ymin", "xmax", "ymax")]
            yield name, (box, str(next(value for value in row.values() if value in ("cat", "dog"))))
        else:
            yield name, (row[:4], row[4])


def command(root: Path, case: str, seed: int, minutes: float) -> list[str]:
    """Give the command of a run."""
    data, task, more = CASES[case]
    place = data if data == "synthetic" else str(root / data)
    vitrail = [sys.executable, "-m", "vitrail", "finetune", place, "--task", task]
    out = root / "runs" / f"{case}-{seed}"
    return [*vitrail, "--minutes", str(minutes), "--seed", str(seed), "--out", str(out), "--compile", "off", *more]


def run_one(root: Path, case: str, seed: int, minutes: float, reading: Sequence[str], more: Sequence[str]) -> None:
    """Train and measure one; what it says goes into its log."""
    out = root / "runs" / f"{case}-{seed}"
    out.parent.mkdir(parents=True, exist_ok=True)
    data, _, _ = CASES[case]
    place = data if data == "synthetic" else str(root / data)
    with (root / "runs" / f"{case}-{seed}.log").open("w") as log:
        start = time.monotonic()
        if case == "pets-unet":
            arguments = [sys.executable, UNET_SCRIPT, str(root), "--seed", str(seed), "--minutes", str(minutes)]
            steps = [[*arguments, "--out", str(out), *reading]]
        else:
            page = ["--out", str(out / "evaluation"), "--report", str(out / "page")]
            measure = [sys.executable, "-m", "vitrail", "evaluate", str(out), place, "--split", "test", *page, *reading]
            steps = [[*command(root, case, seed, minutes), *reading, *more], measure]
        for step in steps:
            log.write(f"$ {shlex.join(step)}\n")
            log.flush()
            status = subprocess.run(step, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
            if status:
                sys.stdout.write(f"{case}-{seed}: exit status {status}, see {log.name}" + "\n")
                return
        sys.stdout.write(f"{case}-{seed}: {(time.monotonic() - start) / 60:.1f} minutes in all: {headline(out)}" + "\n")


def headline(out: Path) -> str:
    """Say the numbers of a run's evaluation."""
    found = read(out)
    return ", ".join(f"{name} {value:.4f}" for name, value in found.items()) if found else "not measured"


def read(out: Path) -> dict[str, float]:
    """Read the numbers of a run's evaluation."""
    path = out / "evaluation" / "evaluation.json"
    return json.loads(path.read_text())["metrics"] if path.is_file() else {}


def table(runs: Path) -> None:
    """Print mean and deviation over the seeds of every case."""
    for case in CASES:
        found = [read(path) for path in sorted(runs.glob(f"{case}-[0-9]*")) if path.is_dir()]
        found = [each for each in found if each]
        if not found:
            continue
        words = []
        for name in found[0]:
            values = [each.get(name, float("nan")) for each in found]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            words.append(f"{name} {statistics.mean(values):.4f} ± {spread:.4f}")
        sys.stdout.write(f"{case} ({len(found)}): {', '.join(words)}" + "\n")


def picture(path: Path, pairs: Sequence[str], each: int = 3, side: int = 256) -> None:
    """Draw what runs say of a few test images, spread over all, and below the truth."""
    import numpy as np
    import torch

    import vitrail
    from vitrail.data.annotated.check import draw_annotation
    from vitrail.data.annotated.open import open_annotated
    from vitrail.data.check import letterboxed
    from vitrail.data.decode import encode
    from vitrail.data.overlays import picture_of, scaled
    from vitrail.evaluation.dense_page import draw_answer
    from vitrail.runtime.dense import DenseAnswer, dense_task

    columns = []
    for pair in pairs:
        run, _, data = pair.partition("=")
        model = vitrail.load(run)
        task = dense_task(model)
        assert task is not None
        source = open_annotated(data, task)["test"]
        for sample in np.linspace(0, len(source) - 1, each + 2).astype(int)[1:-1].tolist():
            pixels = picture_of(source.read(sample))
            said: Any = vitrail.predict(model, [pixels], workers=0)[0]
            mask = None if said.mask is None else torch.from_numpy(said.mask)
            shown = scaled(pixels, side, side)
            scale, names = shown.shape[0] / pixels.shape[0], source.class_names
            drawn = draw_answer(shown, DenseAnswer(mask, said.found), names, scale=scale)
            truth = draw_annotation(shown, source.annotation(sample), names, scale=scale)
            cells = [
                np.pad(letterboxed(one, side), ((0, 6), (0, 6), (0, 0)), constant_values=255) for one in (drawn, truth)
            ]
            columns.append(np.concatenate(cells))
    path.write_bytes(encode(np.concatenate(columns, axis=1)[:-6, :-6], "JPEG", 82))


def main() -> None:
    """Read the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    made = commands.add_parser("prepare")
    made.add_argument("data", type=Path)
    made.add_argument("out", type=Path)
    made = commands.add_parser("run", epilog="What stands after -- is said to vitrail finetune.")
    made.add_argument("root", type=Path)
    made.add_argument("--cases", default="pets,heads,bccd", help=", ".join(CASES))
    made.add_argument("--seeds", default="0,1,2")
    made.add_argument("--minutes", type=float, default=14.0)
    made.add_argument("--jobs", type=int, default=1)
    made = commands.add_parser("picture")
    made.add_argument("path", type=Path)
    made.add_argument("pairs", nargs="+", help="RUN=DATA")
    made = commands.add_parser("table")
    made.add_argument("runs", type=Path)
    words = [*sys.argv[1:], "--"]
    given, more = parser.parse_args(words[: words.index("--")]), words[words.index("--") + 1 : -1]
    match given.what:
        case "prepare":
            prepare(given.data, given.out)
        case "run":
            cases = given.cases.split(",")
            if unknown := [case for case in cases if case not in CASES]:
                parser.error(f"--cases: {unknown[0]} is none of {', '.join(CASES)}")
            if "pets-unet" in cases and importlib.util.find_spec(UNET) is None:
                sys.stdout.write(f"pets-unet is left out: {UNET} is not here. The first lines of this file say how.\n")
                cases.remove("pets-unet")
            asked = [(case, int(seed)) for case in cases for seed in given.seeds.split(",")]
            workers = max(usable_cores() // given.jobs, 1)  # which all share the cores
            reading = ["--workers", str(workers)] if given.jobs > 1 else []
            with shared_gpu() if given.jobs > 1 else nullcontext(), ThreadPoolExecutor(given.jobs) as pool:
                every = [pool.submit(run_one, given.root, *one, given.minutes, reading, more) for one in asked]
                for each in every:
                    each.result()
            table(given.root / "runs")
        case "picture":
            picture(given.path, given.pairs)
        case _:
            table(given.runs)


if __name__ == "__main__":
    main()
