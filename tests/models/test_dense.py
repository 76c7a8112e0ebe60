"""Heads of pixels and objects: shapes and places, masked attention, losses against a slow reference, checkpoints."""

from pathlib import Path

import numpy as np
import pytest
import torch
from reference import dense as slow
from scipy.optimize import linear_sum_assignment
from torch.nn import functional as F

import vitrail
from vitrail.config import LearnedPositions, ViTConfig
from vitrail.config.dense import LinearHead, QueryHead
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import ViT
from vitrail.models.dense import DenseViT
from vitrail.models.dense_heads import LinearPatches, Objects, Prediction, Queries, corners
from vitrail.ops.assignment import assign
from vitrail.ops.cost.dense import compared_at
from vitrail.ops.dense import (
    class_scores,
    guess_losses,
    match,
    pixel_losses,
    query_losses,
    targets_of_boxes,
    targets_of_masks,
)

SMALL = {"depth": 3, "width": 24, "mlp_width": 40, "heads": 3, "image_size": (24, 40)}
VOID = 255


def dense(head: QueryHead | LinearHead, **fields: object) -> DenseViT:
    made = vitrail.create("ViT-Ti/8", classes=5, head=head, **{**SMALL, **fields})
    assert isinstance(made, DenseViT)
    return made


def test_assignment_costs_as_little_as_scipys() -> None:
    random = np.random.default_rng(0)
    for rows, cols in ((1, 1), (3, 7), (7, 3), (6, 6), (0, 4), (11, 50)):
        for table in (random.normal(size=(rows, cols)), random.integers(0, 3, (rows, cols)).astype(float)):
            found = assign(table)
            ours = {(row, col) for row, col in enumerate(found.tolist()) if col >= 0}
            assert len(ours) == len({col for _, col in ours}) == min(rows, cols)
            best = table[linear_sum_assignment(table)].sum()
            assert sum(table[place] for place in ours) == pytest.approx(best)


def test_assignment_survives_costs_that_are_not_finite() -> None:
    table = np.array([[np.nan, 1.0, 2.0], [np.inf, 0.0, np.nan]])
    assert assign(table).tolist() == [2, 1]


@pytest.mark.parametrize("boxed", [False, True])
def test_losses_and_matches_equal_the_slow_reference(*, boxed: bool) -> None:
    torch.manual_seed(3)
    size, count, classes = (3, 5), 6, 4
    scores, masks = torch.randn(2, count, classes + 1), torch.randn(2, count, *size)
    corners = torch.rand(2, count, 2, 2).sort(dim=2).values.flatten(2)  # x0 y0 x1 y1
    if boxed:
        objects = torch.zeros(2, 3, 5)
        objects[0, :3, 0] = torch.tensor([1.0, 4.0, 1.0])
        objects[0, :3, 1:] = torch.rand(3, 2, 2).sort(dim=1).values.flatten(1)
        objects[1, 0] = torch.tensor([2.0, 0.1, 0.2, 0.55, 0.9])
        targets, masks = targets_of_boxes(objects), masks[:, :0, :0, :0]
    else:
        labels = torch.randint(0, classes, (2, 9, 10), dtype=torch.uint8)
        labels[0, :5, :3] = VOID
        labels[1][labels[1] == 2] = 0  # a class that this image has not
        targets = targets_of_masks(labels, size, VOID)
    matched = match(scores, masks, corners if boxed else corners[:, :0], targets)
    losses = query_losses(scores, masks, corners if boxed else corners[:, :0], targets, matched)
    for image in range(2):
        objects_here = [
            (int(number), targets.masks[image, place].tolist(), targets.boxes[image, place].tolist() if boxed else None)
            for place, number in enumerate(targets.classes[image])
            if number >= 0
        ]
        wanted, queries = slow.image_loss(
            scores[image].tolist(),
            masks[image].tolist(),
            corners[image].tolist(),
            objects_here,
            targets.known[image].tolist(),
        )
        assert losses[image].item() == pytest.approx(wanted, rel=1e-5)
        assert matched[image, : len(queries)].tolist() == queries
        assert (matched[image, len(queries) :] == -1).all()


