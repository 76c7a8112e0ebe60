"""int8: the products of matrices alone; those that cost most stay in float32 until the loss asked for is met.

The residual stream, norms, softmax, GELU and attention's own products stay in float32.
"""

import logging
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.open import choose_split, open_data, open_images
from vitrail.data.source import Source, Subset
from vitrail.errors import CheckpointError, DataError
from vitrail.evaluation.answers import Answers, answers
from vitrail.exports.layers import layers_called, rank
from vitrail.inspection.views import has_classes_of, spread
from vitrail.models import Model
from vitrail.ops.metrics import Comparison, compare
from vitrail.runtime.engines import EngineModel, need
from vitrail.runtime.inference import feed_of, inference_options
from vitrail.runtime.machine import Group
from vitrail.runtime.reporter import Reporter

SAMPLE = "sample"  # the images in the box
CALIBRATED_ON, RANKED_ON, MEASURED_ON = 128, 16, 10_000  # images
STEPS = 8  # of the layers, a part at a time, that go back to float32
LOSS = 0.2  # points, where none is said
PRODUCTS = ("MatMul", "Gemm", "Conv")


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """Which layers are in int8, and what that costs on the same images."""

    layers: int
    kept: tuple[str, ...]  # that stay in float32, the most costly first
    labeled: bool  # else answers are compared with the model's own
    images: int
    accuracy: tuple[float, float]  # of the model and of the file; without labels, how many answers stay the same
    comparison: Comparison
    expected: float  # points lost if the model's probabilities are right: of its own answers less of the file's
    calibrated_on: int

    @property
    def loss(self) -> float:
        """Points of accuracy that are lost; without labels, those that the model's own probabilities expect."""
        return 0 - 100 * self.comparison.difference if self.labeled else self.expected

    def document(self) -> dict[str, Any]:
        """Give it as plain values, for JSON."""
        return {**asdict(self), "loss": self.loss}

    def __str__(self) -> str:
        kept = f"; in float32 stay {', '.join(self.kept)}" if self.kept else ""
        what = (
            f"int8 in {self.layers - len(self.kept)} of {self.layers} matrix products, calibrated on "
            f"{self.calibrated_on:,} images{kept}\n"
        )
        if not self.labeled:
            return what + (
                f"{self.accuracy[1]:.2%} of the answers on {self.images:,} images stay the same; by the model's own "
                f"probabilities that costs {self.loss:.2f} points of accuracy\n(these images have no labels of its "
                "classes: calibrate on some that have, and the accuracy itself is measured)"
            )
        lost = self.loss, *(-100 * end for end in reversed(self.comparison.interval))
        loss, low, high = (round(points, 2) + 0.0 for points in lost)  # and no zero with a sign
        return what + (
            f"accuracy: {self.accuracy[0]:.2%} before, {self.accuracy[1]:.2%} in int8, on the same {self.images:,} "
            f"images: {loss:.2f} points lost (95 %: {low:.2f} to {high:.2f})"
        )


