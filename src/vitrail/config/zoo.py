"""The zoo: every model of the paper by its name, as tables, and the one parser of names."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from vitrail.config.check import pair
from vitrail.config.fields import decode, make, read_settings
from vitrail.config.model import BiTConfig, HybridStem, ModelConfig, PatchStem, Stem, ViTConfig
from vitrail.config.words import suggest
from vitrail.errors import ConfigError

BOX = Path(__file__).parents[1] / "box"  # models that come with the package, a run folder each


class Shape(NamedTuple):
    """A row of Table 1."""

    depth: int
    width: int
    mlp_width: int
    heads: int


SHAPES = {
    "Ti": Shape(12, 192, 768, 3),
    "S": Shape(12, 384, 1536, 6),
    "b": Shape(12, 384, 1536, 12),  # Fig. 4: B with every width halved, that of a head too
    "B": Shape(12, 768, 3072, 12),
    "L": Shape(24, 1024, 4096, 16),
    "H": Shape(32, 1280, 5120, 16),
    "g": Shape(40, 1408, 6144, 16),
    "G": Shape(48, 1664, 8192, 16),
}
# The side of R+ViT-Ti/16's tokens is 32 pixels, 8x8 patches of a map at a quarter: the name is the authors'.
HYBRID_STEMS = {
    ("R", 16): HybridStem(units=(), patch=8),
    ("R26", 32): HybridStem(units=(2, 2, 2, 2)),
    ("R50", 16): HybridStem(units=(3, 4, 9)),
    ("R50", 32): HybridStem(units=(3, 4, 6, 3)),
}
RESNETS = {"R50": (3, 4, 6, 3), "R101": (3, 4, 23, 3), "R152": (3, 8, 36, 3), "R200": (3, 24, 36, 3)}

# What stands before a ViT's name, and the fields that it changes.
STYLES: dict[str, dict[str, object]] = {"Axial": {"attention": "axial", "pooling": "mean"}}

_NAMES = (
    *("ViT-Ti/16", "ViT-S/16", "ViT-S/32", "ViT-b/32", "ViT-B/8", "ViT-B/16", "ViT-B/32"),
    *("ViT-L/16", "ViT-L/32", "ViT-H/14", "ViT-g/14", "ViT-G/14"),
    *("Axial-ViT-B/16", "Axial-ViT-B/32"),
    *("R+ViT-Ti/16", "R26+ViT-S/32", "R26+ViT-B/32"),
    *("R50+ViT-B/16", "R50+ViT-B/32", "R50+ViT-L/16", "R50+ViT-L/32"),
    *("BiT-R50x1", "BiT-R50x2", "BiT-R50x3", "BiT-R101x1", "BiT-R101x3"),
    *("BiT-R152x1", "BiT-R152x2", "BiT-R152x4", "BiT-R200x3"),
)
# A name that every part of a model is in, so that any field of a checkpoint's can be read.
EVERY_PART = "R50+ViT-B/16"
# What files of other libraries may leave open, beside the image size.
FILE_FIELDS = ("heads", "grid", "activation", "epsilon", "names")
APART = ("grid", "names")  # of these, those that are no fields of a model
_VIT = re.compile(r"(?:(?P<style>[A-Za-z]+)-)?(?:(?P<resnet>R\d*)\+)?ViT-(?P<shape>[A-Za-z]+)/(?P<patch>[1-9]\d*)")
LETTERS = {"tiny": "Ti", "small": "S", "base": "B", "b": "B", "large": "L", "l": "L", "huge": "H", "h": "H"}
_THEIRS = re.compile(rf"(?:vit|deit3?)[_-](?P<size>{'|'.join(LETTERS)})(?:_patch|[_-])(?P<patch>\d+).*")
_BIT = re.compile(r"(?:BiT-)?(?P<resnet>R\d+)x(?P<factor>[1-9]\d*)")


def boxed() -> tuple[str, ...]:
    """Name the trained models that come with the package, which `vitrail.load` opens."""
    return tuple(sorted(path.parent.name for path in BOX.glob("*/config.json")))


def names() -> tuple[str, ...]:
    """List the names that `vitrail.create` takes; a ViT may have any other patch side too, a BiT any other width.

    Those of the models in the box are the last: `vitrail.load` opens them as they were trained.
    """
    return (*_NAMES, *boxed())


def parse(name: str, changes: Mapping[str, object] | None = None) -> ModelConfig:
    """Read a name such as ViT-B/16, R50+ViT-B/16, BiT-R50x1 or vitrail-ti8, with these fields changed."""
    kind, values = row(name)
    return make(kind, values, changes or {})


def row(name: str) -> tuple[type[ModelConfig], dict[str, object]]:
    """Find the kind of a model and the fields that its name says; of one in the box all, as its configuration does."""
    if not isinstance(name, str):
        raise ConfigError(f"a model's name is a text such as 'ViT-B/16'; got {name!r}.")
    if (match := _VIT.fullmatch(name)) and match["shape"] in SHAPES and match["style"] in (None, *STYLES):
        stem = _stem(match["resnet"], int(match["patch"]))
        return ViTConfig, {"stem": stem, **SHAPES[match["shape"]]._asdict(), **STYLES.get(match["style"], {})}
    if (match := _BIT.fullmatch(name)) and match["resnet"] in RESNETS:
        return BiTConfig, {"units": RESNETS[match["resnet"]], "width": 64 * int(match["factor"])}
    if match := _THEIRS.fullmatch(name):  # of timm and torchvision
        raise ConfigError(f"unknown model {name!r}. Did you mean 'ViT-{LETTERS[match['size']]}/{match['patch']}'?")
    if re.fullmatch(r"[\w.-]+/[\w.-]*[a-z][\w.-]*", name):  # a patch is no word
        raise ConfigError(f"unknown model {name!r}. Did you mean 'hf:{name}', of the Hugging Face hub?")
    if name in boxed():
        config = decode(json.loads((BOX / name / "config.json").read_text("utf-8"))["model"])
        return type(config), {**vars(config)}
    raise ConfigError(f"unknown model {name!r}.{suggest(name, names())}")


def read_model_settings(
    settings: Iterable[str], given: Mapping[str, object] | None = None, *, name: str = EVERY_PART
) -> dict[str, object]:
    """Read `field=value` or `model.field=value` of a named model, or of a checkpoint's, `grid` and `names` too."""
    texts = [text.strip().removeprefix("model.") for text in settings]
    values = dict(given or {})
    apart: dict[str, object] = {}
    for field in APART:
        said = [text.partition("=")[2].strip() for text in texts if re.match(rf"{field}\s*=", text)]
        said += [values.pop(field)] if field in values else []
        if len(said) > 1:
            raise ConfigError(f"{field} is given twice. Give it once.")
        if said:
            apart[field] = _grid(said[0]) if field == "grid" else said[0]
    fields = (text for text in texts if not re.match(rf"({'|'.join(APART)})\s*=", text))
    return read_settings(*row(name), fields, values) | apart


