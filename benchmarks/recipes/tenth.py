"""Cuts packed images into a tenth, of every class, and the rest, by content: `python tenth.py PACKED OUT`."""

import sys
from pathlib import Path

from vitrail.data.open import open_split
from vitrail.data.sources.packed import pack
from vitrail.data.splits import split

source, out = open_split(sys.argv[1]), Path(sys.argv[2])
assert source.shape is not None
for name, part in split(source, {"labeled": 0.1, "rest": 0.9}, seed=0).items():
    if not (out / name).exists():
        out.mkdir(parents=True, exist_ok=True)
        pack(part, out / name, source.shape[0], overwrite=False, progress=lambda done, total: None)
