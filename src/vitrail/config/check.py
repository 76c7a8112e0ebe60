"""What a value must be, said at the field: whole numbers, numbers, pairs and words, each refused with what came."""

import functools
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, fields, is_dataclass
from math import isfinite
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from vitrail.errors import ConfigError, ShapeError

LARGEST_SIDE = 1 << 20  # pixels
DEEPEST = 10_000  # layers, or units of a stage
LARGEST = 10**9  # of any other whole number
Check = Callable[[str, object], Any]  # of a name and a value: gives what it reads, or refuses
KINDS: dict[str, type] = {}  # every part of a configuration, by its word


def needs(check: Callable[..., object], default: object, **bounds: object) -> Any:  # noqa: ANN401
    """Give a field its default and the check of its values; None passes where the field's type has it."""
    return field(default=default, metadata={"check": functools.partial(check, **bounds) if bounds else check})


class Checked:
    """A frozen dataclass that checks every field when it is made, as the field says itself or as its type does.

    Its word, where it has one, stands for it in JSON and in text; errors say where it is before a field's name.
    """

    _where: ClassVar[str]

    def __init_subclass__(cls, *, word: str | None = None, where: str = "") -> None:
        cls._where = where
        if word is not None:
            KINDS[word] = cls

    def __post_init__(self) -> None:
        for name, optional, check in _checks(type(self)):
            value = getattr(self, name)
            if value is not None or not optional:
                object.__setattr__(self, name, check(self._where + name, value))


@functools.cache
def _checks(kind: type[Any]) -> tuple[tuple[str, bool, Check], ...]:
    hints = get_type_hints(kind)
    return tuple((item.name, NoneType in options_of(hints[item.name]), _check_of(item, hints)) for item in fields(kind))


def check_field(kind: type, name: str, value: object) -> Any:  # noqa: ANN401
    """Read the value of one field as the whole would, and refuse it alike."""
    optional, check = next((optional, check) for known, optional, check in _checks(kind) if known == name)
    return value if value is None and optional else check(name, value)


def _check_of(item: Any, hints: dict[str, Any]) -> Check:  # noqa: ANN401
    options = [option for option in options_of(hints[item.name]) if option is not NoneType]
    if "check" in item.metadata:
        return item.metadata["check"]
    if get_origin(options[0]) is Literal:
        return functools.partial(one_of, allowed=get_args(options[0]))
    if all(is_dataclass(option) for option in options):
        return functools.partial(part, kinds=tuple(options_of(hints[item.name])))
    return {bool: truth, int: whole, float: number, str: text}[options[0]]


def options_of(hint: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """List what a field may hold: the members of a union, or the one type."""
    return get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) is Union else (hint,)


def whole(name: str, value: object, *, least: int = 1, most: int = LARGEST) -> int:
    """Read a whole number of any integer type, a boolean aside."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        bounds = f"at least {least}" + (f" and at most {most}" if number is not None and number > most else "")
        raise ConfigError(f"{name} must be a whole number, {bounds}; got {value!r}.")
    return number


def number(name: str, value: object) -> float:
    """Read a finite number."""
    try:
        found = None if isinstance(value, bool | str | bytes) else float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, OverflowError):
        found = None
    if found is None or not isfinite(found):
        raise ConfigError(f"{name} must be a finite number; got {value!r}.")
    return found


def bounded(words: str, fits: Callable[[float], bool]) -> Check:
    """Make the check of a number within bounds."""

    def check(name: str, value: object) -> float:
        if not fits(found := number(name, value)):
            raise ConfigError(f"{name} must be {words}; got {value!r}.")
        return found

    return check


positive = bounded("positive", lambda found: found > 0)
not_negative = bounded("at least 0", lambda found: found >= 0)
rate = bounded("at least 0 and under 1", lambda found: 0 <= found < 1)  # a probability that leaves something
merging_share = bounded("over 0 and under 1: a share of the patches", lambda found: 0 < found < 1)  # token_merging
share = bounded("from 0 to 1", lambda found: 0 <= found <= 1)  # none and all of a whole included


def truth(name: str, value: object) -> bool:
    """Read a boolean, and nothing that only looks like one."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False; got {value!r}.")
    return value


def text(name: str, value: object) -> str:
    """Read a text."""
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a text; got {value!r}.")
    return value


