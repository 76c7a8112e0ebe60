"""The names of studies and of their scales, for those who only name them; `studies` has the rest."""

from vitrail.config.check import one_of
from vitrail.config.words import suggest
from vitrail.errors import ConfigError

STUDY_NAMES = (
    *("models", "data-size", "scaling", "positions", "head", "shape", "optimizers", "resolution", "transfer"),
    *("self-supervision", "axial", "speed", "distance"),
)
SCALE_NAMES = ("smoke", "cpu", "gpu", "paper")


def check_study(name: str, scale: str) -> None:
    """Refuse a study or a scale that there is not."""
    if name not in STUDY_NAMES:
        raise ConfigError(
            f"there is no study {name!r}.{suggest(name, STUDY_NAMES)} There are: {', '.join(STUDY_NAMES)}."
        )
    one_of("scale", scale, SCALE_NAMES)
