"""What a bench found, as a document, as a table, as Markdown, and as plots: all read off the document."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrail.config.bench import BENCH_GROUPS
from vitrail.evaluation.results import write_document
from vitrail.figures import Theme
from vitrail.figures.studies import Panel, Series, draw_panels
from vitrail.files import write_bytes, writing
from vitrail.runtime.reporter import harmless, text_table
from vitrail.studies.report import markdown_table

FORMAT = "vitrail bench 1"
DOCUMENT, MARKDOWN, FIGURES = "bench.json", "performance.md", "figures"
HEADS = {
    "forward": "Forward passes",
    "training": "Training",
    "latency": "Latency of a single image",
    "memory": "Memory of a step",
    "data": "From photographs to training images",
    "loading": "Loading a file of weights",
}
PLOTTED = ("forward", "training", "latency")
TURNS = "as times the base of its row, of the same turn: the middle, the lowest and the highest."
CAPTIONS = {
    "forward": f"Forward passes, {TURNS}",
    "training": f"Training, {TURNS}",
    "latency": f"A single image, {TURNS}",
    "growth": "What an image costs as batch, side and depth grow.",
}
WORDS = {
    "images/s": "images a second",
    "ms": "ms",
    "ms an image": "ms an image",
    "s": "seconds",
    "MiB": "MiB",
}
Document = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class BenchReport:
    """The rows that were measured and the machine; it prints as tables."""

    machine: Document
    rows: Rows
    seconds: float = 0.0
    command: str = ""
    folder: Path | None = None
    unfinished: Sequence[str] = field(default_factory=tuple)  # rows that were asked for and not measured

    def document(self) -> dict[str, Any]:
        """Give everything as plain values, for JSON."""
        said = {"format": FORMAT, "command": self.command, "machine": dict(self.machine)}
        return {**said, "seconds": round(self.seconds, 1), "unfinished": list(self.unfinished), "rows": list(self.rows)}

    def __str__(self) -> str:
        found = self.document()
        lines = [describe_machine(found["machine"]), ""]
        for title, heads, rows in tables(found["rows"]):
            lines += [*text_table(title, heads, rows), ""]
        lines += [f"not measured: {gap}" for gap in gaps(found["rows"])]
        lines += [f"left out: {name}" for name in self.unfinished]
        return harmless("\n".join(lines).rstrip())

    def write(self) -> None:
        """Write the document, the page and the plots, where there is a folder."""
        if self.folder is None:
            return
        found = self.document()
        write_document(self.folder / DOCUMENT, found)
        with writing(self.folder):
            (self.folder / FIGURES).mkdir(exist_ok=True)
        for name, picture in plots(found["rows"], "light").items():
            write_bytes(self.folder / FIGURES / f"{name}.png", picture)
        page = f"# Performance\n\n{markdown(found, f'{FIGURES}/')}"
        write_bytes(self.folder / MARKDOWN, page.encode())


def describe_machine(machine: Document) -> str:
    """Say where a bench ran, in a line."""
    peers = [f"{name} {version}" for name, version in machine["peers"].items() if version]
    missing = [name for name, version in machine["peers"].items() if not version]
    said = [machine["device"], f"{machine['cores']} cores of {machine['processor']}"]
    said += [f"{machine['threads']} of them used"] if machine["kind"] == "cpu" else []
    said += [f"torch {machine['torch']}", *peers] + ([f"without {' and '.join(missing)}"] if missing else [])
    return f"{', '.join(said)}; Vitrail {machine['version']}"


def tables(rows: Rows) -> Iterator[tuple[str, Sequence[str], list[list[str]]]]:
    """Give a table of each group: its title, heads and rows; and one of each row that is a curve."""
    for group in BENCH_GROUPS:
        own = [row for row in rows if row["group"] == group]
        flat = [row for row in own if not is_curve(row)]
        if flat:
            yield table(HEADS[group], flat)
        for row in own:
            if is_curve(row):
                yield curve_table(row)


def is_curve(row: Mapping[str, Any]) -> bool:
    """Tell whether the ways of a row are places on lines."""
    return any(way["at"] is not None for way in row["ways"])


def table(title: str, rows: Rows) -> tuple[str, Sequence[str], list[list[str]]]:
    """Give a line for every way of rows; a column that no way has is left out."""
    unit = WORDS[rows[0]["unit"]]
    heads = ["row", "way", unit, "lowest to highest", "times the base", "of its ceiling", "memory", "times the base's"]
    lines = []
    for row in rows:
        base = next((way for way in row["ways"] if way["name"] == row["base"]), {})
        for number, way in enumerate(row["ways"]):
            engine = way.get("about", {}).get("engine")
            name = f"{way['name']} ({engine})" if engine else way["name"]
            lines.append(["" if number else row["title"], name, *cells(row, way, base)])
    shown = [place for place in range(len(heads)) if any(line[place] for line in lines)]
    return title, [heads[place] for place in shown], [[line[place] for place in shown] for line in lines]


def cells(row: Mapping[str, Any], way: Mapping[str, Any], base: Mapping[str, Any]) -> list[str]:
    """Write a way: its value, their spread, the ratio to the base, the share of its ceiling, and its memory."""
    if "gap" in way:
        return ["none", "", "", "", "", ""]
    several = way["high"] > way["low"]
    held, other = way["about"].get("memory"), base.get("about", {}).get("memory")
    return [
        number(way["median"]),
        f"{number(way['low'])} to {number(way['high'])}" if several else "",
        ratio_text(row, way),
        "" if way["share"] is None else f"{100 * way['share']:.0f} %",
        "" if held is None else f"{held / 2**30:.2f} GiB",
        "" if held is None or not other else f"{held / other:.2f}",
    ]


def ratio_text(row: Mapping[str, Any], way: Mapping[str, Any]) -> str:
    """Write how many times as good a way is as the base of its row."""
    if way["name"] == row["base"]:
        return "1 (base)"
    return "" if way["ratio"] is None else f"{way['ratio']['median']:.2f}"


def curve_table(row: Mapping[str, Any]) -> tuple[str, Sequence[str], list[list[str]]]:
    """Give a line for each place of a curve, and a column for each series."""
    series = list(dict.fromkeys(way["series"] for way in row["ways"]))
    at = {(way["series"], way["at"]): way for way in row["ways"]}
    lines = []
    for place in dict.fromkeys(way["at"] for way in row["ways"]):
        found = [at.get((name, place), {}) for name in series]
        lines.append([f"{place:g}", *("none" if "median" not in way else number(way["median"]) for way in found)])
    title = f"{row['title']}: {WORDS[row['unit']]}"
    return title, [row["x_label"], *series], lines


def number(value: float) -> str:
    """Write a number to four digits or so."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def gaps(rows: Rows) -> Iterator[str]:
    """Name every way that was not measured, with the reason; one reason of several ways once."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for way in row["ways"]:
            if "gap" in way:
                found.setdefault((row["title"], way["gap"]), []).append(way["name"])
    for (title, gap), names in found.items():
        yield f"{title}: {'; '.join(names)}: {gap}"


def plots(rows: Rows, theme: Theme) -> dict[str, bytes]:
    """Draw every picture, by its name."""
    return {name: draw_panels(panels, theme) for name, panels in plotted(rows).items()}


def plotted(rows: Rows) -> dict[str, list[Panel]]:
    """Give what is drawn: what the rows of each group compare, as times their base; and how cost grows."""
    found = {group: [panel] for group in PLOTTED if (panel := comparison(group, rows)) is not None}
    curves = [panel for row in rows if is_curve(row) and (panel := growth_panel(row)).series]
    return found | ({"growth": curves} if curves else {})


def comparison(group: str, rows: Rows) -> Panel | None:
    """Show the ways of a group's rows as times the base of each."""
    ways = [
        (row, way)
        for row in rows
        if row["group"] == group and not is_curve(row) and len(row["ways"]) > 1
        for way in row["ways"]
        if way.get("ratio")
    ]
    own = list(dict.fromkeys(row["title"] for row, _ in ways))
    series = []
    names = dict.fromkeys(way["name"] for _, way in ways)
    for name in sorted(names, key=lambda name: not name.startswith("Vitrail")):  # of one color in all pictures
        some = [(own.index(row["title"]), way["ratio"]) for row, way in ways if way["name"] == name]
        places, found = [place for place, _ in some], [ratio for _, ratio in some]
        low, high = [ratio["low"] for ratio in found], [ratio["high"] for ratio in found]
        series.append(Series(name=name, x=places, y=[ratio["median"] for ratio in found], low=low, high=high))
    if not series:
        return None
    bases = {row["base"] for row, _ in ways}
    label = f"times as fast as {bases.pop() if len(bases) == 1 else 'the base of the row'}"
    return Panel(title=HEADS[group], x_label=label, y_label="", series=series, categories=own, marks=(1.0,))


