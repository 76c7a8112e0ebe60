"""Files that `vitrail.export` wrote, opened again: each runs in its own engine, and is called like any model."""

import importlib
import json
import os
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.config import Card, ModelConfig, Preprocessing, Provenance, decode, encode
from vitrail.config.check import one_of
from vitrail.config.outputs import Outputs
from vitrail.data.transforms.finish import unscale
from vitrail.errors import CheckpointError, ConfigError, ShapeError, VitrailError
from vitrail.files import parse_json
from vitrail.models import Model
from vitrail.models.base import check_images

EXPORTED = (".onnx", ".xml", ".pt2", ".pte")
NOTES = "vitrail"  # under which a file says what it is
FORMAT = "vitrail export 1"
PACKED_NOTES = "extra/vitrail.json"  # in a file of torch, which is a zip archive
Opened = TypeVar("Opened")
Run = Callable[[Tensor], list[Tensor]]  # from images to logits and features, or features alone


def is_exported(path: str) -> bool:
    """Tell by its name whether a file is a program, rather than weights."""
    return path.lower().endswith(EXPORTED) and "://" not in path and not path.startswith("hf:")


def need(extra: str, *names: str) -> ModuleType:
    """Import what an extra brings, and give the first; say how to install it where it is missing."""
    try:
        modules = [importlib.import_module(name) for name in names]
    except ImportError as error:
        missing = names[0].partition(".")[0]
        raise ConfigError(
            f"{missing} is needed for this, and cannot be imported ({error}). pip install 'vitrail[{extra}]'"
        ) from error
    return modules[0]


def notes_of(config: ModelConfig, card: Card, said: Mapping[str, Any]) -> dict[str, Any]:
    """Say what a file holds: the model, what belongs to it, and how it was written."""
    about = {"class_names": None if card.class_names is None else list(card.class_names), "seen": list(card.seen)}
    about |= {"temperature": card.temperature, "metrics": dict(card.metrics)}
    about |= {} if card.outputs is None else {"outputs": encode(card.outputs)}
    parts = {"preprocessing": encode(card.preprocessing), "provenance": encode(card.provenance)}
    return {"format": FORMAT, "model": encode(config), "card": {**about, **parts}, **said}


