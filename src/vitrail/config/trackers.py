"""Who else is shown the log of a run."""

from collections.abc import Iterable
from importlib.util import find_spec

from vitrail.config.words import suggest
from vitrail.errors import ConfigError

TRACKERS = ("wandb", "mlflow", "tensorboard")  # by the name of the library, and of the extra


def check_trackers(track: str | Iterable[str], *, tensorboard: bool = False) -> tuple[str, ...]:
    """Read which trackers are wanted, each once; refuse one that is unknown or not installed."""
    asked = [name.strip() for name in track.split(",")] if isinstance(track, str) else list(track)
    names = tuple(dict.fromkeys([*filter(None, asked), *(("tensorboard",) if tensorboard else ())]))
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f"there is no tracker {name!r}.{suggest(str(name), TRACKERS)}")
        found = find_spec(name)
        if found is None or found.origin is None:  # a mere folder of that name, as wandb makes them
            raise ConfigError(f"{name} is not installed. pip install 'vitrail[{name}]', or leave track={name} out.")
    return names
