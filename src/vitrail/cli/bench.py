"""`vitrail bench`: how fast this machine is, as ratios in one run."""

from typing import Annotated

import typer

from vitrail.cli.asking import Quiet
from vitrail.cli.describe import Json
from vitrail.cli.render import show

What = Annotated[
    str, typer.Argument(metavar="WHAT", help="data: how fast images are decoded and cropped, compared with Pillow.")
]


def bench(what: What, quiet: Quiet = False, as_json: Json = False) -> None:
    """Measure how fast this machine is; a ratio is of CPU time, on one core, medians of five, in one run."""
    from vitrail.runtime.reporter import reporting
    from vitrail.verbs.bench import bench as run

    with reporting(quiet=quiet) as report:
        found = run(what, report=report)
    show(found, as_json=as_json)
