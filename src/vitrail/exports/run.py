"""`vitrail.export`: a model as a file that another program runs, compared with the model before it is kept."""

import copy
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import torch

from vitrail.checkpoint.load import of_run
from vitrail.config.export import EXTRA, OPTIONS, SUFFIX, read_export
from vitrail.errors import CheckpointError, ConfigError
from vitrail.exports.graph_outputs import names_of
from vitrail.exports.int8 import LOSS, Calibrating, Quantized, calibration_source
from vitrail.exports.layers import evened
from vitrail.exports.openvino import note_openvino, write_openvino
from vitrail.exports.page_weights import Rounded
from vitrail.exports.traced import Sizes, sizes_of, trace
from vitrail.exports.units import check_one_class, in_units, unit_of
from vitrail.exports.verify import Verified, verify
from vitrail.files import check_writable, home_path, staged
from vitrail.inspection.views import check_weights
from vitrail.models import Model
from vitrail.runtime.dense import dense_task
from vitrail.runtime.engines import EngineModel, is_exported, need, notes_of, run_file
from vitrail.runtime.machine import keep_memory
from vitrail.runtime.reporter import SILENT, Reporter, harmless
from vitrail.verbs.opening import AnyModel, FileHints, ImageSize, check_options, model_name, model_source, open_model

NEEDED = {"export": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("openvino", "onnx", "onnxscript")}
NEEDED |= {"executorch": ("executorch.extension.pybindings._C",)}


