"""`vitrail bench`: how fast this machine is, beside other libraries, and how far from its limits."""

from typing import Annotated

import typer

from vitrail.cli.app import answer, call
from vitrail.cli.options import Device, Json, Quiet, option
from vitrail.cli.render import say, show
from vitrail.config.bench import ALL, BENCH_GROUPS

What = Annotated[
    str | None,
    typer.Argument(
        metavar="|".join((*BENCH_GROUPS, ALL)),
        help="What is measured; without it, rows are listed.",
        show_default=False,
    ),
]
Rows = Annotated[
    str | None, option("Only rows whose names have one of these words, such as B16,L16.", metavar="WORD,...")
]
Repeats = Annotated[int | None, option("How often each way is measured.", default="5; less of what takes long")]
Seconds = Annotated[float | None, option("How long each time, about.", default="0.5")]
Jobs = Annotated[int | None, option("How many ways are made ready at once on a GPU.", default="a core each")]
Out = Annotated[
    str | None,
    option("Write bench.json, performance.md and plots to this folder; the same again resumes.", metavar="FOLDER"),
]


def bench(
    what: What = None,
    rows: Rows = None,
    device: Device = None,
    repeats: Repeats = None,
    seconds: Seconds = None,
    jobs: Jobs = None,
    out: Out = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure how fast this machine is with Vitrail, beside whichever of timm, transformers and torchvision there is.

    The ways of a row are measured in turns, so that all see the same machine: medians, lowest to highest, ratios of the
    same turn, and the share of what the products of matrices alone allow. What cannot be measured is named, with the
    reason.
    """
    if what is None:
        return show(call("list_bench", {"device": device}), as_json=as_json)
    made = answer("bench", locals())
    if made.folder is not None and not as_json:
        say(f"page: {made.folder / 'performance.md'}")
    return None