def growth_panel(row: Mapping[str, Any]) -> Panel:
    """Show the cost of an image over the places of a curve."""
    series = []
    for name in dict.fromkeys(way["series"] for way in row["ways"]):
        found = [way for way in row["ways"] if way["series"] == name and "median" in way]
        x, y = [way["at"] for way in found], [way["median"] for way in found]
        low, high = [way["low"] for way in found], [way["high"] for way in found]
        if found:
            series.append(Series(name=name, x=x, y=y, low=low, high=high))
    log = row["log_x"]
    return Panel(
        title=row["title"], x_label=row["x_label"], y_label=WORDS[row["unit"]], series=series, log_x=log, log_y=log
    )


def markdown(document: Document, figures: str) -> str:
    """Write a bench as Markdown: the machine, tables, what is missing, and plots, whose files begin with `figures`."""
    rows = document["rows"]
    lines = [f"{describe_machine(document['machine'])}.", ""]
    lines += [f"`{document['command']}`, {document['seconds'] / 60:.1f} minutes.", ""] if document["command"] else []
    for title, heads, found in tables(rows):
        lines += [f"### {title}", "", *markdown_table(heads, found), ""]
    if missing := list(gaps(rows)):
        lines += ["Not measured:", "", *(f"- {gap}" for gap in missing), ""]
    for name in plotted(rows):
        lines += [f"![{CAPTIONS[name]}]({figures}{name}.png)", "", CAPTIONS[name], ""]
    return "\n".join(lines)
