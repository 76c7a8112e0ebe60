"""What a value must be: whole numbers, numbers, pairs and words, each refused with what was expected and what came."""

import operator
from collections.abc import Iterable
from math import isfinite

from vitrail.errors import ConfigError

LARGEST_SIDE = 1 << 20  # pixels


def whole(name: str, value: object, *, least: int = 1, most: int | None = None) -> int:
    """Read a whole number of any integer type, a boolean aside."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        bounds = f"at least {least}" + ("" if most is None else f" and at most {most}")
        raise ConfigError(f"{name} must be a whole number, {bounds}; got {value!r}.")
    return number


def number(name: str, value: object) -> float:
    """Read a finite number."""
    try:
        found = None if isinstance(value, bool | str | bytes) else float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        found = None
    if found is None or not isfinite(found):
        raise ConfigError(f"{name} must be a finite number; got {value!r}.")
    return found


def positive(name: str, value: object) -> float:
    """Read a number over zero."""
    if (found := number(name, value)) <= 0:
        raise ConfigError(f"{name} must be positive; got {value!r}.")
    return found


def rate(name: str, value: object) -> float:
    """Read a probability that leaves something."""
    if not 0 <= (found := number(name, value)) < 1:
        raise ConfigError(f"{name} must be at least 0 and under 1; got {value!r}.")
    return found


def truth(name: str, value: object) -> bool:
    """Read a boolean, and nothing that only looks like one."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False; got {value!r}.")
    return value


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Check a word."""
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}.")


def wholes(name: str, value: object, what: str, *, empty: bool = False) -> tuple[int, ...]:
    """Read several whole numbers."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes) or (not (value := tuple(value)) and not empty):
        raise ConfigError(f"{name} must be {what}; got {value!r}.")
    return tuple(whole(name, item) for item in value)


def pair(name: str, value: object, what: str) -> tuple[int, int]:
    """Read two whole numbers."""
    items = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes) else ()
    if len(items) != 2:
        raise ConfigError(f"{name} must be {what}; got {value!r}.")
    return whole(name, items[0]), whole(name, items[1])


def as_size(size: object) -> tuple[int, int]:
    """Read an image size: one side of a square, or (height, width)."""
    what = "a side or (height, width) in whole pixels"
    height, width = pair("image_size", size, what) if isinstance(size, Iterable) else (size, size)
    return whole("image_size", height, most=LARGEST_SIDE), whole("image_size", width, most=LARGEST_SIDE)
