"""The server beside `vitrail predict` on the same files: `python benchmarks/serve.py [FOLDER] [--model CHECKPOINT]`.

In turns, in one run: images a second of `vitrail.predict`; of the server at 64 clients; of the same server without
batching (--batch 1); and the median time of a single request beside that of the same image in memory. A ratio is the
median of the rounds' own ratios, so that a machine whose speed drifts is the same for both. The load comes from a
process of its own on the same cores (benchmarks/load.py), and only over loopback.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import vitrail
from vitrail.models import Model

SIZE = (500, 375)


def make_images(folder: Path, count: int) -> list[Path]:
    """Write smooth random pictures as JPEG files, as large as photographs in data sets are."""
    random = np.random.default_rng(0)
    for number in range(count):
        small = Image.fromarray(random.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        small.resize(SIZE, Image.Resampling.BICUBIC).save(folder / f"{number:04}.jpg", quality=85)
    return sorted(folder.glob("*.jpg"))


@contextmanager
def serving(model: str, *flags: str) -> Iterator[int]:
    """Start a server on a free port, and end it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vitrail", "serve", model, "--port", str(port), "--drain", "0", "--quiet"]
    command += ["--deadline", "600", *flags]  # a refused request is no answer
    with subprocess.Popen(command) as process:
        try:
            for _ in range(600):
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1).close()
                    break
                except (urllib.error.URLError, OSError):
                    time.sleep(0.1)
            yield port
        finally:
            process.send_signal(signal.SIGTERM)


def load(port: int, files: list[Path], clients: int, total: int) -> dict[str, float]:
    """Send requests from a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name("load.py")), str(port), *map(str, files)]
    command += ["--clients", str(clients), "--total", str(total)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert set(found["statuses"]) == {"200"}, found
    return found


def predict_rate(model: Model, files: list[Path]) -> float:
    """Give the images a second of `vitrail.predict`."""
    begun = time.perf_counter()
    vitrail.predict(model, files)
    return len(files) / (time.perf_counter() - begun)


def direct_seconds(model: Model, data: bytes, times: int) -> float:
    """Give the median seconds of one image in memory: decoded, computed, its probabilities."""
    taken = []
    with torch.inference_mode():
        for _ in range(times):
            begun = time.perf_counter()
            model(model.preprocess(data)).softmax(dim=1).topk(5)
            taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--model", default="vitrail-ti8")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--total", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--flags", default="")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        files = sorted(Path(asked.folder).rglob("*.jpg")) if asked.folder else make_images(Path(made), 256)
        many = [files[number % len(files)] for number in range(asked.total)]
        if not Path(asked.model).exists() and asked.model.startswith("ViT"):  # a fresh one: speed does not know
            vitrail.save(vitrail.create(asked.model, classes=1000), f"{made}/fresh")
            asked.model = f"{made}/fresh"
        model = vitrail.load(asked.model)
        rows: dict[str, list[float]] = {name: [] for name in ("predict", "server", "unbatched", "single", "direct")}
        flags = asked.flags.split()
        with serving(asked.model, *flags) as port, serving(asked.model, *flags, "--batch", "1") as plain:
            for each in (port, plain):
                load(each, files[:64], asked.clients, min(asked.total, 256))
            predict_rate(model, many[:64])
            for _ in range(asked.rounds):
                rows["predict"].append(predict_rate(model, many))
                rows["server"].append(load(port, files, asked.clients, asked.total)["per_second"])
                rows["unbatched"].append(load(plain, files, asked.clients, asked.total)["per_second"])
                rows["direct"].append(1000 * direct_seconds(model, files[0].read_bytes(), 60))
                rows["single"].append(load(port, files[:1], 1, 60)["p50_ms"])
    middle = {name: statistics.median(values) for name, values in rows.items()}
    for name, values in rows.items():
        unit = "ms" if name in ("single", "direct") else "images/s"
        print(f"{name:10} {middle[name]:9.2f} {unit:9} ({min(values):.2f} to {max(values):.2f})")  # noqa: T201
    for name in ("predict", "unbatched"):
        ratios = [one / other for one, other in zip(rows["server"], rows[name], strict=True)]
        print(f"server / {name:10} {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")  # noqa: T201
    added = [one - other for one, other in zip(rows["single"], rows["direct"], strict=True)]
    print(f"added to a request  {statistics.median(added):.2f} ms ({min(added):.2f} to {max(added):.2f})")  # noqa: T201


if __name__ == "__main__":
    os.environ.setdefault("VITRAIL_LOG", "")
    main()