class EngineModel(Model):
    """A model whose passes are those of an engine; it is on the CPU, and has no weights to look at."""

    def __init__(self, run: Run, config: ModelConfig, card: Card, said: Mapping[str, Any], digest: bytes) -> None:
        super().__init__()
        self.run, self.config, self.card, self.said = run, config, card, dict(said)
        self.layers, self.head = 0, nn.Identity()
        self.place = nn.Parameter(torch.zeros(0), requires_grad=False)  # says where the model is, and its precision
        self.register_buffer("digest", torch.tensor(list(digest), dtype=torch.uint8))

    def forward(self, images: Tensor) -> Any:  # noqa: ANN401
        """Logits; of a model without a classifier, its representation; of one of pixels or objects what it says."""
        if (head := getattr(self.config, "head", None)) is not None:
            return _said(self.given(images), head.task)
        features, logits = self.outputs(images)
        return features if logits is None else logits

    def represent(self, images: Tensor) -> Tensor:
        """What the linear classifier reads."""
        return self.outputs(images)[0]

    def outputs(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Representation and logits."""
        if getattr(self.config, "head", None) is not None:
            raise ConfigError("the file gives scores of pixels or objects, and no features. Take the checkpoint.")
        found = self.given(images)
        return (found[1], found[0]) if self.config.classes else (found[0], None)

    def given(self, images: Tensor) -> list[Tensor]:
        """What the graph gives, in its order."""
        check_images(images, self.config.channels, self.place, self.card.preprocessing)
        check_size(self.said["sizes"], (images.shape[2], images.shape[3]))
        if self.said["input"] == "pixels":  # of which the images were made: back to the same levels
            written = decode(self.said["card"]["preprocessing"], Preprocessing)
            if self.card.preprocessing.levels() != written.levels():
                raise ConfigError(
                    f"the file scales pixels itself, by {written.levels()}. Leave mean and deviation out."
                )
            levels = unscale(images, self.card.preprocessing).round().clamp(0, 255)
            images = levels.to(torch.uint8).permute(0, 2, 3, 1)
        try:
            return self.run(images.contiguous())
        except Exception as error:  # engines raise types of their own
            shape = "x".join(map(str, images.shape))
            raise CheckpointError(
                f"the exported file does not run on images {shape}: {reason_of(error)}. Export it again, "
                "with fixed_size=True where it is their size."
            ) from error

    def maps_after(self, images: Tensor, wanted: list[int]) -> dict[int, Tensor]:
        """Refuse: what is inside is not given."""
        raise ConfigError("an exported file gives logits and features alone. Look inside the checkpoint it came from.")


def _said(found: list[Tensor], task: str) -> Any:  # noqa: ANN401
    """Give scores of pixels, or scores, boxes and perhaps masks of objects, as a head says them."""
    from vitrail.models.dense_heads import Prediction  # few files need it

    scores = found[0].clamp(min=1e-9)
    if task == "segment":
        return Prediction(scores.new_empty(len(scores), 0, 0), scores.log(), scores.new_empty(len(scores), 0, 4))
    none = (1 - found[0].sum(dim=2, keepdim=True)).clamp(min=1e-9)
    masks = found[2] if len(found) > 2 else scores.new_empty(len(scores), 0, 0, 0)
    return Prediction(torch.cat([scores, none], dim=2).log(), masks, found[1])


def check_size(sizes: Mapping[str, Any], size: tuple[int, int]) -> None:
    """Refuse images of a size that the graph cannot take."""
    own, step, least, most = tuple(sizes["own"]), sizes["step"], sizes["least"], sizes.get("most", max(size))
    if sizes["free"]:
        if all(side % step == 0 and least <= side <= most for side in size):
            return
        upto = "or more" if max(size) <= most else f"to {most}"
        raise ShapeError(
            f"the graph takes images whose sides are multiples of {step}, of {least} pixels {upto}; got "
            f"{size[0]}x{size[1]}. Resize them first."
        )
    if size != own:
        raise ShapeError(
            f"the graph takes images of {own[0]}x{own[1]} alone; got {size[0]}x{size[1]}. "
            "Export the model again with image_size=... of those."
        )


def open_engine(path: Path, image_size: tuple[int, int] | None = None) -> EngineModel:
    """Open an exported file in its own engine; one that cannot be run is refused with what to do."""
    digest = digest_of_file(path)
    run, notes = _open(path, ENGINES[path.suffix.lower()])
    config, card, said = read_notes(path, notes)
    if image_size is not None:
        check_size(said["sizes"], image_size)
        config = replace(config, image_size=image_size)
    return EngineModel(run, config, card, said, digest)


def about_file(path: Path) -> tuple[ModelConfig, Card, dict[str, Any]]:
    """Give what a file says of itself; the machine code of one that AOTInductor compiled is not run for it."""
    reader = _read_packed if path.suffix.lower() == ".pt2" else ENGINES[path.suffix.lower()]
    return read_notes(path, _open(path, reader)[1])


def run_file(path: Path) -> Run:
    """Open a file in its own engine, whatever it says of itself."""
    return _open(path, ENGINES[path.suffix.lower()])[0]


def _open(path: Path, reader: Callable[[Path], Opened]) -> Opened:
    try:
        return reader(path)
    except (VitrailError, MemoryError):
        raise
    except Exception as error:  # engines raise types of their own
        raise CheckpointError(
            f"{path} cannot be run: {reason_of(error)}. Where it was cut short, copy or export it again."
        ) from error


def reason_of(error: Exception) -> str:
    """Give the line of an engine's error that says why, rather than where in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("Exception from ", "Check '", "While validating "))]
    return (said or lines or [type(error).__name__])[0][:200].rstrip(".")


def read_notes(path: Path, text: str | None) -> tuple[ModelConfig, Card, dict[str, Any]]:
    """Read what a file says of itself, strictly."""
    if text is None:
        raise CheckpointError(
            f"{path} is no file of vitrail.export: it does not say how images are read, nor what its classes are. "
            "Export the checkpoint with vitrail.export."
        )
    try:
        said = parse_json(text)
        one_of("format", said["format"], (FORMAT,))
        config, about = decode(said["model"]), dict(said["card"])
        names = about.pop("class_names")
        card = Card(
            class_names=None if names is None else tuple(names),
            seen=tuple(about.pop("seen")),
            preprocessing=decode(about.pop("preprocessing"), Preprocessing),
            provenance=None if about["provenance"] is None else decode(about["provenance"], Provenance),
            metrics=about["metrics"],
            temperature=about["temperature"],
            outputs=decode(about["outputs"], Outputs, "outputs") if "outputs" in about else None,
        )
        came = card.provenance or Provenance(source="", layout="", container="")
        came = replace(came, source=os.fspath(path), container=path.suffix[1:])
        return config, replace(card, provenance=came), said
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise CheckpointError(f"{path} says wrongly what it is: {error!r}. Export it again.") from error


def digest_of_file(path: Path) -> bytes:
    """Give the digest of all that a file computes: the weights of OpenVINO's are in a file beside it."""
    digest = sha256()
    for part in (path, *([path.with_suffix(".bin")] if path.suffix.lower() == ".xml" else [])):
        try:
            with part.open("rb") as file:
                while block := file.read(1 << 22):
                    digest.update(block)
        except OSError as error:
            raise CheckpointError(f"cannot read {part}: {error.strerror or error}. Check the path.") from error
    return digest.digest()


def open_onnx(path: Path) -> tuple[Run, str | None]:
    """Open an ONNX file in onnxruntime, with as many threads as torch has here."""
    runtime = need("export", "onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # lanes of other threads want the cores
    session = runtime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def run(images: Tensor) -> list[Tensor]:
        return [torch.from_numpy(found) for found in session.run(None, {name: images.numpy()})]

    return run, session.get_modelmeta().custom_metadata_map.get(NOTES)


def open_openvino(path: Path) -> tuple[Run, str | None]:
    """Open OpenVINO's pair of files, in float32 where the machine would choose less."""
    openvino = need("openvino", "openvino")
    core = openvino.Core()
    graph = core.read_model(os.fspath(path))
    said = graph.get_rt_info([NOTES]).value if graph.has_rt_info([NOTES]) else None
    hints = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    compiled, held = core.compile_model(graph, "CPU", hints), threading.local()

    def run(images: Tensor) -> list[Tensor]:
        if not hasattr(held, "request"):
            held.request = compiled.create_infer_request()  # each thread its own
        found = held.request.infer([images.numpy()])
        return [torch.from_numpy(np.array(found[output])) for output in compiled.outputs]

    return run, None if said is None else str(said)


def open_torch(path: Path) -> tuple[Run, str | None]:
    """Open a program of torch.export, or one that AOTInductor compiled: that is machine code, which is then run."""
    names, notes = _read_packed(path)
    if any("/data/aotinductor/" in name for name in names):
        program: Any = torch._inductor.aoti_load_package(os.fspath(path))  # pyright: ignore[reportPrivateUsage]
    else:
        program = torch.export.load(path).module()

    def run(images: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return list(program(images))

    return run, notes


def _read_packed(path: Path) -> tuple[list[str], str | None]:
    """Give the names of what a file of torch holds, and what it says of itself; refuse one that is damaged."""
    with zipfile.ZipFile(path) as packed:
        names = packed.namelist()
        if not any(name.endswith("/archive_format") for name in names) or packed.testzip() is not None:
            raise CheckpointError(f"{path} is damaged, or no program of torch.export. Copy or export it again.")
        return names, next((packed.read(name).decode() for name in names if name.endswith(PACKED_NOTES)), None)


def open_executorch(path: Path) -> tuple[Run, str | None]:
    """Open a program of ExecuTorch in its runtime, with as many threads as torch has when the first is opened."""
    with quiet_stderr():  # it reports which files of the system it reads
        runtime = need("executorch", "executorch.extension.pybindings._C")  # without the compiler, which takes seconds
        _set_threads(runtime)
        program = runtime._load_for_executorch(os.fspath(path))
    most, lock = program.method_meta("forward").input_tensor_meta(0).sizes()[0], threading.Lock()
    notes = program.run_method(NOTES)[0] if NOTES in program.method_names() else None

    def run(images: Tensor) -> list[Tensor]:
        with lock:  # its memory is planned for one call at a time, and for so many images
            parts = [program.forward([part]) for part in images.split(most)]
        return [torch.cat(each) for each in zip(*parts, strict=True)]

    return run, notes


@cache  # once: programs that are open hold the pool
def _set_threads(runtime: ModuleType) -> None:
    runtime._unsafe_reset_threadpool(torch.get_num_threads())


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """Keep what a library's own code prints off the terminal, for a moment."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


ENGINES: dict[str, Callable[[Path], tuple[Run, str | None]]] = {
    ".onnx": open_onnx,
    ".xml": open_openvino,
    ".pt2": open_torch,
    ".pte": open_executorch,
}


def notes_text(notes: object) -> str:
    """Give notes as the text that a file holds."""
    return json.dumps(notes, ensure_ascii=True)
