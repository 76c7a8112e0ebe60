"""A ViT that reads images of many sizes at once: their patches are one sequence, and each attends to its own alone."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int32, Int64
from numpy.typing import NDArray
from torch import Tensor

from vitrail.config import BiTConfig, Grid, HybridStem, NoPositions, PairPositions, RotaryPositions
from vitrail.errors import ConfigError, ShapeError
from vitrail.models import Model, ViT
from vitrail.models.encoder import Block
from vitrail.models.vit import PatchEmbedding
from vitrail.ops.constants import upload
from vitrail.ops.packing import attend_in_blocks, fused_attend_in_blocks, has_block_kernel
from vitrail.ops.patches import unpatchify

Outputs = tuple[Tensor, Tensor | None]
Bank = tuple[Mapping[Grid, int], Tensor]  # where the vectors of each grid begin, and the vectors, one below the other
LARGEST_BANK = 1 << 28  # bytes of position vectors of a layer, after which they are made anew
PLAIN = "Leave keep_aspect_ratio out"


class Layout(NamedTuple):
    """How images are packed: those of fewer tokens first, the class token of each before its patches."""

    grids: tuple[Grid, ...]  # as they are packed
    lengths: tuple[int, ...]  # tokens of each
    within: NDArray[np.int64]  # of every token, its place in its image
    sources: Int64[Tensor, " S"]  # of every token, its place among the class token and the patches as they came
    bounds: Int32[Tensor, " ends"]  # where each image begins, and the end
    places: Int64[Tensor, " n"]  # of the images as they came, among those that are packed


class PackedModel(Model):
    """A ViT for images of many sizes: `at` gives it for some of them together; images of one size go as ever.

    `half` computes in a copy in bfloat16, for which a GPU has all attention in one kernel; `compiled` is for very many
    images. What packing cannot do goes grid by grid.
    """

    packing: Tensor  # the most patches of an image; in the digest of rows that are kept

    def __init__(self, source: Model, *, half: bool = False, fused: bool | None = None, compiled: bool = False) -> None:
        super().__init__()
        self.source = check_packing(source)
        self.config, self.card, self.layers = source.config, source.card, source.layers
        self.trained_on = source.trained_on
        self.working = half_copy(self.source) if half else self.source
        like = next(self.working.parameters())
        self.fused = has_block_kernel(like.device, like.dtype) if fused is None else fused
        self.fused_block = torch.compile(fused_block, dynamic=True, fullgraph=True) if compiled else fused_block
        self.banks: dict[int, Bank] = {}
        self.register_buffer("packing", torch.tensor(self.patches))

    @property
    def patch(self) -> int:
        """The side of a patch."""
        return self.source.config.stem.stride

    @property
    def patches(self) -> int:
        """The most patches of an image: those of the model's own size."""
        rows, cols = self.source.config.grid
        return rows * cols

    def said(self) -> dict[str, Any]:
        """Say how images are read, for documents."""
        return {"keep_aspect_ratio": True, "most_patches": self.patches}

    def forward(self, images: Float[Tensor, "B C H W"]) -> Tensor:
        """Logits of images of one size; of a model without a classifier, its representation."""
        return self.source(images)

    def represent(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B R"]:
        """What the linear classifier reads of images of one size."""
        return self.source.represent(images)

    def outputs(self, images: Float[Tensor, "B C H W"]) -> Outputs:
        """Representation and logits of images of one size."""
        return self.source.outputs(images)

    def at(self, grids: Iterable[Sequence[int]]) -> "PackedBatch":
        """Give the model of images of these grids: it is called with the patches of all."""
        return PackedBatch(self, tuple((rows, cols) for rows, cols in grids))

    @torch.no_grad()
    def outputs_packed(self, patches: Float[Tensor, "N PPC"], grids: Sequence[Grid]) -> Outputs:
        """Representation and logits of every image, of the patches of all, image after image."""
        if (count := sum(rows * cols for rows, cols in grids)) != len(patches):
            raise ShapeError(f"images of these grids have {count} patches; got {len(patches)}. Give those of all.")
        model, half = self.working, self.working is not self.source
        with torch.autocast(patches.device.type, enabled=not half and torch.is_autocast_enabled(patches.device.type)):
            given = patches.to(next(model.parameters()).dtype)
            packs = packs_tokens(model)
            features = self._packed(given, grids) if packs else by_grid(model, given, grids, self.patch)
            logits = model.head(features) if self.config.classes else None
        return features.to(patches.dtype), None if logits is None else logits.to(patches.dtype)

    def _packed(self, patches: Float[Tensor, "N PPC"], grids: Sequence[Grid]) -> Float[Tensor, "n R"]:
        model, leading = self.working, self.source.config.class_tokens
        layout, last = plan_layout(grids, leading, patches.device), len(model.blocks) - 1
        assert isinstance(model.embedding, PatchEmbedding)
        embedded = model.embedding.projection(patches)  # N D
        if model.class_token is not None:
            embedded = torch.cat([model.class_token[None], embedded])
        tokens = embedded[layout.sources][None]  # 1 S D
        for layer, block in enumerate(model.blocks):
            tokens = self._add_positions(tokens, layer, layout)
            alone = leading > 0 and layer == last  # of the last layer the class tokens alone are read
            if self.fused:
                tokens = self.fused_block(block, tokens, layout.bounds, leading + self.patches, alone=alone)
            else:
                queries = (1,) * len(grids) if alone else layout.lengths
                attend = partial(attend_in_blocks, queries=queries, keys=layout.lengths)
                tokens = packed_block(block, tokens, attend, layout.bounds[:-1] if alone else None)
        tokens = model.norm(tokens)[0]
        pooled = tokens if leading else pool_images(model, tokens, layout.lengths)  # n D
        return model.read_out(pooled[layout.places][:, None])

    def _add_positions(self, tokens: Float[Tensor, "1 S D"], layer: int, layout: Layout) -> Float[Tensor, "1 S D"]:
        """Add the vectors of every token's place in its own grid, where this layer has any."""
        positions = self.working.positions
        if isinstance(self.source.config.positions, NoPositions) or positions.table_of(layer) is None:
            return tokens
        starts, vectors = self._bank(layer, layout.grids, tokens)
        first = np.array([starts[grid] for grid in layout.grids], dtype=np.int64)
        return tokens + vectors[upload(first.repeat(layout.lengths) + layout.within, tokens.device)]

    def _bank(self, layer: int, grids: Sequence[Grid], tokens: Float[Tensor, "1 S D"]) -> Bank:
        """The position vectors of all grids that were seen; each is made once, as the model makes them.

        Threads may make some at once: each goes on with what it made, and the last one's are kept.
        """
        leading, width = self.source.config.class_tokens, tokens.shape[2]
        starts, vectors = self.banks.get(layer, ({}, tokens[0, :0]))
        if vectors.dtype != tokens.dtype or vectors.numel() * vectors.element_size() > LARGEST_BANK:
            starts, vectors = {}, tokens[0, :0]
        starts, parts, end = dict(starts), [vectors], len(vectors)
        for grid in dict.fromkeys(grids):
            if grid not in starts:
                empty = tokens.new_zeros(1, leading + grid[0] * grid[1], width)
                parts.append(self.working.positions.add(empty, layer, grid)[0])
                starts[grid], end = end, end + len(parts[-1])
        if len(parts) > 1:
            self.banks[layer] = starts, torch.cat(parts)
            return self.banks[layer]
        return starts, vectors


class PackedBatch(Model):
    """A packed model for a batch whose grids are known; its images are their patches, N PPC."""

    def __init__(self, packed: PackedModel, grids: tuple[Grid, ...]) -> None:
        super().__init__()
        self.packed, self.grids = packed, grids
        self.config, self.card, self.layers = packed.config, packed.card, packed.layers

    def forward(self, images: Float[Tensor, "N PPC"]) -> Tensor:
        """Logits; of a model without a classifier, its representation."""
        features, logits = self.outputs(images)
        return features if logits is None else logits

    def represent(self, images: Float[Tensor, "N PPC"]) -> Float[Tensor, "n R"]:
        """What the linear classifier reads."""
        return self.outputs(images)[0]

    def outputs(self, images: Float[Tensor, "N PPC"]) -> Outputs:
        """Representation and logits."""
        return self.packed.outputs_packed(images, self.grids)


def plan_layout(grids: Sequence[Grid], leading: int, device: torch.device) -> Layout:
    """Plan how images of these grids are packed, so that those of one length are beside each other."""
    counts = np.array([rows * cols for rows, cols in grids], dtype=np.int64)
    order = np.argsort(counts, kind="stable")
    starts, lengths = (np.cumsum(counts) - counts)[order], counts[order] + leading
    begins, total = np.cumsum(lengths) - lengths, int(lengths.sum())
    within = np.arange(total) - begins.repeat(lengths)
    sources = np.where(within < leading, 0, starts.repeat(lengths) + within)  # the class token is number 0
    return Layout(
        grids=tuple(grids[place] for place in order.tolist()),
        lengths=tuple(lengths.tolist()),
        within=within,
        sources=upload(sources, device),
        bounds=upload(np.append(begins, total).astype(np.int32), device),
        places=upload(np.argsort(order), device),
    )


def packed_block(
    block: Block, tokens: Float[Tensor, "1 S D"], attend: Callable[..., Tensor], first: Tensor | None = None
) -> Float[Tensor, "1 Q D"]:
    """Eqs. 2 and 3 of images in one sequence; `first` numbers the tokens that are wanted, where not all are."""
    query, key, value = (part[0].transpose(0, 1) for part in block.attention.project(block.attention_norm(tokens)))
    if first is not None:
        query, tokens = query.index_select(0, first), tokens.index_select(1, first)
    mixed = attend(query, key, value).flatten(1)[None]
    tokens = tokens + block.attention_scale(block.attention.out(mixed))
    return tokens + block.mlp_scale(block.mlp(block.mlp_norm(tokens)))


def fused_block(
    block: Block, tokens: Float[Tensor, "1 S D"], bounds: Int32[Tensor, " ends"], longest: int, *, alone: bool
) -> Float[Tensor, "1 Q D"]:
    """`packed_block` with all attention in one kernel; `alone` gives the first token of each image alone."""
    if not alone:
        attend = partial(fused_attend_in_blocks, queries=bounds, keys=bounds, longest=(longest, longest))
        return packed_block(block, tokens, attend)
    queries = torch.arange(len(bounds), dtype=torch.int32, device=bounds.device)
    attend = partial(fused_attend_in_blocks, queries=queries, keys=bounds, longest=(1, longest))
    return packed_block(block, tokens, attend, bounds[:-1])


def pool_images(model: ViT, tokens: Float[Tensor, "S D"], lengths: Sequence[int]) -> Float[Tensor, "n D"]:
    """Pool the tokens of every image; those of one length beside each other go together."""
    pooled, start = [], 0
    for length, same in groupby(lengths):
        stop = start + length * len(list(same))
        pooled.append(model.pool(tokens[start:stop].unflatten(0, ((stop - start) // length, length))))
        start = stop
    return torch.cat(pooled)


def by_grid(model: ViT, patches: Float[Tensor, "N PPC"], grids: Sequence[Grid], patch: int) -> Float[Tensor, "n R"]:
    """What the linear classifier reads by the plain model, called once for each grid: what packing is measured by."""
    parts = patches.split([rows * cols for rows, cols in grids])
    found: dict[int, Tensor] = {}
    for grid in dict.fromkeys(grids):
        same = [place for place, other in enumerate(grids) if other == grid]
        images = unpatchify(torch.stack([parts[place] for place in same]), patch, grid)
        found |= dict(zip(same, model.represent(images), strict=True))
    return torch.stack([found[place] for place in range(len(grids))])


def packs_tokens(model: ViT) -> bool:
    """Tell whether a model's tokens can be one sequence: attention among all of an image, with nothing beside it."""
    config = model.config
    full = config.attention == "full" and not config.causal and config.norm == "pre"
    return full and not isinstance(config.positions, PairPositions)


def half_copy(model: ViT) -> ViT:
    """Copy a model in bfloat16, the activation of each MLP part of its first product."""
    from vitrail.runtime.gpu import FusedMlp

    made = copy.deepcopy(model).requires_grad_(requires_grad=False).eval().to(torch.bfloat16)
    for block in made.blocks if model.config.activation == "gelu-tanh" else ():
        block.mlp = FusedMlp(block.mlp)  # pyright: ignore[reportAttributeAccessIssue]
    return made


def check_packing(model: Model) -> ViT:
    """Refuse a model that cannot read patches of many images as one sequence, before anything is computed."""
    what = "an exported or optimized model takes whole batches"
    if isinstance(model, ViT):
        config = model.config
        turned = isinstance(config.positions, RotaryPositions)
        if not isinstance(config.stem, HybridStem) and config.reads_plainly and not config.first_norm and not turned:
            return model
        what = "this ViT has parts that packed sequences have not: registers, rotary positions, a first norm or pooling"
        what = "a hybrid's ResNet reads whole images" if isinstance(config.stem, HybridStem) else what
    elif isinstance(model.config, BiTConfig):
        what = "a BiT reads whole images"
    raise ConfigError(
        f"keep_aspect_ratio packs the patches of images of many shapes, and {what}. {PLAIN}, or take the checkpoint "
        "of a ViT whose patches are cut from the pixels, such as ViT-B/16."
    )
