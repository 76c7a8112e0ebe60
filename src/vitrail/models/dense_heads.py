"""Heads of pixels and objects: queries that draw masks, queries that frame objects, and a linear layer of patches.

Queries (EoMT, Kerssies et al., 2025) join the tokens for the last blocks. Where pixels have classes they are learned:
the class of one is a linear function of it, its mask its product with the upscaled map of patches. Where objects are
looked for, each begins as the patch that is likeliest the middle of one; its box is that patch's guess, corrected by
a small MLP; it may draw a mask too, as the learned ones do.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.config import Grid, ViTConfig
from vitrail.config.dense import QueryHead

LEAST = 1e-4  # share of an image's sides, of a box
FIRST = 0.2  # share of an image's sides, of the box that a patch begins its guess with


class Prediction(NamedTuple):
    """What a head says of images: scores of classes, the last of them none, with masks, with boxes, or with both.

    Of a linear head every class has a mask of its own, and `classes` is empty. What a head has none of is empty.
    """

    classes: Float[Tensor, "*S B Q K"]  # logits; K + 1 of queries
    masks: Float[Tensor, "*S B R h w"]  # logits
    boxes: Float[Tensor, "*S B P 4"]  # left, top, right, bottom in shares of the sides


class Guess(NamedTuple):
    """What every patch is, were it the middle of an object; and the boxes that queries begin with."""

    classes: Float[Tensor, "B N K"]  # logits; the last is none
    boxes: Float[Tensor, "B N 4"]  # left, top, right, bottom
    base: Float[Tensor, "B Q 4"]  # logits of center and sides, of each query; without gradient


class Upscale(nn.Module):
    """A map of features at twice its sides, and half as wide."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.width = narrower(width)
        self.expand = nn.Linear(width, 4 * self.width)  # a transposed convolution of stride 2
        self.smooth = nn.Conv2d(self.width, self.width, kernel_size=3, padding=1, groups=self.width, bias=False)
        self.norm = nn.LayerNorm(self.width, eps=epsilon)

    def forward(self, features: Float[Tensor, "B h w D"]) -> Float[Tensor, "B H W C"]:
        """Double the sides."""
        parts = F.gelu(self.expand(features)).unflatten(3, (2, 2, self.width))  # B h w 2 2 C
        doubled = parts.permute(0, 1, 3, 2, 4, 5).flatten(3, 4).flatten(1, 2)  # B H W C
        return self.norm(self.smooth(doubled.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))


def narrower(width: int) -> int:
    """Give the width of a map at twice its sides."""
    return max(width // 2, 16)


def mlp(width: int, outputs: int) -> nn.Sequential:
    """Make three layers with activations between."""
    layers = [nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, outputs)]
    return nn.Sequential(*layers)


def drawing(config: ViTConfig, head: QueryHead) -> tuple[nn.Sequential, nn.Sequential]:
    """Make what queries draw masks with: what becomes of a query, and the upscaled map of patches."""
    widths = [config.width]
    for _ in range(head.upscale.bit_length() - 1):
        widths.append(narrower(widths[-1]))
    return mlp(config.width, widths[-1]), nn.Sequential(*(Upscale(each, config.epsilon) for each in widths[:-1]))


def masks_of(queries: Float[Tensor, "B Q C"], features: Float[Tensor, "B h w C"]) -> Float[Tensor, "B Q h w"]:
    """Draw the mask of every query: its product with the map."""
    return torch.einsum("bqc,bhwc->bqhw", queries, features) * features.shape[3] ** -0.5


class Queries(nn.Module):
    """Learned queries that draw masks."""

    def __init__(self, config: ViTConfig, head: QueryHead) -> None:
        super().__init__()
        width, classes = config.width, config.classes or 0
        self.leading = config.leading
        self.queries = nn.Parameter(torch.empty(head.queries, width))
        self.classifier = nn.Linear(width, classes + 1)
        self.mask, self.upscale = drawing(config, head)
        self.pixels = nn.Linear(width, classes)

    def forward(self, tokens: Float[Tensor, "B T D"], grid: Grid, guess: Guess | None = None) -> Prediction:
        """Read tokens that are normed: queries first, then those before the patches, then the patches."""
        count = len(self.queries)
        features = self.upscale(tokens[:, count + self.leading :].unflatten(1, grid))  # B h w C
        queries = tokens[:, :count]
        masks = masks_of(self.mask(queries), features)
        return Prediction(self.classifier(queries), masks, masks.new_empty(masks.shape[0], 0, 4))

    def guess(self, patches: Float[Tensor, "B N D"], grid: Grid) -> Float[Tensor, "B K rows cols"]:
        """Score the classes of every patch without queries, as a linear head does: what training asks of them too."""
        return self.pixels(patches).transpose(1, 2).unflatten(2, grid)


