"""What a classifier answers to every image, and what is correct: by the data's labels, or by those of a file."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.source import Skip, Source
from vitrail.errors import ConfigError, DataError
from vitrail.evaluation.cached import cached_outputs
from vitrail.files import home_path, read_json
from vitrail.models import Model
from vitrail.ops.metrics import bounded, first_classes, log_probabilities, ranks_of
from vitrail.runtime.inference import InferenceOptions

FIRST = 5  # classes of each image that are kept
NUMBERED = re.compile(r"val_(\d{8})(\.[^./]*)?$")  # such as ILSVRC2012_val_00000001, of which the first entry is
Allowed = frozenset[int]


@dataclass(frozen=True, kw_only=True)
class Answers:
    """A row for each image that could be decoded; with NaN among its logits it has no answer, and is wrong."""

    samples: NDArray[np.int64]  # numbers of the images in the source, rising
    labels: NDArray[np.int64]  # the data's; -1: none
    classes: NDArray[np.int64]  # N k: the first five, or all of fewer, best first; -1: no answer
    probabilities: NDArray[np.float32]  # N k, of those
    true_probability: NDArray[np.float32]  # N: of the true class; NaN without one
    ranks: NDArray[np.int64]  # N: classes before the true one; -1 without one
    losses: NDArray[np.float32]  # N; NaN without a true class
    count: int  # of the model's classes
    skipped: tuple[Skip, ...] = ()
    reused: int = 0
    seconds: float = 0.0

    @property
    def answer(self) -> NDArray[np.int64]:
        """The first class of each image; -1: no answer."""
        return self.classes[:, 0]

    @property
    def confidence(self) -> NDArray[np.float32]:
        """Its probability; NaN: no answer."""
        return self.probabilities[:, 0]

    @property
    def has_answer(self) -> NDArray[np.bool_]:
        """Which images have an answer."""
        return self.answer >= 0


@dataclass(frozen=True, kw_only=True)
class Score:
    """Which images count, which of those are correct, and which are correct in the top 5."""

    counted: NDArray[np.bool_]
    correct: NDArray[np.bool_]
    top5: NDArray[np.bool_] | None  # None where there are five classes or fewer


def answers(model: Model, source: Source, options: InferenceOptions, *, labeled: bool = True) -> Answers:
    """Ask a model; `labeled` says that the data's labels are the model's classes, else no class is the true one."""
    count = check_classifier(model)
    if labeled and len(source.class_names) != count:
        raise DataError(f"the model has {count} classes, the data {len(source.class_names)}.")
    kind, read = ("predictions", read_answers) if labeled else ("predictions-unlabeled", _read_unlabeled)
    if model.card.temperature != 1:  # its probabilities are others, and so are the rows that are kept
        kind += f"-temperature-{model.card.temperature:.9g}"
    rows = cached_outputs(model, source, kind, read, options)
    fields = dict(vars(rows))
    return Answers(**fields.pop("values"), **fields, count=count)


def check_classifier(model: Model) -> int:
    """Give how many classes a model has; refuse one that cannot answer."""
    if not model.config.classes:
        raise ConfigError(
            "the model has no classifier, so it names no class. Fine-tune it with vitrail finetune, or measure its "
            "features with vitrail fewshot."
        )
    if (head := getattr(model.config, "head", None)) is not None:
        raise ConfigError(
            f"the model was trained to {head.task}, and names no class of an image. Measure it with vitrail evaluate."
        )
    return model.config.classes


def read_answers(model: Model, images: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
    """Answer a batch."""
    logits = bounded(model(images))
    ranks, first = ranks_of(logits, labels), first_classes(logits, FIRST)
    shares = log_probabilities(logits, model.card.temperature)
    true = torch.where(ranks >= 0, shares.gather(1, labels.clamp(min=0)[:, None])[:, 0], torch.nan)
    return {
        "classes": first,
        "probabilities": shares.gather(1, first.clamp(min=0)).exp(),
        "true_probability": true.exp(),
        "ranks": ranks,
        "losses": -true,
    }


def _read_unlabeled(model: Model, images: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
    return read_answers(model, images, torch.full_like(labels, -1))


def score(found: Answers) -> Score:
    """Score by the data's own labels; images without one do not count."""
    top5 = (found.ranks >= 0) & (found.ranks < FIRST) if found.count > FIRST else None
    return Score(counted=found.labels >= 0, correct=found.ranks == 0, top5=top5)


