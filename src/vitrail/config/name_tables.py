"""A table of names: which tensor of a file is what in a ViT, what its axes are, and what tensors do not say."""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from vitrail.config.model import Activation, FinalNorm, MlpKind, Norm
from vitrail.config.positions import Resampling
from vitrail.config.words import suggest
from vitrail.errors import ConfigError, one_line, shortened
from vitrail.files import home_path, read_regular

FORMAT = "names 1"
LARGEST = 256 << 10  # bytes of a table
MOST_NAMES, LONGEST = 2000, 1000  # entries, and signs of a name
MOST_CHOICES = 64
OPEN = "?"
UNCHECKED = "which nobody has checked"
SLOT = re.compile(r"\{(layer|head)(?:\*([1-9]))?(?:\+([1-9]))?\}")
Check = Callable[[object], bool]


def _words(*allowed: str) -> tuple[Check, str]:
    return lambda value: value in allowed, "one of " + ", ".join(allowed)


def _whole(most: int) -> tuple[Check, str]:
    return lambda value: type(value) is int and 0 < value <= most, f"a whole number from 1 to {most:,}"


def _is_size(value: object) -> bool:
    whole = isinstance(value, tuple) and len(value) == 2 and all(type(side) is int for side in value)
    return whole and all(0 < side <= 1 << 16 for side in value)  # pyright: ignore[reportGeneralTypeIssues]


_EPSILON: tuple[Check, str] = (lambda value: type(value) is float and 0 < value < 1, "a small number such as 1e-6")
_ORDERS = [" ".join(("query", "key", "value")[place] for place in order) for order in ((0, 1, 2), (1, 0, 2), (0, 2, 1))]
_ORDERS += ["key value query", "value query key", "value key query"]
MODEL: dict[str, tuple[Check, str]] = {
    "heads": _whole(4096),
    "activation": _words(*get_args(Activation)),
    "epsilon": _EPSILON,
    "norm": _words(*get_args(Norm)),
    "pooling": _words("token", "mean", "max", "token+mean", "mean-all"),
    "final_norm": _words(*get_args(FinalNorm)),
    "positions": _words("learned", "none", "sinusoidal", "sinusoidal-2d", "sinusoidal-2d-simple"),
    "image_size": (_is_size, "[height, width]"),
    "channels": _whole(1024),
    "resampling": _words(*get_args(Resampling)),
    "mlp": _words(*get_args(MlpKind)),
}
READING: dict[str, tuple[Check, str]] = {
    "linear": _words("out in", "in out"),
    "patch": _words(
        "convolution", "channel row column", "row column channel", "column row channel", "channel column row"
    ),
    "qkv": _words("part head feature", "head part feature", "head feature part"),
    "order": _words(*_ORDERS),
    "scale": _words("head", "width", "none", "after head", "after width"),
    "hidden": _words("tanh"),
    "head_input": _words("all", "slice"),
    "norms": _words("as named", "swapped"),
    "class_entry": _words("first", "last", "none"),
    "class_token_axes": _whole(4),
    "positions_axes": _whole(4),
}
USUAL: dict[str, Any] = {
    **{"linear": "out in", "patch": "convolution", "qkv": "part head feature", "order": _ORDERS[0], "scale": "head"},
    **{"head_input": "all", "norms": "as named", "class_entry": "first", "class_token_axes": 3, "positions_axes": 3},
    **{"positions": "learned", "mlp": "plain", "resampling": "bilinear-corners"},
}
SAID = ("heads", "activation", "epsilon", "norm", "pooling")  # that a caller may say beside the table
PARTS = {"model": MODEL, "reading": READING}


