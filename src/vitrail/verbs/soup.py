"""`vitrail.soup`: several fine-tuned runs as one model whose weights are their mean (Wortsman et al., 2022)."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from vitrail.checkpoint.averaging import differences, mean_model
from vitrail.checkpoint.load import of_run
from vitrail.checkpoint.run_folder import BEGUN, RUN_FILES, read_document, write_documents, write_run
from vitrail.config import Provenance
from vitrail.config.check import one_of
from vitrail.data.open import open_data
from vitrail.data.source import Source, Subset
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.evaluation.answers import answers, check_classifier, score
from vitrail.files import check_replaceable, home_path, new_folder, read_arrays, write_sums
from vitrail.inspection.views import has_classes_of
from vitrail.models import Model
from vitrail.runtime.inference import InferenceOptions, choose_model
from vitrail.runtime.reporter import text_table
from vitrail.train.task import CUT, folder_of, kept_back, was_trained_on, without_held_out
from vitrail.verbs.opening import AnyModel, Measuring, data_name, measuring, model_name, open_model, run_of

How = Literal["uniform", "greedy"]
SOUP = "soup.json"


class Score(NamedTuple):
    """How good weights are on the validation images."""

    accuracy: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class Member:
    """A model that was asked for, how good it is where that was measured, and whether it is in the soup."""

    name: str
    score: Score | None
    taken: bool


@dataclass(frozen=True, kw_only=True)
class Soup:
    """A mean of models: the model, its members, and how good all of them are on the validation images."""

    model: Model = field(repr=False)
    how: How
    members: tuple[Member, ...]  # best first where they were measured, else as they were given
    score: Score | None
    images: int  # of the validation split; 0 where there was none
    split: str
    folder: Path | None

    @property
    def held(self) -> Model | None:
        """The model, where it is in memory alone: what other verbs take."""
        return self.model if self.folder is None else None

    def __fspath__(self) -> str:
        """Give the folder's path, for what takes one."""
        if self.folder is None:
            raise ConfigError("the soup has no folder. Give its model, or make it again with out=...")
        return str(self.folder)

    def document(self) -> dict[str, Any]:
        """Give it as plain values, for JSON."""
        return {
            "how": self.how,
            "members": [
                {"name": member.name, "taken": member.taken, **_numbers(member.score)} for member in self.members
            ],
            **_numbers(self.score),
            "images": self.images,
            "split": self.split,
            "folder": None if self.folder is None else str(self.folder),
        }

    def __str__(self) -> str:
        named = [(member.name, member.score, "yes" if member.taken else "no") for member in self.members]
        rows = [
            (name, *(("", "") if found is None else (f"{found.accuracy:.2%}", f"{found.loss:.4f}")), taken)
            for name, found, taken in (*named, (f"their {self.how} soup", self.score, ""))
        ]
        count = sum(member.taken for member in self.members)
        title = f"A {self.how} soup of {count} of {len(self.members)} models"
        title += f", on {self.images:,} validation images ({self.split})" if self.images else ", not measured"
        lines = text_table(title, ("model", "accuracy", "loss", "taken"), rows)
        return "\n".join([*lines, *([] if self.folder is None else [f"in {self.folder}"])])


def soup(
    models: Sequence[AnyModel],
    data: object = None,
    *,
    how: How = "uniform",
    split: str | None = None,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    allow_pipe: bool = False,
    **options: Unpack[Measuring],
) -> Soup:
    """Average the weights of models that were fine-tuned from the same ones (model soups, Wortsman et al., 2022).

    `models` are runs, their folders, files or models in memory, whose configurations are equal. A `uniform` soup is the
    mean of all. A `greedy` one begins with the best on the validation images of `data`, and takes each of the others,
    best first, that makes the mean no worse there. With `data` every member and the soup are measured. The images are
    those that all of the runs kept back from training, or else those of the val split, never test's; `split` takes
    another. `out` is a folder that every verb opens, with soup.json beside the weights. Other options are those of
    `vitrail.evaluate`.
    """
    one_of("how", how, ("uniform", "greedy"))
    if isinstance(models, str | os.PathLike | Model) or not isinstance(models, Sequence):
        raise ConfigError("a soup is of several models. Give a list of them.")
    if not models:
        raise ConfigError("a soup needs at least one model. Give runs, best several of one task.")
    if how == "greedy" and data is None:
        raise ConfigError("a greedy soup is chosen on validation images. Give data, or how=uniform.")
    asked = [of_run(model) for model in models]
    target = None if out is None else home_path(out)
    if target is not None:
        check_replaceable(target, overwrite=overwrite, ours=(*RUN_FILES, SOUP, CUT))
    names, runs = [model_name(model) for model in asked], [run_of(model) for model in asked]
    with measuring(soup, asked[0], options) as given:
        members = Members(asked, names, options)
        first = members.check()
        for note in (*members.notes, *_beginnings(runs, names)):
            given.report.note(note)
        source, said = None, ""
        if data is not None:
            source, said = choose_validation(open_data(data, allow_pipe=allow_pipe), runs, data_name(data), split)
            check_classifier(first)
            if not has_classes_of(first, source) or members.classes not in (None, source.class_names):
                raise DataError(f"the models' {first.config.classes} classes are not the data's. Give data of theirs.")
        scores = [members.measure([number], source, given) for number in range(len(asked))]
        order = sorted(range(len(asked)), key=lambda number: -_accuracy(scores[number]))
        taken, found = order, None
        if how == "greedy":
            taken, found = _greedy(members, order, [each for each in scores if each], source, given)
        elif source is not None:
            found = members.measure(taken, source, given)
        model = members.mean(sorted(taken))
        if found is not None:
            model.card = replace(model.card, metrics=found._asdict())
        model.to(given.group.device)
        made = Soup(
            model=model,
            how=how,
            members=tuple(Member(name=names[each], score=scores[each], taken=each in taken) for each in order),
            score=found,
            images=0 if source is None else len(source),
            split=said,
            folder=target,
        )
        if target is not None and given.group.is_main:
            _write(made, target, runs, overwrite=overwrite)
    return made


