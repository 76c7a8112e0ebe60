"""What a verb is given, opened: a model by name, file, run folder or in memory."""

import copy
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

import torch

from vitrail.checkpoint.load import load
from vitrail.config import FILE_FIELDS, Grid, Preprocessing, as_size, name_of, read_preprocessing
from vitrail.config.engine import Engine, Precision
from vitrail.config.given import check_passes
from vitrail.config.model import Activation
from vitrail.config.name_tables import NamesTable
from vitrail.config.preprocessing import SAID
from vitrail.config.words import MODEL, TRAINING, by_meaning
from vitrail.errors import ConfigError
from vitrail.files import home_path
from vitrail.models import Model
from vitrail.runtime.engines import is_exported, open_engine
from vitrail.runtime.fast import open_fast
from vitrail.runtime.inference import InferenceOptions, inference_options
from vitrail.runtime.machine import choose_device, joined, keep_memory
from vitrail.runtime.merging import MergedModel
from vitrail.runtime.optimized import is_optimized
from vitrail.runtime.packing import PackedModel
from vitrail.runtime.reporter import Reporter

AnyModel = str | os.PathLike[str] | Model  # a name, a file, a run folder, or a model in memory
ImageSize = int | tuple[int, int]
Device = str | torch.device
# Other libraries' words, beside those of training.
WORDS = {"topk": "top", "top_k": "top", "num_workers": "workers", "output_dir": "out", "output": "out", "k": "shots"}
WORDS |= {"num_shots": "shots", "knn": "neighbors", "per_device_eval_batch_size": "batch_size", "fp16": "precision"}
WORDS |= {"eval_batch_size": "batch_size", "bf16": "precision", "num_images": "count", "map_location": "device"}
WORDS |= dict.fromkeys(("tome", "tome_r", "merge", "merge_ratio", "merging", "token_merge"), "token_merging")
WORDS |= dict.fromkeys(
    ("aspect", "keep_aspect", "preserve_aspect_ratio", "native", "native_resolution", "naflex"), "keep_aspect_ratio"
)
COMPILED = 200_000  # images from which on a GPU saves more time with a compiled block than the compiler takes
OF_FILES = (*FILE_FIELDS, *SAID)  # options that say something of a file


class Preparing(TypedDict, total=False):
    """How images become what the model reads, where its file does not say it, or says it otherwise."""

    preprocessing: str | Preprocessing | Mapping[str, Any] | None  # such as authors, imagenet; or fields of it
    mean: float | Sequence[float] | None  # of levels from 0 to 1: one, or one for each channel
    deviation: float | Sequence[float] | None
    resize: str | None  # squash or crop
    crop_share: float | None  # of the resized side that the middle keeps
    interpolation: str | None
    antialias: bool | None
    value_range: Sequence[float] | None  # LOW,HIGH: the numbers of files that are levels 0 and 1; keeps all bits
    std: float | Sequence[float] | None  # the same in other libraries' words
    crop: float | None
    crop_pct: float | None


class FileHints(Preparing, total=False):
    """What a file of another library may leave open of its model, and how that reads images."""

    heads: int
    grid: Grid  # (rows, cols) of its position table
    activation: Activation
    epsilon: float
    names: str | os.PathLike[str] | NamesTable  # a table of which tensor is what


class Options(FileHints, total=False):
    """How to go through images."""

    batch_size: int | None  # None: 16, or 256 on a GPU
    workers: int | None  # processes that decode; None: by the machine
    device: Device | None  # None: a GPU where there is one; a model in memory stays where it is
    precision: Precision  # eight bits are calibrated on the sample in the box; vitrail.optimize takes other images
    engine: Engine  # auto: the faster path where it repays; plain: the modules as they are; fast: always
    report: Reporter


class Passing(TypedDict, total=False):
    """How images go through a model, where not as ever."""

    token_merging: float | None  # the share of the patches that its layers merge
    keep_aspect_ratio: bool  # images of many shapes, each whole and in its own, instead of all at one size


class Measuring(Options, total=False):
    """How to measure a model on images."""

    bad_image_limit: float  # stop where more than this share of them cannot be decoded; 0.01 where it is left out
    fresh: bool  # compute everything again, and keep nothing


def check_options(verb: Callable[..., object], kind: type, options: Mapping[str, object]) -> None:
    """Refuse an option that a verb does not have, and say which one may be meant."""
    for name in options.keys() - kind.__annotations__.keys():
        hidden = ("report", "command", "group")
        own = inspect.signature(verb).parameters.values()
        known = [*(each.name for each in own if each.kind is not each.VAR_KEYWORD), *kind.__annotations__]
        known = [each for each in known if each not in hidden]
        words = {word: meant for word, meant in {**MODEL, **TRAINING, **WORDS}.items() if meant in known}
        raise ConfigError(f"{verb.__name__} has no option {name!r}.{by_meaning(name, known, words)}")


@contextmanager
def measuring(verb: Callable[..., object], model: AnyModel, options: Measuring) -> Iterator[InferenceOptions]:
    """Join the processes of a run where the model is, and choose for this machine what is left open."""
    check_options(verb, Measuring, options)
    keep_memory()
    given: dict[str, Any] = {name: value for name, value in options.items() if name not in OF_FILES}
    with joined(device_for(model, given.pop("device", None))) as group:
        yield inference_options(group, **given)


