"""How fast and large exported files are: each engine in turns with eager float32 of torch, on the same threads.

python benchmarks/export.py [--model ViT-B/16] [--threads 2] [--batch 4] [--rounds 5] [--only onnx,torch]
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch

import vitrail
from vitrail.exports.executorch import write_executorch
from vitrail.exports.int8 import nodes_of, quantize_graph
from vitrail.exports.layers import evened, layers_called
from vitrail.exports.onnx import write_onnx
from vitrail.exports.openvino import write_openvino
from vitrail.exports.torch_program import write_aotinductor, write_torch
from vitrail.exports.traced import sizes_of, trace
from vitrail.models import Model
from vitrail.runtime.engines import Run, run_file

OUTPUTS = ("logits", "features")


def files_of(model: Model, folder: Path, only: str) -> Iterator[tuple[str, Path]]:
    """Write the files of a model, as `vitrail export` does, without looking at what they give."""
    images = [torch.randn(4, 3, *model.config.image_size) for _ in range(2)]
    smooth = evened(model, images)
    sizes = sizes_of(model.config, fixed=False)
    programs = {each: trace(model, sizes, precision=each, pixels=False) for each in ("float32", "float16")}
    for precision, program in programs.items():
        if "onnx" in only or "openvino" in only:
            path = folder / f"{precision}.onnx"
            write_onnx(program, path, outputs=OUTPUTS, pixels=False)
            yield f"onnx {precision}", path
        if "torch" in only:
            write_torch(program, path := folder / f"{precision}.pt2")
            yield f"torch {precision}", path
    if "onnx" in only or "openvino" in only:
        even, small = folder / "even.onnx", folder / "int8.onnx"
        write_onnx(trace(smooth, sizes, precision="float32", pixels=False), even, outputs=OUTPUTS, pixels=False)
        layers = [layer.weight for _, layer in layers_called(smooth, images[0])]
        quantize_graph(even, small, images, nodes_of(even, layers))
        yield "onnx int8", small
    if "openvino" in only:
        for precision, graph in (("float32", "float32"), ("float16", "float32"), ("int8", "int8")):
            path = folder / f"openvino-{precision}.xml"
            write_openvino(folder / f"{graph}.onnx", path, precision=precision)
            yield f"openvino {precision}", path
    if "aotinductor" in only:
        write_aotinductor(programs["float32"], path := folder / "compiled.pt2")
        yield "aotinductor", path
    if "executorch" in only and find_spec("executorch"):
        planned = sizes_of(model.config, fixed=False, planned=True)
        program = trace(model, planned, precision="float32", pixels=False)
        write_executorch(program, path := folder / "phone.pte", notes={})
        yield "executorch", path


def size_of(path: Path) -> float:
    """Give the megabytes of a file; OpenVINO's weights are in one beside it."""
    return sum(each.stat().st_size for each in (path, path.with_suffix(".bin")) if each.exists()) / 1e6


def main() -> None:
    """Print how fast each is, by the clock and by processor time, beside eager float32; how large, and how near."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="ViT-B/16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="onnx,torch,openvino,aotinductor,executorch")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    boxed = asked.model.startswith("vitrail-")
    model = (vitrail.load(asked.model) if boxed else vitrail.create(asked.model)).eval()
    images = torch.randn(asked.batch, 3, *model.config.image_size)

    def eager(batch: torch.Tensor) -> list[torch.Tensor]:
        with torch.inference_mode():
            features, logits = model.outputs(batch)
        return [features] if logits is None else [logits, features]

    with tempfile.TemporaryDirectory() as folder:
        runs: dict[str, Run] = {"eager float32": eager}
        sizes, taken, worked, far = dict[str, float](), dict[str, list[float]](), dict[str, list[float]](), {}
        for name, path in files_of(model, Path(folder), asked.only):
            runs[name], sizes[name] = run_file(path), size_of(path)
        exact = eager(images)
        for turn in range(asked.rounds + 1):
            for name, run in runs.items():
                begun, spent = time.perf_counter(), time.process_time()
                found = run(images)
                if turn:
                    taken.setdefault(name, []).append(time.perf_counter() - begun)
                    worked.setdefault(name, []).append(time.process_time() - spent)
                far[name] = max(float((one - other).abs().max()) for one, other in zip(exact, found, strict=True))
    most = max(float(each.abs().max()) for each in exact)
    print(  # noqa: T201
        f"{asked.model}, {asked.threads} threads, batch {asked.batch}, median of {asked.rounds} rounds in turns; "
        f"differences of numbers up to {most:.3g}"
    )
    for name, seconds in taken.items():
        ratios = [one / other for one, other in zip(taken["eager float32"], seconds, strict=True)]
        work = statistics.median(worked["eager float32"]) / statistics.median(worked[name])
        speed = f"{asked.batch / statistics.median(seconds):8.1f} images/s  {statistics.median(ratios):5.2f} times"
        spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
        print(  # noqa: T201
            f"{name:18} {speed} {spread:16} {work:5.2f} by processor time {sizes.get(name, 0):8.1f} MB {far[name]:.1e}"
        )


if __name__ == "__main__":
    main()
