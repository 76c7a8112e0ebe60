"""int8: the products of matrices alone; those that cost most stay in float32 until the loss asked for is met.

The residual stream, norms, softmax, GELU and attention's own products stay in float32.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.data.open import choose_split, open_data
from vitrail.data.source import Source, Subset
from vitrail.errors import CheckpointError, DataError
from vitrail.evaluation.answers import answers
from vitrail.inspection.views import has_classes_of, spread
from vitrail.models import Model, eval_mode
from vitrail.ops.metrics import Comparison, compare
from vitrail.runtime.engines import EngineModel, need
from vitrail.runtime.inference import feed_of, inference_options
from vitrail.runtime.machine import Group
from vitrail.runtime.reporter import Reporter

SAMPLE = "sample"  # the images in the box
CALIBRATED_ON, RANKED_ON, MEASURED_ON = 128, 16, 10_000  # images
STEPS = 8  # of the layers, a part at a time, that go back to float32
LOSS = 0.2  # points, where none is said
LINEAR = ("MatMul", "Gemm")


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """Which layers are in int8, and what that costs on the same images."""

    layers: int
    kept: tuple[str, ...]  # that stay in float32, the most costly first
    labeled: bool  # else answers are compared with the model's own
    images: int
    accuracy: tuple[float, float]  # of the model and of the file; without labels, how many answers stay the same
    comparison: Comparison
    calibrated_on: int

    @property
    def loss(self) -> float:
        """Points of accuracy that are lost."""
        return -100 * self.comparison.difference

    def document(self) -> dict[str, Any]:
        """Give it as plain values, for JSON."""
        return {**asdict(self), "loss": self.loss}

    def __str__(self) -> str:
        low, high = (-100 * end for end in reversed(self.comparison.interval))
        kept = f"; in float32 stay {', '.join(self.kept)}" if self.kept else ""
        what = "accuracy" if self.labeled else "answers that stay the same (there are no labels)"
        return (
            f"int8 in {self.layers - len(self.kept)} of {self.layers} matrix products, calibrated on "
            f"{self.calibrated_on:,} images{kept}\n{what}: {self.accuracy[0]:.2%} before, {self.accuracy[1]:.2%} in "
            f"int8, on the same {self.images:,} images: {self.loss:.2f} points lost (95 %: {low:.2f} to {high:.2f})"
        )


@dataclass(frozen=True, kw_only=True)
class Calibrating:
    """The images that int8 is fitted to and measured on, and the points that it may lose."""

    data: object = None
    loss: float | None = None

    def quantize(self, model: Model, graph: Path, opened: Callable[[Path], EngineModel], report: Reporter) -> Quantized:
        """Put the products of a graph into int8, in its place, and measure what that costs."""
        source = self._source()
        some = list(_batches(model, Subset(source, spread(len(source), CALIBRATED_ON))))
        with report.working("ranking the layers"):
            ranked = rank(model, torch.cat(some)[:RANKED_ON])
        before = _first_classes(model, source, report)
        step, kept = max(-(-len(ranked) // STEPS), 1), 0
        while True:
            names = [name for name, _ in ranked[:kept]]
            made = graph.with_name("int8.onnx")
            with report.working("quantising"):
                quantize_graph(graph, made, some, [number for _, number in ranked[:kept]], len(ranked))
            found = self._compare(model, opened(made), source, before, report, names, len(ranked), some)
            if found.loss <= (LOSS if self.loss is None else self.loss):
                break
            if kept == len(ranked):
                raise CheckpointError(f"int8 loses {found.loss:.2f} points with every layer in float32.")
            report.note(f"{found.loss:.2f} points lost: {step} more layers stay in float32")
            kept = min(kept + step, len(ranked))
        os.replace(made, graph)
        return found

    def measure(self, model: Model, engine: EngineModel, known: Quantized, report: Reporter) -> Quantized:
        """Measure the same layers in another engine."""
        source = self._source()
        before = _first_classes(model, source, report)
        return self._compare(model, engine, source, before, report, known.kept, known.layers, known.calibrated_on)

    def _compare(
        self,
        model: Model,
        engine: EngineModel,
        source: Source,
        before: NDArray[np.int64],
        report: Reporter,
        kept: Sequence[str],
        layers: int,
        some: list[Tensor] | int,
    ) -> Quantized:
        after = _first_classes(engine, source, report)
        labeled = has_classes_of(model, source) and bool((source.labels >= 0).any())
        wanted = np.asarray(source.labels)[_measured(source)] if labeled else before
        first, second = (before == wanted)[wanted >= 0], (after == wanted)[wanted >= 0]
        return Quantized(
            layers=layers,
            kept=tuple(kept),
            labeled=labeled,
            images=len(first),
            accuracy=(float(first.mean()), float(second.mean())),
            comparison=compare(first, second),
            calibrated_on=some if isinstance(some, int) else sum(map(len, some)),
        )

    def _source(self) -> Source:
        data = SAMPLE if self.data is None else self.data
        splits = open_data(data)
        source = splits[choose_split(splits, str(data), None)]
        if not len(source):
            raise DataError("int8 is calibrated on images, and there are none. Give calibrate=... with some.")
        return source


def _batches(model: Model, source: Source) -> Iterator[Tensor]:
    options = inference_options(Group(device=torch.device("cpu")), workers=0)
    for batch in feed_of(model, source, options).epoch(0):
        yield batch.images


def _measured(source: Source) -> NDArray[np.int64]:
    """Choose the images to measure on: all of ten thousand that may have labels, a thousand of others."""
    return spread(len(source), MEASURED_ON if (source.labels >= 0).any() else MEASURED_ON // 10)


def _first_classes(model: Model, source: Source, report: Reporter) -> NDArray[np.int64]:
    """Give the first class of each measured image."""
    options = inference_options(Group(device=torch.device("cpu")), workers=0, fresh=True, report=report)
    some = Subset(source, _measured(source))
    return answers(model, some, options.showing("measuring"), labeled=False).answer


def rank(model: Model, images: Tensor) -> list[tuple[str, int]]:
    """Rank the dense layers by how far int8 in each alone moves the features, the farthest first, with their places.

    A place is a layer's number in the order that a pass calls them, which is that of the graph.
    """
    called: list[tuple[str, Any]] = []
    names: dict[nn.Module, str] = {
        module: name for name, module in model.named_modules() if isinstance(module, nn.Linear)
    }
    hooks = [
        module.register_forward_pre_hook(lambda layer, _: called.append((names[layer], layer))) for module in names
    ]
    with eval_mode(model):
        try:
            exact = torch.cat([output for output in model.outputs(images) if output is not None], dim=1)
        finally:
            for hook in hooks:
                hook.remove()
        costs = []
        for number, (name, layer) in enumerate(called):
            weight = layer.weight.data
            hook = layer.register_forward_pre_hook(lambda _, given: (rounded(given[0]),))
            layer.weight.data = rounded_rows(weight)
            try:
                moved = torch.cat([output for output in model.outputs(images) if output is not None], dim=1)
            finally:
                layer.weight.data = weight
                hook.remove()
            costs.append((float((moved - exact).square().mean()), name, number))
    return [(name, number) for _, name, number in sorted(costs, reverse=True)]


def rounded(values: Tensor) -> Tensor:
    """Round to 256 levels between the least and the greatest, zero among them, as the graph does."""
    low, high = values.min().clamp(max=0), values.max().clamp(min=0)
    scale = ((high - low) / 255).clamp(min=1e-12)
    zero = (-low / scale).round()
    return ((values / scale + zero).round().clamp(0, 255) - zero) * scale


def rounded_rows(weight: Tensor) -> Tensor:
    """Round each output's weights to 255 levels around zero."""
    scale = (weight.abs().amax(dim=1, keepdim=True) / 127).clamp(min=1e-12)
    return (weight / scale).round() * scale


