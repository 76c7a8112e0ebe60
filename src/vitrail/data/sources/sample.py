"""The sample in the box: a part of Fashion-MNIST (Xiao et al., 2017), so that everything runs without a download."""

from importlib.resources import as_file, files

import numpy as np

from vitrail.data.sources.memory import MemorySource


def sample_splits() -> dict[str, MemorySource]:
    """Open the sample: 2,000 grey images of 28x28 pixels to train on and 1,000 to test, of ten classes."""
    with as_file(files("vitrail.data") / "sample" / "fashion.npz") as path, np.load(path, allow_pickle=False) as file:
        class_names = tuple(file["class_names"].tolist())
        return {
            split: MemorySource(
                file[f"{split}_images"][..., None],
                file[f"{split}_labels"],
                class_names,
                title=f"Fashion-MNIST {split}",
            )
            for split in ("train", "test")
        }
