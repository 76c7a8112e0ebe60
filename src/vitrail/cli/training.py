"""`vitrail pretrain`, `finetune`, `transfer`, `vtab` and `demo`: what trains, and how a run ended."""

import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.app import answer, call
from vitrail.cli.options import (
    Data,
    Device,
    Json,
    Pipe,
    Quiet,
    Workers,
    argument,
    option,
    training_preparing,
    with_options_of,
)
from vitrail.cli.render import is_main, program, same_again, say, show
from vitrail.config.given import usual_out
from vitrail.errors import harmless

if TYPE_CHECKING:
    from vitrail.verbs.training import Run

AnyModel = Annotated[
    str | None, option("A checkpoint; or a name such as ViT-B/16, for a fresh model.", metavar="FILE|NAME")
]
Model = Annotated[str, option("A checkpoint; or a name such as ViT-B/16, for a fresh model.", metavar="FILE|NAME")]
Out = Annotated[
    str | None,
    option("The folder of the run, or of all runs.", metavar="FOLDER", default="runs/, the command and the data"),
]
DemoOut = Annotated[str, option("The folder of both runs; the same command again resumes them.", metavar="FOLDER")]
Recipe = Annotated[str | None, option("Such as scratch, i1k, finetune/cifar10, augreg/medium1.", metavar="NAME")]
Steps = Annotated[int | None, option("Updates of the weights.")]
Epochs = Annotated[float | None, option("Passes over the training images, instead of --steps.")]
DemoEpochs = Annotated[float, option("Passes over the 2,000 training images, of each run.")]
Minutes = Annotated[float | None, option("As many steps as fit into so many minutes here, instead of --steps.")]
Objective = Annotated[
    str | None, option("What is learned: labels, masked-patch, mae, next-pixel.", metavar="WORD", default="labels")
]
Task = Annotated[
    str | None,
    option(
        "What is asked of each image: classify, multilabel, regression, ordinal; or segment (classes of pixels), "
        "detect (boxes).",
        metavar="WORD",
        default="classify",
    ),
]
Probe = Annotated[
    str | None,
    option(
        "Labelled images: how well classifiers of frozen features do on them, while training. "
        "At most 10,000 to learn from and 5,000 to test on.",
        metavar="SOURCE",
    ),
]
Batch = Annotated[int | None, option("Images per update, on all processes together.", "--batch", "--batch-size")]
Seed = Annotated[int | None, option("Of order, augmentation, dropout and fresh weights.", default="0")]
DemoSeed = Annotated[int, option("Seed of everything random.")]
Seeds = Annotated[str, option("Seeds; each trains a run of its own.", metavar="SEED,...")]
Precision = Annotated[str | None, option("float32 or bfloat16.", default="bfloat16 on a GPU")]
Compile = Annotated[str | None, option("on, off, or graphs: for small models on one GPU.", default="on with a GPU")]
Settings = Annotated[
    list[str] | None,
    option("Such as learning_rate=3e-4, image_size=384, mixup=0.2, model.depth=6.", "--set", metavar="FIELD=VALUE"),
]
Track = Annotated[
    str | None, option("Show the log there too: wandb, mlflow, tensorboard.", metavar="TRACKER,...", default="none")
]
Board = Annotated[bool, option("The same as --track tensorboard.", "--tensorboard")]
Elastic = Annotated[
    bool,
    option(
        "Processes may die and join: torchrun --max-restarts begins the others anew from the last checkpoint.",
        "--elastic",
    ),
]
Rates = Annotated[
    str | None, option("Learning rates to choose from.", metavar="RATE,...", default="the recipe's, those of Table 4")
]
Folder = Annotated[str, argument("FOLDER", "A folder that holds a folder for each task: pets/, svhn/, ...")]
Tasks = Annotated[
    str | None, option("Tasks or groups: natural, specialized, structured.", metavar="TASK,...", default="all 19")
]
Select = Annotated[bool, option("Train on 800 images and measure on 200, without the test images.", "--select")]
Shapes = Annotated[bool, option("Instead, print the shape of one image at every step through a fresh ViT.", "--shapes")]


@with_options_of(training_preparing)
def training(
    steps: Steps = None,
    batch_size: Batch = None,
    settings: Settings = None,
    workers: Workers = None,
    device: Device = None,
    precision: Precision = None,
    compile: Compile = None,
    quiet: Quiet = False,
    as_json: Json = False,
    **options: Any,  # noqa: ANN401
) -> None:
    """Share the options of the commands that train."""


