"""Change fields of a frozen configuration, checked, with the nearest name for one that does not exist."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches

from vitrail.config.model import ModelConfig
from vitrail.errors import ConfigError


def override(config: ModelConfig, changes: Mapping[str, object]) -> ModelConfig:
    """Give the configuration with these fields changed; every field must exist."""
    check_fields(type(config), changes)
    return replace(config, **changes)


def check_fields(kind: type[ModelConfig], names: Iterable[str]) -> None:
    """Refuse a name that is no field of this kind of configuration."""
    known = [field.name for field in fields(kind)]
    for name in names:
        if name not in known:
            raise ConfigError(f"a {kind.__name__} has no field {name!r}.{suggest(name, known)}")


def suggest(name: str, known: Iterable[str]) -> str:
    """Say which known name is nearest, letter case aside, or list them all."""
    folded = {other.lower(): other for other in known}
    near = get_close_matches(name.lower(), folded, n=1)
    return f" Did you mean {folded[near[0]]!r}?" if near else f" There are: {', '.join(folded.values())}."
