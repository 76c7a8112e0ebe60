"""`vitrail bench`: how fast this machine is, as ratios in one run."""

import json
from typing import Annotated

import typer
from rich.console import Console

from vitrail.cli.describe import Json
from vitrail.cli.render import plain_table
from vitrail.errors import ConfigError

What = Annotated[str, typer.Argument(metavar="WHAT", help="data: images to what a model reads, beside Pillow.")]


def bench(what: What, as_json: Json = False) -> None:
    """Measure how fast this machine is; a ratio is of CPU time, on one core, medians of five, in one run."""
    if what != "data":
        raise ConfigError(f"there is a bench of data; got {what!r}.")
    from vitrail.studies.speed_of_data import measure

    errors = Console(stderr=True)
    with errors.status("measuring ...") as status:
        speeds = measure(lambda line: status.update(line))
    if as_json:
        typer.echo(json.dumps([speed._asdict() for speed in speeds], indent=2))
        return
    title = "Decode, random crop to 224, flip and scale: CPU time an image on one core, median of 5"
    table = plain_table("photographs", "way", "ms", "least to most", "ratio", title=title, numbers=3)
    for speed in speeds:
        spread = f"{speed.low:.2f} to {speed.high:.2f}"
        table.add_row(speed.photographs, speed.way, f"{speed.milliseconds:.2f}", spread, f"{speed.ratio:.2f}")
    Console().print(table)
