"""Fields from values, from text, and from JSON."""

import json

import pytest

from vitrail.config import (
    HybridStem,
    Learned2DPositions,
    PatchStem,
    RelativePositions,
    ViTConfig,
    decode,
    encode,
    names,
    override,
    parse,
    read_settings,
    row,
)
from vitrail.config.check import KINDS
from vitrail.config.fields import parts_of
from vitrail.config.recipe import Training
from vitrail.config.recipes import adjust
from vitrail.errors import ConfigError


def set_on(name: str, *settings: str) -> object:
    kind, values = row(name)
    return parse(name, read_settings(kind, values, settings))


def test_settings_are_read_by_the_type_of_their_field() -> None:
    config = set_on(
        "ViT-B/16",
        "depth=8",
        "width=1024",
        "mlp_width = 2048",
        "heads=8",
        "patch=32",
        "image_size=96x160",
        "dropout=.1",
    )
    assert config == parse(
        "ViT-B/32",
        {"depth": 8, "width": 1024, "mlp_width": 2048, "heads": 8, "image_size": (96, 160), "dropout": 0.1},
    )
    assert set_on("ViT-B/16", "checkpointing=true", "representation_width=768", "image_size=384") == parse(
        "ViT-B/16", {"checkpointing": True, "representation_width": 768, "image_size": (384, 384)}
    )
    assert set_on("ViT-B/16", "representation_width=none") == parse("ViT-B/16")
    assert set_on("R50+ViT-B/16", "units=2,3", "stem.width=32") == parse(
        "R50+ViT-B/16", {"stem": HybridStem(units=(2, 3), width=32)}
    )
    assert set_on("BiT-R50x1", "units=3") == parse("BiT-R50x1", {"units": (3,)})
    assert set_on("BiT-R50x1", "width=128") == parse("BiT-R50x2")


def test_a_side_alone_is_a_square() -> None:
    assert parse("ViT-Ti/4", {"image_size": 28}).image_size == (28, 28)
    assert override(parse("BiT-R50x1"), {"img_size": 28}).image_size == (28, 28)
    assert adjust(Training(steps=1), {"image_size": 28}).image_size == (28, 28)
    assert adjust(Training(steps=1, image_size=(28, 20)), {"image_size": None}).image_size is None


def test_a_part_is_set_by_its_word_and_its_fields_in_any_order() -> None:
    for settings in (["positions=relative", "positions.at=shared"], ["at=shared", "positions=relative"]):
        config = set_on("ViT-B/16", *settings)
        assert isinstance(config, ViTConfig)
        assert config.positions == RelativePositions(at="shared")
    assert override(parse("ViT-B/16"), {"positions": "learned-2d"}) == parse(
        "ViT-B/16", {"positions": Learned2DPositions()}
    )


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("depth", r"a setting is FIELD=VALUE, such as depth=6; got 'depth'"),
        ("depth=six", "depth must be a whole number; got 'six'"),
        ("dropout=much", "dropout must be a number; got 'much'"),
        ("checkpointing=maybe", "checkpointing must be true or false; got 'maybe'"),
        ("image_size=big", "image_size must be numbers such as 224x160; got 'big'"),
        ("pooling=cls", "pooling must be one of 'token', 'mean', 'max', .*; got 'cls'"),
        ("positions=absolute", "positions must be one of none, learned"),
        ("stem=hybrid", "stem=hybrid needs fields of its own. Begin with a model that has it"),
        ("stem.ptch=8", r"no field 'stem.ptch'\. Did you mean 'stem.patch'\?"),
        ("widht=8", r"no field 'widht'\. Did you mean 'width'\?"),
        (
            "units=3,4",
            r"'units' is a field of stem=hybrid; here stem is patches, whose fields are patch, norms\. Leave units",
        ),
        ("stem.units=3", "'units' is a field of stem=hybrid; here stem is patches"),
        ("heads=7", "heads must divide the width 768; got 7 heads"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_would_do(untyped: None, setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        set_on("ViT-B/16", setting)


@pytest.mark.parametrize("name", names())
def test_every_configuration_survives_json(name: str) -> None:
    config = parse(name, {} if name.startswith(("BiT", "Axial")) else {"positions": "relative", "at": "shared"})
    assert decode(json.loads(json.dumps(encode(config)))) == config


def test_json_is_read_strictly() -> None:
    document = encode(parse("ViT-Ti/16"))
    for changes, message in (
        ({"widht": 3}, r"model has no field 'widht'\. Did you mean 'width'"),
        ({"kind": "vti"}, "model must be an object with a kind of vit, bit; got 'vti'"),
        ({"stem": {"kind": "vit"}}, "model.stem must be an object with a kind of patches, hybrid; got 'vit'"),
        ({"stem": 16}, "model.stem must be an object"),
        ({"stem": {"kind": "patches"}}, "model.stem lacks patch"),
        ({"depth": 0}, "depth must be a whole number"),
    ):
        with pytest.raises(ConfigError, match=message):
            decode(document | changes)
    with pytest.raises(ConfigError, match="model lacks depth, width"):
        decode({name: value for name, value in document.items() if name not in ("depth", "width")})
    with pytest.raises(ConfigError, match="must be an object"):
        decode([document])


def test_what_is_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="depth is given twice"):
        set_on("ViT-B/16", "depth=3", "depth=4")
    with pytest.raises(ConfigError, match=r"stem\.patch is given twice"):
        set_on("ViT-B/16", "patch=8", "stem.patch=4")
    with pytest.raises(ConfigError, match="units must be numbers such as 3,4,6,3; got 'many'"):
        set_on("BiT-R50x1", "units=many")


def test_every_part_has_a_word() -> None:
    from typing import get_type_hints

    hints = get_type_hints(ViTConfig)
    assert set(parts_of(hints["stem"]).values()) == {PatchStem, HybridStem}
    assert len(parts_of(hints["positions"])) == 8
    assert len(KINDS) == 43
