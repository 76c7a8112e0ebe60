"""Change fields of a configuration, from values or from text, checked, with the nearest name for one unknown."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from vitrail.config.model import BiTConfig, HybridStem, ModelConfig, PatchStem, ViTConfig
from vitrail.config.objective import Labels, MaskedAutoencoder, MaskedPatches, NextPixels
from vitrail.config.positions import (
    Learned2DPositions,
    LearnedPositions,
    NoPositions,
    RelativePositions,
    Sinusoidal2DPositions,
    SinusoidalPositions,
)
from vitrail.config.recipe import EMA, SGD, Adam, Augmentation, RandAugment, Schedule, Training
from vitrail.config.words import ANSWERS, MODEL, TRAINING, VALUES
from vitrail.errors import ConfigError

Config = TypeVar("Config")

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
    "training": Training,
    "adam": Adam,
    "sgd": SGD,
    "schedule": Schedule,
    "ema": EMA,
    "augmentation": Augmentation,
    "randaugment": RandAugment,
    "labels": Labels,
    "masked-patch": MaskedPatches,
    "mae": MaskedAutoencoder,
    "next-pixel": NextPixels,
}


def override(config: ModelConfig, changes: Mapping[str, object]) -> ModelConfig:
    """Give the configuration with these fields changed; every field must exist."""
    return make(type(config), values_of(config), changes)


def make(kind: type[Config], values: Mapping[str, object], changes: Mapping[str, object]) -> Config:
    """Make a configuration of these values with these changes, and check the result once.

    A change names a field (`width`), a field of a part (`stem.patch`, or `patch` where one part alone has it),
    or gives a part by its word (`positions="relative"`).
    """
    changes = meant(kind, values, changes)
    merged = _merge(kind, values, changes)
    inner: dict[str, dict[str, object]] = {}
    for name, value in changes.items():
        if name not in hints(kind):
            part, leaf = _reach(kind, merged, name)
            if leaf in inner.setdefault(part, {}):
                raise ConfigError(f"{part}.{leaf} is given twice. Give it once.")
            inner[part][leaf] = value
    for part, leaves in inner.items():
        whole = _present(merged[part], hints(kind)[part])
        merged[part] = make(type(whole), values_of(whole), leaves)
    return kind(**merged)


def reach(config: ModelConfig, name: str) -> object:
    """Give the value of a field, or of a field of a part, as `make` names them."""
    found: Any = config
    name = mean(type(config), values_of(config), name)
    while name not in hints(type(found)):
        part, name = _reach(type(found), values_of(found), name)
        found = getattr(found, part)
    return getattr(found, name)


def read_settings(
    kind: type, values: Mapping[str, object], settings: Iterable[str], given: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Read `field=value` texts, and values that are given, into changes of fields that `values` or a change has."""
    pairs: dict[str, Any] = dict(given or {})
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"a setting is FIELD=VALUE, such as depth=6; got {setting!r}.")
        if name.strip() in pairs:
            raise ConfigError(f"{name.strip()} is given twice. Give it once.")
        pairs[name.strip()] = text.strip()
    pairs = meant(kind, values, pairs)
    changes: dict[str, object] = {
        name: _read(name, text, hints(kind)[name]) for name, text in pairs.items() if name in hints(kind)
    }
    merged = _merge(kind, values, changes)
    for name, text in pairs.items():
        if name not in hints(kind):
            changes[name] = _read(name, text, _hint(kind, merged, name))
    return changes


