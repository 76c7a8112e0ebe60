"""The reference of every function and command, from signatures and help texts: pages for the site."""

import inspect
import re
from collections.abc import Iterator
from typing import Any, Unpack, get_args, get_origin, get_type_hints

import typer.main

import vitrail
from vitrail.cli.app import make_app

MODULES = re.compile(r"(?:vitrail|collections|os|typing)(?:[.][a-z]\w*)*[.](?=[A-Z])")  # before the names of types
NAMELESS = re.compile(r"<(?:function|object)[^>]*>+(?: at 0x\w+>)?")  # a default that is code


def functions() -> str:
    """Write a page of every public name."""
    parts = [
        "# Functions",
        "",
        "What `import vitrail` gives, from the code itself. Commands: [commands](commands.md).",
        "",
    ]
    for name in sorted(vitrail.__all__, key=str.lower):
        parts += described(name, getattr(vitrail, name))
    return "\n".join(parts)


def described(name: str, thing: Any) -> Iterator[str]:  # noqa: ANN401
    """Describe a function, a class or a module."""
    yield f"## vitrail.{name}"
    yield ""
    if inspect.ismodule(thing):
        yield inspect.getdoc(thing) or ""
        yield ""
        yield from (
            f"- `{name}.{each}`: {(inspect.getdoc(getattr(thing, each)) or '').splitlines()[0]}"
            for each in thing.__all__
            if inspect.getdoc(getattr(thing, each))
        )
    elif isinstance(thing, type):
        yield inspect.getdoc(thing) or ""
    else:
        yield from ["```python", signature(name, thing), "```", "", inspect.getdoc(thing) or ""]
    yield ""


def signature(name: str, function: Any) -> str:  # noqa: ANN401
    """Write how a function is called, a parameter a line."""
    made = inspect.signature(function)
    rows, star = [], False
    for parameter in made.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            rows.append("    *,")
            star = True
        star = star or parameter.kind is parameter.VAR_POSITIONAL
        if parameter.kind is parameter.VAR_KEYWORD and get_origin(parameter.annotation) is Unpack:
            (options,) = get_args(parameter.annotation)
            rows += [f"    {key}: {plain(kind)} = ...," for key, kind in get_type_hints(options).items()]
        else:
            rows.append(f"    {NAMELESS.sub('...', MODULES.sub('', str(parameter)))},")
    return "\n".join([f"vitrail.{name}(", *rows, ")"]) if rows else f"vitrail.{name}()"


def plain(kind: Any) -> str:  # noqa: ANN401
    """Write a type as people read it."""
    return MODULES.sub("", kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind))


def commands() -> str:
    """Write a page of every command."""
    parts = ["# Commands", "", "What `vitrail --help` says, of all commands. Functions: [functions](functions.md).", ""]
    for name, command in typer.main.get_group(make_app()).commands.items():
        inside = getattr(command, "commands", None)
        for words, each in (
            [(name, command)] if inside is None else [(f"{name} {one}", two) for one, two in inside.items()]
        ):
            parts += command_page(words, each)
    return "\n".join(parts)


def command_page(name: str, command: Any) -> Iterator[str]:  # noqa: ANN401
    """Describe a command: what it does, its arguments and its options."""
    given = [part for part in command.params if part.param_type_name == "argument"]
    options = [part for part in command.params if part.param_type_name == "option" and not part.hidden]
    words = [part.metavar or part.name.upper() for part in given]
    words = [word if part.required else f"[{word}]" for part, word in zip(given, words, strict=True)]
    yield from [f"## vitrail {name}", "", "```text", " ".join(["vitrail", name, *words, "[OPTIONS]"]), "```", ""]
    yield from [cleaned(command.help), ""]
    yield from ["| argument or option | takes | |", "|---|---|---|"]
    for part, word in zip(given, words, strict=True):
        yield f"| {cleaned(word.strip('[]'))} | | {cleaned(part.help)} |"
    for part in options:
        default = part.show_default if isinstance(part.show_default, str) else part.default
        said = "" if default in (None, False, ()) or part.is_flag else f" Default: {cleaned(str(default))}."
        names = ", ".join([*part.opts, *part.secondary_opts])
        yield f"| `{names}` | {'' if part.is_flag else cleaned(takes(part))} | {cleaned(part.help)}{said} |"
    yield ""


def takes(option: Any) -> str:  # noqa: ANN401
    """Say what an option takes: its word, or the name of its type."""
    kind = option.type_descriptor.annotation
    return option.metavar or getattr(kind, "__name__", str(kind))


def cleaned(text: str | None) -> str:
    """Give a help text as Markdown: a bar would end a cell."""
    return re.sub(r"\[/?\w+\]", "", text or "").replace("|", "&#124;").replace("<", "&lt;").strip()
