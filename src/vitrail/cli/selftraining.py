"""`vitrail selftrain`: rounds of a teacher that labels images and a student that learns from them."""

from typing import Annotated, Any

import typer

from vitrail.cli.app import call
from vitrail.cli.options import Json, Pipe, argument, option, with_options_of
from vitrail.cli.render import is_main, same_again, say, show
from vitrail.cli.training import Data, Epochs, Model, Recipe, Seed, training
from vitrail.config.given import usual_out

Unlabeled = Annotated[str, argument("IMAGES", "Images whose labels are not needed: any folder or source.")]
Teacher = Annotated[
    str | None,
    option("A trained classifier of the same classes.", metavar="RUN", default="trained first, as the student"),
]
Rounds = Annotated[int, option("Students, each the next one's teacher.")]
Confidence = Annotated[float, option("Take what the teacher is as sure of at least.", metavar="SHARE")]
Balance = Annotated[bool, option("As many images of every class, the surest.")]
PerClass = Annotated[
    int | None, option("Images of each class; without --balance, at most.", default="the mean of the classes")
]
Noise = Annotated[bool, option("RandAugment and stochastic depth for the student, where nothing is said of them.")]
Out = Annotated[str | None, option("The folder of all runs.", metavar="FOLDER", default="runs/selftrain-, the data")]


@with_options_of(training)
def selftrain(
    data: Data,
    unlabeled: Unlabeled,
    model: Model,
    out: Out = None,
    teacher: Teacher = None,
    rounds: Rounds = 2,
    confidence: Confidence = 0.3,
    balance: Balance = True,
    per_class: PerClass = None,
    noise: Noise = True,
    recipe: Recipe = None,
    epochs: Epochs = None,
    seed: Seed = None,
    allow_pipe: Pipe = False,
    as_json: Json = False,
    **options: Any,  # noqa: ANN401
) -> None:
    """Learn from images without labels too: a teacher labels them, a noised student learns, and teaches next.

    Noisy Student (Xie et al., 2020). Any field of finetune is taken, of teacher and students. The same command again
    resumes where it stopped.
    """
    found = call("selftrain", {**locals(), "out": out or str(usual_out("selftrain", data))})
    if is_main():
        show(found, as_json=as_json)
    if not found.finished:
        say(same_again(), err=True)
        raise typer.Exit(130)
