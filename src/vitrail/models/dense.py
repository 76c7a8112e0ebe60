"""A Vision Transformer that gives classes of pixels, or objects: queries among its last tokens, or a linear layer.

While training, a query may be let attend only to where its mask or its box is so far, ever less often, so that at the
end the model is a plain ViT with more tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple, assert_never

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.config import Grid, ViTConfig
from vitrail.config.check import check_slice, pick_layers
from vitrail.config.dense import DenseTask, LinearHead, QueryHead
from vitrail.errors import ConfigError
from vitrail.models.dense_heads import Guess, LinearPatches, Objects, Prediction, Queries, middles
from vitrail.models.encoder import maybe_checkpoint
from vitrail.models.parts import PartedAttention
from vitrail.models.vit import ViT


class DenseViT(ViT):
    """A Vision Transformer that gives classes of pixels, or objects, instead of the class of an image."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        match config.head:
            case QueryHead() as head:
                kind = Queries if head.task == "segment" else Objects
                made, self.joined, self.count = kind(config, head), head.blocks, head.queries
            case LinearHead():
                made, self.joined, self.count = LinearPatches(config), 0, 0
            case None:
                raise ConfigError("a DenseViT needs a head of pixels or objects; got head=None.")
            case _:
                assert_never(config.head)
        self.head: Queries | Objects | LinearPatches = made  # pyright: ignore[reportIncompatibleVariableOverride]
        self.first_joined = len(self.blocks) - self.joined
        for layer in range(self.first_joined, len(self.blocks)):
            if isinstance(attention := self.blocks[layer].attention, PartedAttention):
                attention.leading += self.count  # it does not turn what has no place

    def forward(self, images: Float[Tensor, "B C H W"]) -> Prediction:  # pyright: ignore[reportIncompatibleMethodOverride]
        """What the head says after the last block."""
        grid = self.grid_of(images)
        tokens, guess = self.before_queries(images, grid)
        for layer in range(self.first_joined, len(self.blocks)):
            tokens = self.run_joined(tokens, layer, grid, None)
        return self.read(tokens, grid, guess)

    def stages(
        self, images: Float[Tensor, "B C H W"], masked: Bool[Tensor, "B L Q"] | None = None
    ) -> tuple[list[Prediction], Guess | Tensor | None]:
        """What the head says before each of the last blocks, and after them: what training compares; and the guess.

        `masked` says which query attends only to the patches of its mask or box so far, in which of these blocks.
        """
        grid = self.grid_of(images)
        (tokens, guess), said = self.before_queries(images, grid), []
        for place, layer in enumerate(range(self.first_joined, len(self.blocks))):
            said.append(self.read(tokens, grid, guess))
            allowed = None if masked is None else self.allowed(said[-1], masked[:, place], grid)
            tokens = self.run_joined(tokens, layer, grid, allowed)
        last = self.pooled_norm(self.norm(tokens))
        found = guess
        if isinstance(self.head, Queries):
            found = self.head.guess(last[:, self.count + self.config.leading :], grid)
        return [*said, self.head(last, grid, guess)], found

    def read(self, tokens: Float[Tensor, "B T D"], grid: Grid, guess: Guess | None = None) -> Prediction:
        """What the head says of tokens, each of them normed."""
        return self.head(self.pooled_norm(self.norm(tokens)), grid, guess)

    def before_queries(self, images: Float[Tensor, "B C H W"], grid: Grid) -> tuple[Tensor, Guess | None]:
        """Run the blocks that no query has joined, and put the queries first."""
        tokens = self.embed(images)
        for layer in range(self.first_joined):
            tokens = self.run_block(tokens, layer, grid)
        return self.join(tokens, grid)

    def join(self, tokens: Float[Tensor, "B T D"], grid: Grid) -> tuple[Tensor, Guess | None]:
        """Put the queries first: learned ones, or patches that are guessed to be the middle of an object."""
        guess = None
        match self.head:
            case LinearPatches():
                return tokens, guess
            case Queries():
                queries = self.head.queries.to(tokens.dtype).expand(tokens.shape[0], -1, -1)
            case Objects():
                patches = tokens[:, self.config.leading :]
                guess, chosen = self.head.guess(self.pooled_norm(self.norm(patches)), grid)
                begun = patches.gather(1, chosen[:, :, None].expand(-1, -1, patches.shape[2]))
                queries = begun + self.head.marks.to(tokens.dtype)
        return torch.cat([queries, tokens], dim=1), guess

    def run_joined(
        self, tokens: Float[Tensor, "B T D"], layer: int, grid: Grid, allowed: Bool[Tensor, "B 1 T T"] | None
    ) -> Float[Tensor, "B T D"]:
        """One block of all tokens; positions are of those that have one."""
        tokens = self.placed(tokens, layer, grid)
        again = self.config.checkpointing
        return maybe_checkpoint(self.blocks[layer], tokens, grid, allowed, checkpointing=again)

    def placed(self, tokens: Float[Tensor, "B T D"], layer: int, grid: Grid) -> Float[Tensor, "B T D"]:
        """Add the positions of a layer after the first to the tokens that have a place."""
        if not layer:
            return tokens
        joined = self.count if layer >= self.first_joined else 0
        added = self.positions.add(tokens[:, joined:], layer, grid)
        return torch.cat([tokens[:, :joined], added], dim=1) if joined else added

    def allowed(self, said: Prediction, masked: Bool[Tensor, "B Q"], grid: Grid) -> Bool[Tensor, "B 1 T T"]:
        """Say what every token may attend to: all, but masked queries only to the patches of their masks or boxes.

        A query whose mask is empty attends to all patches.
        """
        with torch.no_grad():
            if said.boxes.shape[1]:  # which are good sooner than masks of objects
                place = middles(grid, said.boxes).sigmoid()[:, :2]  # N 2: x and y
                low, high = said.boxes[:, :, None, :2], said.boxes[:, :, None, 2:]
                inside = ((place >= low) & (place <= high)).all(dim=3)
            else:
                inside = F.interpolate(said.masks.float(), size=grid, mode="bilinear").flatten(2) > 0  # B Q N
            inside = inside | ~masked[:, :, None] | ~inside.any(dim=2, keepdim=True)
            others = self.count + self.config.leading
            rows = torch.cat([inside.new_ones(*inside.shape[:2], others), inside], dim=2)  # B Q T
            rest = rows.new_ones(rows.shape[0], rows.shape[2] - self.count, rows.shape[2])
            return torch.cat([rows, rest], dim=1)[:, None]

    @property
    def task(self) -> DenseTask:
        """What is predicted: classes of pixels, or objects."""
        assert self.config.head is not None
        return self.config.head.task

    @property
    def learns_shapes(self) -> bool:
        """Whether it draws the objects that it frames."""
        return self.config.head is not None and self.config.head.shapes

    def outputs(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Give the representation alone: there are no logits of an image."""
        return self.represent(images), None

    def represent(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B R"]:
        """What `vitrail.embed` gives: the tokens of the image pooled, after all blocks and without the queries."""
        return self.read_out(self.tokens(images))

    def tokens(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B T D"]:
        """Every token of the image after the last block and the final norm; queries are none."""
        return self.norm(self.before(images, len(self.blocks)))[:, self.count :]

    def maps_after(self, images: Float[Tensor, "B C H W"], wanted: list[int]) -> dict[int, Tensor]:
        """Patch tokens as maps, B D rows cols, after some blocks, each through the final norm."""
        grid = self.grid_of(images)
        rows = grid[0] * grid[1]
        after = {layer: self.norm(self.before(images, layer + 1))[:, -rows:] for layer in wanted}
        return {layer: patches.transpose(1, 2).unflatten(2, grid) for layer, patches in after.items()}

    @torch.no_grad()
    def attention_maps(
        self, images: Float[Tensor, "B C H W"], layers: int | Sequence[int] | None = None, queries: slice = slice(None)
    ) -> list[Float[Tensor, "B h Q T"]]:
        """Attention weights of all layers or some; where queries have joined, they are the first tokens."""
        check_slice(queries)
        grid = self.grid_of(images)
        made = []
        for layer in pick_layers(range(len(self.blocks)) if layers is None else layers, len(self.blocks)):
            tokens = self.before(images, layer)
            if layer == self.first_joined:
                tokens, _ = self.join(tokens, grid)
            block, placed = self.blocks[layer], self.placed(tokens, layer, grid)
            keys = self.positions.keys(layer, grid)
            made.append(block.attention.weights(block.attention_input(placed), queries, grid, keys))
        return made

    def before(self, images: Float[Tensor, "B C H W"], layer: int) -> Float[Tensor, "B T D"]:
        """Every token before a block, queries first where they have joined by then."""
        grid, tokens = self.grid_of(images), self.embed(images)
        for each in range(layer):
            if each == self.first_joined:
                tokens, _ = self.join(tokens, grid)
            tokens = (
                self.run_joined(tokens, each, grid, None)
                if each >= self.first_joined
                else self.run_block(tokens, each, grid)
            )
        return tokens


class Staged(NamedTuple):
    """What training compares: what is said at every stage, S B ..., and what patches say without queries."""

    said: Prediction
    guess: Guess | Tensor | None  # of objects; or scores of classes of pixels, B K h w


class StagedViT(nn.Module):
    """A model as it is trained: what it says at every stage, S B ...; in evaluation at the last one alone."""

    def __init__(self, encoder: DenseViT) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(
        self, images: Float[Tensor, "B C H W"], masked: Bool[Tensor, "B L Q"] | None = None
    ) -> "Prediction | Staged":
        """Say everything; `masked` as in `stages`."""
        if not self.training:
            return self.encoder(images)
        stages, guess = self.encoder.stages(images, masked)
        classes, masks, boxes = zip(*stages, strict=True)
        return Staged(Prediction(torch.stack(classes), torch.stack(masks), torch.stack(boxes)), guess)
