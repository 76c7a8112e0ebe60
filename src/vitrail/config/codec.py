"""Configurations to JSON and back, strictly: nothing unknown, nothing missing, every part by its word."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType
from typing import Any, get_args, get_origin

from vitrail.config.fields import KINDS, defaults, hints, parts_of, suggest
from vitrail.config.model import ModelConfig
from vitrail.config.words import VALUES
from vitrail.errors import ConfigError

# Fields that documents do not have which were written before there were any: there they have their defaults,
ADDED = frozenset({"cosine_scale", "margin", "held_out", "objective", "causal", "probe_every", "decoder_head_width"})
ADDED |= {"warmup_epochs"}
MEANT = {"decoder_head_width": 32}  # or what was meant then
# What fields and kinds are called in documents of before.
RENAMED = {
    "optimiser": "optimizer",
    "rate": "learning_rate",
    "decay": "weight_decay",  # of an optimizer; an average's is still its decay
    "warmup": "warmup_steps",
    "end": "final_learning_rate",
    "batch": "batch_size",
    "clip": "clip_norm",
    "smoothing": "label_smoothing",
    "average": "ema",
    "hidden": "pre_logits",
    "representation_width": "pre_logits",
    "dev": "validation_share",
    "augmenting": "augment_on",
    "limit": "bad_image_limit",
    "area": "crop_area",
    "erasing": "random_erasing",
    "normalised": "normalized",
    "colours": "colors",
}
_WORDS = {kind: word for word, kind in KINDS.items()}


def encode(value: Any) -> Any:  # noqa: ANN401
    """Give a configuration, or a part of one, as what JSON holds."""
    if is_dataclass(value):
        inner = {field.name: encode(getattr(value, field.name)) for field in fields(value)}
        return {"kind": _WORDS[type(value)], **inner} if type(value) in _WORDS else inner
    if isinstance(value, Mapping):
        return {str(name): encode(inner) for name, inner in value.items()}
    return [encode(inner) for inner in value] if isinstance(value, tuple | list) else value


def decode(document: object, kind: Any = ModelConfig, where: str = "model") -> Any:  # noqa: ANN401
    """Read what `encode` wrote, of this kind or of one of these: a model's configuration unless another is named."""
    parts = parts_of(kind)
    if parts and document is None and NoneType in get_args(kind):
        return None
    if is_dataclass(kind) and kind not in _WORDS:
        return _decode_plain(document, kind)
    if not parts:
        wants_tuple = get_origin(kind) is tuple or any(get_origin(option) is tuple for option in get_args(kind))
        return tuple(document) if wants_tuple and isinstance(document, list) else document
    value = _renamed(document)
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str) or value["kind"] not in parts:
        got = value.get("kind") if isinstance(value, dict) else value
        raise ConfigError(f"{where} must be an object with a kind of {', '.join(parts)}; got {got!r}.")
    found = parts[value["kind"]]
    known, given = hints(found), value.keys() - {"kind"}
    value = _later(found) | value
    for name in sorted(given - known.keys()):
        raise ConfigError(f"{where} has no field {name!r}.{suggest(name, known)}")
    if missing := sorted(known.keys() - value.keys()):
        raise ConfigError(f"{where} lacks {', '.join(missing)}.")
    return found(**{name: decode(value[name], known[name], f"{where}.{name}") for name in known})


def complete(document: Any) -> Any:  # noqa: ANN401
    """Give what `encode` wrote, of whatever version, with today's names and the fields that came later."""
    if not isinstance(document, dict):
        return document
    document = _renamed(document)
    kind = KINDS.get(str(document.get("kind")))
    return ({} if kind is None else _later(kind)) | {name: complete(value) for name, value in document.items()}


def _decode_plain(document: object, kind: Any) -> Any:  # noqa: ANN401
    """Read a part that stands in a file of its own, without a word for its kind; what it lacks has its default."""
    if not isinstance(document, dict) or not all(isinstance(name, str) for name in document):
        raise ConfigError(f"{kind.__name__} must be a JSON object; got {document!r}.")
    if unknown := sorted(document.keys() - hints(kind).keys()):
        raise ConfigError(f"{kind.__name__} has no field {unknown[0]!r}.")
    required = [field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING]
    if missing := [name for name in required if name not in document]:
        raise ConfigError(f"{kind.__name__} is incomplete: it lacks {', '.join(missing)}.")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in document.items()})


def _renamed(document: Any) -> Any:  # noqa: ANN401
    """Give an object of before with today's names, of its kind, its fields and their values."""
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        return document
    word = RENAMED.get(document["kind"], document["kind"])
    known = hints(KINDS[word]) if word in KINDS else {}
    fresh: dict[str, Any] = {"kind": word}
    for name, value in document.items():
        today = RENAMED.get(name, name) if name not in known else name
        if name != "kind":
            renamed: Any = VALUES.get(str(today), {}).get(value, value) if isinstance(value, str) else value
            fresh[today if today in known else name] = renamed
    return fresh


def _later(kind: type) -> dict[str, Any]:
    return {name: MEANT.get(name, encode(default)) for name, default in defaults(kind).items() if name in ADDED}
