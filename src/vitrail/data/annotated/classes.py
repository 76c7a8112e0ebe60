"""Which number of a mask is which class: as a file beside the masks says, or as the masks themselves show."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrail.data.annotation import MOST, VOID
from vitrail.data.decode import ImageError
from vitrail.data.mask_files import MOST as LARGEST
from vitrail.errors import DataError, some_of
from vitrail.files import parse_json, read_regular

LOOKED_AT = 1000  # masks whose numbers are read where no file names them
FILES = ("classes.json", "classes.txt")
WORDS = ("void", "ignore")  # names of what counts nowhere
SIZE = 1 << 20  # bytes of a file of names
NAMED = 8
CURE = 'Name them in classes.json beside the folders: {"0": "background", "1": "cat", "255": "void"}.'


@dataclass(frozen=True)
class MaskClasses:
    """The classes of pixels, and the number that stands for each in a mask."""

    names: tuple[str, ...]
    values: tuple[int, ...]
    void: tuple[int, ...]  # numbers that count nowhere
    named: bool  # by a file

    def read(self, numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Turn numbers of a mask into classes, and what counts nowhere into VOID; refuses numbers of no class."""
        table = np.full(LARGEST + 1, -1, dtype=np.int16)
        table[list(self.void)] = VOID
        table[list(self.values)] = np.arange(len(self.values))
        classes = table[numbers]
        if (classes < 0).any():
            unknown = [str(value) for value in np.unique(numbers[classes < 0])]
            known = some_of([str(value) for value in self.values], NAMED)
            raise ImageError(f"the mask has {some_of(unknown, NAMED)}, which is no class; the classes are {known}")
        return classes.astype(np.uint8)


def read_classes(root: Path) -> MaskClasses | None:
    """Read the names of the classes from a file in a folder; None where there is none."""
    path = next((root / name for name in FILES if (root / name).is_file()), None)
    if path is None:
        return None
    try:
        text = read_regular(path, most=SIZE).decode("utf-8")
        said = parse_json(text) if path.suffix == ".json" else [line.strip() for line in text.splitlines()]
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}. {CURE}") from error
    if isinstance(said, list):
        said = {str(number): name for number, name in enumerate(said) if name != ""}
    whole = isinstance(said, dict) and all(isinstance(name, str) and name for name in said.values())
    if not whole or not said or not all(value.isdecimal() and int(value) <= LARGEST for value in said):
        raise DataError(f"{path} must name the numbers of the masks; got {json.dumps(said)[:120]}. {CURE}")
    return _made({int(value): name for value, name in said.items()}, str(path), named=True)


def find_classes(
    masks: Callable[[int], NDArray[np.int64]], count: int, where: str, progress: Callable[[int, int], None] | None
) -> MaskClasses:
    """Find the classes as the numbers that masks have, some of them where they are many; 255 counts nowhere.

    Where 0 and 255 are all that there is, 255 is the one class beside the background.
    """
    seen: set[int] = set()
    refused = ""
    for done, index in enumerate(_spread(count)):
        try:
            seen |= {int(value) for value in np.unique(masks(index))}
        except ImageError as error:  # of which training and `data check` tell
            refused = refused or f" The first that cannot be: {error}."
            continue
        if len(seen) > MOST + 1:
            raise DataError(
                f"{where}: the masks have more than {MOST} different numbers, so they are no classes: expected a "
                "number for each class, saved without loss as PNG. For one for each object, put them into instances/."
            )
        if progress is not None:
            progress(done + 1, min(count, LOOKED_AT))
    if not seen - {VOID}:
        raise DataError(f"{where}: no mask that was read has a class in it.{refused} Check the masks.")
    if seen == {0, VOID}:
        return _made({0: "background", VOID: "foreground"}, where, named=False)
    return _made({value: "void" if value == VOID else str(value) for value in sorted(seen)}, where, named=False)


def _made(names: dict[int, str], where: str, *, named: bool) -> MaskClasses:
    void = tuple(value for value, name in names.items() if name.lower() in WORDS)
    kept = {value: name for value, name in sorted(names.items()) if value not in void}
    if VOID not in kept:
        void = tuple(sorted({*void, VOID}))
    if len(set(kept.values())) < len(kept) or not 1 <= len(kept) <= MOST:
        raise DataError(
            f"{where}: expected 1 to {MOST} classes, each name once; got {', '.join(kept.values())}. {CURE}"
        )
    return MaskClasses(tuple(kept.values()), tuple(kept), void, named)


def _spread(count: int) -> Iterator[int]:
    yield from np.unique(np.linspace(0, count - 1, min(count, LOOKED_AT)).astype(np.int64)).tolist()
