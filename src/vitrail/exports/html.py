"""A model as one HTML file that opens from a disk: weights, arithmetic and page inside, no runtime and no network."""

import base64
import html
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

from vitrail import __version__
from vitrail.checkpoint.fit import parts_of
from vitrail.config import HybridStem, PatchStem
from vitrail.config.check import one_of
from vitrail.errors import ConfigError
from vitrail.exports.page_weights import Precision, Rounded, choose_weights, pack, table_name
from vitrail.files.atomic import write_bytes
from vitrail.inspection.page import TEMPLATE, as_script, fill_template, plain, url_of
from vitrail.inspection.report import in_words
from vitrail.inspection.views import check_weights
from vitrail.models import Model, ViT
from vitrail.runtime.reporter import SILENT, Reporter

MOST = 200  # MB of weights: browsers give up on pages of a few hundred
BITS = {"float32": 32, "float16": 16, "int8": 8.5}  # of a weight, at least
PART = 3_000_000  # bytes of weights in one element of the page; a multiple of 3, so that no text is padded


def write_html(
    model: Model,
    path: Path,
    *,
    precision: str = "float16",
    calibrate: object = None,
    loss: float | None = None,
    report: Reporter = SILENT,
) -> Rounded:
    """Write the page of a model, whole or not at all; what it cannot hold is refused with the reason."""
    kind: Precision = one_of("precision", precision, get_args(Precision))  # pyright: ignore[reportAssignmentType]
    vit = _check(model, kind)
    packed = pack(vit, kind)
    found = choose_weights(vit, kind, calibrate, loss, report)
    if found.wider:
        packed = pack(vit, kind, found.wider)
    parts = (base64.b64encode(packed.data[start : start + PART]).decode() for start in range(0, len(packed.data), PART))
    names = vit.card.class_names or [f"class {number}" for number in range(vit.config.classes or 0)]
    document = {
        "subtitle": f"{in_words(vit)}, {len(names):,} classes",
        "footer": f"Made by Vitrail {__version__}. The model is in this file: images stay on this machine. "
        f"{str(found)[0].upper()}{str(found)[1:]}.",
        "classes": list(names),
        "bytes": len(packed.data),
        "model": {**describe(vit), "weights": packed.places},
    }
    page = files("vitrail.exports") / "page"
    text = fill_template(
        "page.html",
        page,
        TEMPLATE,
        **{"inspector.css": (TEMPLATE / "page.css").read_text(encoding="utf-8")},
        title=html.escape(plain(path.stem)),
        icon=url_of((TEMPLATE / "icon.svg").read_bytes(), "svg+xml"),
        document=as_script(plain(document)),
        weights="\n".join(f'<script type="text/plain" class="weights">{part}</script>' for part in parts),
    )
    write_bytes(path, text.encode())
    return found


def describe(model: ViT) -> dict[str, Any]:
    """Say all that the page must know of a model beside its weights."""
    config, preprocessing = model.config, model.card.preprocessing.for_channels(model.config.channels)
    rows, cols = config.grid
    before = [round(side / preprocessing.crop_share) for side in config.image_size]
    return {
        "size": list(config.image_size),
        "channels": config.channels,
        "patch": config.stem.stride,
        "rows": rows,
        "columns": cols,
        "tokens": config.tokens,
        "width": config.width,
        "heads": config.heads,
        "layers": config.layers,
        "axial": config.attention == "axial",
        "causal": config.causal,
        "norm": config.norm,
        "activation": config.activation,
        "epsilon": config.epsilon,
        "pooling": config.pooling,
        "cosine": config.cosine_scale is not None,
        "temperature": model.card.temperature,
        "positions": [table_name(model, layer) for layer in range(config.layers)],
        "mean": _by_channel(preprocessing.mean, config.channels),
        "deviation": _by_channel(preprocessing.deviation, config.channels),
        "preprocessing": {
            "resize": preprocessing.resize,
            "interpolation": preprocessing.interpolation,
            "antialias": preprocessing.antialias,
        },
        "before": before,  # the size before its middle is cut out
        "least": 2 * max(before) if preprocessing.antialias else 0,  # pixels that a JPEG's sides keep; 0: all
    }


def _by_channel(values: tuple[float, ...], channels: int) -> list[float]:
    return list(values) if len(values) == channels else list(values) * channels


def _check(model: Model, precision: Precision) -> ViT:
    """Refuse what the page has no arithmetic for, and what a browser would not open."""
    if not isinstance(model, ViT):
        raise ConfigError("the page computes Vision Transformers; got a BiT ResNet. Export it to onnx or openvino.")
    config = model.config
    match config.stem:
        case HybridStem():
            raise ConfigError(
                "the page cuts patches from pixels; got a hybrid, whose stem is a ResNet. Export it to onnx."
            )
        case PatchStem():
            pass
    if not config.classes:
        raise ConfigError("the page names classes; got a model without a classifier. Fine-tune it first.")
    if config.channels not in (1, 3):
        raise ConfigError(f"images have 1 or 3 channels; the model reads {config.channels}. Export it to onnx.")
    count = sum(parameter.numel() for parameter in model.parameters())
    sizes = {name: round(count * bits / 8e6) for name, bits in BITS.items()}  # MB
    if sizes[precision] > MOST:
        hint = "Take precision=int8." if sizes["int8"] <= MOST else "Export it to onnx or openvino."
        raise ConfigError(
            f"a page holds at most {MOST} MB of weights; got {sizes[precision]} MB of {precision}. {hint}"
        )
    strange = [*parts_of(config).values()]
    strange += [] if config.pooling in ("token", "mean", "max") else [f"pooling={config.pooling}"]
    strange += [] if config.activation in ("gelu-tanh", "gelu", "relu") else [f"activation={config.activation}"]
    if getattr(config.positions, "code", "transformer") != "transformer" or strange:
        what = ", ".join(strange) or "positions of this code"
        raise ConfigError(f"the page has no arithmetic for {what}. Export it to onnx.")
    check_weights(model)
    return model
