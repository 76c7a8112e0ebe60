import pytest

from vitrail.config import BiTConfig, HybridStem, PatchStem, ViTConfig, names, parse
from vitrail.errors import ConfigError, ShapeError


def test_every_name_parses() -> None:
    kinds = {name: type(parse(name)) for name in names()}
    assert len(kinds) == 31
    assert all((kind is BiTConfig) == name.startswith("BiT") for name, kind in kinds.items())


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("ViT-B/16", (12, 768, 3072, 12)),
        ("ViT-L/32", (24, 1024, 4096, 16)),
        ("ViT-H/14", (32, 1280, 5120, 16)),
        ("ViT-b/32", (12, 384, 1536, 12)),
        ("ViT-Ti/2", (12, 192, 768, 3)),
        ("ViT-S/8", (12, 384, 1536, 6)),
        ("ViT-g/14", (40, 1408, 6144, 16)),
        ("ViT-G/14", (48, 1664, 8192, 16)),
    ],
)
def test_a_vit_is_its_row_of_the_table(name: str, row: tuple[int, int, int, int]) -> None:
    config = parse(name)
    assert isinstance(config, ViTConfig)
    assert (config.depth, config.width, config.mlp_width, config.heads) == row
    assert config.stem == PatchStem(patch=int(name.split("/")[1]))


def test_any_patch_side_will_do_that_fits_the_image() -> None:
    assert parse("ViT-B/15", {"image_size": (225, 240)}).image_size == (225, 240)
    with pytest.raises(ShapeError, match=r"multiples of the patch side 15; got 224x224\. Resize or crop to 210x210"):
        parse("ViT-B/15")


def test_the_hybrids_stand_on_the_paper_stems() -> None:
    stems = {name: config.stem for name in names() if "+" in name and isinstance(config := parse(name), ViTConfig)}
    assert stems["R50+ViT-B/16"] == stems["R50+ViT-L/16"] == HybridStem(units=(3, 4, 9))
    assert stems["R50+ViT-B/32"] == stems["R50+ViT-L/32"] == HybridStem(units=(3, 4, 6, 3))
    assert stems["R26+ViT-S/32"] == stems["R26+ViT-B/32"] == HybridStem(units=(2, 2, 2, 2))
    assert stems["R+ViT-Ti/16"] == HybridStem(units=(), patch=8)


def test_table_6_names_the_resnets_without_a_prefix() -> None:
    assert parse("R152x2") == parse("BiT-R152x2") == BiTConfig(units=(3, 8, 36, 3), width=128)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ViT-B16", r"unknown model 'ViT-B16'\. Did you mean 'ViT-B/16'\?"),
        ("vit-b/16", r"Did you mean 'ViT-B/16'\?"),
        ("ViT-X/16", r"Did you mean 'ViT-"),
        ("R50+ViT-B-16", r"Did you mean 'R50\+ViT-B/16'\?"),
        ("BiT-R51x1", r"Did you mean 'BiT-R50x1'\?"),
        ("ViT-B/0", "unknown model"),
        ("zebra", r"unknown model 'zebra'\. There are: ViT-Ti/16, .*ViT-b/32, .*ViT-B/32, .*ViT-g/14"),
        ("R34+ViT-B/16", r"unknown hybrid R34\+ViT-\*/16\. There are: R\+ViT-\*/16, R26\+ViT-\*/32"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(name)


@pytest.mark.parametrize("name", [None, 5, b"ViT-B/16"])
def test_a_name_is_a_text(untyped: None, name: object) -> None:
    with pytest.raises(ConfigError, match="a model's name is a text such as 'ViT-B/16'; got"):
        parse(name)  # pyright: ignore[reportArgumentType]