class Members:
    """Models that are opened one at a time, so that memory holds one of them and a sum."""

    def __init__(self, models: Sequence[AnyModel], names: Sequence[str], said: Mapping[str, Any]) -> None:
        self.models, self.names, self.said = models, names, said
        self.notes: list[str] = []
        self.classes: tuple[str, ...] | None = None  # of those that name any

    def open(self, number: int) -> Model:
        """Open one on the CPU; refuse what has no weights to average."""
        asked = self.models[number]
        place = None if isinstance(asked, Model) else "cpu"
        model = open_model(asked, None, place, {name: value for name, value in self.said.items() if name != "device"})
        if model.plain is not model or not model.state_dict():
            raise ConfigError(f"{self.names[number]} is made for one engine. Give the checkpoint that it came from.")
        for name, tensor in model.state_dict().items():
            if not tensor.isfinite().all():
                raise ConfigError(f"{self.names[number]} diverged: its {name} is not all finite. Leave it out.")
        return model

    def check(self) -> Model:
        """Open all of them once, and refuse those that are not of one kind; give the first."""
        first = self.open(0)
        self.classes = first.card.class_names
        for number, name in enumerate(self.names[1:], start=1):
            model = self.open(number)
            if differing := differences(first.config, model.config):
                raise ConfigError(
                    f"{name} and {self.names[0]} have other configurations: {'; '.join(differing[:6])}. Weights are "
                    "averaged only where these are equal. Leave one of them out."
                )
            self.classes = self.classes or model.card.class_names
            if model.card.class_names not in (None, self.classes):
                raise ConfigError(f"{name} and {self.names[0]} tell other classes apart. Leave one of them out.")
            if model.card.preprocessing != first.card.preprocessing:
                raise ConfigError(
                    f"{name} and {self.names[0]} read images otherwise: {model.card.preprocessing} and "
                    f"{first.card.preprocessing}. Leave one out, or give mean, deviation, resize, ... for both."
                )
            if model.config != first.config:
                self.notes.append(f"{name} was trained with other dropout than {self.names[0]}, whose fields are taken")
        return first

    def mean(self, numbers: Sequence[int]) -> Model:
        """Give a model of the mean weights, on the CPU; of one member that has its card."""
        made = mean_model(map(self.open, numbers))
        if len(numbers) > 1:  # a temperature is of one model's logits, and so is what was measured of it
            changes = (f"the mean of {', '.join(self.names[number] for number in numbers)}",)
            came = Provenance(source="", layout="vitrail", container="soup", changes=changes)
            changed = replace(made.card, metrics={}, temperature=1.0, provenance=came)
            made.card = replace(changed, class_names=self.classes)
        return made

    def measure(self, numbers: Sequence[int], source: Source | None, options: InferenceOptions) -> Score | None:
        """Measure the mean of some; nothing without images."""
        if source is None:
            return None
        name = self.names[numbers[0]] if len(numbers) == 1 else f"the mean of {len(numbers)}"
        model = choose_model(self.mean(sorted(numbers)).to(options.group.device), len(source), options)
        found = answers(model, source, options.showing(f"measuring {name}"))
        counted = score(found)
        if not counted.counted.any():
            raise DataError("none of the validation images has a label. Give images that have.")
        losses = found.losses[counted.counted]
        return Score(float(counted.correct[counted.counted].mean()), float(np.nanmean(losses)))


