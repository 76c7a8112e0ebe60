"""Objects with masks: queries that frame and draw, what training compares, and heads without masks as they were."""

from pathlib import Path
from typing import Any

import pytest
import torch
from reference import dense as slow
from torch.nn import functional as F

import vitrail
from vitrail.config import decode, encode
from vitrail.config.dense import QueryHead
from vitrail.config.recipes import adjust, recipe
from vitrail.data.source import Batch
from vitrail.models.dense import DenseViT
from vitrail.models.dense_heads import Objects
from vitrail.ops.dense import match, query_losses, targets_of_boxes
from vitrail.train.dense import DensePrediction

SMALL = {"depth": 3, "width": 24, "mlp_width": 40, "heads": 3, "image_size": (24, 40)}


def drawing(**fields: Any) -> DenseViT:
    head = QueryHead(**{"task": "detect", "queries": 7, "blocks": 2, "upscale": 2, "masks": True, **fields})
    made = vitrail.create("ViT-Ti/8", classes=5, head=head, **SMALL)
    assert isinstance(made, DenseViT)
    return made


def objects(classes: list[int]) -> torch.Tensor:
    """Some objects of one image; 0 is none."""
    rows = torch.zeros(1, len(classes), 5)
    rows[0, :, 0] = torch.tensor(classes)
    rows[0, :, 1:] = torch.rand(len(classes), 2, 2).sort(dim=1).values.flatten(1)
    return rows * (rows[..., :1] > 0)


def test_the_mask_of_an_object_is_its_query_times_the_upscaled_map() -> None:
    model = drawing().eval()
    assert isinstance(model.head, Objects)
    images = torch.randn(2, 3, 24, 40)
    found = model(images)
    assert [tuple(part.shape) for part in found] == [(2, 7, 6), (2, 7, 6, 10), (2, 7, 4)]
    tokens = model.norm(model.before(images, 3))
    pixels = model.head.upscale(tokens[:, 8:].unflatten(1, (3, 5)))
    wanted = (model.head.mask(tokens[1, 4]) * pixels[1, 2, 7]).sum() / pixels.shape[3] ** 0.5
    torch.testing.assert_close(found.masks[1, 4, 2, 7], wanted)


def test_losses_and_matches_of_boxes_with_masks_equal_the_slow_reference() -> None:
    torch.manual_seed(6)
    size, count, classes = (3, 5), 6, 4
    scores, masks = torch.randn(1, count, classes + 1), torch.randn(1, count, *size)
    boxes = torch.rand(1, count, 2, 2).sort(dim=2).values.flatten(2)
    rows, shapes = objects([1, 4, 0, 1]), torch.rand(1, 4, 9, 10) < 0.4
    targets = targets_of_boxes(rows, shapes, size)
    matched = match(scores, masks, boxes, targets)
    things: list[slow.Thing] = []
    for place in (0, 1, 3):
        share = [
            [shapes[0, place, 3 * row : 3 * row + 3, 2 * col : 2 * col + 2].float().mean().item() for col in range(5)]
            for row in range(3)
        ]
        things.append((int(rows[0, place, 0]) - 1, share, rows[0, place, 1:].tolist()))
    known = [[1.0] * 5] * 3
    wanted, queries = slow.image_loss(scores[0].tolist(), masks[0].tolist(), boxes[0].tolist(), things, known)
    assert matched[0, [0, 1, 3]].tolist() == queries
    assert matched[0, 2] == -1
    assert query_losses(scores, masks, boxes, targets, matched)[0].item() == pytest.approx(wanted, rel=1e-5)


def test_images_without_objects_teach_no_mask_and_every_parameter_learns_of_the_others() -> None:
    model = drawing()
    learned = DensePrediction(model, adjust(recipe("detect").training, {"seed": 2}))
    learned.module.train()
    numbers = torch.arange(2)
    rows = torch.cat([objects([1, 4]), torch.zeros(1, 2, 5)])
    shapes = torch.rand(2, 2, 24, 40) < torch.tensor([0.5, 0.0])[:, None, None, None]
    whole = Batch(torch.randn(2, 3, 24, 40), numbers, numbers, numbers, numbers[:0], 0, 0, (), objects=rows)
    for kept, taught in ((slice(1, 2), False), (slice(0, 2), True)):
        batch = whole._replace(images=whole.images[kept], samples=numbers[kept], objects=rows[kept])
        batch = batch._replace(shapes=shapes[kept])
        model.zero_grad()
        inputs = learned.inputs(batch)
        losses = learned.compute_loss(learned.module(*inputs), batch, inputs).losses
        assert losses.isfinite().all()
        losses.sum().backward()
        drawn = [each.grad for name, each in model.named_parameters() if name.startswith(("head.mask", "head.upscale"))]
        assert [each is not None and bool(each.any()) for each in drawn] == [taught] * len(drawn)


def test_queries_that_draw_attend_within_their_boxes_while_masked() -> None:
    model = drawing(queries=2)
    said = model(torch.randn(1, 3, 24, 40))
    boxes = torch.tensor([[[0.2, 0.0, 0.6, 0.34], [0.0, 0.0, 1.0, 1.0]]])
    allowed = model.allowed(said._replace(boxes=boxes), torch.tensor([[True, True]]), (3, 5))
    assert allowed[0, 0, 0, 3:].nonzero()[:, 0].tolist() == [1, 2]


def test_heads_without_masks_and_files_written_before_them_are_as_they_were(tmp_path: Path) -> None:
    model, drawn = drawing(masks=False).eval(), drawing().eval()
    more = {name for name in drawn.state_dict() if name.startswith(("head.mask.", "head.upscale."))}
    assert more
    assert [*model.state_dict()] == [name for name in drawn.state_dict() if name not in more]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, drawn.state_dict()[name]), name
    images = torch.randn(1, 3, 24, 40)
    found, same = model(images), drawn(images)
    assert found.masks.numel() == 0
    torch.testing.assert_close((found.classes, found.boxes), (same.classes, same.boxes))
    for each in (model, drawn):
        folder = tmp_path / f"run-{each is model}"
        vitrail.save(each, folder)
        again = vitrail.load(folder)
        assert again.config == each.config
        torch.testing.assert_close(again(images)[1], each(images)[1])
    written = encode(model.config)
    del written["head"]["masks"]
    assert decode(written) == model.config
    segmenting = vitrail.create("ViT-Ti/8", classes=5, head=QueryHead(blocks=2), **SMALL)
    order = [name.split(".")[1] for name, _ in segmenting.named_parameters() if name.startswith("head.")]
    assert [*dict.fromkeys(order)] == ["queries", "classifier", "mask", "upscale", "pixels"]  # as optimizers count


def test_a_mask_of_a_coarse_map_is_compared_with_shares_of_its_pixels() -> None:
    shapes = torch.zeros(1, 1, 4, 6, dtype=torch.bool)
    shapes[0, 0, :3, :4] = True
    rows = torch.tensor([[[2.0, 0.0, 0.0, 1.0, 1.0]]])
    targets = targets_of_boxes(rows, shapes, (2, 3))
    assert targets.masks.tolist() == [[[[1.0, 1.0, 0.0], [0.5, 0.5, 0.0]]]]
    assert targets.known.tolist() == [[[1.0] * 3] * 2]
    none = targets_of_boxes(rows[:, :0], shapes[:, :0], (2, 3))
    assert none.classes.tolist() == [[-1]]
    assert F.l1_loss(none.masks, torch.zeros(1, 1, 2, 3)) == 0
