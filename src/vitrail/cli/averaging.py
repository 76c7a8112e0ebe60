"""`vitrail soup`: several runs as one model."""

from typing import Annotated, Any

from vitrail.cli.app import answer
from vitrail.cli.options import Json, argument, measuring, option, with_options_of

Models = Annotated[list[str], argument("RUN...", "Run folders or checkpoints of one configuration.")]
Data = Annotated[
    str | None,
    option("Images to measure the members and the soup on: what all runs kept back, else the val split.", "--data"),
]
How = Annotated[str, option("uniform: the mean of all; greedy: of those that make it no worse on --data.")]
Split = Annotated[
    str | None, option("The validation split to take.", default="what all runs kept back from training, else val")
]
Folder = Annotated[
    str | None, option("The folder to write, which every command opens.", metavar="FOLDER", default="runs/soup")
]
Overwrite = Annotated[bool, option("Replace the folder where it exists.", "--overwrite")]


@with_options_of(measuring)
def soup(
    models: Models,
    data: Data = None,
    how: How = "uniform",
    split: Split = None,
    out: Folder = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    **options: Any,  # noqa: ANN401
) -> None:
    """Average the weights of runs that were fine-tuned from one checkpoint (model soups, Wortsman et al., 2022).

    A soup costs no more than one of its members. A greedy one begins with the best run on the validation images of
    --data, and takes each other one, best first, that makes the mean no worse there. soup.json beside the weights has
    the members' scores.
    """
    answer("soup", {**locals(), "out": out or "runs/soup"})
