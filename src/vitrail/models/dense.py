"""Classes of pixels, and boxes, from a plain Vision Transformer: queries among its last tokens, or a linear layer.

Queries (EoMT, Kerssies et al., 2025) join the tokens for the last blocks. The class of a query is a linear function of
it; its mask is its product with the upscaled map of patches; its box is that of its mask, corrected by a small MLP.
While training, a query may be let attend only to where its mask is so far, ever less often, so that at the end the
model is a plain ViT with more tokens.
"""

from typing import NamedTuple, assert_never

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.config import Grid, ViTConfig
from vitrail.config.dense import LinearHead, QueryHead
from vitrail.errors import ConfigError
from vitrail.models.encoder import maybe_checkpoint
from vitrail.models.parts import PartedAttention
from vitrail.models.vit import ViT

LEAST = 1e-4  # share of an image's sides, of a box; and of what masks cover


class Prediction(NamedTuple):
    """What a head says of images: scores of classes, the last of them none, on masks; boxes where they are asked for.

    Of a linear head every class has a mask of its own, and `classes` is empty.
    """

    classes: Float[Tensor, "B Q K"]  # logits; K + 1 of queries
    masks: Float[Tensor, "B Q h w"]  # logits
    boxes: Float[Tensor, "B Q 4"]  # left, top, right, bottom in shares of the sides; B 0 4 where there are none


class Upscale(nn.Module):
    """A map of features at twice its sides."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.expand = nn.ConvTranspose2d(width, width, kernel_size=2, stride=2)
        self.smooth = nn.Conv2d(width, width, kernel_size=3, padding=1, groups=width, bias=False)
        self.norm = nn.LayerNorm(width, eps=epsilon)

    def forward(self, features: Float[Tensor, "B D h w"]) -> Float[Tensor, "B D H W"]:
        """Double the sides."""
        features = self.smooth(F.gelu(self.expand(features)))
        return self.norm(features.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def mlp(width: int, outputs: int) -> nn.Sequential:
    """Make three layers with activations between."""
    layers = [nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, outputs)]
    return nn.Sequential(*layers)


class Queries(nn.Module):
    """Learned queries, and what is read of them and of the patches after any of the last blocks."""

    def __init__(self, config: ViTConfig, head: QueryHead) -> None:
        super().__init__()
        width, classes = config.width, config.classes or 0
        self.leading = config.leading
        self.queries = nn.Parameter(torch.empty(head.queries, width))
        self.classifier = nn.Linear(width, classes + 1)
        self.mask = mlp(width, width)
        doublings = head.upscale.bit_length() - 1
        self.upscale = nn.Sequential(*(Upscale(width, config.epsilon) for _ in range(doublings)))
        self.box = mlp(width, 4) if head.task == "detect" else None

    def forward(self, tokens: Float[Tensor, "B T D"], grid: Grid) -> Prediction:
        """Read tokens that are normed: queries first, then those before the patches, then the patches."""
        count, width = self.queries.shape
        queries = tokens[:, :count]
        patches = tokens[:, count + self.leading :].transpose(1, 2).unflatten(2, grid)  # B D rows cols
        masks = torch.einsum("bqd,bdhw->bqhw", self.mask(queries), self.upscale(patches)) * width**-0.5
        boxes = masks.new_empty(len(masks), 0, 4) if self.box is None else self.boxes(queries, masks)
        return Prediction(self.classifier(queries), masks, boxes)

    def boxes(self, queries: Float[Tensor, "B Q D"], masks: Float[Tensor, "B Q h w"]) -> Float[Tensor, "B Q 4"]:
        """Give the box of each mask, its center and sides moved by what the MLP says."""
        assert self.box is not None
        base = box_of_mask(masks.float())
        moved = torch.sigmoid(torch.logit(base, eps=LEAST) + self.box(queries).float())
        center, sides = moved.split(2, dim=2)
        return torch.cat([center - sides / 2, center + sides / 2], dim=2).to(masks.dtype)


def box_of_mask(masks: Float[Tensor, "B Q h w"]) -> Float[Tensor, "B Q 4"]:
    """Give center and sides, (x, y, width, height), of the box that has a mask's mean and variance along each axis."""
    covered = masks.sigmoid()
    total = covered.sum(dim=(2, 3)).clamp(min=LEAST)  # B Q
    found = []
    for axis, length in ((2, masks.shape[3]), (3, masks.shape[2])):  # x, then y: summed along the other one
        places = (torch.arange(length, device=masks.device, dtype=masks.dtype) + 0.5) / length
        shares = covered.sum(dim=axis) / total[:, :, None]  # B Q length
        mean = (shares * places).sum(dim=2)
        variance = (shares * (places - mean[:, :, None]).square()).sum(dim=2) + 1 / (12 * length**2)  # a pixel's own
        found.append((mean, (12 * variance + LEAST**2).sqrt()))
    (x, wide), (y, tall) = found
    return torch.stack([x, y, wide, tall], dim=2)


