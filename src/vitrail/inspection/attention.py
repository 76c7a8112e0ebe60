"""Who attends to whom, layer by layer, without hooks and without ever holding all weights (Figs. 6, 7, 11 and 14)."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.config import Grid
from vitrail.config.parts import reads_token
from vitrail.inspection.layers import LayerFeatures
from vitrail.inspection.views import AT_ONCE, to_model, with_attention
from vitrail.models import ViT, eval_mode
from vitrail.ops.attention_chunks import CHUNK
from vitrail.ops.similarity import distance_sums, distances_from, patch_places


class AttentionShape(NamedTuple):
    """How many images, layers, heads and tokens an observer is shown."""

    images: int
    layers: int
    heads: int
    leading: int  # tokens before the patches: the class token and registers, or none
    grid: Grid
    stride: int  # pixels from one patch to the next
    device: torch.device
    token: bool = True  # the classifier reads the first of the tokens before the patches, where there are any

    @property
    def reads_token(self) -> bool:
        """Whether the classifier reads a token before the patches, and not these."""
        return self.token and self.leading > 0

    @property
    def tokens(self) -> int:
        """The class token and the patches."""
        return self.leading + self.grid[0] * self.grid[1]

    def patches(self, first: int, weights: Float[Tensor, "B h Q T"]) -> tuple[int, Float[Tensor, "B h q N"]]:
        """Give what the patches among some queries attend to, of patches, and the number of the first of them."""
        skip = max(self.leading - first, 0)
        return first + skip - self.leading, weights[:, :, skip:, self.leading :]


class Weights:
    """Attention weights of some queries in a layer, and their mean over the heads, which is computed once."""

    def __init__(self, by_head: Float[Tensor, "B h Q T"]) -> None:
        self.by_head = by_head

    @cached_property
    def mean(self) -> Float[Tensor, "B Q T"]:
        """The mean over the heads."""
        return self.by_head.mean(dim=1)


@runtime_checkable
class Observer(Protocol):
    """Keeps what it needs of the weights that it is shown, some queries of a layer at a time."""

    def see(self, layer: int, first: int, weights: Weights) -> None:
        """Look at the weights of the queries from the first one on."""


def shape_of(model: ViT, images: Float[Tensor, "B C H W"]) -> AttentionShape:
    """Say what an observer will be shown of these images."""
    return AttentionShape(
        images=len(images),
        layers=len(model.blocks),
        heads=model.config.heads,
        leading=model.config.leading,
        grid=model.grid_of(images),
        stride=model.config.stem.stride,
        device=images.device,
        token=reads_token(model.config.pooling),
    )


def observe(
    model: ViT, images: Float[Tensor, "B C H W"], observers: Sequence[Observer], features: LayerFeatures | None = None
) -> Float[Tensor, "B T D"]:
    """Send images through once and show all attention weights (eq. 6) to observers; give the tokens at the end.

    Without observers no weights are computed. `features` are given what every layer makes of the patches, as
    `feature_map` gives it.
    """
    tokens, grid = model.embed(images), model.grid_of(images)
    for layer, block in enumerate(model.blocks):
        tokens, keys = model.block_input(tokens, layer, grid)
        if observers:
            for first, weights in block.attention.weights_in_parts(block.attention_input(tokens), grid, keys):
                some = Weights(weights)
                for observer in observers:
                    observer.see(layer, first, some)
        tokens = block(tokens, grid, keys)
        if features is not None:
            patches = model.norm(tokens)[:, model.config.leading :]
            features.add(layer, patches.transpose(1, 2).unflatten(2, grid))
    return model.norm(tokens)


Kind = TypeVar("Kind", bound=Observer)


class Rollout:
    """Multiplies the layers' attention, the mean over heads with the residual (Appendix D.8)."""

    def __init__(self, shape: AttentionShape) -> None:
        self.shape, self.joint = shape, None
        self._mean: Tensor | None = None

    def see(self, layer: int, first: int, weights: Weights) -> None:
        """Gather the mean over the heads; after the layer's last query, go one layer on."""
        if self._mean is None:
            self._mean = weights.mean.new_empty(self.shape.images, self.shape.tokens, self.shape.tokens)
        stop = first + weights.mean.shape[1]
        self._mean[:, first:stop] = weights.mean
        if stop == self.shape.tokens:
            self.joint: Tensor | None = roll_on(self.joint, self._mean)

    def whole(self) -> Float[Tensor, "B T T"]:
        """Shares of the input tokens in every token after the last layer."""
        assert self.joint is not None, "an encoder has a layer"
        return self.joint

    def maps(self) -> Float[Tensor, "B rows cols"]:
        """Shares of the patches in what the classifier reads: the class token, or the mean of the patches."""
        joint = self.whole()
        read = joint[:, 0] if self.shape.reads_token else joint[:, self.shape.leading :].mean(dim=1)
        return read[:, self.shape.leading :].unflatten(1, self.shape.grid)


