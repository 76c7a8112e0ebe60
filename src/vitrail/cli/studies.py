"""`vitrail study`: a table or figure of the paper, run end to end."""

from typing import Annotated

import typer

from vitrail.cli.app import answer, call
from vitrail.cli.options import Device, Json, Quiet, option
from vitrail.cli.render import say, show
from vitrail.config.study import SCALE_NAMES
from vitrail.errors import ConfigError

Name = Annotated[
    str | None, typer.Argument(metavar="NAME", help="The study; without it, all are listed.", show_default=False)
]
Size = Annotated[str, option(f"How much is run: {', '.join(SCALE_NAMES)}.", metavar="WORD")]
Folder = Annotated[
    str | None,
    option("A folder that holds the sets of images of scale gpu or paper, a folder each.", "--data", metavar="FOLDER"),
]
Seeds = Annotated[int | None, option("How many seeds every run has.", default="3; 1 at scale smoke")]
Out = Annotated[
    str | None, option("The folder of everything.", metavar="FOLDER", default="runs/, the study and its scale")
]
Minutes = Annotated[
    float | None,
    option("Make all runs shorter or longer, alike, so that it takes so long.", default="scale gpu: 3 to 8"),
]
Length = Annotated[
    float | None,
    option("Times the usual steps of every run, instead of --minutes: the same runs on every machine."),
]
Jobs = Annotated[int | None, option("How many runs go on at once.", default="8 on every GPU; a core each on a CPU")]
Dry = Annotated[bool, option("Print every run with what it would cost, and run nothing.", "--dry-run")]


def study(
    name: Name = None,
    scale: Size = "cpu",
    data: Folder = None,
    seeds: Seeds = None,
    out: Out = None,
    minutes: Minutes = None,
    length: Length = None,
    jobs: Jobs = None,
    device: Device = None,
    dry_run: Dry = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run a table or figure of the paper, and compare what comes out with what the paper says.

    smoke takes seconds and shows that it runs; cpu minutes on two cores; gpu minutes on one GPU, with real images
    (--data); paper is the paper's own configuration: --dry-run says what it costs. The same command resumes where it
    stopped. Tables, plots and a page are written to --out.
    """
    if name is None:
        return show(call("list_studies", {}), as_json=as_json)
    if dry_run:
        if given := [flag for flag, value in (("minutes", minutes), ("out", out)) if value is not None]:
            raise ConfigError(f"a dry run counts, and does not take --{given[0]}. Leave it out.")
        return show(
            call("study_costs", {"name": name, "scale": scale, "seeds": seeds, "length": length}), as_json=as_json
        )
    made = answer("study", {key: value for key, value in locals().items() if key not in ("dry_run", "given")})
    if not as_json:
        say(f"page: {made.folder / 'report.html'}")
    return None
