"""Labels from a file: several for an image (ReaL, Beyer et al., 2020), or the model's for a class (ObjectNet)."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitrail.data.source import Source
from vitrail.errors import DataError
from vitrail.evaluation.answers import FIRST, Answers, Score

NUMBERED = re.compile(r"val_(\d{8})$")  # such as ILSVRC2012_val_00000001, of which the first entry is
Allowed = frozenset[int]


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
        return json.loads(Path(path).expanduser().read_bytes())
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}. Check the path.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is no JSON: {error}. Fetch or write it again.") from error


def _places(path: str | Path, names: Sequence[str], count: int) -> list[int]:
    """Find each image's entry in a list: by the number in its name, or else by the order of all names."""
    stems = [_base(name).rpartition(".")[0] or _base(name) for name in names]
    numbers = [int(found[1]) for stem in stems if (found := NUMBERED.search(stem))]
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
    order = sorted(range(count), key=bases.__getitem__)
    places = [0] * count
    for place, index in enumerate(order):
        places[index] = place
    return places


def _by_name(path: str | Path, names: Sequence[str], document: Mapping[str, Any]) -> list[Any]:
    """Find each image's entry in an object: by its whole name, or by the last part of it."""
    bases = [_base(name) for name in names]
    missing = [name for name, base in zip(names, bases, strict=True) if name not in document and base not in document]
    if missing:
        raise DataError(
            f"{path} has no labels for {len(missing):,} of {len(names):,} images, such as {missing[0]}. "
            "Give each a list; an empty one leaves an image out."
        )
    loose = [base for name, base in zip(names, bases, strict=True) if name not in document]
    if len(set(loose)) < len(loose):
        raise DataError(f"{path}: several images are called {_twice(loose)}. Expected their whole names.")
    return [document[name] if name in document else document[base] for name, base in zip(names, bases, strict=True)]


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
