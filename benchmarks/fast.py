"""Passes of a model on a CPU: plain, made fast, and in other engines where they are installed, in turns, in one run.

python benchmarks/fast.py [--model ViT-B/16] [--batches 4,16] [--threads 2] [--turns 7] [--peers]

Ratios are to the plain model's pass in float32 of the same turn: the median, and the lowest to the highest. With
--threads 1, time is the processor's, of which other programs take little. `--peers` exports the model, which takes a
minute: onnxruntime and OpenVINO then run the file, OpenVINO also in bfloat16 and int8.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

import vitrail
from vitrail.exports.int8 import nodes_of, quantize_graph
from vitrail.exports.layers import layers_called
from vitrail.models import Model
from vitrail.runtime.cpu import has_bfloat16, has_int8
from vitrail.runtime.engines import open_engine
from vitrail.runtime.fast import make_fast

Pass = Callable[[Tensor], Tensor]


def opened(name: str) -> Model:
    """A checkpoint, or a fresh model whose head is not zero."""
    if Path(name).exists() or name == "vitrail-ti8":
        return vitrail.load(name)
    model = vitrail.create(name, seed=0).eval().requires_grad_(requires_grad=False)
    for parameter in model.head.parameters():
        torch.nn.init.normal_(parameter, std=0.02, generator=torch.Generator().manual_seed(0))
    return model


def ours(model: Model, images: Tensor) -> dict[str, Pass]:
    """The plain model, and it made fast."""
    passes: dict[str, Pass] = {"plain float32": model, "fast float32": make_fast(model)}
    if has_bfloat16():
        passes["fast bfloat16"] = make_fast(model, precision="bfloat16")
    if has_int8():
        passes["fast int8"] = make_fast(model, precision="int8", images=images[:16])
    return passes


def peers(model: Model, images: Tensor, folder: Path, threads: int) -> dict[str, Pass]:
    """The exported model in other engines; OpenVINO's int8 is the graph that onnxruntime quantized."""
    import openvino

    vitrail.export(model, to="onnx", out=folder / "model.onnx")
    nodes = nodes_of(folder / "model.onnx", [layer.weight for _, layer in layers_called(model, images[:1])])
    quantize_graph(folder / "model.onnx", folder / "int8.onnx", [images[:16]], nodes)
    core = openvino.Core()

    def run(path: Path, precision: str) -> Pass:
        hints = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads}
        compiled = core.compile_model(core.read_model(path), "CPU", hints)
        request = compiled.create_infer_request()
        return lambda batch: torch.from_numpy(request.infer([batch.numpy()])[compiled.outputs[0]].copy())

    return {
        "onnxruntime float32": open_engine(folder / "model.onnx"),
        "OpenVINO float32": run(folder / "model.onnx", "f32"),
        "OpenVINO bfloat16": run(folder / "model.onnx", "bf16"),
        "OpenVINO int8": run(folder / "int8.onnx", "f32"),
    }


def main() -> None:
    """Take turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="ViT-B/16")
    parser.add_argument("--batches", default="4,16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--peers", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    clock = time.process_time if given.threads == 1 else time.perf_counter
    model = opened(given.model)
    some = torch.randn(16, 3, *model.config.image_size, generator=torch.Generator().manual_seed(0))
    capable = torch.cpu.get_capabilities()
    print(f"{capable.get('cpu_name')}, {given.threads} threads, torch {torch.__version__}, {given.model}")  # noqa: T201
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        passes = ours(model, some)
        if given.peers:
            passes |= peers(model, some, Path(folder), given.threads)
        for batch in map(int, given.batches.split(",")):
            images = some.repeat(-(-batch // 16), 1, 1, 1)[:batch]
            wanted = model(images)
            differences = {name: float((run(images) - wanted).abs().max()) for name, run in passes.items()}
            times: dict[str, list[float]] = {name: [] for name in passes}
            for _ in range(given.turns + 1):
                for name, run in passes.items():
                    start = clock()
                    run(images)
                    times[name].append(clock() - start)
            print(f"batch {batch}, logits up to {float(wanted.abs().max()):.2f}")  # noqa: T201
            for name, found in times.items():
                ratios = sorted(slow / own for slow, own in zip(times["plain float32"][1:], found[1:], strict=True))
                spread = f"{median(ratios):5.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
                each = f"{1000 * median(found[1:]) / batch:7.1f} ms an image"
                print(f"  {name:20} {each}  x {spread}  differs by {differences[name]:.1e}")  # noqa: T201


if __name__ == "__main__":
    main()
