"""The few errors that Vitrail raises; each message says what was expected, what came, and what to do."""

WITHOUT_LABELS = "pre-training learns without labels: objective=masked-patch (or mae, next-pixel)."


class VitrailError(Exception):
    """Any error that Vitrail raises on purpose."""


class ConfigError(VitrailError, ValueError):
    """A configuration that cannot be: an unknown name, a value out of range, parts that do not fit."""


class ShapeError(VitrailError, ValueError):
    """Images, tables or layers that do not fit the model."""


class CheckpointError(VitrailError):
    """A file that cannot be read, is not what it says, or does not fit the model asked for."""


class DataError(VitrailError):
    """A source of images that cannot be read or is not what it says, or too many images that cannot be decoded."""