def hints_of(options: Mapping[str, Any]) -> FileHints:
    """Take what is said of a file from the options of a verb."""
    return FileHints(**{name: options[name] for name in FILE_FIELDS if name in options})


def open_model(
    model: AnyModel,
    image_size: ImageSize | None = None,
    device: Device | None = None,
    said: Mapping[str, Any] | None = None,
) -> Model:
    """Load a checkpoint, helped by what is `said` of it; a model in memory stays as it is and where it is."""
    prepared, hints = read_preprocessing(said or {}), dict[str, Any](hints_of(said or {}))
    if not isinstance(model, Model):
        if is_exported(source := model_source(model)):
            return _open_exported(source, image_size, device, prepared, hints)
        if is_optimized(home_path(source)):
            return _open_optimized(source, image_size, device, prepared, hints)
        device = choose_device(device)
        return load(source, image_size=image_size, device=device, preprocessing=prepared, **hints)
    if hints:
        name, value = next(iter(hints.items()))
        raise ConfigError(f"the model is in memory, and knows itself; got {name}={value}. Give that to vitrail.load.")
    own = model.config.image_size
    if image_size is not None and as_size(image_size) != own:
        raise ConfigError(
            f"the model reads images of {own}; got image_size={image_size}. Give that to vitrail.load instead."
        )
    device_for(model, device)
    if not prepared:
        return model
    model = copy.copy(model)  # which keeps its own card
    model.card = model.card.prepared(prepared, model.config.channels)
    return model


def change_passes(model: Model, passing: Passing, *, precision: str = "float32", images: int = 0) -> Model:
    """Give the model with its passes as they are asked for; a model that cannot have them is refused with the reason.

    So many images tell whether a GPU's compiler is worth its time.
    """
    check_passes(passing)
    gpu = next(model.parameters()).device.type == "cuda"
    compiled = gpu and images >= COMPILED
    if (share := passing.get("token_merging")) is not None:
        return MergedModel(model, share, compiled=compiled)
    if passing.get("keep_aspect_ratio"):
        return PackedModel(model, half=gpu and precision == "bfloat16", compiled=compiled)
    return model


def said_passes(model: Model) -> dict[str, Any]:
    """Say for documents how images went through, where not as ever."""
    return model.said() if isinstance(model, MergedModel | PackedModel) else {}


def _open_exported(
    source: str,
    image_size: ImageSize | None,
    device: Device | None,
    prepared: Mapping[str, Any],
    hints: Mapping[str, Any],
) -> Model:
    """Open a file that `vitrail.export` wrote, which runs on the CPU and knows its model."""
    if hints:
        name, value = next(iter(hints.items()))
        raise ConfigError(f"an exported file knows its model; got {name}={value}. Leave {name} out.")
    if device is not None and torch.device(device).type != "cpu":
        raise ConfigError(f"an exported file is run on the CPU here; got device={device}. Leave device out.")
    size = None if image_size is None else as_size(image_size)
    model = open_engine(home_path(source), size)
    model.card = model.card.prepared(prepared, model.config.channels)
    return model


def _open_optimized(
    source: str,
    image_size: ImageSize | None,
    device: Device | None,
    prepared: Mapping[str, Any],
    hints: Mapping[str, Any],
) -> Model:
    """Open a folder of a model in eight bits, which knows itself."""
    if hints:
        name, value = next(iter(hints.items()))
        raise ConfigError(f"a folder of vitrail.optimize knows its model; got {name}={value}. Leave {name} out.")
    model = open_fast(home_path(source), device)
    if image_size is not None and as_size(image_size) != model.config.image_size:
        raise ConfigError(
            f"the model reads images of {model.config.image_size}; got image_size={image_size}. Optimize the "
            f"checkpoint that it came from: vitrail.optimize(path, image_size={image_size}, precision=...)."
        )
    model.card = model.plain.card = model.card.prepared(prepared, model.config.channels)
    return model


def device_for(model: AnyModel, device: Device | None) -> Device | None:
    """Give the device to work on: that of a model in memory, or the one that is asked for."""
    if not isinstance(model, Model):
        return "cpu" if device is None and is_exported(os.fspath(model)) else device
    place = next(model.parameters()).device
    if device is not None and torch.device(device).type != place.type:
        raise ConfigError(f"the model is on {place}; got device={device}. Move it, model.to(...), or leave device out.")
    return place


def run_of(model: AnyModel) -> Path | Model | None:
    """Give where a model was loaded from, or itself where it is a run in memory; None where it is neither."""
    if isinstance(model, Model) and model.trained_on:
        return model
    return home_path(source) if (source := model_source(model)) else None


def model_name(model: AnyModel) -> str:
    """Name a model for people and documents: where it comes from, or else what it is."""
    return model_source(model) or (isinstance(model, Model) and name_of(model.config)) or "model"


def model_source(model: AnyModel) -> str:
    """Give where a model comes from; nothing where that is not known."""
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    if not isinstance(model, Model):
        raise ConfigError(f"model must be a name, a file, a run, its folder or a model; got {type(model).__name__}.")
    return "" if model.card.provenance is None else model.card.provenance.source


def data_name(data: object) -> str:
    """Name data for people and documents: its path, or else its type."""
    return os.fspath(data) if isinstance(data, str | os.PathLike) else type(data).__name__
