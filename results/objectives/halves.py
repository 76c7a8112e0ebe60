"""Part Tiny-ImageNet's subset by classes, as the runs beside this file had it.

`python results/objectives/halves.py DATA OUT`

OUT/first, to pre-train on: every second class, all its images. OUT/second, to fine-tune on: the other classes, the
first 100 training images of each and all validation images.
"""

import argparse
from pathlib import Path

import numpy as np

from vitrail.data.open import open_data
from vitrail.data.sources.packed import pack
from vitrail.data.splits import SomeClasses, Subset

SIDE, EACH = 64, 100


def main() -> None:
    """Pack both halves."""
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("data", metavar="DATA")
    reader.add_argument("out", metavar="OUT", type=Path)
    asked = reader.parse_args()
    for name, source in open_data(asked.data).items():
        classes = sorted(source.class_names)
        first, second = SomeClasses(source, classes[0::2]), SomeClasses(source, classes[1::2])
        if name == "train":
            second = Subset(second, few_of_each(second.labels))
        for half, some in (("first", first), ("second", second)):
            (asked.out / half).mkdir(parents=True, exist_ok=True)
            pack(some, asked.out / half / name, SIDE, overwrite=False)


def few_of_each(labels: np.ndarray) -> np.ndarray:
    """Choose the first samples of every class, in the source's order."""
    return np.sort(np.concatenate([np.flatnonzero(labels == label)[:EACH] for label in np.unique(labels)]))


if __name__ == "__main__":
    main()
