"""Values of fields as people type them, read by the field's type."""

import re
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from vitrail.config.check import options_of
from vitrail.errors import ConfigError


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
            values = tuple(each(item) for item in re.split(r"[\s,x]+", text.strip("()[] ")) if item)
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