def test_masks_are_compared_at_the_size_of_the_known_ones() -> None:
    torch.manual_seed(5)
    scores, masks, none = torch.randn(1, 4, 4), torch.randn(1, 4, 3, 5), torch.zeros(1, 0, 4)
    labels = torch.randint(0, 3, (1, 9, 10), dtype=torch.uint8)
    labels[0, :4, :2] = VOID
    targets = targets_of_masks(labels, (9, 10), VOID)
    matched = match(scores, masks, none, targets.shrink((3, 5)))
    coarse = targets_of_masks(labels, (3, 5), VOID)
    torch.testing.assert_close(targets.shrink((3, 5)).masks, coarse.masks)
    assert torch.equal(matched, match(scores, masks, none, coarse))
    found = query_losses(scores, masks, none, targets, matched)[0].item()
    larger = [slow.enlarged(mask, 9, 10) for mask in masks[0].tolist()]
    things: list[slow.Thing] = [
        (int(number), targets.masks[0, place].tolist(), None) for place, number in enumerate(targets.classes[0])
    ]
    queries = [int(query) for query in matched[0]]
    wanted = slow.loss_of(scores[0].tolist(), larger, [[]] * 4, things, targets.known[0].tolist(), queries)
    assert found == pytest.approx(wanted, rel=1e-5)
    assert [compared_at(size, (64, 64)) for size in ((300, 400), (512, 512), (4096, 100))] == [
        (300, 400),
        (256, 256),
        (4096, 100),
    ]


def test_targets_are_shares_of_what_counts() -> None:
    labels = torch.tensor([[[0, 0, 1, VOID], [0, 2, VOID, VOID]]], dtype=torch.uint8)
    targets = targets_of_masks(labels, (1, 2), VOID)
    assert targets.classes.tolist() == [[0, 1, 2]]
    assert targets.known[0].tolist() == [[1.0, 0.25]]
    assert targets.masks[0].tolist() == [[[0.75, 0.0]], [[0.0, 1.0]], [[0.25, 0.0]]]


def test_guesses_of_patches_cost_what_the_slow_reference_says() -> None:
    torch.manual_seed(4)
    grid, classes = (3, 5), 4
    scores, boxes = torch.randn(2, 15, classes + 1), torch.rand(2, 15, 2, 2).sort(dim=2).values.flatten(2)
    objects = torch.zeros(2, 3, 5)
    objects[0, :, 0] = torch.tensor([1.0, 4.0, 2.0])
    objects[0, :, 1:] = torch.tensor([[0.0, 0.1, 0.9, 1.0], [0.3, 0.4, 0.6, 0.7], [0.81, 0.02, 0.83, 0.05]])
    losses = guess_losses(scores, boxes, targets_of_boxes(objects), grid)
    for image in range(2):
        there = [(int(row[0]) - 1, row[1:].tolist()) for row in objects[image] if row[0] > 0]
        wanted = slow.guess_loss(scores[image].tolist(), boxes[image].tolist(), there, grid)
        assert losses[image].item() == pytest.approx(wanted, rel=1e-5)
    assert guess_losses(scores, boxes, targets_of_boxes(objects[:, :0]), grid)[1] == losses[1]


def test_queries_begin_as_the_likeliest_middles_of_objects() -> None:
    model = dense(QueryHead(task="detect", queries=4, blocks=1))
    assert isinstance(model.head, Objects)
    patches = torch.zeros(1, 15, 24)
    for place, height in ((3, 2.0), (4, 1.9), (11, 1.0), (0, 0.5)):  # the second is beside a higher one
        patches[0, place, 0] = height
    with torch.no_grad():
        model.head.guess_class.weight.zero_()
        model.head.guess_class.weight[0, 0] = 5.0
        guess, chosen = model.head.guess(patches, (3, 5))
    assert chosen[0, :3].tolist() == [3, 11, 0]
    first = [0.7 - 0.1, 1 / 6 - 0.1, 0.7 + 0.1, 1 / 6 + 0.1]  # the middle of the first row's fourth patch
    assert guess.boxes[0, 3].tolist() == pytest.approx(first, abs=1e-5)
    torch.testing.assert_close(corners(guess.base[0].sigmoid()), guess.boxes[0, chosen[0]])
    found = dense(QueryHead(task="detect", queries=20, blocks=1))(torch.randn(1, 3, 24, 40))  # of 15 patches
    assert found.boxes.shape == (1, 20, 4)