class Objects(nn.Module):
    """Queries that frame objects, each begun by a patch; they may draw them too."""

    def __init__(self, config: ViTConfig, head: QueryHead) -> None:
        super().__init__()
        width, classes = config.width, config.classes or 0
        self.leading = config.leading
        self.marks = nn.Parameter(torch.empty(head.queries, width))  # what tells a query from its patch, by rank
        self.guess_class, self.guess_box = nn.Linear(width, classes + 1), mlp(width, 4)
        self.classifier, self.box = nn.Linear(width, classes + 1), mlp(width, 4)
        self.draws = head.draws
        if self.draws:
            self.mask, self.upscale = drawing(config, head)

    def guess(self, patches: Float[Tensor, "B N D"], grid: Grid) -> tuple[Guess, Tensor]:
        """Ask every patch, normed; gives also the patches that queries begin as, those likeliest in the middle."""
        classes = self.guess_class(patches)
        places = middles(grid, patches)
        boxes = (places + self.guess_box(patches)).float()
        with torch.no_grad():
            score = 1 - classes.float().softmax(dim=2)[:, :, -1]  # B N
            maps = score.unflatten(1, grid)[:, None]
            peak = (maps == F.max_pool2d(maps, kernel_size=3, stride=1, padding=1)).flatten(1)
            count = min(len(self.marks), score.shape[1])
            chosen = (score + peak).topk(count, dim=1).indices  # B Q: peaks first
            base = boxes.gather(1, chosen[:, :, None].expand(-1, -1, 4))
            if (missing := len(self.marks) - count) > 0:  # of an image with fewer patches than queries
                base = torch.cat([base, base[:, -1:].expand(-1, missing, -1)], dim=1)
                chosen = torch.cat([chosen, chosen[:, -1:].expand(-1, missing)], dim=1)
        return Guess(classes, corners(boxes.sigmoid()), base), chosen

    def forward(self, tokens: Float[Tensor, "B T D"], grid: Grid, guess: Guess | None = None) -> Prediction:
        """Read tokens that are normed: queries first."""
        assert guess is not None
        queries = tokens[:, : len(self.marks)]
        boxes = corners(torch.sigmoid(guess.base + self.box(queries).float()))
        masks = tokens.new_empty(tokens.shape[0], 0, 0, 0)
        if self.draws:
            features = self.upscale(tokens[:, len(self.marks) + self.leading :].unflatten(1, grid))  # B h w C
            masks = masks_of(self.mask(queries), features)
        return Prediction(self.classifier(queries), masks, boxes)


def middles(grid: Grid, like: Tensor) -> Float[Tensor, "N 4"]:
    """Give the logits of the boxes that patches begin with: their own middle, and sides that all share."""
    rows, cols = ((torch.arange(length, device=like.device, dtype=torch.float32) + 0.5) / length for length in grid)
    y, x = torch.meshgrid(rows, cols, indexing="ij")
    side = torch.full_like(x, FIRST)
    return torch.logit(torch.stack([x, y, side, side], dim=2).flatten(0, 1))


def corners(boxes: Float[Tensor, "*B 4"]) -> Float[Tensor, "*B 4"]:
    """Give left, top, right and bottom of boxes by center and sides."""
    center, sides = boxes.split(2, dim=-1)
    return torch.cat([center - sides / 2, center + sides / 2], dim=-1)


class LinearPatches(nn.Module):
    """A linear classifier of every patch."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.leading = config.leading
        self.classifier = nn.Linear(config.width, config.classes or 0)

    def forward(self, tokens: Float[Tensor, "B T D"], grid: Grid, guess: Guess | None = None) -> Prediction:
        """Score the classes of every patch."""
        scores = self.classifier(tokens[:, self.leading :]).transpose(1, 2).unflatten(2, grid)  # B K rows cols
        return Prediction(scores.new_empty(scores.shape[0], 0, 0), scores, scores.new_empty(scores.shape[0], 0, 4))