@dataclass(frozen=True, kw_only=True)
class Given:
    """Which of the model's classes are correct, image by image of a source; none: the image does not count."""

    kind: Literal["labels", "mapping"]
    file: str
    allowed: tuple[Allowed, ...]

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Which images count."""
        return np.array([bool(classes) for classes in self.allowed], dtype=np.bool_)


class Classes:
    """A model's classes as files name them: by number, by name, or by one of the names that commas part."""

    def __init__(self, count: int, names: Sequence[str] | None) -> None:
        self.count, self.named = count, names is not None
        self._whole: dict[str, set[int]] = {}
        self._parts: dict[str, set[int]] = {}
        for number, name in enumerate(names or ()):
            self._whole.setdefault(name, set()).add(number)
            for part in name.split(","):
                self._parts.setdefault(part.strip(), set()).add(number)

    def numbers(self, label: object, where: str) -> set[int]:
        """Read one class."""
        if isinstance(label, int) and not isinstance(label, bool):
            if 0 <= label < self.count:
                return {label}
            raise DataError(f"{where}: there is no class {label}. The model's classes are 0 to {self.count - 1}.")
        if not isinstance(label, str):
            raise DataError(f"{where}: expected the number or the name of a class; got {label!r:.80}.")
        found = self._whole.get(label) or self._parts.get(label) or set()
        if len(found) == 1:
            return found
        if len(found) > 1:
            raise DataError(f"{where}: classes {sorted(found)} are all called {label!r}. Give the number of one.")
        hint = "Check the name." if self.named else "The model does not know the names of its classes: give numbers."
        raise DataError(f"{where}: the model has no class {label!r:.80}. {hint}")

    def __contains__(self, label: str) -> bool:
        return label in self._whole or label in self._parts


def read_labels(path: str | Path, source: Source, classes: Classes) -> Given:
    """Read labels of images: a list in the images' order, such as real.json, or an object of lists by image name."""
    document = _document(path)
    names = [source.name(index) for index in range(len(source))]
    if isinstance(document, list):
        entries = [document[place] for place in _places(path, names, len(document))]
    elif isinstance(document, dict):
        entries = _by_name(path, names, document)
    else:
        raise DataError(f"{path}: expected a JSON list of lists of labels, or an object; got {document!r:.80}.")
    allowed = tuple(
        _classes(entry, classes, f"{path}, image {name}") for name, entry in zip(names, entries, strict=True)
    )
    return _some(Given(kind="labels", file=str(path), allowed=allowed))


def read_mapping(path: str | Path, source: Source, classes: Classes) -> Given:
    """Read which of the model's classes each class of the data stands for; classes that are not named do not count."""
    document = _document(path)
    if not isinstance(document, dict):
        raise DataError(
            f"{path}: expected a JSON object from the data's classes to the model's; got {document!r:.80}. "
            'Such as {"alarm_clock": ["analog clock", 530]}.'
        )
    loose = {_loose(name): entry for name, entry in document.items()}
    if len(loose) < len(document):
        raise DataError(f"{path}: several names are spelled like {_twice([_loose(name) for name in document])!r}.")
    none: list[Any] = []
    entries = [document.get(name, loose.get(_loose(name), none)) for name in source.class_names]
    if source.class_names and all(entry is none for entry in entries):
        raise DataError(
            f"{path} names none of the data's classes, such as {source.class_names[0]!r}; it names "
            f"{', '.join(map(repr, list(document)[:3])) or 'nothing'}. Check that it is of this data."
        )
    table = [
        _classes(_parted(entry, classes), classes, f"{path}, class {name}")
        for name, entry in zip(source.class_names, entries, strict=True)
    ]
    nothing: Allowed = frozenset()
    allowed = tuple(table[label] if label >= 0 else nothing for label in np.asarray(source.labels).tolist())
    return _some(Given(kind="mapping", file=str(path), allowed=allowed))


