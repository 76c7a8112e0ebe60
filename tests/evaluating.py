"""Images with names to evaluate on, some of them spoilt or without a label, and a model that guesses."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitrail.config import Card
from vitrail.data.decode import ImageError, Pixels
from vitrail.data.sources.memory import MemorySource
from vitrail.models import Model, create
from vitrail.runtime.inference import InferenceOptions
from vitrail.runtime.machine import Group

NAMES = tuple("abcdefg")
HEIGHT, WIDTH = 8, 12
CPU = Group(device=torch.device("cpu"))


class Pictures(MemorySource):
    """Pixels with names; some cannot be read, some have no label. It counts how often each is read."""

    def __init__(
        self, number: int, classes: Sequence[str] = NAMES, *, names: Sequence[str] | None = None, seed: int = 4
    ) -> None:
        random = np.random.default_rng(seed)
        pixels = random.integers(0, 256, (number, HEIGHT, WIDTH, 3), dtype=np.uint8)
        super().__init__(pixels, random.integers(0, len(classes), number), classes)
        self.names, self.spoilt, self.reads = names, frozenset[int](), list[int]()

    def spoil(self, *samples: int) -> "Pictures":
        self.spoilt = frozenset(samples)
        return self

    def forget(self, samples: Collection[int]) -> "Pictures":
        self._labels = np.where(np.isin(np.arange(len(self)), list(samples)), -1, self._labels)
        return self

    def read(self, index: int) -> Pixels:
        self.reads.append(index)
        if index in self.spoilt:
            raise ImageError("spoilt")
        return super().read(index)

    def name(self, index: int) -> str:
        return super().name(index) if self.names is None else self.names[index]


def guessing(classes: int | None = 7, *, seed: int = 0, names: Sequence[str] | None = None, **changes: Any) -> Model:
    """A model whose every weight is random, the head large enough for answers that differ."""
    fields: dict[str, Any] = {"depth": 1, "width": 24, "heads": 3, "mlp_width": 29, **changes}
    model = create("ViT-Ti/4", image_size=(HEIGHT, WIDTH), classes=classes, seed=seed, **fields)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.normal_(generator=generator)
    model.card = Card(class_names=None if names is None else tuple(names))
    return model.eval()


def passing(**changes: Any) -> InferenceOptions:
    return InferenceOptions(**{"group": CPU, "batch_size": 4, "bad_image_limit": 0.5, **changes})


def logits_of(model: Model, source: MemorySource) -> np.ndarray[Any, np.dtype[np.float64]]:
    """What a model says of each image by itself, in plain steps."""
    images = [(MemorySource.read(source, index).astype(np.float32) - 127.5) / 127.5 for index in range(len(source))]
    with torch.inference_mode():
        rows = [model(torch.from_numpy(image).permute(2, 0, 1)[None])[0].double().numpy() for image in images]
    return np.stack(rows)


def write_folder(root: Path, source: MemorySource) -> Path:
    """Write images as PNG files, a folder for each class."""
    for index in range(len(source)):
        folder = root / source.class_names[int(source.labels[index])]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(MemorySource.read(source, index)).save(folder / f"{index:03d}.png")
    return root
