"""What the runs of a recipe came to, as a short table, and a file of what is small of them."""

import json
import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, Literal

LARGEST = 1 << 20  # bytes of a file that is kept
KEPT = (".json", ".jsonl", ".log", ".txt")
IDLE = ("ahead", "keep", "checkpoints")  # folders that hold no result
COLUMNS = ("run", "seeds", "step", "loss", "accuracy, %", "of", "images/s", "minutes")


def table(out: Path) -> list[str]:
    """Give a line for each command of a recipe, its seeds together: where they are, and what was measured last."""
    found: dict[str, list[dict[str, Any]]] = {}
    for folder in sorted({path.parent for name in READERS for path in out.rglob(name)}):
        parts = folder.relative_to(out).parts
        if not {*IDLE} & {*parts}:
            name = "/".join([re.sub(r"-\d+$", "", parts[0]), *parts[1:]])  # without its seed
            found.setdefault(name, []).append(_read(folder))
    rows = [COLUMNS, *(_row(name, runs) for name, runs in found.items())]
    widths = [max(len(row[place]) for row in rows) for place in range(len(COLUMNS))]
    return ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def keep(out: Path, path: Path) -> None:
    """Write logs, configurations and results into FILE.tar.gz, and each folder in `keep` into FILE-FOLDER.tar."""
    path.parent.mkdir(parents=True, exist_ok=True)
    every = [(each, each.relative_to(out).parts) for each in sorted(out.rglob("*")) if each.is_file()]
    small = [
        (each, parts)
        for each, parts in every
        if each.suffix in KEPT and each.stat().st_size <= LARGEST and not {*IDLE} & {*parts}
    ]
    _pack(small, path, "w:gz")
    for folder in sorted({parts[1] for _, parts in every if parts[0] == "keep"}):
        inside = [(each, parts[1:]) for each, parts in every if parts[:2] == ("keep", folder)]
        _pack(inside, path.with_name(f"{path.name.removesuffix('.tar.gz')}-{folder}.tar"), "w")


def _pack(files: Sequence[tuple[Path, tuple[str, ...]]], path: Path, mode: Literal["w:gz", "w"]) -> None:
    aside = path.with_name(f".{path.name}")
    with tarfile.open(aside, mode) as archive:
        for each, parts in files:
            archive.add(each, Path(*parts))
    aside.replace(path)


def _read(folder: Path) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for name, reader in READERS.items():
        if (folder / name).is_file():
            said |= reader(folder / name)
    return said


def _log(path: Path) -> dict[str, Any]:
    """Read where a run is; its speed is the median of the later half, its time that of its lines."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    trained = [line for line in lines if line["kind"] == "train"]
    said: dict[str, Any] = {}
    if trained:
        speeds = [line["time"]["images_per_second"] for line in trained]
        said = {"step": trained[-1]["step"], "loss": trained[-1]["loss"]}
        said["images"] = median(speeds[len(speeds) // 2 :])
        said["minutes"] = sum(line["images"] / line["time"]["images_per_second"] for line in trained) / 60
    for line in lines:
        if line["kind"] == "evaluation" and "accuracy" in line:
            said |= {"accuracy": line["accuracy"], "of": "val"}
    return said


def _summary(path: Path) -> dict[str, Any]:
    metrics = json.loads(path.read_text())["metrics"]
    for name, of in (("test_accuracy", "test"), ("accuracy", "val")):
        if name in metrics:
            return {"accuracy": metrics[name], "of": of}
    return {}


def _evaluation(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())
    return {"accuracy": found["accuracy"], "of": "evaluate"}


def _soup(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())
    return {} if found["accuracy"] is None else {"accuracy": found["accuracy"], "of": "val"}


READERS = {"log.jsonl": _log, "summary.json": _summary, "evaluation.json": _evaluation, "soup.json": _soup}


def _row(name: str, runs: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    def mean(word: str, shape: str) -> str:
        known = [run[word] for run in runs if word in run]
        return shape.format(fmean(known)) if known else ""

    right = [100 * run["accuracy"] for run in runs if "accuracy" in run]
    spread = f" ± {stdev(right):.2f}" if len(right) > 1 else ""
    accuracy = f"{fmean(right):.2f}{spread}" if right else ""
    of = ", ".join(dict.fromkeys(_words(runs)))
    return (
        name,
        str(len(runs)),
        mean("step", "{:.0f}"),
        mean("loss", "{:.3f}"),
        accuracy,
        of,
        mean("images", "{:,.0f}"),
        mean("minutes", "{:.1f}"),
    )


def _words(runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    for run in runs:
        if "of" in run:
            yield run["of"]