@dataclass(frozen=True, kw_only=True)
class NamesTable:
    """A table of names; what is open in it has choices in place of a value."""

    names: Mapping[str, tuple[str, ...]]  # by our parameters' names: tensors of the file, none where it is constant
    model: Mapping[str, object]
    reading: Mapping[str, object] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    checked: Mapping[str, object] = field(default_factory=dict)  # what a check on images gave

    @property
    def open(self) -> dict[str, tuple[object, ...]]:
        """What is open, with its choices, the likely ones first."""
        both = [*self.model.items(), *self.reading.items()]
        return {name: value.choices for name, value in both if isinstance(value, Choices)}

    def get(self, name: str) -> Any:  # noqa: ANN401
        """Give a value of the model or of the reading, or what it usually is."""
        return {**self.model, **self.reading}.get(name, USUAL.get(name))

    def settled(self, values: Mapping[str, object], **others: Any) -> "NamesTable":  # noqa: ANN401
        """Give the table with these values in place of what it had."""
        model = {**self.model, **{name: value for name, value in values.items() if name in MODEL}}
        reading = {**self.reading, **{name: value for name, value in values.items() if name in READING}}
        return replace(self, model=model, reading=reading, **others)

    def document(self) -> dict[str, Any]:
        """Give it as plain values, which `from_document` reads again."""
        parts: dict[str, Any] = {"vitrail": FORMAT, "left_out": list(self.left_out)}
        for part, values in (("model", self.model), ("reading", self.reading)):
            parts[part] = {name: _plain(value) for name, value in values.items()}
        parts["names"] = {ours: theirs[0] if len(theirs) == 1 else [*theirs] for ours, theirs in self.names.items()}
        return {**parts, "checked": dict(self.checked)}

    @classmethod
    def from_document(cls, document: object) -> "NamesTable":
        """Read plain values, strictly."""
        if not isinstance(document, dict) or document.get("vitrail") != FORMAT:
            raise ConfigError(f"a table of names begins with vitrail = {FORMAT!r}; write one with vitrail describe.")
        known = ("vitrail", "left_out", "model", "reading", "names", "checked")
        for name in document:
            if name not in known:
                raise ConfigError(f"a table of names has no part {_short(name)!r}.{suggest(_short(name), known)}")
        values = {part: _read_values(document.get(part, {}), part) for part in PARTS}
        names = document.get("names")
        if not isinstance(names, dict) or not 0 < len(names) <= MOST_NAMES:
            raise ConfigError(f"[names] must have 1 to {MOST_NAMES:,} entries.")
        checked = document.get("checked", {})
        if not isinstance(checked, dict) or len(checked) > MOST_CHOICES:
            raise ConfigError("[checked] must be what vitrail describe --check wrote. Leave it out.")
        if any(not isinstance(value, str | int | float | bool) for value in checked.values()):
            raise ConfigError("[checked] must be what vitrail describe --check wrote. Leave it out.")
        return cls(
            names={_text(ours, "a name"): _read_names(theirs, ours) for ours, theirs in names.items()},
            left_out=_read_names(document.get("left_out", []), "left_out", slots=False),
            checked=checked,
            **values,
        )

    def text(self, why: Mapping[str, str] = MappingProxyType({}), title: str = "") -> str:
        """Give it as the text of a TOML file, with a word of why behind the entries."""
        document, lines = self.document(), [f"# {one_line(title)}" if title else "", f"vitrail = {_toml(FORMAT)}"]
        lines.append(f"left_out = {_toml(document['left_out'])}")
        for part in ("model", "reading", "names", "checked"):
            if document[part]:
                lines += ["", f"[{part}]"]
            for name, value in document[part].items():
                bare = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)
                comment = f"  # {one_line(why[name])}" if name in why else ""
                lines.append(f"{bare} = {_toml(value)}{comment}")
        return "\n".join(lines).lstrip("\n") + "\n"


@dataclass(frozen=True)
class Choices:
    """What something that is open may be, the likely first."""

    choices: tuple[object, ...] = ()


