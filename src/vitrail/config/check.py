"""What a value must be: whole numbers, numbers, pairs and words, each refused with what was expected and what came."""

import operator
from collections.abc import Iterable, Sequence
from math import isfinite

from vitrail.errors import ConfigError

LARGEST_SIDE = 1 << 20  # pixels
DEEPEST = 10_000  # layers, or units of a stage
LARGEST = 10**9  # of any other whole number


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


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Check a word."""
    if not isinstance(value, str) or value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}.")


def wholes(name: str, value: object, what: str, *, empty: bool = False) -> tuple[int, ...]:
    """Read several whole numbers, each the size of a depth."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or (not value and not empty):
        raise ConfigError(f"{name} must be {what}; got {value!r}.")
    return tuple(whole(name, item, most=DEEPEST) for item in value)


def pair(name: str, value: object, what: str, *, most: int = LARGEST) -> tuple[int, int]:
    """Read two whole numbers."""
    items = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else ()
    if len(items) != 2:
        raise ConfigError(f"{name} must be {what}; got {value!r}.")
    return whole(name, items[0], most=most), whole(name, items[1], most=most)


def as_size(size: object) -> tuple[int, int]:
    """Read an image size: one side of a square, or (height, width)."""
    what = "a side or (height, width) in whole pixels"
    several = isinstance(size, Iterable) and getattr(size, "ndim", 1) > 0
    return pair("image_size", size if several else (size, size), what, most=LARGEST_SIDE)
