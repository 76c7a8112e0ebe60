"""`vitrail.save` and conversion: models and weights out again, in any layout that can hold them."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoint.adapt import Request, Weights
from vitrail.checkpoint.archives.base import Entry, Headers, write_safetensors
from vitrail.checkpoint.archives.npz import write_npz
from vitrail.checkpoint.cards import to_hf_processor, to_note, to_timm_config, usual_preprocessing
from vitrail.checkpoint.description import Written
from vitrail.checkpoint.fit import check_fit, fit, fold_into
from vitrail.checkpoint.layouts.base import Dialect, Found, Layout
from vitrail.checkpoint.layouts.hf import config_document
from vitrail.checkpoint.layouts.named import NAME, layout_of
from vitrail.checkpoint.load import LAYOUTS, open_checkpoint
from vitrail.checkpoint.rows import is_finite
from vitrail.checkpoint.run_folder import HF_FILES, OWN, RUN_FILES, write_documents, write_run
from vitrail.config import Card, Grid, LearnedPositions, ModelConfig, PatchStem, Provenance, ViTConfig
from vitrail.config.given import check_layout
from vitrail.config.name_tables import is_table, read_names
from vitrail.config.outputs import LabelOutputs, NumberOutputs
from vitrail.errors import CheckpointError, ConfigError
from vitrail.files import check_replaceable, home_path, new_folder, write_sums, writing
from vitrail.models import Model

SUFFIXES = {"google": (".npz",), "timm": (".safetensors", ".pth", ".pt", ".bin")}
SUFFIXES["torchvision"] = SUFFIXES[NAME] = SUFFIXES["timm"]
FOLDERS = {"hf": HF_FILES, "vitrail": RUN_FILES, "timm": ("config.json", "model.safetensors")}  # timm: or a file
PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def save(
    model: Model,
    path: str | os.PathLike[str],
    *,
    layout: str = "vitrail",
    lossy: bool = False,
    overwrite: bool = False,
    card: Card | None = None,
) -> Written:
    """Write a model in a layout: vitrail and hf are folders, google is .npz, timm and torchvision .safetensors or .pth.

    timm without such an ending is a folder that timm opens, whose config.json says classes and preprocessing. The path
    of a table of names, `layout="mine.toml"`, is a layout of one's own. What the layout cannot hold is refused unless
    `lossy`. `card` goes with it where the layout has a place for it.
    """
    if not isinstance(model, Model):
        raise ConfigError(f"expected a model of Vitrail; got {type(model).__name__}.")
    if model.plain is not model:  # a fast one, which the layers above know
        return _write_fast(model, path, layout=layout, overwrite=overwrite, card=card)
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if any(tensor.is_meta for tensor in weights.values()):
        raise ConfigError("the model is on the meta device: it has shapes and no weights. Build or load it elsewhere.")
    for name, tensor in weights.items():
        if not is_finite(tensor):
            raise CheckpointError(
                f"{name!r} holds numbers that are not finite: the model has diverged. Nothing was written."
            )
    return write(model.config, weights, card or model.card, path, layout=layout, lossy=lossy, overwrite=overwrite)


def _write_fast(
    model: Any,  # noqa: ANN401
    path: str | os.PathLike[str],
    *,
    layout: str,
    overwrite: bool,
    card: Card | None,
) -> Written:
    """Write a model in eight bits, with its scales: as they are in memory, so that it opens with the same answers."""
    tensors, documents = model.own_files()
    if layout != OWN.name:
        raise ConfigError(f"eight bits are written in the layout vitrail; got {layout}. Save model.plain in others.")
    target = check_target(path, OWN, overwrite=overwrite)
    with new_folder(target, overwrite=overwrite, ours=RUN_FILES) as temporary:
        write_run(temporary, model.config, tensors, card or model.card)
        write_documents(temporary, documents)
        write_sums(temporary)
    count = sum(tensor.numel() for tensor in model.state_dict().values())
    return Written(path=target, layout=layout, config=model.config, came=None, lost=(), notes=(), parameters=count)


def convert(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    layout: str,
    lossy: bool = False,
    overwrite: bool = False,
    image_size: int | tuple[int, int] | None = None,
    classes: int | None = None,
    patch: int | None = None,
    channels: int | None = None,
    grid: Grid | None = None,
    keep_pre_logits: bool = False,
    dtype: str | None = None,
    base: str | os.PathLike[str] | None = None,
    **fields: object,
) -> Written:
    """Read weights in any layout and write them in another, in the precision that they have; adapted as `load` does.

    `path`, `layout` and `lossy` are those of `save`, `source` and what is not named here those of `load`; `overwrite`
    replaces what is there; `dtype` is the precision to write: float32, float16 or bfloat16. Of a file of LoRA what is
    written is its base with the changes added; `base` is where that is, if not where the file says.
    """
    chosen = _find_layout(layout)
    target = check_target(path, chosen, overwrite=overwrite)
    if dtype is not None and dtype not in PRECISIONS:
        raise ConfigError(f"dtype must be one of {', '.join(PRECISIONS)}; got {dtype!r}.")
    changes = {"image_size": image_size, "classes": classes, "patch": patch, "channels": channels, "grid": grid}
    request = Request.of({**changes, "keep_pre_logits": keep_pre_logits, **fields})
    precision = None if dtype is None else PRECISIONS[dtype]
    with open_checkpoint(source, base) as checkpoint:
        config, weights, card, came = checkpoint.read(
            request,
            precision,
            lambda new, known: check_fit(
                new, chosen, _dialect(chosen, new, known, target), lossy=lossy, others=LAYOUTS.values()
            ),
        )
    how: dict[str, Any] = {"layout": layout, "lossy": lossy, "overwrite": overwrite}
    return write(config, weights, card, path, **how, came=came, dtype=precision)


def write(
    config: ModelConfig,
    weights: Weights,
    card: Card,
    path: str | os.PathLike[str],
    *,
    layout: str,
    lossy: bool,
    overwrite: bool,
    came: Provenance | None = None,
    dtype: torch.dtype | None = None,
) -> Written:
    """Write weights in our names in a layout, in the dialect that they came in where it is the same layout."""
    chosen = _find_layout(layout)
    target = check_target(path, chosen, overwrite=overwrite)
    if card.class_names is not None and len(card.class_names) != config.classes:
        raise ConfigError(f"{len(card.class_names)} class names for {config.classes} classes. Give one for each.")
    dialect = _dialect(chosen, config, card, target)
    config, weights, done = fit(config, weights, chosen, dialect, lossy=lossy, others=LAYOUTS.values())
    if dtype is not None:  # of what was made to fit too
        weights = {name: tensor.to(dtype) for name, tensor in weights.items()}
    dialect = _dialect(chosen, config, card, target)
    theirs = to_layout(config, weights, chosen, dialect)
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    match layout:
        case "vitrail":
            with new_folder(target, overwrite=overwrite, ours=RUN_FILES) as temporary:
                write_run(temporary, config, theirs, card)
                write_sums(temporary)
        case "hf":
            assert isinstance(config, ViTConfig)
            word = str(next(iter(theirs.values())).dtype).removeprefix("torch.")
            documents = {
                "config.json": config_document(config, card.class_names, dialect) | {"dtype": word},
                "preprocessor_config.json": to_hf_processor(card.preprocessing, config),
            }
            with new_folder(target, overwrite=overwrite, ours=HF_FILES) as temporary:
                write_documents(temporary, documents)
                write_safetensors(temporary / "model.safetensors", theirs, {})
        case "timm" if not target.suffix:
            assert isinstance(config, ViTConfig)
            document = to_timm_config(config, card)
            with new_folder(target, overwrite=overwrite, ours=FOLDERS["timm"]) as temporary:
                write_documents(temporary, {"config.json": document})
                write_safetensors(temporary / "model.safetensors", theirs, to_note(config, card))
        case "google":
            write_npz(target, theirs)
        case _ if target.suffix == ".safetensors":
            write_safetensors(target, theirs, to_note(config, card))
        case _:
            from vitrail.checkpoint.archives.pth import write_pth  # as a reader, it is loaded where there is one

            write_pth(target, theirs)
    return Written(
        path=target,
        layout=layout,
        config=config,
        came=came,
        lost=tuple(misfit.what for misfit in done if misfit.loses),
        notes=(*(misfit.what for misfit in done if not misfit.loses), *_notes(config, card, chosen, dialect, target)),
        parameters=sum(tensor.numel() for tensor in weights.values()),
    )


def _find_layout(name: str) -> Layout:
    check_layout(name)
    return layout_of(read_names(name)) if is_table(name) else LAYOUTS[name]


def to_layout(config: ModelConfig, weights: Weights, layout: Layout, dialect: Dialect) -> dict[str, Tensor]:
    """Give weights in our names as those of a layout; layers that it stacks are put together."""
    assert isinstance(dialect, Mapping)
    weights = fold_into(config, weights, dialect)
    theirs: dict[str, Tensor] = {}
    stacks: dict[str, dict[int, Tensor]] = {}
    for row in layout.rows(config, dialect):
        shape = row.shape if row.layer is None else row.shape[1:]
        for name, tensor in zip(row.theirs, row.codec.write(weights[row.ours], shape), strict=True):
            if row.layer is None:
                if name in theirs and not torch.equal(theirs[name], tensor):
                    raise CheckpointError(f"{name!r} is two parameters of ours, which differ. Take layout=vitrail.")
                theirs[name] = tensor
            else:
                stacks.setdefault(name, {})[row.layer] = tensor
    return theirs | {name: torch.stack([layers[i] for i in range(len(layers))]) for name, layers in stacks.items()}


def _notes(config: ModelConfig, card: Card, layout: Layout, dialect: Dialect, target: Path) -> Iterator[str]:
    """Say what the file does not say and a reader needs: nothing of it changes a logit at the model's own size."""
    if (assumption := card.assumption(config.image_size)) is not None:
        yield assumption
    if layout.name == "vitrail":
        return
    says_all = is_folder(layout, target)  # in a document beside the weights
    how, noted = card.preprocessing, target.suffix == ".safetensors"
    if not says_all and how != usual_preprocessing(str(dialect.get("family") or layout.name), config.channels):
        only = "but Vitrail's own reader finds it: " if noted else "tell its reader: "
        yield f"the layout has no place for the preprocessing, {only}{how.levels()}, {how.framing()}"
    if not says_all and isinstance(config, ViTConfig):
        yield from _unsaid(config, layout, dialect)
    if isinstance(config, ViTConfig) and isinstance(config.positions, LearnedPositions):
        theirs = dialect.get("resampling", layout.holds.resampling)
        if config.positions.resampling != theirs:
            yield f"at other image sizes its library resamples positions {theirs}, not {config.positions.resampling}"
    if layout.name == "hf" and card.preprocessing.resize == "crop":
        yield "transformers' preprocessing squashes images, where this model's crops them"
    if layout.name == "hf" and config.classes is None and config.representation == getattr(config, "width", None):
        yield "transformers' ViTModel adds a pooler of random weights: load it with add_pooling_layer=False"
    if card.temperature != 1:
        yield f"the layout has no place for the temperature, {card.temperature:.4g}: its probabilities are uncalibrated"
    if isinstance(card.outputs, NumberOutputs):
        by, plus = (", ".join(f"{value:.6g}" for value in part) for part in (card.outputs.deviation, card.outputs.mean))
        yield f"the layout has no place for the units of numbers: outputs times {by}, plus {plus}"
    elif isinstance(card.outputs, LabelOutputs):
        least = ", ".join(f"{value:.3g}" for value in card.outputs.thresholds[:8])
        yield f"the layout has no place for labels' thresholds, of a sigmoid each: {least}"
    if card.class_names and not says_all:
        yield "the layout has no place for the class names"