@dataclass(frozen=True, kw_only=True)
class Calibrating:
    """The images that int8 is fitted to and measured on, and the points that it may lose."""

    source: Source
    loss: float = LOSS

    def images(self, model: Model) -> list[Tensor]:
        """Give the images to calibrate on, in batches as the model reads them."""
        options = inference_options(Group(device=torch.device("cpu")), workers=0)
        some = Subset(self.source, spread(len(self.source), CALIBRATED_ON))
        return [batch.images for batch in feed_of(model, some, options).epoch(0)]

    def quantize(
        self,
        models: tuple[Model, Model],
        images: list[Tensor],
        graph: Path,
        opened: Callable[[Path], EngineModel],
        report: Reporter,
    ) -> Quantized:
        """Put the products of a graph into int8, in its place, and measure what that costs.

        The models are the one that answers are compared with, and the one that the graph was traced of.
        """
        model, traced = models
        called = layers_called(traced, images[0])
        nodes = nodes_of(graph, [layer.weight for _, layer in called])
        with report.working("ranking the layers"):
            ranked = rank(traced, torch.cat(images)[:RANKED_ON])
        before = _answers(model, self.source, report)
        step, kept = max(-(-len(ranked) // STEPS), 1), 0
        while True:
            names = [called[place][0] for place in ranked[:kept]]
            made = graph.with_name(f"{graph.stem}-int8.onnx")
            with report.working("quantising"):
                quantize_graph(graph, made, images, [nodes[place] for place in ranked[kept:]])
            found = self._compare(opened(made), before, report, names, len(ranked), images)
            if found.loss <= self.loss:
                break
            if kept == len(ranked):
                raise CheckpointError(f"int8 loses {found.loss:.2f} points with every layer in float32.")
            report.note(f"{found.loss:.2f} points lost: {step} more layers stay in float32")
            kept = min(kept + step, len(ranked))
        os.replace(made, graph)
        return found

    def _compare(
        self,
        engine: EngineModel,
        before: Answers,
        report: Reporter,
        kept: Sequence[str],
        layers: int,
        images: list[Tensor],
    ) -> Quantized:
        after = _answers(engine, self.source, report)
        labeled = has_classes_of(engine, self.source) and bool((before.labels >= 0).any())
        counted = before.labels >= 0 if labeled else before.has_answer
        wanted = (before.labels if labeled else before.answer)[counted]
        first, second = before.answer[counted] == wanted, after.answer[counted] == wanted
        return Quantized(
            layers=layers,
            kept=tuple(kept),
            labeled=labeled,
            images=len(first),
            accuracy=(float(first.mean()), float(second.mean())),
            comparison=compare(first, second),
            expected=100 * expected_loss(before, after),
            calibrated_on=sum(map(len, images)),
        )


def calibration_source(data: object, what: str, model: Model) -> Source:
    """Open the images that are given, with labels or without; the sample in the box where none are."""
    channels, values = model.config.channels, model.card.preprocessing.value_range
    if data is None and (channels not in (1, 3) or values is not None):
        reads = f"{channels} channels" if values is None else "values from {:g} to {:g}".format(*values)
        raise DataError(
            f"{what} on images, and those in the box are photographs of 8 bits; the model reads {reads}. Give "
            "calibrate=... with images of its own kind."
        )
    data = SAMPLE if data is None else data
    splits = open_images(data) if isinstance(data, str | os.PathLike) else open_data(data, unlabeled=True)
    source = splits[choose_split(splits, str(data), None)]
    if not len(source):
        raise DataError(f"{what} on images, and there are none. Give calibrate=... with some.")
    return source


def _measured(source: Source) -> NDArray[np.int64]:
    """Choose the images to measure on: all of ten thousand that may have labels, a thousand of others."""
    return spread(len(source), MEASURED_ON if (source.labels >= 0).any() else MEASURED_ON // 10)


def _answers(model: Model, source: Source, report: Reporter) -> Answers:
    """Answer each measured image that can be read."""
    options = inference_options(Group(device=torch.device("cpu")), workers=0, fresh=True, report=report)
    some = Subset(source, _measured(source))
    return answers(model, some, options.showing("measuring"), labeled=False)


def expected_loss(before: Answers, after: Answers) -> float:
    """Give the accuracy that other answers to the same images lose where the first model's probabilities are right.

    A class beyond its first five counts as impossible.
    """
    same = before.classes == after.answer[:, None]  # N k
    theirs = np.where(same & before.has_answer[:, None], before.probabilities, 0).sum(axis=1)
    lost = np.where(before.has_answer, before.confidence - theirs, 0)
    return float(lost.mean())


def nodes_of(graph: Path, weights: Sequence[Tensor]) -> list[str]:
    """Find the nodes of a graph that hold these weights, in the order of a pass; a layer may be called again."""
    onnx, held = need("export", "onnx"), dict[str, NDArray[np.float32]]()
    loaded = onnx.load(os.fspath(graph))
    for entry in loaded.graph.initializer:
        held[entry.name] = onnx.numpy_helper.to_array(entry)
    left = [node for node in loaded.graph.node if node.op_type in PRODUCTS and node.input[1] in held]
    found = []
    for weight in weights:
        wanted = weight.detach().numpy()
        node = next((node for node in left if _same(held[node.input[1]], wanted)), None)
        if node is None:
            raise CheckpointError(f"the graph has no product with weights of {'x'.join(map(str, wanted.shape))}.")
        left.remove(node)
        found.append(node.name)
    return found


def _same(held: NDArray[np.float32], weight: NDArray[np.float32]) -> bool:
    """Tell whether a graph's weights are a layer's, the other way round where they are of a matrix."""
    return np.array_equal(held, weight) or (weight.ndim == 2 and np.array_equal(held, weight.T))


def quantize_graph(graph: Path, made: Path, images: list[Tensor], nodes: Sequence[str]) -> None:
    """Write a graph with the products of these nodes in int8."""
    tools, onnx = need("export", "onnxruntime.quantization"), need("export", "onnx")
    if not nodes:  # where a list of none would mean all
        shutil.copy(graph, made)
        return
    loaded = onnx.load(os.fspath(graph))
    entry = loaded.graph.input[0]

    class Reader(tools.CalibrationDataReader):
        """Hands the calibration images out, a batch at a time."""

        def __init__(self) -> None:
            self.left = iter(images)

        def get_next(self) -> dict[str, Any] | None:
            batch = next(self.left, None)
            return None if batch is None else {entry.name: batch.numpy()}

    logging.disable(logging.WARNING)  # onnxruntime asks for a step that changes nothing here
    try:
        tools.quantize_static(
            loaded,
            os.fspath(made),
            Reader(),
            quant_format=tools.QuantFormat.QDQ,
            op_types_to_quantize=list(PRODUCTS),
            per_channel=True,
            activation_type=tools.QuantType.QUInt8,
            weight_type=tools.QuantType.QInt8,
            nodes_to_quantize=list(nodes),
            calibrate_method=tools.CalibrationMethod.MinMax,
            extra_options={"MatMulConstBOnly": True, "OpTypesToExcludeOutputQuantization": list(PRODUCTS)},
        )
    finally:
        logging.disable(logging.NOTSET)
    written = onnx.load(os.fspath(made))
    _only_products(written.graph, set(nodes))
    onnx.save(written, os.fspath(made))


def _only_products(graph: Any, products: set[str]) -> None:  # noqa: ANN401
    """Let whatever else reads a rounded tensor read the tensor itself: a residual sum, or a product in float32."""
    exact = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "QuantizeLinear"}
    back = {node.output[0]: exact.get(node.input[0]) for node in graph.node if node.op_type == "DequantizeLinear"}
    for node in graph.node:
        if node.name not in products:
            for place, name in enumerate(node.input):
                if found := back.get(name):
                    node.input[place] = found