def read_names(source: object) -> NamesTable:
    """Read a table of names from a file; one in memory is itself."""
    if isinstance(source, NamesTable):
        return source
    if isinstance(source, Mapping):
        return NamesTable.from_document(source)
    if not isinstance(source, str | os.PathLike) or not os.fspath(source):
        raise ConfigError(f"names must be a table: a TOML file, or a NamesTable; got {shortened(repr(source), 80)}.")
    import tomllib

    path = home_path(os.fspath(source))
    try:
        document = tomllib.loads(read_regular(path, most=LARGEST).decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the table of names {path}: {error.strerror or error}.") from error
    except (ValueError, RecursionError, OverflowError) as error:
        raise ConfigError(f"{path} is no TOML: {shortened(one_line(str(error)), 200) or 'nested too deep'}.") from error
    try:
        return NamesTable.from_document(document)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def is_table(layout: str) -> bool:
    """Tell a table's file from the name of a layout."""
    return Path(layout).suffix == ".toml"


def expand(template: str, layer: int, head: int = 0) -> str:
    """Fill in the numbers of a layer and a head."""

    def number(slot: re.Match[str]) -> str:
        return str((layer if slot[1] == "layer" else head) * int(slot[2] or 1) + int(slot[3] or 0))

    return SLOT.sub(number, template)


def combinations(
    points: Mapping[str, tuple[object, ...]], costs: Mapping[str, int] = MappingProxyType({})
) -> Iterator[dict[str, object]]:
    """Give every way to settle what is open, without ever holding them all: those that cost little first.

    The first choice of a point costs nothing, the next its cost, or 1, and so on.
    """
    names = list(points)
    step = [costs.get(name, 1) for name in names]
    most = [cost * (len(points[name]) - 1) for name, cost in zip(names, step, strict=True)]

    def ranks(left: int, place: int) -> Iterator[tuple[int, ...]]:
        if place == len(names):
            if left == 0:
                yield ()
            return
        after = sum(most[place + 1 :])
        for rank in range(len(points[names[place]])):
            rest = left - rank * step[place]
            if 0 <= rest <= after:
                yield from ((rank, *others) for others in ranks(rest, place + 1))

    for total in range(sum(most) + 1):
        for way in ranks(total, 0):
            yield {name: points[name][rank] for name, rank in zip(names, way, strict=True)}


def _read_values(given: object, part: str) -> dict[str, object]:
    if not isinstance(given, dict):
        raise ConfigError(f"[{part}] must be a table; got {_short(given)!r}.")
    return {name: read_value(name, value, part) for name, value in given.items()}


def read_value(name: str, value: object, part: str) -> object:
    """Check one value of a part; a list that begins with "?" is open, and what follows are its choices."""
    if name not in PARTS[part]:
        raise ConfigError(f"[{part}] has no {_short(name)!r}.{suggest(_short(name), PARTS[part])}")
    check, wanted = PARTS[part][name]
    if value == OPEN:
        return Choices()
    if isinstance(value, list) and value[:1] == [OPEN]:
        if len(value) > MOST_CHOICES:
            raise ConfigError(f"{name} has {len(value):,} choices; at most {MOST_CHOICES} are read.")
        return Choices(tuple(_checked(name, each, check, wanted) for each in value[1:]))
    return _checked(name, value, check, wanted)


def _checked(name: str, value: object, check: Check, wanted: str) -> object:
    value = tuple(value) if isinstance(value, list) else value
    if not check(value):
        raise ConfigError(f"{name} must be {wanted}, or [{OPEN!r}, ...] where it is open; got {_short(value)!r}.")
    return value


def _read_names(given: object, ours: str, *, slots: bool = True) -> tuple[str, ...]:
    several = [given] if isinstance(given, str) else given
    if not isinstance(several, list) or len(several) > MOST_NAMES:
        raise ConfigError(f"{_short(ours)} must be a tensor's name or a list of names; got {_short(given)!r}.")
    found = tuple(_text(each, f"{_short(ours)}: a tensor's name") for each in several)
    for name in found if slots else ():
        if "{" in SLOT.sub("", name) and "{layer" in name:
            raise ConfigError(f"{_short(ours)}: {_short(name)!r} has an unknown slot. They are {{layer}} and {{head}}.")
    return found


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or len(value) > LONGEST:
        raise ConfigError(f"{what} must be a text of at most {LONGEST:,} signs; got {_short(value)!r}.")
    return value


def _short(value: object) -> str:
    return shortened(one_line(value if isinstance(value, str) else repr(value)), 60)


def _plain(value: object) -> object:
    if isinstance(value, Choices):
        return [OPEN, *map(_plain, value.choices)]
    return list(value) if isinstance(value, tuple) else value


def _toml(value: object) -> str:
    if isinstance(value, str):
        return json.dumps(value).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value) if "." in repr(value) or "e" in repr(value) else f"{value!r}.0"
    if isinstance(value, Iterable):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return str(value)