def test_void_pixels_count_nowhere() -> None:
    torch.manual_seed(0)
    scores, labels = torch.randn(1, 3, 4, 4), torch.randint(0, 3, (1, 4, 4), dtype=torch.uint8)
    labels[0, :2] = VOID
    expected = F.cross_entropy(scores[0].flatten(1)[:, 8:].T, labels[0].flatten()[8:].long())
    assert pixel_losses(scores, labels, VOID)[0].item() == pytest.approx(expected.item(), rel=1e-5)
    changed = scores.clone()
    changed[0, :, :2] += 9 * torch.randn(3, 2, 4)
    assert pixel_losses(changed, labels, VOID)[0].item() == pytest.approx(expected.item(), rel=1e-5)
    queries, masks = torch.randn(1, 5, 4), torch.randn(1, 5, 4, 4)
    targets, none = targets_of_masks(labels, (4, 4), VOID), torch.zeros(1, 0, 4)
    other = masks.clone()
    other[0, :, :2] += 9 * torch.randn(5, 2, 4)
    found = match(queries, masks, none, targets)
    assert torch.equal(found, match(queries, other, none, targets))
    both = [query_losses(queries, each, none, targets, found) for each in (masks, other)]
    torch.testing.assert_close(*both)


def test_class_scores_are_what_queries_say_of_pixels() -> None:
    torch.manual_seed(0)
    classes, masks = torch.randn(2, 3, 6), torch.randn(2, 3, 2, 2)
    found = class_scores(classes, masks, (2, 2))
    wanted = sum(classes[1, query].softmax(0)[4] * masks[1, query, 0, 1].sigmoid() for query in range(3))
    assert found[1, 4, 0, 1].item() == pytest.approx(float(wanted), rel=1e-5)
    assert class_scores(classes[:, :0, :0], masks, (5, 3)).sum(dim=1).allclose(torch.ones(2, 5, 3))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"pooling": "mean", "registers": 2},
        {"positions": "rotary"},
        {"positions": LearnedPositions(at="layers")},
        {"positions": "sinusoidal-2d", "norm": "post"},
        {"final_norm": "pooled", "qk_norm": True},
    ],
    ids=str,
)
def test_queries_are_read_and_patches_stay_in_place(fields: dict[str, object]) -> None:
    boxes = dense(QueryHead(task="detect", queries=7, blocks=2), **fields)(torch.randn(2, 3, 24, 40))
    assert [tuple(part.shape) for part in boxes] == [(2, 7, 6), (2, 0, 0, 0), (2, 7, 4)]
    model = dense(QueryHead(queries=7, blocks=2, upscale=2), **fields)
    images = torch.randn(2, 3, 24, 40)
    found = model(images)
    assert [tuple(part.shape) for part in found] == [(2, 7, 6), (2, 7, 6, 10), (2, 0, 4)]
    larger = model(torch.randn(1, 3, 48, 32))
    assert larger.masks.shape == (1, 7, 12, 8)
    stages, _ = model.stages(images)
    assert len(stages) == 3
    for ours, theirs in zip(stages[-1], found, strict=True):
        torch.testing.assert_close(ours, theirs)
    model.stages(images)[0][-1].masks.sum().backward()
    assert isinstance(model.head, Queries)
    assert model.head.queries.grad is not None


def test_before_queries_join_tokens_are_those_of_the_plain_model() -> None:
    model = dense(QueryHead(queries=7, blocks=3))
    plain = vitrail.create("ViT-Ti/8", classes=5, **SMALL)
    assert isinstance(plain, ViT)
    images = torch.randn(2, 3, 24, 40)
    tokens, _ = model.before_queries(images, (3, 5))
    torch.testing.assert_close(tokens[:, 7:], plain.embed(images))
    assert model.tokens(images).shape == plain.tokens(images).shape
    assert model.represent(images).shape == plain.represent(images).shape


def test_attention_and_maps_are_those_of_the_pass_itself() -> None:
    model = dense(QueryHead(queries=7, blocks=2))
    images = torch.randn(2, 3, 24, 40)
    weights = model.attention_maps(images)
    assert [tuple(each.shape) for each in weights] == [(2, 3, 16, 16), (2, 3, 23, 23), (2, 3, 23, 23)]
    torch.testing.assert_close(weights[2].sum(dim=3), torch.ones(2, 3, 23))
    tokens = model.norm(model.before(images, 3))
    found, read = model.read(model.before(images, 3), (3, 5)), model(images)
    torch.testing.assert_close(found.masks, read.masks)
    torch.testing.assert_close(model.maps_after(images, [2])[2].flatten(2).transpose(1, 2), tokens[:, 8:])
    features, logits = model.outputs(images)
    assert logits is None
    assert features.shape == (2, 24)


