"""The exact number of parameters of every named model."""

from typing import Any

import pytest
from reference import shapes
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import vitrail
from vitrail.config import BiTConfig, HybridStem, parse

# At 1,000 classes and 224 pixels: those that the authors publish with their code, then those that follow from the
# shapes of their layout (tests/reference/shapes.py); BiT's are also those of the released checkpoints.
PUBLISHED = {
    "ViT-Ti/16": 5_717_416,
    "ViT-S/16": 22_050_664,
    "ViT-S/32": 22_878_952,
    "ViT-B/8": 86_576_872,
    "ViT-B/16": 86_567_656,
    "ViT-B/32": 88_224_232,
    "ViT-L/16": 304_326_632,
    "ViT-L/32": 306_535_400,
    "ViT-H/14": 632_045_800,
    "R+ViT-Ti/16": 6_337_704,
    "R26+ViT-S/32": 36_431_912,
    "R26+ViT-B/32": 101_383_976,
    "R50+ViT-B/16": 98_659_112,
    "R50+ViT-L/32": 328_994_856,
}
DERIVED = {
    "ViT-b/32": 22_878_952,
    "ViT-g/14": 1_012_611_432,
    "ViT-G/14": 1_844_440_680,
    "Axial-ViT-B/16": 171_620_584,
    "Axial-ViT-B/32": 173_277_160,
    "R50+ViT-B/32": 110_945_832,
    "R50+ViT-L/16": 316_483_624,
    "BiT-R50x1": 25_549_352,
    "BiT-R50x2": 97_988_712,
    "BiT-R50x3": 217_319_080,
    "BiT-R101x1": 44_541_480,
    "BiT-R101x3": 387_934_888,
    "BiT-R152x1": 60_185_128,
    "BiT-R152x2": 236_335_208,
    "BiT-R152x4": 936_533_224,
    "BiT-R200x3": 568_633_000,
}
BOX = {"vitrail-ti8": 5_629_640}  # at its own 200 classes and 64 pixels
COUNTS = PUBLISHED | DERIVED | BOX


def count(name: str, **fields: object) -> int:
    model = vitrail.create(name, device="meta", **fields)  # pyright: ignore[reportArgumentType]
    return sum(parameter.numel() for parameter in model.parameters())


def test_no_model_lacks_a_count() -> None:
    assert set(vitrail.names()) == COUNTS.keys()


@pytest.mark.parametrize("name", vitrail.names())
def test_a_model_has_its_exact_count(name: str) -> None:
    assert count(name) == COUNTS[name]


@pytest.mark.parametrize("name", PUBLISHED | DERIVED)
def test_the_count_follows_from_the_shapes_of_the_authors_layout(name: str) -> None:
    config = parse(name)
    if isinstance(config, BiTConfig):
        layout = shapes.bit(units=config.units, factor=config.width // 64, classes=1000)
    else:
        side = {"ViT-H/14": 16, "ViT-g/14": 16, "ViT-G/14": 16, "R+ViT-Ti/16": 7}.get(
            name, 224 // int(name.split("/")[1])
        )
        layout = shapes.vit(
            width=config.width,
            depth=config.depth * (2 if name.startswith("Axial") else 1),
            heads=config.heads,
            mlp=config.mlp_width,
            patch=config.stem.patch,
            tokens=side * side + (not name.startswith("Axial")),
            token=not name.startswith("Axial"),
            classes=1000,
            units=config.stem.units if isinstance(config.stem, HybridStem) else None,
        )
    assert shapes.count(layout) == COUNTS[name]


@pytest.mark.parametrize(
    ("name", "published"),
    [("ViT-B/16", 86_566_120), ("ViT-S/16", 22_049_896), ("ViT-B/32", 88_222_696), ("ViT-S/32", 22_878_184)],
)
def test_average_pooling_has_no_class_token(name: str, published: int) -> None:
    assert count(name, pooling="mean") == published


class Held(TorchDispatchMode):
    """Counts the numbers that operations hold in memory; on the meta device there are none."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.numbers += sum(each.numel() for each in tree_leaves(made) if isinstance(each, Tensor) and not each.is_meta)
        return made


def test_a_huge_model_on_the_meta_device_holds_no_number() -> None:
    with Held() as held:
        model = vitrail.create("ViT-H/14", device="meta")
    assert held.numbers == 0
    assert all(parameter.is_meta for parameter in model.parameters())