class LinearPatches(nn.Module):
    """A linear classifier of every patch."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.leading = config.leading
        self.classifier = nn.Linear(config.width, config.classes or 0)

    def forward(self, tokens: Float[Tensor, "B T D"], grid: Grid) -> Prediction:
        """Score the classes of every patch."""
        scores = self.classifier(tokens[:, self.leading :]).transpose(1, 2).unflatten(2, grid)  # B K rows cols
        return Prediction(scores.new_empty(len(scores), 0, 0), scores, scores.new_empty(len(scores), 0, 4))


class DenseViT(ViT):
    """A Vision Transformer that gives classes of pixels, or objects, instead of the class of an image."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        match config.head:
            case QueryHead() as head:
                made, self.joined, self.count = Queries(config, head), head.blocks, head.queries
            case LinearHead():
                made, self.joined, self.count = LinearPatches(config), 0, 0
            case None:
                raise ConfigError("a DenseViT needs a head of pixels or objects; got head=None.")
            case _:
                assert_never(config.head)
        self.head: Queries | LinearPatches = made  # pyright: ignore[reportIncompatibleVariableOverride]
        self.first_joined = len(self.blocks) - self.joined
        for layer in range(self.first_joined, len(self.blocks)):
            if isinstance(attention := self.blocks[layer].attention, PartedAttention):
                attention.leading += self.count  # it does not turn what has no place

    def forward(self, images: Float[Tensor, "B C H W"]) -> Prediction:  # pyright: ignore[reportIncompatibleMethodOverride]
        """What the head says after the last block."""
        grid = self.grid_of(images)
        tokens = self.before_queries(images, grid)
        for layer in range(self.first_joined, len(self.blocks)):
            tokens = self.run_joined(tokens, layer, grid, None)
        return self.read(tokens, grid)

    def stages(self, images: Float[Tensor, "B C H W"], masked: Bool[Tensor, "B L Q"] | None = None) -> list[Prediction]:
        """What the head says before each of the last blocks, and after them: what training compares.

        `masked` says which query attends only to the patches of its mask so far, in which of these blocks.
        """
        grid = self.grid_of(images)
        tokens, said = self.before_queries(images, grid), []
        for place, layer in enumerate(range(self.first_joined, len(self.blocks))):
            said.append(self.read(tokens, grid))
            allowed = None if masked is None else self.allowed(said[-1].masks, masked[:, place], grid)
            tokens = self.run_joined(tokens, layer, grid, allowed)
        return [*said, self.read(tokens, grid)]

    def read(self, tokens: Float[Tensor, "B T D"], grid: Grid) -> Prediction:
        """What the head says of tokens, each of them normed."""
        return self.head(self.pooled_norm(self.norm(tokens)), grid)

    def before_queries(self, images: Float[Tensor, "B C H W"], grid: Grid) -> Float[Tensor, "B T D"]:
        """Run the blocks that no query has joined, and put the queries first."""
        tokens = self.embed(images)
        for layer in range(self.first_joined):
            tokens = self.run_block(tokens, layer, grid)
        if not isinstance(self.head, Queries):
            return tokens
        queries = self.head.queries.to(tokens.dtype).expand(len(tokens), -1, -1)
        return torch.cat([queries, tokens], dim=1)

    def run_joined(
        self, tokens: Float[Tensor, "B T D"], layer: int, grid: Grid, allowed: Bool[Tensor, "B 1 T T"] | None
    ) -> Float[Tensor, "B T D"]:
        """One block of all tokens; positions are of those that have one."""
        placed = self.positions.add(tokens[:, self.count :], layer, grid) if layer else tokens[:, self.count :]
        tokens = torch.cat([tokens[:, : self.count], placed], dim=1)
        again = self.config.checkpointing
        return maybe_checkpoint(self.blocks[layer], tokens, grid, allowed, checkpointing=again)

    def allowed(
        self, masks: Float[Tensor, "B Q h w"], masked: Bool[Tensor, "B Q"], grid: Grid
    ) -> Bool[Tensor, "B 1 T T"]:
        """Say what every token may attend to: all, but masked queries only to the patches of their masks.

        A query whose mask is empty attends to all patches.
        """
        with torch.no_grad():
            inside = F.interpolate(masks.float(), size=grid, mode="bilinear").flatten(2) > 0  # B Q N
            inside = inside | ~masked[:, :, None] | ~inside.any(dim=2, keepdim=True)
            others = self.count + self.config.leading
            rows = torch.cat([inside.new_ones(*inside.shape[:2], others), inside], dim=2)  # B Q T
            rest = rows.new_ones(len(rows), rows.shape[2] - self.count, rows.shape[2])
            return torch.cat([rows, rest], dim=1)[:, None]

    def outputs(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Refuse: there are no logits of an image."""
        assert self.config.head is not None
        raise ConfigError(
            f"the model was trained to {self.config.head.task}, and has no classifier of images. Take vitrail.predict "
            "or vitrail.embed with it."
        )
