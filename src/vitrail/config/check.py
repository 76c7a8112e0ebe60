"""What a value must be, said at the field: whole numbers, numbers, pairs and words, each refused with what came."""

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, fields, is_dataclass
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from vitrail.errors import ConfigError

LARGEST_SIDE = 1 << 20  # pixels
DEEPEST = 10_000  # layers, or units of a stage
LARGEST = 10**9  # of any other whole number


def needs(check: Callable[..., object], default: object, **bounds: object) -> Any:  # noqa: ANN401
    """Give a field its default and the check of its values; None passes where the field's type has it."""
    return field(default=default, metadata={"check": functools.partial(check, **bounds) if bounds else check})


def validate(config: object, where: str = "") -> None:
    """Check every field of a frozen dataclass, as it says itself or as its type does, and keep what the check reads."""
    for name, optional, check in _checks(type(config)):
        value = getattr(config, name)
        if value is not None or not optional:
            object.__setattr__(config, name, check(where + name, value))


@functools.cache
def _checks(kind: type[Any]) -> tuple[tuple[str, bool, Callable[[str, object], object]], ...]:
    hints = get_type_hints(kind)
    return tuple((item.name, NoneType in _options(hints[item.name]), _check_of(item, hints)) for item in fields(kind))


def _check_of(item: Any, hints: dict[str, Any]) -> Callable[[str, object], object]:  # noqa: ANN401
    options = [option for option in _options(hints[item.name]) if option is not NoneType]
    if "check" in item.metadata:
        return item.metadata["check"]
    if get_origin(options[0]) is Literal:
        return functools.partial(one_of, allowed=get_args(options[0]))
    if all(is_dataclass(option) for option in options):
        return functools.partial(part, kinds=tuple(_options(hints[item.name])))
    return {bool: truth, int: whole, float: number, str: text}[options[0]]


def _options(hint: Any) -> tuple[Any, ...]:  # noqa: ANN401
    return get_args(hint) if isinstance(hint, UnionType) else (hint,)


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


def positive(name: str, value: object) -> float:
    """Read a number over zero."""
    if (found := number(name, value)) <= 0:
        raise ConfigError(f"{name} must be positive; got {value!r}.")
    return found


def not_negative(name: str, value: object) -> float:
    """Read a number from zero on."""
    if (found := number(name, value)) < 0:
        raise ConfigError(f"{name} must be at least 0; got {value!r}.")
    return found


def rate(name: str, value: object) -> float:
    """Read a probability that leaves something."""
    if not 0 <= (found := number(name, value)) < 1:
        raise ConfigError(f"{name} must be at least 0 and under 1; got {value!r}.")
    return found


def share(name: str, value: object) -> float:
    """Read a part of a whole, none and all of it included."""
    if not 0 <= (found := number(name, value)) <= 1:
        raise ConfigError(f"{name} must be from 0 to 1; got {value!r}.")
    return found


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


def several(name: str, value: object, what: str, each: Callable[[str, object], Any], *, empty: bool = False) -> Any:  # noqa: ANN401
    """Read several values, each by a check of its own."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or (not value and not empty):
        raise ConfigError(f"{name} must be {what}; got {value!r}.")
    return tuple(each(name, item) for item in value)


def wholes(name: str, value: object, what: str, *, empty: bool = False) -> tuple[int, ...]:
    """Read several whole numbers, each the size of a depth."""
    return several(name, value, what, functools.partial(whole, most=DEEPEST), empty=empty)


def pair(name: str, value: object, what: str, *, most: int = LARGEST) -> tuple[int, int]:
    """Read two whole numbers."""
    items = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else ()
    if len(items) != 2:
        raise ConfigError(f"{name} must be {what}; got {value!r}.")
    return whole(name, items[0], most=most), whole(name, items[1], most=most)


def rising(name: str, value: object, *, most: float = float("inf")) -> tuple[float, float]:
    """Read two rising numbers over zero."""
    if isinstance(value, tuple | list) and len(value) == 2:
        low, high = positive(name, value[0]), positive(name, value[1])
        if low <= high <= most:
            return low, high
    raise ConfigError(f"{name} must be two rising shares; got {value!r}.")


def as_size(size: object) -> tuple[int, int]:
    """Read an image size: one side of a square, or (height, width)."""
    what = "a side or (height, width) in whole pixels"
    several = isinstance(size, Iterable) and getattr(size, "ndim", 1) > 0
    return pair("image_size", size if several else (size, size), what, most=LARGEST_SIDE)


def image_size(name: str, value: object) -> tuple[int, int]:
    """Read the image size of a field."""
    return as_size(value)