def mean(kind: type, values: Mapping[str, object], name: str) -> str:
    """Give the field that a name means, in today's words: an older name, or one of another library's."""
    words = TRAINING if kind is Training else MODEL if kind in (ViTConfig, BiTConfig) else {**MODEL, **TRAINING}
    if kind is Training and name == "decay" and isinstance(values.get("optimizer"), Adam):
        if values.get("ema") is not None:
            raise ConfigError("'decay' may mean optimizer.weight_decay or ema.decay. Write it out.")
        return "optimizer.weight_decay"
    if name in hints(kind):
        return name
    where, _, leaf = name.rpartition(".")
    if leaf in ANSWERS and not any(leaf in hints(type(part)) for part in values.values() if is_dataclass(part)):
        raise ConfigError(f"a {kind.__name__} has no field {name!r}. {ANSWERS[leaf]}")
    if not where:
        return words.get(name, name)
    part = words.get(where, where)
    leaf = "weight_decay" if (part, leaf) == ("optimizer", "decay") else leaf
    inner = values.get(part.partition(".")[0])
    if is_dataclass(inner) and leaf in hints(type(inner)):
        return f"{part}.{leaf}"
    return f"{part}.{words.get(leaf, leaf).rpartition('.')[2]}"


def meant(kind: type, values: Mapping[str, object], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Give changes by today's names and values; refuses a field that is given under two names."""
    fresh: dict[str, Any] = {}
    said: dict[str, str] = {}
    for name, value in changes.items():
        field = mean(kind, values, name)
        if field in fresh:
            raise ConfigError(f"{said[field]} and {name} are one field, {field}. Give it once.")
        said[field] = name
        words = VALUES.get(field.rpartition(".")[2], {})
        fresh[field] = words.get(value.lower(), value) if isinstance(value, str) else value
    return fresh


def values_of(config: Any) -> dict[str, object]:  # noqa: ANN401
    """Give every field of a configuration by its name."""
    return {field.name: getattr(config, field.name) for field in fields(config)}


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
    merged = defaults(kind) | dict(values)
    for name in changes.keys() & hints(kind).keys():
        merged[name] = _part(name, changes[name], hints(kind)[name], merged.get(name))
    return merged


def _part(name: str, value: object, hint: object, before: object) -> object:
    """Take a part by its word, as it is where it is of that kind, or else with its defaults; anything else as it is."""
    parts = parts_of(hint)
    if not parts or not isinstance(value, str):
        return value
    if type(before) is parts.get(value):
        return before
    if value == "none" and NoneType in get_args(hint):
        return None
    if value not in parts:
        near = suggest(value, parts) if get_close_matches(value, parts) else ""
        words = [*parts, *(["none"] if NoneType in get_args(hint) else [])]
        raise ConfigError(f"{name} must be one of {', '.join(words)}; got {value!r}.{near}")
    try:
        return parts[value]()
    except TypeError as error:
        raise ConfigError(
            f"{name}={value} needs fields of its own. Begin with a model that has it, "
            f"or give a {parts[value].__name__}."
        ) from error


def _reach(kind: type, values: Mapping[str, object], name: str) -> tuple[str, str]:
    """Find the part that a name means a field of, and the rest of the name: of a part, or of a part of a part."""
    leaves = {f"{part}.{rest}": (part, rest) for part, rest in _leaves(kind, values)}
    if name in leaves:
        return leaves[name]
    meant = [path for path in leaves if path.endswith(f".{name}")]
    if len(meant) == 1:
        _check_named(name, meant[0], values)
        return leaves[meant[0]]
    if meant:
        raise ConfigError(f"{name!r} may mean {' or '.join(meant)}. Write it out.")
    _check_kind(kind, values, name)
    known = leaves if "." in name else (path.rpartition(".")[2] for path in leaves)
    others = (leaf for part in hints(kind).values() for other in parts_of(part).values() for leaf in hints(other))
    known = dict.fromkeys([*hints(kind), *known, *others])
    raise ConfigError(
        f"a {kind.__name__} has no field {name!r}.{_by_meaning(kind, name, known) or suggest(name, known)}"
    )


def _by_meaning(kind: type, name: str, known: Iterable[str]) -> str:
    """Say which field an unknown name may mean: by other libraries' words, then by a word that both have."""
    words, known = (TRAINING if kind is Training else MODEL), list(known)
    where, dot, leaf = name.lower().rpartition(".")
    near = get_close_matches(leaf, words, n=1, cutoff=0.75)
    whole = [words[token] for token in leaf.split("_") if token in words]  # lr_rate: lr
    field = where + dot + words[near[0]].rpartition(".")[2] if near else None
    if whole and not get_close_matches(leaf, known, n=1, cutoff=0.85):
        return f" Did you mean {whole[0]!r}?"
    if field in known and (dot or not get_close_matches(leaf, known, n=1, cutoff=0.85)):
        return f" Did you mean {field!r}?"
    asked = set(leaf.split("_")) - {"rate", "size", "every", "on"}
    shared = [other for other in known if asked & {*other.split("_")} and not dot]
    best = max(shared, key=lambda other: len(asked & {*other.split("_")}) / len(other.split("_")), default=None)
    return "" if best is None else f" Did you mean {best!r}?"


def _check_named(name: str, path: str, values: Mapping[str, object]) -> None:
    """Refuse a short name that would make a part which there is none of, and which it does not say."""
    for part in path.removesuffix(f".{name}").split("."):
        if values[part] is None:
            raise ConfigError(f"{name!r} is a field of {part}, which there is none of. Write it out: {path}.")
        values = values_of(values[part])


def _check_kind(kind: type, values: Mapping[str, object], name: str) -> None:
    """Refuse a field of a part that is of another kind here, and say which kind has it."""
    where, _, leaf = name.rpartition(".")
    for part, value in values.items():
        kinds = parts_of(hints(kind)[part])
        having = [word for word, other in kinds.items() if leaf in hints(other)]
        here = next((word for word, other in kinds.items() if type(value) is other), None)
        if having and here and where in ("", part):
            own = ", ".join(hints(kinds[here]))
            told = f"whose fields are {own}" if own else "which has none"
            able = [word for word in having if len(defaults(kinds[word])) == len(hints(kinds[word]))]
            cure = f", or take {part}={able[0]}" if able else ""
            raise ConfigError(
                f"{leaf!r} is a field of {part}={' or '.join(having)}; here {part} is {here}, {told}. "
                f"Leave {leaf} out{cure}."
            )


def _leaves(kind: type, values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """List the fields of every part, and of its parts."""
    for part, value in values.items():
        whole = _present(value, hints(kind)[part])
        if is_dataclass(whole):
            yield from ((part, leaf) for leaf in hints(type(whole)))
            yield from ((part, f"{inner}.{rest}") for inner, rest in _leaves(type(whole), values_of(whole)))


def _present(value: object, hint: object) -> object:
    """Give a part, with its defaults where there is none yet and it can be but one."""
    parts = parts_of(hint)
    return next(iter(parts.values()))() if value is None and len(parts) == 1 else value


def _hint(kind: type, values: Mapping[str, object], name: str) -> object:
    """Give the type of the field that a name means, also of a part that is of another kind here: `make` refuses it."""
    leaf = name.rpartition(".")[2]
    parts = [part for hint in hints(kind).values() for part in parts_of(hint).values()]
    while name not in hints(kind):
        try:
            part, name = _reach(kind, values, name)
        except ConfigError:
            if elsewhere := [hints(other)[leaf] for other in parts if leaf in hints(other) and "." not in name]:
                return elsewhere[0]
            raise
        whole = _present(values[part], hints(kind)[part])
        kind, values = type(whole), values_of(whole)
    return hints(kind)[name]


def _read(name: str, text: Any, hint: Any) -> object:  # noqa: ANN401
    """Read a value of this type from text; what is no text is a value already."""
    if parts_of(hint) or not isinstance(text, str):
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
            each, *_ = get_args(kind)
            values = tuple(each(item) for item in text.replace("x", ",").split(",") if item.strip())
            square = len(values) == 1 and each is int and Ellipsis not in get_args(kind)
            return values * 2 if square else values
        return kind(text)
    except (ValueError, KeyError) as error:
        several = "numbers such as 3,4,6,3" if Ellipsis in get_args(kind) else "numbers such as 224x160"
        words = {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, several)
        raise ConfigError(f"{name} must be {words}; got {text!r}.") from error