@with_options_of(training)
def finetune(
    data: Data,
    model: AnyModel = None,
    out: Out = None,
    recipe: Recipe = None,
    epochs: Epochs = None,
    minutes: Minutes = None,
    objective: Objective = None,
    task: Task = None,
    probe: Probe = None,
    seed: Seed = None,
    track: Track = None,
    tensorboard: Board = False,
    elastic: Elastic = False,
    allow_pipe: Pipe = False,
    **options: Any,  # noqa: ANN401
) -> None:
    """Train on your images: from a checkpoint with a new head, or a fresh model by its name.

    With nothing but the images, the model in the box and all values are chosen for them, and said.
    The same command again resumes where it stopped.
    """
    _train("finetune", locals())


@with_options_of(finetune)
def pretrain(data: Data, **options: Any) -> None:  # noqa: ANN401
    """Train a fresh model by its name, as the paper pre-trains: --model ViT-B/16 --recipe i1k.

    Without a recipe, the one for small data is taken. The same command again resumes where it stopped.
    With --objective masked-patch, mae or next-pixel images need no labels: any folder of them will do.
    """
    _train("pretrain", locals())


@with_options_of(training)
def transfer(
    data: Data,
    model: Model,
    recipe: Recipe = None,
    rates: Rates = None,
    seeds: Seeds = "0,1,2",
    out: Out = None,
    allow_pipe: Pipe = False,
    **options: Any,  # noqa: ANN401
) -> None:
    """Fine-tune as Table 4: choose the rate on images kept back, train on all of them, report the test images.

    The mean and deviation are over the seeds. The same command again resumes where it stopped.
    """
    answer("transfer", locals())


@with_options_of(training)
def vtab(
    folder: Folder,
    model: Model,
    tasks: Tasks = None,
    seeds: Seeds = "0",
    out: Out = None,
    select: Select = False,
    **options: Any,  # noqa: ANN401
) -> None:
    """Fine-tune on the tasks of VTAB-1k that FOLDER has, and report accuracies and means beside Table 9's.

    All are trained alike, by the recipe finetune/vtab. The same command again resumes where it stopped.
    """
    answer("vtab", locals())


def demo(
    out: DemoOut = "runs/demo",
    epochs: DemoEpochs = 5,
    seed: DemoSeed = 0,
    device: Device = None,
    shapes: Shapes = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Fine-tune the ViT in the box on the images in the box, train the same ViT from scratch as long, and compare.

    About 90 seconds on two cores. `--shapes` tells the story of one image's way through the model instead.
    """
    given = {name: value for name, value in locals().items() if name != "shapes"}
    from vitrail.verbs.demo import BOX, demo_shapes

    if shapes:
        stories = demo_shapes(seed)
        if as_json:
            say(json.dumps([story.document() for story in stories], indent=2))
        else:
            say("\n\n".join(map(str, stories)))
            say("For one image. Next, in Python: vitrail.create('ViT-B/16', classes=10)")
        return
    found = call("demo", given)
    show(found, as_json=as_json and found.finished)
    if not found.finished:
        say(same_again(), err=True)
        raise typer.Exit(130)
    if not as_json:
        one, other = (shlex.quote(harmless(str(made.folder))) for made in found.runs.values())
        say(f"Next:\n  {program()} evaluate {one} sample --against {other}")
        say(f"  {program()} fewshot {BOX} sample\n  {program()} finetune photos/ --model {BOX}")


def _train(verb: str, given: Mapping[str, Any]) -> None:
    """Train, print how the run ended and what to type next; exits with 130 where it was interrupted."""
    given = {**given, **given["options"], "options": {}}
    run = call(verb, {**given, "out": given["out"] or usual_out(verb, given["data"])})
    if is_main() and given["as_json"]:
        say(json.dumps(run.document(), indent=2))
    elif is_main():
        _print_run(run, given["data"], given["probe"])
    if not run.finished:
        raise typer.Exit(130)


def _print_run(run: "Run", data: str, probe: str | None) -> None:
    if not run.finished:
        say(f"interrupted at step {run.step:,} of {run.steps:,}, and saved.\n{same_again()}")
        return
    out = harmless(str(run.folder))
    typer.secho(f"{'finished before' if run.again else 'finished'}: {out}", bold=True)
    images, folder = shlex.quote(data), shlex.quote(out)
    if run.answers:
        commands = [f"predict {folder} PHOTOS", f"evaluate {folder} {images}"]
    else:  # nothing was learned of classes yet
        labeled = shlex.quote(probe or (data if run.labeled else "SOURCE"))
        commands = [f"inspect {folder} {images}", f"finetune {labeled} --model {folder}", f"fewshot {folder} {labeled}"]
    lines = [f"  {program()} {command}" for command in (*commands, f"describe {folder}")]
    found = [f"  {line}" for line in run.results()]
    say("\n".join([*found, "Next:", *lines, f"  in Python: model = vitrail.load({out!r})"]))
