"""The few errors that Vitrail raises; each message says what was expected, what came, and what to do.

What a message quotes comes from files and servers: a terminal is never driven by it, nor flooded.
"""

from collections.abc import Sequence

WITHOUT_LABELS = "pre-training learns without labels: objective=masked-patch (or mae, next-pixel)."
LONGEST = 1900  # signs of a message


def harmless(text: str) -> str:
    """Give a text without what would drive a terminal, or what it cannot show: names may hold anything."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign == "\n" else repr(sign)[1:-1] for sign in text)


def one_line(text: str) -> str:
    """Give a harmless text without line breaks."""
    return harmless(text.replace("\n", "\\n"))


def shortened(text: str, most: int = LONGEST) -> str:
    """Give a text without its middle where it is longer than this; what it says first and last stays."""
    if len(text) <= most:
        return text
    end = most // 4
    return f"{text[: most - end]} ... ({len(text) - most:,} more signs) ... {text[-end:]}"


def some_of(names: Sequence[str], most: int) -> str:
    """Name some, and count the rest."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


class VitrailError(Exception):
    """Any error that Vitrail raises on purpose."""

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(shortened(message)))


class ConfigError(VitrailError, ValueError):
    """A configuration that cannot be: an unknown name, a value out of range, parts that do not fit."""


class ShapeError(VitrailError, ValueError):
    """Images, tables or layers that do not fit the model."""


class CheckpointError(VitrailError):
    """A file that cannot be read, is not what it says, or does not fit the model asked for."""


class DataError(VitrailError):
    """A source of images that cannot be read or is not what it says, or too many images that cannot be decoded."""
