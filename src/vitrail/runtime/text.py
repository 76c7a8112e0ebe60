"""Tables as plain text, for objects that print well."""

from collections.abc import Sequence

from vitrail.runtime.reporter import harmless


def text_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Give a table as lines, with a rule under its heads; columns of numbers end at the right."""
    columns = [[harmless(text) for text in column] for column in zip(heads, *rows, strict=True)]
    shown = []
    for column in columns:
        width, numbers = max(map(len, column)), all(not text or text[0].isdigit() for text in column[1:])
        shown.append([text.rjust(width) if numbers else text.ljust(width) for text in column])
    lines = ["  ".join(cells).rstrip() for cells in zip(*shown, strict=True)]
    rule = "─" * len("  ".join(column[0] for column in shown))
    return [*([title] if title else []), lines[0], rule, *lines[1:]]