def _grid(value: object) -> tuple[int, int]:
    """Read the (rows, cols) of a position table, or 14x10."""
    if isinstance(value, str):
        sides = re.split(r"[x,]", value.strip("() ").replace(" ", "").lower())
        value = [int(side) if side.isdecimal() else side for side in sides]
    return pair("grid", value, "(rows, cols) of the file's position table")


def _stem(resnet: str | None, patch: int) -> Stem:
    if resnet is None:
        return PatchStem(patch=patch)
    if (resnet, patch) not in HYBRID_STEMS:
        known = ", ".join(f"{name}+ViT-*/{side}" for name, side in HYBRID_STEMS)
        raise ConfigError(f"unknown hybrid {resnet}+ViT-*/{patch}. There are: {known}.")
    return HYBRID_STEMS[resnet, patch]


def name_of(config: ModelConfig) -> str | None:
    """Find the paper's name of a model, numerics, head and image size aside; none where it has none."""
    if isinstance(config, BiTConfig):
        found = next((name for name, units in RESNETS.items() if units == config.units), None)
        return f"BiT-{found}x{config.width // 64}" if found and config.width % 64 == 0 else None
    shape = Shape(config.depth, config.width, config.mlp_width, config.heads)
    letter = next((letter for letter, known in SHAPES.items() if known == shape), None)
    if letter is None or config.norm != "pre":
        return None
    style = "" if config.attention == "full" else "Axial-"
    if isinstance(config.stem, PatchStem):
        return f"{style}ViT-{letter}/{config.stem.patch}"
    body = (config.stem.units, config.stem.width, config.stem.patch)
    for (resnet, patch), stem in HYBRID_STEMS.items():
        if (stem.units, stem.width, stem.patch) == body:
            return f"{style}{resnet}+ViT-{letter}/{patch}"
    return None