def _unsaid(config: ViTConfig, layout: Layout, dialect: Dialect) -> Iterator[str]:
    """Say what a reader of the tensors alone would not know, or would take for something else."""
    try:
        found = _read_back(layout, config, dialect, Request()).config
    except CheckpointError as error:
        yield f"the tensors alone do not say all: {error}"
        return
    assert isinstance(found, ViTConfig)
    if found.heads != config.heads:
        yield f"from the tensors alone a reader takes {found.heads} heads: tell it heads={config.heads}"
    if found.grid != config.grid:
        yield f"from the tensors alone a reader takes a grid of {found.grid}: tell it grid={config.grid}"


def is_folder(layout: Layout, target: Path) -> bool:
    """Tell whether a layout is written as a folder; of timm, that is what has no ending."""
    return layout.name in FOLDERS and (layout.name != "timm" or not target.suffix)


def check_target(path: str | os.PathLike[str], layout: Layout, *, overwrite: bool) -> Path:
    """Refuse a name that does not fit the layout or is taken, before any work; give the path."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise ConfigError(f"expected a path to write to; got {path!r}.")
    target = home_path(path)
    if is_folder(layout, target):
        if target.suffix in (".npz", ".safetensors", ".pth", ".pt", ".bin"):
            raise ConfigError(
                f"the layout {layout.name} is a folder; got {target}. Give a name without {target.suffix}."
            )
        check_replaceable(target, overwrite=overwrite, ours=FOLDERS[layout.name])
        return target
    if target.suffix not in SUFFIXES[layout.name]:
        endings = " or ".join(SUFFIXES[layout.name])
        raise ConfigError(f"the layout {layout.name} is a file that ends in {endings}; got {target}.")
    if target.is_dir():
        raise ConfigError(f"expected the name of a file to write; {target} is a folder.")
    if target.exists() and not overwrite:
        raise CheckpointError(f"{target} exists already. Choose another name, or give overwrite=True.")
    return target


def _dialect(layout: Layout, config: ModelConfig, card: Card, target: Path) -> Dialect:
    """Speak the layout as the weights' own file did where it can hold them so, or as its library does today."""
    usual = dict(layout.dialect(config))
    came = card.provenance
    if layout.name == "timm" and is_folder(layout, target):  # timm itself opens no other
        if not isinstance(config, ViTConfig) or not isinstance(config.stem, PatchStem):
            raise ConfigError("a folder for timm holds a plain ViT. Give a file that ends in .safetensors or .pth.")
        return usual | {"folder": True}
    if layout.name == NAME or came is None or came.layout != layout.name or not isinstance(came.dialect, Mapping):
        return usual
    spoken = usual | {name: value for name, value in came.dialect.items() if name in usual}
    if layout.name == "hf" and any(spoken[name] != usual[name] for name in ("prefix", "head")):
        return usual  # transformers opens no other
    return spoken if _is_understood(layout, config, spoken) else usual


def _is_understood(layout: Layout, config: ModelConfig, dialect: Dialect) -> bool:
    """Tell whether a file of this model in this dialect would be read as it is meant."""
    grid = config.grid if isinstance(config, ViTConfig) else None
    heads = {"heads": config.heads, "activation": config.activation} if isinstance(config, ViTConfig) else {}
    try:
        found = _read_back(layout, config, dialect, Request(grid=grid, fields=heads))
    except Exception:  # a dialect from a file may be any nonsense
        return False
    return dict(found.dialect) == dict(dialect) and not found.left_out


def _read_back(layout: Layout, config: ModelConfig, dialect: Dialect, hints: Request) -> Found:
    """Give what a reader would find in a file of this model in this dialect."""
    rows = layout.rows(config, dialect)
    entries = {name: Entry(shape, torch.float32) for row in rows for name, shape in row.shapes().items()}
    prefix = layout.recognize(entries)
    if prefix is None:
        raise CheckpointError(f"a file in this dialect of {layout.name} would not be recognised.")
    return layout.infer(Headers(entries, prefix), hints, {})