def quantize_graph(graph: Path, made: Path, images: list[Tensor], floats: Sequence[int], layers: int) -> None:
    """Write a graph with its dense products in int8, all but those at these places."""
    tools, onnx = need("export", "onnxruntime.quantization"), need("export", "onnx")
    loaded = onnx.load(os.fspath(graph))
    held = {entry.name for entry in loaded.graph.initializer}
    dense = [node.name for node in loaded.graph.node if node.op_type in LINEAR and node.input[1] in held]
    if len(dense) != layers:
        raise CheckpointError(f"the graph has {len(dense)} dense products, where the model has {layers} layers.")
    entry = loaded.graph.input[0]

    class Reader(tools.CalibrationDataReader):
        """Hands the calibration images out, a batch at a time."""

        def __init__(self) -> None:
            self.left = iter(images)

        def get_next(self) -> dict[str, Any] | None:
            batch = next(self.left, None)
            return None if batch is None else {entry.name: batch.numpy()}

    floating = [name for number, name in enumerate(dense) if number in floats]
    logging.disable(logging.WARNING)  # onnxruntime asks for a step that changes nothing here
    tools.quantize_static(
        loaded,
        os.fspath(made),
        Reader(),
        quant_format=tools.QuantFormat.QDQ,
        op_types_to_quantize=list(LINEAR),
        per_channel=True,
        activation_type=tools.QuantType.QUInt8,
        weight_type=tools.QuantType.QInt8,
        nodes_to_exclude=floating,
        calibrate_method=tools.CalibrationMethod.MinMax,
        extra_options={"MatMulConstBOnly": True, "OpTypesToExcludeOutputQuantization": list(LINEAR)},
    )
    logging.disable(logging.NOTSET)
