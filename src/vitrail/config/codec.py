"""Configurations to JSON and back, strictly: nothing unknown, nothing missing, every part by its word."""

from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, get_args, get_origin

from vitrail.config.fields import KINDS, defaults, hints, parts_of, suggest
from vitrail.config.model import BiTConfig, ModelConfig, ViTConfig
from vitrail.config.objective import Objective
from vitrail.config.recipe import Training
from vitrail.errors import ConfigError

# Fields that documents do not have which were written before there were any: there they have their defaults,
ADDED = frozenset({"cosine_scale", "margin", "held_out", "objective", "causal", "probe_every", "decoder_head_width"})
MEANT = {"decoder_head_width": 32}  # or what was meant then

_WORDS = {kind: word for word, kind in KINDS.items()}


def encode(config: ModelConfig) -> dict[str, Any]:
    """Give a configuration as a JSON object."""
    return _encode(config)


def decode(document: object) -> ModelConfig:
    """Read a configuration that `encode` wrote."""
    config = _decode(document, ViTConfig | BiTConfig, "model")
    if not isinstance(config, ViTConfig | BiTConfig):
        raise ConfigError(f"a model's kind must be vit or bit; got {_WORDS.get(type(config))}.")
    return config


def encode_training(training: Training) -> dict[str, Any]:
    """Give how a model is trained as a JSON object."""
    return _encode(training)


def decode_training(document: object) -> Training:
    """Read what `encode_training` wrote."""
    training = _decode(document, Training, "training")
    assert isinstance(training, Training)
    return training


def encode_objective(objective: Objective) -> dict[str, Any]:
    """Give what is learned as a JSON object."""
    return _encode(objective)


def decode_objective(document: object) -> Objective:
    """Read what `encode_objective` wrote."""
    objective = _decode(document, Objective, "objective")
    assert isinstance(objective, Objective)
    return objective


def complete(document: Any) -> Any:  # noqa: ANN401
    """Give what `encode_training` wrote with the fields that came later."""
    if not isinstance(document, dict):
        return document
    kind = KINDS.get(str(document.get("kind")))
    return ({} if kind is None else _later(kind)) | {name: complete(value) for name, value in document.items()}


def _later(kind: type) -> dict[str, Any]:
    return {name: MEANT.get(name, _encode(default)) for name, default in defaults(kind).items() if name in ADDED}


def _encode(value: Any) -> Any:  # noqa: ANN401
    if is_dataclass(value):
        inner = {field.name: _encode(getattr(value, field.name)) for field in fields(value)}
        return {"kind": _WORDS[type(value)], **inner}
    return list(value) if isinstance(value, tuple) else value


def _decode(value: object, hint: object, where: str) -> object:
    parts = parts_of(hint)
    if parts and value is None and NoneType in get_args(hint):
        return None
    if not parts:
        wants_tuple = get_origin(hint) is tuple or any(get_origin(option) is tuple for option in get_args(hint))
        return tuple(value) if wants_tuple and isinstance(value, list) else value
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str) or value["kind"] not in parts:
        got = value.get("kind") if isinstance(value, dict) else value
        raise ConfigError(f"{where} must be an object with a kind of {', '.join(parts)}; got {got!r}.")
    kind = parts[value["kind"]]
    known, given = hints(kind), value.keys() - {"kind"}
    value = _later(kind) | value
    for name in sorted(given - known.keys()):
        raise ConfigError(f"{where} has no field {name!r}.{suggest(name, known)}")
    if missing := sorted(known.keys() - value.keys()):
        raise ConfigError(f"{where} lacks {', '.join(missing)}.")
    return kind(**{name: _decode(value[name], known[name], f"{where}.{name}") for name in known})
