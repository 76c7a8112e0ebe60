"""Fields of a configuration: changed by values or by text, and to JSON and back; what is unknown is answered."""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from vitrail.config.check import KINDS, as_size, options_of, read_text
from vitrail.config.model import BiTConfig, ModelConfig, ViTConfig
from vitrail.config.objective import MaskedPatches, read_word
from vitrail.config.recipe import Adam, Training
from vitrail.config.words import ADDED, ANSWERS, BETAS, MEANT, MODEL, RENAMED, TRAINING, VALUES, by_meaning, suggest
from vitrail.errors import ConfigError

Config = TypeVar("Config")


def override(config: ModelConfig, changes: Mapping[str, object]) -> ModelConfig:
    """Give the configuration with these fields changed; every field must exist."""
    return make(type(config), vars(config), changes)


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
        merged[part] = make(type(whole), vars(whole), leaves)
    return kind(**merged)


def reach(config: ModelConfig, name: str) -> object:
    """Give the value of a field, or of a field of a part, as `make` names them."""
    found: Any = config
    name = mean(type(config), vars(config), name)
    while name not in hints(type(found)):
        part, name = _reach(type(found), vars(found), name)
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
    if name in hints(kind):
        return name
    where, _, leaf = name.rpartition(".")
    if kind is Training and name == "decay" and isinstance(values.get("optimizer"), Adam):
        if values.get("ema") is not None:
            raise ConfigError("'decay' may mean optimizer.weight_decay or ema.decay. Write it out.")
        return "optimizer.weight_decay"
    if leaf in ANSWERS and not (where and any(leaf in hints(part) for part in KINDS.values())):
        raise ConfigError(f"{'training' if kind is Training else kind.__name__} has no field {name!r}. {ANSWERS[leaf]}")
    if not where:
        masks = name in ("mask_ratio", "masking_ratio") and isinstance(values.get("objective"), MaskedPatches)
        return "corrupted" if masks else words.get(name, name)
    part = words.get(where, where)
    leaf = "weight_decay" if (part, leaf) == ("optimizer", "decay") else leaf
    head = part.partition(".")[0]
    inner = _present(values.get(head), hints(kind).get(head))
    if is_dataclass(inner) and leaf in hints(type(inner)):
        return f"{part}.{leaf}"
    return f"{part}.{words.get(leaf, leaf).rpartition('.')[2]}"


def meant(kind: type, values: Mapping[str, object], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Give changes by today's names and values; refuses a field that is given under two names."""
    fresh: dict[str, Any] = {}
    said: dict[str, str] = {}
    for name, value in changes.items():
        if name in BETAS and isinstance(adam := values.get("optimizer"), Adam):
            betas = [str(value) if place == int(BETAS[name]) else f"{beta:g}" for place, beta in enumerate(adam.betas)]
            raise ConfigError(f"{kind.__name__} has both in one field. Set betas={','.join(betas)}.")
        field = mean(kind, values, name)
        if field == "schedule" and isinstance(value, str):
            raise ConfigError(f"schedule must be a Schedule; got {value!r}. Set schedule.curve={value}.")
        if field == "randaugment" and (magnitude := re.fullmatch(r"(?:rand-m)?(\d+)\b.*", str(value))):
            raise ConfigError(f"{name}={value} is more than one field. Set randaugment.magnitude={magnitude[1]}.")
        if field in fresh:
            raise ConfigError(f"{said[field]} and {name} are one field, {field}. Give it once.")
        said[field] = name
        words = VALUES.get(field.rpartition(".")[2], {}) if isinstance(value, str | bool | int | float) else {}
        fresh[field] = words.get(str(value).lower(), read_word(value) if field == "adapt" else value)
    return fresh


@functools.cache
def hints(kind: type) -> dict[str, Any]:
    """Give the type of every field."""
    found = get_type_hints(kind)
    return {field.name: found[field.name] for field in fields(kind)}


def defaults(kind: type) -> dict[str, object]:
    """Give the default of every field that has one."""
    return {field.name: field.default for field in fields(kind) if field.default is not MISSING}


@functools.cache
def parts_of(hint: object) -> dict[str, type]:
    """List the parts that a field may hold, by their words; none where it holds a plain value."""
    options = options_of(hint)
    return {word: kind for word, kind in KINDS.items() if kind in options}


def _merge(kind: type, values: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, Any]:
    """Give every field its default, its value or its change, parts by their words; changes inside parts are left."""
    merged = defaults(kind) | dict(values)
    for name in changes.keys() & hints(kind).keys():
        change = changes[name]
        as_pair = name == "image_size" and change is not None
        merged[name] = as_size(change) if as_pair else _part(name, change, hints(kind)[name], merged.get(name))
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
        for part in meant[0].removesuffix(f".{name}").split("."):
            if values[part] is None:  # a short name makes no part that it does not say
                raise ConfigError(f"{name!r} is a field of {part}, which there is none of. Write it out: {meant[0]}.")
            values = vars(values[part])
        return leaves[meant[0]]
    if meant:
        raise ConfigError(f"{name!r} may mean {' or '.join(meant)}. Write it out.")
    _check_kind(kind, values, name)
    known = leaves if "." in name else (path.rpartition(".")[2] for path in leaves)
    others = (leaf for part in hints(kind).values() for other in parts_of(part).values() for leaf in hints(other))
    known = dict.fromkeys([*hints(kind), *known, *others])
    whose, words = ("training", TRAINING) if kind is Training else (kind.__name__, MODEL)
    raise ConfigError(f"{whose} has no field {name!r}.{by_meaning(name, known, words)}")


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
            yield from ((part, f"{inner}.{rest}") for inner, rest in _leaves(type(whole), vars(whole)))


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
        kind, values = type(whole), vars(whole)
    return hints(kind)[name]


def _read(name: str, text: Any, hint: Any) -> object:  # noqa: ANN401
    """Read a value of this type from text; what is no text is a value already."""
    return text if parts_of(hint) or not isinstance(text, str) else read_text(name, text, hint)


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