class ExportOptions(FileHints, total=False):
    """What a file leaves open of its model, and who is told how far the work is."""

    report: Reporter


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A file that was written: what it takes and gives, and how far its engine is from the model."""

    path: Path
    to: str
    precision: str
    bytes: int
    outputs: tuple[str, ...]
    input: str
    sizes: Sizes | None
    verified: Verified | None  # None of a page
    quantized: Quantized | None = None
    rounded: Rounded | None = None  # of a page: how its weights are kept

    def document(self) -> dict[str, Any]:
        """Give it as plain values, for JSON."""
        found: dict[str, Any] = {"path": str(self.path), "to": self.to, "precision": self.precision}
        found |= {"bytes": self.bytes, "input": self.input, "outputs": list(self.outputs)}
        found["sizes"] = None if self.sizes is None else {**self.sizes.document(), "words": str(self.sizes)}
        found["verified"] = None if self.verified is None else vars(self.verified)
        found["int8"] = None if self.quantized is None else self.quantized.document()
        found["rounded"] = None if self.rounded is None else self.rounded.document()
        return found

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.to}, {self.precision}, {self.bytes / 1e6:,.1f} MB"]
        if self.sizes is not None:
            lines.append(f"  takes {self.input}: any batch; {self.sizes}")
            lines.append(f"  gives {' and '.join(self.outputs)}")
        if self.verified is not None:
            tried = ", ".join(f"{height}x{width}" for height, width in self.verified.sizes)
            batches = ", ".join(map(str, self.verified.batches))
            lines.append(
                f"  differs from the model by {self.verified.difference:.1e} at most, of numbers up to "
                f"{self.verified.scale:.3g}: run at batches of {batches} and sizes of {tried}"
            )
            if self.verified.rounding is not None:
                own = f"{self.verified.rounding:.1e}"
                lines.append(f"  (the model itself, in float32, differs from what it is in float64 by {own})")
        if self.quantized is not None:
            lines += [f"  {line}" for line in str(self.quantized).splitlines()]
        if self.rounded is not None:
            lines.append(f"  {self.rounded}")
        return harmless("\n".join(lines))


def export(
    model: AnyModel,
    *,
    to: str = "onnx",
    precision: str | None = None,
    image_size: ImageSize | None = None,
    fixed_size: bool = False,
    with_preprocessing: bool = False,
    calibrate: object = None,
    loss: float | None = None,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    **options: Unpack[ExportOptions],
) -> Exported:
    """Write a model as a file that another program runs; it is compared with the model before it is kept.

    `to` is onnx, torch (torch.export's program), aotinductor (compiled for this machine), openvino, executorch (for
    phones) or html (a page). `precision` is float32, float16 or int8. Batch, height and width are free where the
    model allows it, with positions resampled inside as the model does; `fixed_size` fixes the size to `image_size`.
    `with_preprocessing` puts the scaling of pixels inside: the input is then uint8, B H W C, resized already. int8
    is calibrated on images of `calibrate` (the sample in the box where it is left out), and layers stay in float32
    until at most `loss` points of accuracy are lost on those that have labels. `out` is the file; other options are
    those of `vitrail.load` that say what a file leaves open.
    """
    for name in options:
        if name in OPTIONS:
            raise ConfigError(f"export has no option {name!r}. {OPTIONS[name]}")
    check_options(export, ExportOptions, options)
    target, precision = read_export(to, precision, loss, calibrates=calibrate is not None)
    report = options.pop("report", SILENT)
    model = of_run(model)
    if is_exported(model_source(model)):
        raise ConfigError("the model is an exported file already. Give the checkpoint that it came from.")
    if target in EXTRA:
        need(EXTRA[target], *NEEDED[EXTRA[target]])
    path = home_path(out or f"{_usual_name(model_name(model))}{'-int8' if precision == 'int8' else ''}{SUFFIX[target]}")
    _check_path(path, target, overwrite=overwrite)
    keep_memory()
    opened = _prepared(open_model(model, image_size, None if isinstance(model, Model) else "cpu", options).plain)
    if (task := dense_task(opened)) is not None and (target in ("html", "executorch") or precision == "int8"):
        what = f"to={target}" if target in ("html", "executorch") else "precision=int8"
        raise ConfigError(
            f"{what} is of classifiers; the model was trained to {task}. Take onnx, openvino or torch, in float32."
        )
    if with_preprocessing or target == "html":
        _check_pixels(opened, "the input with preprocessing inside" if target != "html" else "what a page reads")
    if target == "html" or precision == "int8":
        check_one_class(opened, page=target == "html")
    opened, unit = in_units(opened), unit_of(opened)
    if target == "html":
        return _write_page(opened, path, precision, calibrate, loss, report)
    if precision == "int8" and (with_preprocessing or not opened.config.classes):
        what = "a model without a classifier: its loss cannot be measured" if not with_preprocessing else "pixels"
        raise ConfigError(f"int8 is not written of {what}. Take precision=float32.")
    sizes = sizes_of(opened.config, fixed=fixed_size, planned=target == "executorch")
    outputs = names_of(opened)
    plan = _Plan(opened.eval(), target, precision, sizes, outputs, with_preprocessing, report, unit)
    calibrating = None
    if precision == "int8":
        source = calibration_source(calibrate, "int8 is calibrated", opened)
        calibrating = Calibrating(source=source, loss=LOSS if loss is None else loss)
    with staged(path) as temporary:
        verified, quantized = _write(plan, temporary, calibrating)
    return Exported(
        path=path,
        to=target,
        precision=precision,
        bytes=sum(each.stat().st_size for each in _written(path, target)),
        outputs=outputs,
        input="pixels, uint8 B H W C, resized" if with_preprocessing else "images, float32 B C H W, scaled",
        sizes=sizes,
        verified=verified,
        quantized=quantized,
    )


def _prepared(model: Model) -> Model:
    """Give a model to export, in float32; refuse one that no file can hold."""
    if next(model.parameters()).device.type != "cpu":
        raise ConfigError("the model is exported from the CPU. Move it first: model.cpu().")
    check_weights(model)
    same = all(parameter.dtype == torch.float32 for parameter in model.parameters())
    return model if same else copy.deepcopy(model).float()


def _check_pixels(model: Model, what: str) -> None:
    """Refuse a model that reads more bits than pixels of 8 have."""
    if (values := model.card.preprocessing.value_range) is not None:
        low, high = values
        raise ConfigError(
            f"{what} is pixels of 8 bits; the model reads values from {low:g} to {high:g}, with all their bits. Export "
            "it without, to onnx, torch or openvino: the input is then what model.preprocess gives."
        )


@dataclass(frozen=True)
class _Plan:
    """What is written."""

    model: Model
    target: str
    precision: str
    sizes: Sizes
    outputs: tuple[str, ...]
    pixels: bool
    report: Reporter
    unit: float = 1.0  # the size of the numbers that it answers with

    def notes(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Give what the file says of itself."""
        about = {"to": self.target, "precision": self.precision, "sizes": self.sizes.document()}
        about |= {"input": "pixels" if self.pixels else "images", "outputs": list(self.outputs)}
        return notes_of(self.model.config, self.model.card, {**about, **said})


