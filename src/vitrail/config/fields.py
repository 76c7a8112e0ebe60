"""Change fields of a configuration, from values or from text, checked, with the nearest name for one unknown."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from vitrail.config.model import BiTConfig, HybridStem, ModelConfig, PatchStem, ViTConfig
from vitrail.config.positions import (
    Learned2DPositions,
    LearnedPositions,
    NoPositions,
    RelativePositions,
    Sinusoidal2DPositions,
    SinusoidalPositions,
)
from vitrail.errors import ConfigError

# Every part of a configuration by the word that stands for it in JSON and in text.
KINDS: dict[str, type] = {
    "vit": ViTConfig,
    "bit": BiTConfig,
    "patches": PatchStem,
    "hybrid": HybridStem,
    "none": NoPositions,
    "learned": LearnedPositions,
    "learned-2d": Learned2DPositions,
    "relative": RelativePositions,
    "sinusoidal": SinusoidalPositions,
    "sinusoidal-2d": Sinusoidal2DPositions,
}


def override(config: ModelConfig, changes: Mapping[str, object]) -> ModelConfig:
    """Give the configuration with these fields changed; every field must exist."""
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    return make(type(config), values, changes)


def make(kind: type[ModelConfig], values: Mapping[str, object], changes: Mapping[str, object]) -> ModelConfig:
    """Make a configuration of these values with these changes, and check the result once.

    A change names a field (`width`), a field of a part (`stem.patch`, or `patch` where one part alone has it),
    or gives a part by its word (`positions="relative"`).
    """
    merged = _merge(kind, values, changes)
    inner: dict[str, dict[str, object]] = {}
    for name, value in changes.items():
        if name not in hints(kind):
            part, leaf = _reach(kind, merged, name)
            if leaf in inner.setdefault(part, {}):
                raise ConfigError(f"{part}.{leaf} is given twice. Give it once.")
            inner[part][leaf] = value
    for part, leaves in inner.items():
        merged[part] = replace(merged[part], **leaves)
    return kind(**merged)


def reach(config: ModelConfig, name: str) -> object:
    """Give the value of a field, or of a field of a part, as `make` names them."""
    if name in hints(type(config)):
        return getattr(config, name)
    part, leaf = _reach(type(config), {field.name: getattr(config, field.name) for field in fields(config)}, name)
    return getattr(getattr(config, part), leaf)


def read_settings(kind: type[ModelConfig], values: Mapping[str, object], settings: Iterable[str]) -> dict[str, object]:
    """Read `field=value` texts into changes; parts are those of `values` unless a setting changes them."""
    pairs: dict[str, str] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"a setting is FIELD=VALUE, such as depth=6; got {setting!r}.")
        if name.strip() in pairs:
            raise ConfigError(f"{name.strip()} is set twice. Set it once.")
        pairs[name.strip()] = text.strip()
    changes: dict[str, object] = {
        name: _read(name, text, hints(kind)[name]) for name, text in pairs.items() if name in hints(kind)
    }
    merged = _merge(kind, values, changes)
    for name, text in pairs.items():
        if name not in hints(kind):
            part, leaf = _reach(kind, merged, name)
            changes[name] = _read(name, text, hints(type(merged[part]))[leaf])
    return changes


@functools.cache
def hints(kind: type) -> dict[str, Any]:
    """Give the type of every field."""
    found = get_type_hints(kind)
    return {field.name: found[field.name] for field in fields(kind)}


def defaults(kind: type) -> dict[str, object]:
    """Give the default of every field that has one."""
    return {field.name: field.default for field in fields(kind) if field.default is not MISSING}


def suggest(name: str, known: Iterable[str]) -> str:
    """Say which known name is nearest, letter case aside, or list them all."""
    known = list(known)
    folded = {other.lower(): other for other in reversed(known)}
    near = get_close_matches(name.lower(), folded, n=1)
    return f" Did you mean {folded[near[0]]!r}?" if near else f" There are: {', '.join(known)}."


def parts_of(hint: object) -> dict[str, type]:
    """List the parts that a field may hold, by their words; none where it holds a plain value."""
    options = get_args(hint) if get_origin(hint) is UnionType or isinstance(hint, UnionType) else (hint,)
    return {word: kind for word, kind in KINDS.items() if kind in options}


def _merge(kind: type, values: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, Any]:
    """Give every field its default, its value or its change, parts by their words; changes inside parts are left."""
    whole = {name: _part(name, value, hints(kind)[name]) for name, value in changes.items() if name in hints(kind)}
    return defaults(kind) | dict(values) | whole


def _part(name: str, value: object, hint: object) -> object:
    """Take a part by its word, with its defaults; anything else as it is."""
    parts = parts_of(hint)
    if not parts or not isinstance(value, str):
        return value
    if value not in parts:
        near = suggest(value, parts) if get_close_matches(value, parts) else ""
        raise ConfigError(f"{name} must be one of {', '.join(parts)}; got {value!r}.{near}")
    try:
        return parts[value]()
    except TypeError as error:
        raise ConfigError(
            f"{name}={value} needs fields of its own. Begin with a model that has it, "
            f"or give a {parts[value].__name__}."
        ) from error


def _reach(kind: type, values: Mapping[str, object], name: str) -> tuple[str, str]:
    """Find the part and the field in it that a name means."""
    leaves = {
        f"{part}.{leaf}": (part, leaf)
        for part, value in values.items()
        if is_dataclass(value)
        for leaf in hints(type(value))
    }
    if name in leaves:
        return leaves[name]
    by_leaf = [found for found in leaves.values() if found[1] == name]
    if len(by_leaf) == 1:
        return by_leaf[0]
    known = [*hints(kind), *leaves]
    raise ConfigError(f"a {kind.__name__} has no field {name!r}.{suggest(name, known)}")


def _read(name: str, text: str, hint: Any) -> object:  # noqa: ANN401
    """Read a value of this type from text."""
    if parts_of(hint):
        return text
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if NoneType in options and text.lower() == "none":
        return None
    kind = next(option for option in options if option is not NoneType)
    try:
        if get_origin(kind) is Literal or kind is str:
            return text
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if get_origin(kind) is tuple:
            values = tuple(int(item) for item in text.replace("x", ",").split(",") if item.strip())
            return values * 2 if len(values) == 1 and Ellipsis not in get_args(kind) else values
        return kind(text)
    except (ValueError, KeyError) as error:
        several = "numbers such as 3,4,6,3" if Ellipsis in get_args(kind) else "numbers such as 224x160"
        words = {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, several)
        raise ConfigError(f"{name} must be {words}; got {text!r}.") from error
