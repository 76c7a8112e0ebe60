"""Images of many sizes in one sequence: each as the model answers to it alone, whatever its neighbours."""

from typing import Any

import pytest
import torch
from families import family
from torch import Tensor

from vitrail.config import Grid, Learned2DPositions, LearnedPositions, NoPositions, Sinusoidal2DPositions
from vitrail.errors import ConfigError, ShapeError
from vitrail.evaluation.cached import digest_of
from vitrail.models import Model
from vitrail.ops.packing import pack_patches
from vitrail.runtime import packing
from vitrail.runtime.packing import PackedModel, by_grid, check_packing

GRIDS: list[Grid] = [(3, 5), (2, 7), (1, 1), (15, 1), (5, 3), (1, 14), (2, 7), (4, 3), (3, 5)]


def images_of(grids: list[Grid], patch: int = 4) -> list[Tensor]:
    return [torch.randn(3, rows * patch, cols * patch) for rows, cols in grids]


def alone(model: Model, images: list[Tensor]) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        found = [model.outputs(image[None]) for image in images]
    return torch.cat([features for features, _ in found]), torch.cat(
        [logits for _, logits in found if logits is not None]
    )


CASES: dict[str, dict[str, Any]] = {
    "vit": {},
    "vit-mean": {},
    "vit-max": {},
    "vit-hidden": {},
    "vit-scaled": {},
    "vit-mean, 2-D in every layer": {"positions": Learned2DPositions(at="layers")},
    "vit, one table in every layer": {"positions": LearnedPositions(at="shared")},
    "vit, sines": {"positions": Sinusoidal2DPositions()},
    "vit, none": {"positions": NoPositions()},
    "vit-relative": {},
    "vit-original": {},
    "axial": {},
}
QUICK = ("vit", "vit-mean, 2-D in every layer", "vit-relative")


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in CASES])
def test_every_image_has_the_answer_that_it_has_alone(name: str, *, fused: bool) -> None:
    model, images = family(name.partition(",")[0], **CASES[name]), images_of(GRIDS)
    features, logits = PackedModel(model, fused=fused).eval().at(GRIDS).outputs(pack_patches(images, 4))
    wanted = alone(model, images)
    assert logits is not None
    assert torch.allclose(features, wanted[0], atol=1e-5)
    assert torch.allclose(logits, wanted[1], atol=1e-5)


def test_neighbours_change_nothing_and_grids_that_were_seen_are_not_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed, images = PackedModel(family("vit")).eval(), images_of(GRIDS)
    every = packed.at(GRIDS)(pack_patches(images, 4))
    starts, vectors = packed.banks[0]
    assert set(starts) == set(GRIDS)
    assert len(vectors) == sum(1 + rows * cols for rows, cols in set(GRIDS))
    for some in ([4], [7, 1, 6], [8, 0]):
        grids = [GRIDS[place] for place in some]
        found = packed.at(grids)(pack_patches([images[place] for place in some], 4))
        assert torch.allclose(found, every[some], atol=1e-5)
    assert packed.banks[0][1] is vectors
    monkeypatch.setattr(packing, "LARGEST_BANK", 1)
    assert torch.allclose(packed.at(GRIDS[:2])(pack_patches(images[:2], 4)), every[:2], atol=1e-5)
    assert set(packed.banks[0][0]) == set(GRIDS[:2])  # what was kept is bounded


def test_the_plain_way_calls_the_model_once_for_each_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = family("vit"), images_of(GRIDS)
    seen: list[tuple[int, ...]] = []
    represent = type(model).represent
    monkeypatch.setattr(
        type(model), "represent", lambda self, images: seen.append(tuple(images.shape)) or represent(self, images)
    )
    with torch.no_grad():
        by_grid(check_packing(model), pack_patches(images, 4), GRIDS, 4)
    assert len(seen) == len(set(GRIDS))
    assert (2, 3, 12, 20) in seen


def test_half_precision_is_near_single() -> None:
    model, images = family("vit-mean"), images_of(GRIDS)
    found = PackedModel(model, half=True).eval().at(GRIDS)(pack_patches(images, 4))
    wanted = alone(model, images)[1]
    assert found.dtype == torch.float32
    assert next(model.parameters()).dtype == torch.float32
    assert (found - wanted).abs().max() < 0.03 * wanted.abs().max()


def test_images_of_one_size_go_as_ever() -> None:
    model, images = family("vit"), torch.randn(2, 3, 12, 20)
    packed = PackedModel(model).eval()
    assert torch.equal(packed(images), model(images))
    assert torch.equal(packed.represent(images), model.represent(images))


@pytest.mark.parametrize(
    ("name", "reason"), [("bit", "a BiT reads whole images"), ("hybrid", "a hybrid's ResNet reads whole images")]
)
def test_models_that_read_whole_images_are_refused_with_what_to_do(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"{reason}. Leave keep_aspect_ratio out, or take the checkpoint of a ViT"):
        PackedModel(family(name))
    with pytest.raises(ConfigError, match="an exported or optimized model takes whole batches"):
        PackedModel(PackedModel(family("vit")))


def test_patches_that_are_not_those_of_the_grids_are_refused() -> None:
    with pytest.raises(ShapeError, match="have 15 patches; got 14"):
        PackedModel(family("vit")).at([(3, 5)])(torch.rand(14, 48))


def test_kept_rows_are_apart_from_the_plain_models() -> None:
    assert digest_of(PackedModel(family("vit"))) != digest_of(family("vit"))


@pytest.mark.usefixtures("untyped")
def test_one_compiled_block_serves_all_layers_and_batches() -> None:
    model, images = family("vit", depth=3), images_of(GRIDS)
    packed, graphs = PackedModel(model, fused=True).eval(), list[object]()

    def backend(graph: Any, inputs: object) -> Any:
        graphs.append(graph)
        return graph

    packed.fused_block = torch.compile(packing.fused_block, dynamic=True, fullgraph=True, backend=backend)
    for some in (GRIDS, GRIDS[2:5], GRIDS[:4]):
        found = packed.at(some)(pack_patches(images[: len(some)] if some != GRIDS[2:5] else images[2:5], 4))
        assert torch.allclose(
            found, alone(model, images[2:5] if some == GRIDS[2:5] else images[: len(some)])[1], atol=1e-5
        )
    assert len(graphs) == 2  # all tokens, and in the last layer the class tokens alone