def _write(plan: _Plan, path: Path, calibrating: Calibrating | None) -> tuple[Verified | None, Quantized | None]:
    """Write the file under a hidden name, compare it with the model, and let it say what was found."""
    from vitrail.exports import executorch, onnx, torch_program

    traced_in = "float16" if plan.precision == "float16" and plan.target != "openvino" else "float32"
    images = [] if calibrating is None else calibrating.images(plan.model)
    model = evened(plan.model, images) if images else plan.model
    with plan.report.working("tracing the model"):
        program = trace(model, plan.sizes, precision=traced_in, pixels=plan.pixels)
    graph, quantized = path.with_suffix(".onnx"), None
    with plan.report.working(f"writing {plan.target}"):
        match plan.target:
            case "torch":
                torch_program.write_torch(program, path)
            case "aotinductor":
                torch_program.write_aotinductor(program, path)
            case "executorch":
                executorch.write_executorch(program, path, notes=plan.notes({}))
            case _:
                onnx.write_onnx(program, graph, outputs=plan.outputs, pixels=plan.pixels)
    if calibrating is not None:
        quantized = calibrating.quantize(
            (plan.model, model), images, graph, lambda made: _run_graph(plan, made, path), plan.report
        )
    elif plan.target == "openvino":
        write_openvino(graph, path, precision=plan.precision)
    if plan.target == "openvino":
        graph.unlink()
    with plan.report.working("comparing it with the model"):
        engine = _opened(plan, path)
        verified = verify(plan.model, engine, plan.sizes.tried(), plan.precision, plan.unit)
    del engine  # which holds the file open
    said: dict[str, Any] = {"verified": vars(verified)}
    said |= {} if quantized is None else {"int8": quantized.document()}
    match plan.target:
        case "onnx":
            onnx.note_onnx(path, plan.notes(said))
        case "openvino":
            note_openvino(path, plan.notes(said))
        case "executorch":
            executorch.note_executorch(path, plan.notes(said), plan.notes({}))
        case _:
            torch_program.note_torch(path, plan.notes(said))
    return verified, quantized


def _run_graph(plan: _Plan, graph: Path, path: Path) -> EngineModel:
    """Open a graph in the engine that it is for, where OpenVINO writes its own files of it."""
    if plan.target != "openvino":
        return _opened(plan, graph)
    for each in _written(path, plan.target):
        each.unlink(missing_ok=True)  # what an engine has open stays as it is
    write_openvino(graph, path, precision=plan.precision)
    return _opened(plan, path)


def _opened(plan: _Plan, path: Path) -> EngineModel:
    """Open a file that does not say yet what it is."""
    return EngineModel(run_file(path), plan.model.config, plan.model.card, plan.notes({}), b"")


def _write_page(
    model: Model, path: Path, precision: str, calibrate: object, loss: float | None, report: Reporter
) -> Exported:
    from vitrail.exports.html import write_html

    found = write_html(model, path, precision=precision, calibrate=calibrate, loss=loss, report=report)
    shape = {"outputs": ("logits",), "input": "images", "sizes": None, "verified": None, "rounded": found}
    return Exported(path=path, to="html", precision=precision, bytes=path.stat().st_size, **shape)


def _usual_name(name: str) -> str:
    """Name a file after the model, in the working folder."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", Path(name.removeprefix("hf:")).name).strip("-") or "model"


def _check_path(path: Path, target: str, *, overwrite: bool) -> None:
    """Refuse a name that the target cannot have, or that is taken, before anything is computed."""
    if path.suffix != SUFFIX[target]:
        others = [f"to={other}" for other, suffix in SUFFIX.items() if suffix == path.suffix]
        cure = f"Say {' or '.join(others)}" if others else "Give out=... with that"
        raise ConfigError(f"a file of {target} ends in {SUFFIX[target]}; got {path.name}. {cure}.")
    check_writable(path)
    taken = [each for each in _written(path, target) if each.exists()]
    if taken and not overwrite:
        raise CheckpointError(f"{taken[0]} exists already. Choose another name with out=..., or give overwrite=True.")


def _written(path: Path, target: str) -> list[Path]:
    """Give the files of an export: OpenVINO's weights are in a file beside the graph."""
    return [path, *([path.with_suffix(".bin")] if target == "openvino" else [])]
