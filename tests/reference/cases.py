"""The authors' answers, and the rule that draws their weights and images again."""

import json
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "cases"
MODELS = sorted(path.stem for path in FOLDER.glob("*.json") if not path.stem.startswith("position"))


def read(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


@lru_cache(maxsize=1)
def weights_of(name: str) -> dict[str, np.ndarray]:
    """Draw the weights of a case once for the tests that follow one another; they are not to be written to."""
    drawn = draw_weights(read(name))
    for array in drawn.values():
        array.flags.writeable = False
    return drawn


def draw_weights(case: dict[str, Any]) -> dict[str, np.ndarray]:
    return {
        name: draw(name, tuple(shape), case["seed"], case.get("stem_scale", 1))
        for name, shape in case["weights"].items()
    }


def draw(name: str, shape: tuple[int, ...], seed: int, stem_scale: float = 1) -> np.ndarray:
    value = np.random.RandomState((zlib.crc32(name.encode()) ^ seed) & 0x7FFFFFFF).standard_normal(shape)
    value = value.astype(np.float32)
    last = name.rsplit("/", maxsplit=1)[-1]
    if last in ("scale", "gamma"):
        value = 1 + 0.1 * value
    elif last in ("bias", "beta"):
        value = 0.02 * value
    elif last in ("cls", "pos_embedding"):
        value = 0.5 * value
    elif name.endswith("out/kernel"):
        value = value / np.sqrt(np.prod(shape[:2]))
    elif len(shape) == 3:
        value = value / np.sqrt(shape[0])
    else:
        value = value / np.sqrt(np.prod(shape[:-1]))
    if name.startswith("embedding/") or last in ("cls", "pos_embedding"):
        value = value * stem_scale
    return value.astype(np.float32)


def draw_images(case: dict[str, Any]) -> np.ndarray:
    """B H W C, as the authors' code reads them."""
    uniform = np.random.RandomState(case["seed"]).uniform(-1, 1, (case.get("n", 2), *case["size"], 3))
    return (uniform.astype(np.float32) * case.get("image_scale", 1)).astype(np.float32)