def texts(name: str, value: object) -> tuple[str, ...]:
    """Read several texts."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"{name} must be a list of texts; got {value!r}.")
    return tuple(value)


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> str:
    """Read a word."""
    if not isinstance(value, str) or value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}.")
    return value


def part(name: str, value: object, kinds: tuple[type, ...]) -> object:
    """Read a part of a configuration, of one of these kinds."""
    if not isinstance(value, kinds):
        wanted = " or ".join(f"a {kind.__name__}" if kind is not NoneType else "None" for kind in kinds)
        raise ConfigError(f"{name} must be {wanted}; got {value!r}.")
    return value


def word_or_numbers(name: str, value: object, *, words: tuple[str, ...], what: str) -> Any:  # noqa: ANN401
    """Read one of a few words, or several numbers of at least 0."""
    if isinstance(value, str) and value in words:
        return value
    return several(name, value, f"{', '.join(words)}, or {what}", not_negative)


def several(name: str, value: object, what: str, each: Check, *, empty: bool = False, count: int = 0) -> Any:  # noqa: ANN401
    """Read several values, so many where it is said, each by a check of its own."""
    items = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else None
    if items is None or not (items or empty) or count not in (0, len(items)):
        raise ConfigError(f"{name} must be {what}; got {value!r}.")
    return tuple(each(name, item) for item in items)


def wholes(name: str, value: object, what: str, *, empty: bool = False) -> tuple[int, ...]:
    """Read several whole numbers, each the size of a depth."""
    return several(name, value, what, functools.partial(whole, most=DEEPEST), empty=empty)


def pair(name: str, value: object, what: str, *, most: int = LARGEST) -> tuple[int, int]:
    """Read two whole numbers."""
    return several(name, value, what, functools.partial(whole, most=most), count=2)


def rising(name: str, value: object, *, most: float = float("inf")) -> tuple[float, float]:
    """Read two rising numbers over zero."""
    low, high = several(name, value, what := "two rising shares", positive, count=2)
    if not low <= high <= most:
        raise ConfigError(f"{name} must be {what}; got {value!r}.")
    return low, high


def as_size(size: object) -> tuple[int, int]:
    """Read an image size: one side of a square, or (height, width)."""
    what = "a side or (height, width) in whole pixels"
    several = isinstance(size, Iterable) and getattr(size, "ndim", 1) > 0
    return pair("image_size", size if several else (size, size), what, most=LARGEST_SIDE)


def image_size(name: str, value: object) -> tuple[int, int]:
    """Read the image size of a field."""
    return as_size(value)


def check_slice(queries: slice) -> None:
    """Refuse anything but a slice that goes forward."""
    try:
        step = queries.indices(1)[2]
    except (AttributeError, TypeError, ValueError):
        step = 0
    if step < 1:
        raise ShapeError(f"queries must be a slice of the tokens, such as slice(0, 1); got {queries!r}.")


def pick_layers(layers: int | Sequence[int], depth: int) -> list[int]:
    """Read one layer number or several, as a list's: from 0, or from the end when negative."""
    several = list(layers) if isinstance(layers, Iterable) and not isinstance(layers, str) else [layers]
    if not several:
        raise ShapeError(f"layers must name at least one of the {depth} layers; got none.")
    picked = []
    for layer in several:
        try:
            number = operator.index(layer)  # pyright: ignore[reportArgumentType]
        except TypeError:
            number = None
        if number is None or not -depth <= number < depth:
            raise ShapeError(f"layers must be from 0 to {depth - 1} (or -{depth} to -1); got {layer!r}.")
        picked.append(number % depth)
    return picked


def read_text(name: str, text: str, hint: Any) -> object:  # noqa: ANN401
    """Read a value of this type from text: a word, a number, several of them, or none."""
    options = options_of(hint)
    if NoneType in options and text.lower() == "none":
        return None
    kind = next(option for option in options if option is not NoneType)
    if any(get_origin(option) is Literal and text in get_args(option) for option in options):
        return text
    try:
        if get_origin(kind) is Literal or kind is str:
            return text
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if get_origin(kind) is tuple:
            each, *_ = get_args(kind)
            between = r"[\s,]+" if each is str else r"[\s,x]+"
            values = tuple(each(item) for item in re.split(between, text.strip("()[] ")) if item)
            square = len(values) == 1 and each is int and Ellipsis not in get_args(kind)
            return values * 2 if square else values
        whole = kind is int and not text.isdecimal() and float(text).is_integer()  # 1e3
        return int(float(text)) if whole else kind(text)
    except (ValueError, KeyError) as error:
        several = "numbers such as " + ("3,4,6,3" if Ellipsis in get_args(kind) else "224x160")
        several = "numbers such as 0.9,0.95" if float in get_args(kind) else several
        named = [word for option in options if get_origin(option) is Literal for word in get_args(option)]
        several = f"{', '.join(named)}, or {several}" if named else several
        words = {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, several)
        raise ConfigError(f"{name} must be {words}; got {text!r}.") from error
