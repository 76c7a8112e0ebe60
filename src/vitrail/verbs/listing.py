"""`vitrail.list_models` and `vitrail.list_recipes`: what there is to begin with, here and on disk, and to train by."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from vitrail.checkpoint.run_folder import BEGUN, BOX, SUFFIXES, boxed, is_run, read_document
from vitrail.config import ModelConfig, decode, names, parse
from vitrail.config.recipe import Training
from vitrail.config.recipes import recipe, recipe_names
from vitrail.errors import VitrailError
from vitrail.files import home_path
from vitrail.ops.cost.counts import parameters
from vitrail.runtime.reporter import harmless, text_table

USUAL = (".", "runs")  # folders that are looked through
KINDS = {"box": "trained, in the box", "run": "a run of yours", "file": "weights on disk", "fresh": "fresh"}


@dataclass(frozen=True, kw_only=True)
class ListedModel:
    """A model by what `vitrail.load` or `vitrail.create` takes; None where it is not known without reading weights."""

    name: str
    kind: Literal["box", "run", "file", "fresh"]
    parameters: int | None = None
    image_size: tuple[int, int] | None = None
    classes: int | None = None
    accuracy: float | None = None  # of its own test or val images
    finished: bool = True  # a run may not be


@dataclass(frozen=True)
class ModelList:
    """Models to begin with; it prints as a table."""

    models: tuple[ListedModel, ...]

    def document(self) -> list[dict[str, Any]]:
        """Give the models as plain values, for JSON."""
        return [asdict(each) for each in self.models]

    def __str__(self) -> str:
        rows = [
            (
                each.name,
                KINDS[each.kind] + ("" if each.finished else ", not finished"),
                "" if each.parameters is None else f"{each.parameters / 1e6:,.1f}",
                "" if each.image_size is None else "x".join(map(str, each.image_size)),
                "" if each.classes is None else f"{each.classes:,}",
                "" if each.accuracy is None else f"{each.accuracy:.2%}",
            )
            for each in self.models
        ]
        heads = ("model", "what it is", "million parameters", "pixels", "classes", "accuracy")
        lines = text_table("", heads, rows)
        lines.append(
            "A ViT takes any patch side (ViT-S/8), a BiT any width; files elsewhere and hf:OWNER/NAME open too."
        )
        return harmless("\n".join(lines))


def list_models(folders: Sequence[str | os.PathLike[str]] = USUAL) -> ModelList:
    """List the models in the box, the runs and files of weights in `folders`, and the names of fresh ones."""
    found = [_of_run(BOX / name, name, "box") for name in boxed()]
    for folder in folders:
        found += _in_folder(home_path(folder))
    for name in (name for name in names() if name not in boxed()):
        config = parse(name)
        size = config.image_size
        found.append(ListedModel(name=name, kind="fresh", parameters=parameters(config).total, image_size=size))
    return ModelList(tuple(found))


def _in_folder(folder: Path) -> Iterator[ListedModel]:
    """List the runs and files that lie in a folder, by their names; what cannot be read is left out."""
    try:
        entries = sorted(folder.iterdir()) if folder.is_dir() else []
    except OSError:
        return
    for path in entries:
        try:
            if path.is_dir() and ((path / BEGUN).is_file() or is_run(path)):
                yield _of_run(path, str(path), "run")
            elif path.suffix.lower() in SUFFIXES and path.is_file():
                yield ListedModel(name=str(path), kind="file")
        except (VitrailError, OSError):
            continue


def _of_run(path: Path, name: str, kind: Literal["box", "run"]) -> ListedModel:
    config: ModelConfig | None = None
    metrics: dict[str, Any] = {}
    if (path / "config.json").is_file():
        config = decode(read_document(path / "config.json").get("model"))
    if (path / "metrics.json").is_file():
        metrics = read_document(path / "metrics.json")
    accuracy = metrics.get("test_accuracy", metrics.get("accuracy"))
    return ListedModel(
        name=name,
        kind=kind,
        parameters=None if config is None else parameters(config).total,
        image_size=None if config is None else config.image_size,
        classes=None if config is None else config.classes,
        accuracy=accuracy if isinstance(accuracy, float) else None,
        finished=config is not None,
    )


@dataclass(frozen=True)
class RecipeList:
    """Recipes to train by; it prints as a table."""

    recipes: tuple[tuple[Training, str], ...]  # each with where it comes from

    def document(self) -> list[dict[str, Any]]:
        """Give the recipes as plain values, for JSON."""
        return [
            {
                "name": training.recipe,
                "source": source,
                "objective": type(training.objective).__name__,
                "optimizer": type(training.optimizer).__name__,
                "learning_rate": training.optimizer.learning_rate,
                "steps": training.steps,
                "epochs": training.epochs,
                "batch_size": training.batch_size,
                "image_size": training.image_size,
            }
            for training, source in self.recipes
        ]

    def __str__(self) -> str:
        rows = [
            (
                each["name"],
                each["source"],
                f"{each['optimizer']} {each['learning_rate']:g}",
                f"{each['steps']:,} steps" if each["steps"] else f"{each['epochs']:g} epochs",
                str(each["batch_size"]),
                "the model's" if each["image_size"] is None else str(each["image_size"][0]),
            )
            for each in self.document()
        ]
        return "\n".join(text_table("", ("recipe", "from", "optimizer", "length", "batch", "pixels"), rows))


def list_recipes() -> RecipeList:
    """List the recipes; BiT's HyperRule as it is for few images of few pixels, as it goes by them."""
    rows = [recipe(name, examples=1) for name in recipe_names()]
    return RecipeList(tuple((row.training, row.source) for row in rows))