def score_given(found: Answers, given: Given) -> Score:
    """Score by labels from a file: an answer is correct that is one of an image's."""
    allowed = [given.allowed[sample] for sample in found.samples.tolist()]
    top5 = [any(one in classes for one in row) for row, classes in zip(found.classes.tolist(), allowed, strict=True)]
    first = [one in classes for one, classes in zip(found.answer.tolist(), allowed, strict=True)]
    return Score(
        counted=given.counted[found.samples],
        correct=np.array(first, dtype=np.bool_),
        top5=np.array(top5, dtype=np.bool_) if given.kind == "mapping" and found.count > FIRST else None,
    )


def _document(path: str | Path) -> Any:  # noqa: ANN401
    try:
        return read_json(home_path(path))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}. Check the path.") from error
    except ValueError as error:
        raise DataError(f"{path} is no JSON: {error}. Fetch or write it again.") from error


def _places(path: str | Path, names: Sequence[str], count: int) -> list[int]:
    """Find each image's entry in a list: by the number in its name, or else by the order of all names."""
    numbers = [int(found[1]) for name in names if (found := NUMBERED.search(name))]
    if len(numbers) == len(names):
        if len(set(numbers)) < len(numbers):
            raise DataError(f"{path}: several images have the number {_twice(list(map(str, numbers)))}.")
        wrong = next((name for name, number in zip(names, numbers, strict=True) if not 1 <= number <= count), None)
        if wrong is not None:
            raise DataError(f"{path} has {count:,} entries, and none for {wrong}. Check that it is of this data.")
        return [number - 1 for number in numbers]
    if len(names) != count:
        raise DataError(
            f"{path} has {count:,} entries, the data {len(names):,} images. Expected as many, or names such as "
            "ILSVRC2012_val_00000001.JPEG, whose number is the entry's."
        )
    bases = [_base(name) for name in names]
    if len(set(bases)) < count:
        raise DataError(f"{path}: several images are called {_twice(bases)}. Expected an object of labels by name.")
    return np.argsort(sorted(range(count), key=bases.__getitem__)).tolist()


def _by_name(path: str | Path, names: Sequence[str], document: Mapping[str, Any]) -> list[Any]:
    """Find each image's entry in an object: by its whole name, or by the last part of it."""
    keys = [name if name in document else _base(name) for name in names]
    missing = [name for name, key in zip(names, keys, strict=True) if key not in document]
    if missing:
        raise DataError(
            f"{path} has no labels for {len(missing):,} of {len(names):,} images, such as {missing[0]}. "
            "Give each a list; an empty one leaves an image out."
        )
    loose = [key for name, key in zip(names, keys, strict=True) if key != name]
    if len(set(loose)) < len(loose):
        raise DataError(f"{path}: several images are called {_twice(loose)}. Expected their whole names.")
    return [document[key] for key in keys]


def _classes(entry: object, classes: Classes, where: str) -> Allowed:
    if not isinstance(entry, list):
        raise DataError(f"{where}: expected a list of labels; got {entry!r:.80}.")
    return frozenset[int]().union(*(classes.numbers(label, where) for label in entry))


def _parted(entry: object, classes: Classes) -> object:
    """Make a list of what may be one class, or several in one text, parted by semicolons."""
    if isinstance(entry, str) and entry not in classes:
        return [part.strip() for part in entry.split(";") if part.strip()]
    return entry if isinstance(entry, list) else [entry]


def _some(given: Given) -> Given:
    if not given.counted.any():
        raise DataError(f"{given.file} leaves no image to count. Check that it is of this data.")
    return given


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _loose(name: str) -> str:
    """Spell a name alike however its words are parted: alarm_clock is Alarm clock."""
    return " ".join(re.findall(r"\w+", name.replace("_", " ").casefold()))


def _twice(names: Sequence[str]) -> str:
    return Counter(names).most_common(1)[0][0]
