"""Sizes in the words of the command line."""

from vitrail.config import as_size
from vitrail.errors import ConfigError


def read_size(text: str) -> tuple[int, int]:
    """Read `224` or `224x160`."""
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.strip().isdecimal() for side in sides):
        raise ConfigError(f"--image-size must be a side or HEIGHTxWIDTH, such as 224 or 224x160; got {text!r}.")
    return as_size(tuple(int(side) for side in sides) if len(sides) == 2 else int(sides[0]))


def read_pair(option: str, text: str) -> tuple[int, int]:
    """Read `14x10`."""
    sides = text.lower().split("x")
    if len(sides) != 2 or not all(side.strip().isdecimal() for side in sides):
        raise ConfigError(f"{option} must be ROWSxCOLS, such as 14x10; got {text!r}.")
    return int(sides[0]), int(sides[1])