def _greedy(
    members: Members, order: Sequence[int], scores: Sequence[Score], source: Source | None, options: InferenceOptions
) -> tuple[list[int], Score]:
    """Begin with the best, and take each of the others that makes the mean no worse."""
    taken, best = [order[0]], scores[order[0]]
    for number in order[1:]:
        found = members.measure([*taken, number], source, options)
        assert found is not None
        if found.accuracy >= best.accuracy:
            taken, best = [*taken, number], found
    return taken, best


def choose_validation(
    splits: Mapping[str, Source], runs: Sequence[Path | Model | None], data: str, split: str | None
) -> tuple[Source, str]:
    """Choose the images that all runs kept back, or else those of a val split; refuse test images."""
    if split == "test":
        raise ConfigError("a soup that is chosen on test images makes their numbers too good. Give validation images.")
    if split is not None and split not in splits:
        raise DataError(f"{data}: there is no split {split!r}. There are: {', '.join(splits)}.")
    whole = {name: _left(source, runs) for name, source in splits.items()}
    for name in ("all", "train") if split is None else (split,):
        if name in whole:
            cuts = [None if run is None else kept_back(run, whole[name]) for run in runs]
            kept = [cut[1].indices for cut in cuts if cut is not None]
            if len(kept) == len(runs):
                numbers = reduce(np.intersect1d, kept)
                if not len(numbers):
                    raise DataError("the runs kept back other images each: there is none that all were not trained on.")
                return Subset(whole[name], numbers), f"those of {name} that all runs kept back"
    name = split or next((name for name in ("val", "dev") if name in splits), None)
    if name is None:
        raise DataError(
            f"{data} has no val split, and not all models are runs that kept images back. Give validation images: "
            "data with a val split, or split= of those that none was trained on."
        )
    if name in ("all", "train") and any(run is not None and was_trained_on(run, whole[name]) for run in runs):
        raise DataError(f"a run was trained on {name}, of which it is too sure. Give validation images.")
    return whole[name], name


def _left(source: Source, runs: Sequence[Path | Model | None]) -> Source:
    """Leave out the classes that runs kept out of their training."""
    for run in runs:
        source = source if run is None else without_held_out(run, source)
    return source


def _beginnings(runs: Sequence[Path | Model | None], names: Sequence[str]) -> Iterator[str]:
    """Warn of runs that did not begin with the same weights, where their folders say what they began with."""
    found: dict[str, object] = {}
    for run, name in zip(runs, names, strict=True):
        try:
            document = read_document(folder_of(run) / BEGUN) if isinstance(run, Path) else {}
        except CheckpointError:
            continue
        if "weights" in document:
            seed = document.get("training", {}).get("seed") if document["weights"] is None else None
            found[name] = (document["weights"], seed)
    if len({*found.values()}) > 1:
        yield (
            "the runs did not begin with the same weights: a mean of such is seldom good. Fine-tune all of them from "
            "one checkpoint."
        )


def _accuracy(found: Score | None) -> float:
    return 0.0 if found is None else found.accuracy


def _numbers(found: Score | None) -> dict[str, Any]:
    return {"accuracy": None, "loss": None} if found is None else found._asdict()


def _write(made: Soup, folder: Path, runs: Sequence[Path | Model | None], *, overwrite: bool) -> None:
    """Write a folder that every verb opens, with what all of its members kept back."""
    weights = {name: tensor.detach().cpu() for name, tensor in made.model.state_dict().items()}
    with new_folder(folder, overwrite=overwrite, ours=(*RUN_FILES, SOUP, CUT)) as temporary:
        write_run(temporary, made.model.config, weights, made.model.card)
        write_documents(temporary, {SOUP: made.document()})
        if (cut := _common_cut(runs)) is not None:
            np.savez(
                temporary / CUT, train=cut["train"], dev=cut["dev"], share=np.array(0.0), fingerprint=cut["fingerprint"]
            )
        write_sums(temporary)


def _common_cut(runs: Sequence[Path | Model | None]) -> dict[str, NDArray[Any]] | None:
    """Give what any of the runs was trained on and what all kept back, where all were given the same images."""
    cuts: list[Mapping[str, NDArray[Any]]] = []
    for run in runs:
        try:
            cuts.append(read_arrays(folder_of(run) / CUT) if isinstance(run, Path) else {})
        except (OSError, ValueError):
            return None
    names = ("train", "dev", "fingerprint")
    if any(name not in cut for cut in cuts for name in names) or len({str(cut["fingerprint"]) for cut in cuts}) != 1:
        return None
    train, kept = (
        reduce(np.union1d, [cut["train"] for cut in cuts]),
        reduce(np.intersect1d, [cut["dev"] for cut in cuts]),
    )
    return {"train": train, "dev": kept, "fingerprint": cuts[0]["fingerprint"]}
