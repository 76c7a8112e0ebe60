"""How fast exported files are: eager float32 of torch against each engine, in turns, on the same threads.

python benchmarks/export.py [--model ViT-B/16] [--threads 2] [--batch 8] [--rounds 5]
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import vitrail
from vitrail.exports.int8 import quantize_graph
from vitrail.exports.onnx import write_onnx
from vitrail.exports.openvino import write_openvino
from vitrail.exports.traced import sizes_of, trace
from vitrail.models import Model
from vitrail.runtime.engines import run_file


def files_of(model: Model, folder: Path, batch: int) -> dict[str, Path]:
    """Write the graphs of a model: float32 and int8, for both engines."""
    program = trace(model, sizes_of(model.config, fixed=False), precision="float32", pixels=False)
    plain, small = folder / "float32.onnx", folder / "int8.onnx"
    write_onnx(program, plain, outputs=("logits", "features"), pixels=False)
    layers = sum(isinstance(part, torch.nn.Linear) for part in model.modules())
    images = [torch.randn(4, 3, *model.config.image_size) for _ in range(2)]
    quantize_graph(plain, small, images, [], layers)
    found = {"onnx float32": plain, "onnx int8": small}
    for name, path in list(found.items()):
        made = path.with_suffix(".xml")
        write_openvino(path, made, precision="float32")
        found[name.replace("onnx", "openvino")] = made
    return found


def main() -> None:
    """Print images a second of each, and how many times eager float32 that is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="ViT-B/16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    boxed = asked.model.startswith("vitrail-")
    model = (vitrail.load(asked.model) if boxed else vitrail.create(asked.model)).eval()
    images = torch.randn(asked.batch, 3, *model.config.image_size)

    def eager(batch: torch.Tensor) -> Any:
        with torch.inference_mode():
            return model(batch)

    with tempfile.TemporaryDirectory() as folder:
        files = files_of(model, Path(folder), asked.batch)
        runs: dict[str, Callable[[torch.Tensor], Any]] = {"eager float32": eager}
        runs |= {name: run_file(path) for name, path in files.items()}
        taken: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(asked.rounds + 1):
            for name, run in runs.items():
                begun = time.perf_counter()
                run(images)
                taken[name] += [time.perf_counter() - begun] if turn else []
        sizes = {name: sum(each.stat().st_size for each in path.parent.glob(path.stem + path.suffix[:1] + "*")
                           if each.suffix in ((".xml", ".bin") if path.suffix == ".xml" else (".onnx",)))
                 for name, path in files.items()}  # fmt: skip
    first = statistics.median(taken["eager float32"])
    print(f"{asked.model}, {asked.threads} threads, batch {asked.batch}, median of {asked.rounds} rounds in turns")  # noqa: T201
    for name, seconds in taken.items():
        each = statistics.median(seconds)
        ratios = statistics.median(one / other for one, other in zip(taken["eager float32"], seconds, strict=True))
        size = f"{sizes[name] / 1e6:8.1f} MB" if name in sizes else ""
        print(f"{name:18} {asked.batch / each:8.1f} images/s  {ratios:5.2f}x {first / each:5.2f}x {size}")  # noqa: T201


if __name__ == "__main__":
    main()