def test_masked_queries_see_their_mask_alone() -> None:
    model = dense(QueryHead(queries=2, blocks=2))
    masks = torch.full((1, 2, 12, 20), -9.0)
    masks[0, 0, :4, 4:12] = 9.0  # the patches (0, 1) and (0, 2); nothing of the second query
    said = Prediction(torch.zeros(1, 2, 6), masks, torch.zeros(1, 0, 4))
    allowed = model.allowed(said, torch.tensor([[True, True]]), (3, 5))
    assert allowed.shape == (1, 1, 18, 18)
    wanted = torch.zeros(15, dtype=torch.bool)
    wanted[1:3] = True
    assert torch.equal(allowed[0, 0, 0, 3:], wanted)
    assert allowed[0, 0, :, :3].all()  # queries and the class token
    assert allowed[0, 0, 1:].all()  # a mask of nothing hides nothing; patches see all
    assert model.allowed(said, torch.tensor([[False, False]]), (3, 5)).all()
    boxes = torch.tensor([[[0.2, 0.0, 0.6, 0.34], [0.0, 0.0, 0.01, 0.01]]])  # the same two patches; none
    said = Prediction(said.classes, masks[:, :0, :0, :0], boxes)
    assert torch.equal(model.allowed(said, torch.tensor([[True, True]]), (3, 5)), allowed)


def test_what_a_masked_query_must_not_see_does_not_change_it() -> None:
    model = dense(QueryHead(queries=2, blocks=1)).eval()
    tokens, grid = torch.randn(1, 18, 24), (3, 5)
    allowed = torch.ones(1, 1, 18, 18, dtype=torch.bool)
    allowed[0, 0, 0, 9:] = False
    other = tokens.clone()
    other[:, 9:] += torch.randn(9, 24)
    first, second = (model.run_joined(each, 2, grid, allowed) for each in (tokens, other))
    torch.testing.assert_close(first[:, 0], second[:, 0])
    assert not torch.allclose(first[:, 1], second[:, 1])


def test_a_linear_head_is_a_classifier_of_each_patch() -> None:
    model = dense(LinearHead())
    images = torch.randn(2, 3, 24, 40)
    found = model(images)
    assert isinstance(model.head, LinearPatches)
    patch = model.tokens(images)[1, 1 + 7]
    torch.testing.assert_close(found.masks[1, :, 1, 2], F.linear(patch, *model.head.classifier.parameters()))
    assert found.boxes.shape == (2, 0, 4)


def test_a_run_of_such_a_model_is_written_and_read(tmp_path: Path) -> None:
    model = dense(QueryHead(queries=7, blocks=2)).eval()
    vitrail.save(model, tmp_path / "run")
    again = vitrail.load(tmp_path / "run")
    assert again.config == model.config
    images = torch.randn(1, 3, 24, 40)
    for ours, theirs in zip(again(images), model(images), strict=True):
        assert torch.equal(ours, theirs)
    wider = vitrail.load(tmp_path / "run", image_size=(32, 48))
    assert wider(torch.randn(1, 3, 32, 48)).masks.shape == (1, 7, 16, 24)
    classifier = vitrail.load(tmp_path / "run", classes=3)
    assert isinstance(classifier.config, ViTConfig)
    assert classifier.config.head is None
    assert classifier(images).abs().sum() == 0
    with pytest.raises(CheckpointError, match="a head of pixels or objects"):
        vitrail.save(model, tmp_path / "vit.safetensors", layout="timm")


@pytest.mark.parametrize("pooling", ["attention", "token+mean", "token"])
def test_a_classifier_gets_a_head_of_pixels_and_keeps_its_encoder(pooling: str) -> None:
    model = vitrail.create("ViT-Ti/8", classes=9, pooling=pooling, **SMALL).eval()
    segmenting = vitrail.load(model, classes=4, head=QueryHead(queries=5, blocks=1))
    images = torch.randn(1, 3, 24, 40)
    before = [each.maps_after(images, [1])[1] for each in (segmenting, model)]  # the query joins the third block
    torch.testing.assert_close(*before)
    assert segmenting(images).classes.shape == (1, 5, 5)


def test_models_without_patches_to_ask_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"join the last 4 blocks; the model has 3\. Set head\.blocks=3"):
        dense(QueryHead())
    with pytest.raises(ConfigError, match=r"Take another model, or head=linear"):
        dense(QueryHead(blocks=2), attention="axial", pooling="mean")
    with pytest.raises(ConfigError, match="needs classes"):
        vitrail.create("ViT-Ti/8", classes=None, head="linear", **SMALL)
    with pytest.raises(ConfigError, match="power of two"):
        QueryHead(upscale=3)
    with pytest.raises(ConfigError, match="got a BiT"):
        vitrail.load(vitrail.create("BiT-R50x1", classes=3, device="meta"), classes=4, head=LinearHead())
