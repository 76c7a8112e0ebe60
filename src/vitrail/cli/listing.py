"""`vitrail models` and `vitrail recipes`: what there is to begin with, and to train by."""

from typing import Annotated

import typer

from vitrail.cli.app import answer
from vitrail.cli.options import Json

Folders = Annotated[
    list[str] | None,
    typer.Argument(metavar="FOLDER...", help="Where runs and weights are looked for.", show_default="here and runs/"),
]


def models(folders: Folders = None, as_json: Json = False) -> None:
    """List the models: in the box, your runs and weights on disk, and the names of fresh ones."""
    answer("list_models", locals())


def recipes(as_json: Json = False) -> None:
    """List the recipes, for --recipe."""
    answer("list_recipes", locals())
