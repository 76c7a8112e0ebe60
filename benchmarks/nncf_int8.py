"""int8 of `vitrail export --to openvino` beside NNCF's of the same graph: accuracy of the same images, size and speed.

python benchmarks/nncf_int8.py DATA [--calibrate SOURCE] [--model vitrail-ti8] [--images 10000] [--threads 2]
python benchmarks/nncf_int8.py --model ViT-B/16 --batch 4 [--threads 2]

Without data only the speeds are measured. Both are calibrated on the same 128 images, of the sample in the box unless
others are given. Needs NNCF, which is no dependency: pip install nncf, in an environment that has OpenVINO.
"""

import argparse
import importlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import vitrail
from vitrail.data.open import choose_split, open_data
from vitrail.data.source import Subset
from vitrail.evaluation.answers import answers
from vitrail.exports.int8 import CALIBRATED_ON, Calibrating, calibration_source, nodes_of, quantize_graph
from vitrail.exports.layers import evened, layers_called
from vitrail.exports.onnx import write_onnx
from vitrail.exports.openvino import write_openvino
from vitrail.exports.traced import sizes_of, trace
from vitrail.inspection.views import spread
from vitrail.models import Model
from vitrail.ops.metrics import compare
from vitrail.runtime.engines import EngineModel, notes_of, run_file
from vitrail.runtime.inference import inference_options
from vitrail.runtime.machine import Group


def files_of(model: Model, images: list[torch.Tensor], folder: Path) -> Iterator[tuple[str, Path]]:
    """Write the model in float32, with all products in int8 as `vitrail export` does, and as NNCF does."""
    outputs, sizes = ("logits", "features"), sizes_of(model.config, fixed=False)
    plain, even = folder / "plain.onnx", folder / "even.onnx"
    smooth = evened(model, images)
    for source, path in ((model, plain), (smooth, even)):
        write_onnx(trace(source, sizes, precision="float32", pixels=False), path, outputs=outputs, pixels=False)
    layers = [layer.weight for _, layer in layers_called(smooth, images[0])]
    quantize_graph(even, folder / "int8.onnx", images, nodes_of(even, layers))
    for name, graph in (("float32", "plain"), ("vitrail int8", "int8")):
        path = folder / f"{graph}.xml"
        write_openvino(folder / f"{graph}.onnx", path, precision="float32")
        yield name, path
    nncf, openvino = importlib.import_module("nncf"), importlib.import_module("openvino")
    singly = [image[None].numpy() for batch in images for image in batch]
    transformer = {"model_type": nncf.ModelType.TRANSFORMER}  # products of weights alone, after SmoothQuant
    rough = nncf.AdvancedQuantizationParameters(smooth_quant_alpha=-1)
    ways: dict[str, dict[str, Any]] = {
        "nncf": {},
        "nncf transformer": transformer,
        "nncf, not smoothed": {**transformer, "advanced_parameters": rough},
    }
    for number, (name, how) in enumerate(ways.items()):
        graph = openvino.Core().read_model(str(plain))
        preset = nncf.QuantizationPreset.MIXED  # weights symmetric, activations not: as ours
        made = nncf.quantize(graph, nncf.Dataset(singly), preset=preset, subset_size=len(singly), **how)
        path = folder / f"nncf{number}.xml"
        openvino.save_model(made, str(path), compress_to_fp16=False)
        yield name, path


def main() -> None:
    """Print the accuracy, the points lost (paired), the speed in turns and the size of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?")
    parser.add_argument("--model", default="vitrail-ti8")
    parser.add_argument("--calibrate")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    boxed = asked.model.startswith("vitrail-") or Path(asked.model).exists()
    model = (vitrail.load(asked.model) if boxed else vitrail.create(asked.model)).eval()
    images = Calibrating(source=calibration_source(asked.calibrate, "int8 is calibrated", model)).images(model)
    said = notes_of(model.config, model.card, {"sizes": sizes_of(model.config, fixed=False).document()})
    said |= {"input": "images"}
    engines: dict[str, EngineModel] = {}
    print(f"{asked.model}, calibrated on {CALIBRATED_ON} images of {asked.calibrate or 'the sample'}")  # noqa: T201
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        for name, path in files_of(model, images, Path(folder)):
            engines[name] = EngineModel(run_file(path), model.config, model.card, said, b"")
            size = sum(each.stat().st_size for each in (path, path.with_suffix(".bin"))) / 1e6
            print(f"{name:18} {size:7.1f} MB, written in {time.perf_counter() - begun:.0f} s")  # noqa: T201
            begun = time.perf_counter()
        if asked.data is not None:
            measure(engines, asked.data, asked.images)
        time_in_turns(engines, torch.randn(asked.batch, model.config.channels, *model.config.image_size), asked.rounds)


def measure(engines: dict[str, EngineModel], data: str, count: int) -> None:
    """Compare the first classes with those of float32 on the same images."""
    splits = open_data(data)
    whole = splits[choose_split(splits, data, None)]
    source = Subset(whole, spread(len(whole), min(count, len(whole))))
    options = inference_options(Group(device=torch.device("cpu")), workers=0, fresh=True)
    found = {name: answers(engine, source, options) for name, engine in engines.items()}
    before = found["float32"]
    right = {name: each.answer == source.labels[each.samples] for name, each in found.items()}
    for name, each in found.items():
        paired = compare(right["float32"], right[name])
        low, high = (-100 * end for end in reversed(paired.interval))
        other = int((each.answer != before.answer).sum())
        print(  # noqa: T201
            f"{name:18} {right[name].mean():.2%} of {len(source):,}: {-100 * paired.difference:.2f} points lost "
            f"(95 %: {low:.2f} to {high:.2f}); {other:,} other first classes"
        )


def time_in_turns(engines: dict[str, EngineModel], images: torch.Tensor, rounds: int) -> None:
    """Print images a second of each and how many times float32 that is, the median of rounds in turns."""
    taken: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(rounds + 1):
        for name, engine in engines.items():
            begun = time.perf_counter()
            engine(images)
            taken[name] += [time.perf_counter() - begun] if turn else []
    for name, seconds in taken.items():
        ratios = [one / other for one, other in zip(taken["float32"], seconds, strict=True)]
        spread_of = f"({min(ratios):.2f} to {max(ratios):.2f})"
        speed = f"{len(images) / statistics.median(seconds):8.1f} images/s"
        print(f"{name:18} {speed} {statistics.median(ratios):6.2f} times float32 {spread_of}")  # noqa: T201


if __name__ == "__main__":
    main()