class Pooled:
    """Keeps what the class token attends to; where others are pooled, the mean over the patches."""

    def __init__(self, shape: AttentionShape) -> None:
        self.shape = shape
        patches = shape.grid[0] * shape.grid[1]
        self.sums = torch.zeros(shape.images, shape.layers, shape.heads, patches, device=shape.device)

    def see(self, layer: int, first: int, weights: Weights) -> None:
        """Take the class token's row, or add rows up."""
        if not self.shape.reads_token:
            _, patches = self.shape.patches(first, weights.by_head)
            self.sums[:, layer] += patches.sum(dim=2) / (self.shape.tokens - self.shape.leading)
        elif first == 0:
            self.sums[:, layer] = weights.by_head[:, :, 0, self.shape.leading :]

    def maps(self) -> Float[Tensor, "B L h rows cols"]:
        """Shares of the patches."""
        return self.sums.unflatten(3, self.shape.grid)


class Distances:
    """Adds up how far the patches look (Appendix D.7); the class token is left out, as query and as key."""

    def __init__(self, shape: AttentionShape, *, normalized: bool) -> None:
        self.shape, self.normalized = shape, normalized
        self.places = patch_places(shape.grid, shape.stride).to(shape.device)
        self.sums = torch.zeros(shape.images, shape.layers, shape.heads, device=shape.device)

    def see(self, layer: int, first: int, weights: Weights) -> None:
        """Add the patches among these queries."""
        start, patches = self.shape.patches(first, weights.by_head)
        far = distances_from(self.places[start : start + patches.shape[2]], self.places)
        self.sums[:, layer] += distance_sums(patches, far, normalized=self.normalized)

    def mean(self) -> Float[Tensor, "B L h"]:
        """Pixels, the mean over the queries."""
        return self.sums / len(self.places)


def roll_on(joint: Float[Tensor, "B T T"] | None, weights: Float[Tensor, "B T T"]) -> Float[Tensor, "B T T"]:
    """Go one layer on: shares of the input tokens in the tokens after it; `joint` are those before it.

    The residual is added to the mean of the heads: each token keeps as much as it takes.
    """
    mixed = weights + torch.eye(weights.shape[1], dtype=weights.dtype, device=weights.device)
    mixed = mixed / mixed.sum(dim=2, keepdim=True)
    return mixed if joint is None else mixed @ joint


def rollout(model: nn.Module, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B rows cols"]:
    """Give the share of every patch in what the classifier reads, by attention rollout (Fig. 6, Appendix D.8).

    The heads' weights are averaged, the residual is added, rows are scaled to one, and the layers are multiplied.
    """
    return _each(model, images, Rollout, Rollout.maps)


def rollout_matrix(model: nn.Module, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B T T"]:
    """Give the share of every input token in every token after the last layer, by attention rollout."""
    return _each(model, images, Rollout, Rollout.whole)


def pooled_attention(model: nn.Module, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B L h rows cols"]:
    """Give how much the class token attends to every patch, by layer and head; without one, the mean of all tokens."""
    return _each(model, images, Pooled, Pooled.maps)


def attention_distance(
    model: nn.Module, images: Float[Tensor, "B C H W"], *, normalized: bool = False
) -> Float[Tensor, "B L h"]:
    """Give how many pixels away the patches attend, by image, layer and head (Fig. 7 right, Fig. 11, Appendix D.7).

    The class token is left out, as query and as key, and as in the authors' code the weights of the others stay as they
    are; `normalized` scales them to one.
    """
    return _each(model, images, lambda shape: Distances(shape, normalized=normalized), Distances.mean)


def _each(
    model: nn.Module, images: Tensor, make: Callable[[AttentionShape], Kind], read: Callable[[Kind], Tensor]
) -> Tensor:
    """Read an observer of every few images, when it has seen all; nothing else of it is kept."""
    inside, found = with_attention(model), []
    with eval_mode(inside):
        fit = to_model(inside, images)
        for some in fit.split(images_at_once(inside, fit)):
            observer = make(shape_of(inside, some))
            observe(inside, some, [observer])
            found.append(read(observer).clone())
    return torch.cat(found)


def images_at_once(model: ViT, images: Float[Tensor, "B C H W"]) -> int:
    """Say how many images to look at together, so that a matrix of weights for each of them is no burden."""
    rows, cols = model.grid_of(images)
    return max(min(AT_ONCE, CHUNK // (rows * cols) ** 2), 1)
