"""Tables as plain text, for objects that print well."""

from collections.abc import Iterable, Sequence


def text_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "", numbers: int = 0) -> str:
    """Write a table with one rule under its heads; the last `numbers` columns end at the right."""
    lines = [heads, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    shown = [
        "  ".join(
            cell.rjust(width) if column >= len(heads) - numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    rule = "─" * (sum(widths) + 2 * (len(widths) - 1))
    return "\n".join([*([title] if title else []), shown[0], rule, *shown[1:]])
