"""Layer by layer: an image's shapes on its way (Fig. 1), and which layers are alike, by CKA of their features."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.config import PatchStem
from vitrail.errors import ConfigError, ShapeError
from vitrail.inspection.views import AT_ONCE, to_model, unwrap
from vitrail.models import ViT, eval_mode
from vitrail.ops.patches import patchify
from vitrail.ops.similarity import FEWEST, gram, kernel_alignment


class Step(NamedTuple):
    """One stop on the way: what it is, where the paper says so, the tensor's shape, and the shape in words."""

    what: str
    where: str
    shape: tuple[int, ...]
    words: str


@torch.no_grad()
def trace_shapes(model: ViT, images: Float[Tensor, "B C H W"]) -> list[Step]:
    """Run the images through a plain ViT and write down the shape of everything on the way."""
    config = model.config
    if not isinstance(config.stem, PatchStem):
        raise ConfigError("the shapes are those of patches of pixels; a hybrid begins with a ResNet. Take a plain ViT.")
    embedded = model.embed(images)
    patches, projected = patchify(images, config.stem.patch), model.embedding(images)
    block = model.blocks[0]
    normed = block.attention_input(embedded)
    grid = config.stem.grid(*images.shape[2:])
    qkv, weights = block.attention.qkv(normed), block.attention.weights(normed)
    query = block.attention.project(normed)[0]
    hidden = block.mlp.expand(block.mlp_norm(embedded))
    tokens = model.tokens(images)
    representation, logits = model.represent(images), model(images)

    rows, cols = grid
    count, flat = patches.shape[1:]
    token = f"{embedded.shape[1]} tokens, class token first" if config.class_tokens else f"{embedded.shape[1]} tokens"
    steps = [
        ("image", "", images, f"{images.shape[2]}x{images.shape[3]} pixels, {config.channels} channels"),
        ("patches", "3.1", patches, f"{count} patches of {flat} values"),
        ("projected", "eq. 1", projected, f"{rows}x{cols} grid of vectors of {config.width}"),
        ("tokens", "eq. 1", embedded, token),
        ("query, key, value", "eq. 5", qkv, f"{qkv.shape[2]} for query, key and value"),
        ("queries by head", "eq. 5", query, f"{config.heads} heads of {config.head_width}"),
        ("attention weights", "eq. 6", weights, "token by token; rows sum to 1"),
        ("inside the MLP", "eq. 3", hidden, f"{config.width} to {config.mlp_width}, and back"),
        ("encoded tokens", "eqs. 2-3", tokens, f"after {config.depth} blocks and a norm"),
        ("representation", "eq. 4", representation, "what the classifier reads"),
        ("logits", "3.1", logits, f"a score for each of {config.classes} classes"),
    ]
    return [Step(what, where, tuple(tensor.shape), words) for what, where, tensor, words in steps]


CELLS = 8  # sides of the grid to which features are averaged before they are compared
Grams = list[Float[Tensor, "n n"]]  # of every layer


class LayerFeatures:
    """Gathers every layer's features of images, averaged to a small grid, as they come."""

    def __init__(self, layers: int) -> None:
        self._parts: list[list[Tensor]] = [[] for _ in range(layers)]

    def add(self, layer: int, maps: Float[Tensor, "B D rows cols"]) -> None:
        """Keep a layer's features of some images more."""
        rows, cols = (min(side, CELLS) for side in maps.shape[2:])
        self._parts[layer].append(F.adaptive_avg_pool2d(maps.float(), (rows, cols)).flatten(1).cpu())

    def grams(self) -> Grams:
        """Give the products of every two images' features, layer by layer."""
        return [gram(torch.cat(parts)) for parts in self._parts]


def layer_similarity(
    model: nn.Module,
    images: Float[Tensor, "B C H W"],
    other: nn.Module | None = None,
    other_images: Float[Tensor, "B C2 H2 W2"] | None = None,
) -> Float[Tensor, "L L2"]:
    """Compare the layers of a model with each other, or with those of another, by CKA over the images.

    An image's features are those of its patches, averaged to a grid of at most 8 x 8: so models of other patches and
    ResNets, whose stages are their layers, can be compared. The other model is given the same images, unless its own
    views of them, of another size, are given.
    """
    if other is None and other_images is not None:
        raise ConfigError("other_images are of the other model, and there is none. Say other=.")
    for some in (images, *([] if other_images is None else [other_images])):
        if len(some) < FEWEST:
            raise ShapeError(f"layers are compared over {FEWEST} images at least; got {len(some)}. Give more images.")
    ours = grams_of(model, images)
    theirs = ours if other is None else grams_of(other, images if other_images is None else other_images)
    return compare_layers(ours, theirs)


def compare_layers(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Float[Tensor, "L L2"]:
    """Give the CKA of every two layers, from their Gram matrices."""
    return torch.tensor([[kernel_alignment(one, two) for two in theirs] for one in ours])


def grams_of(model: nn.Module, images: Float[Tensor, "B C H W"]) -> Grams:
    """Send images through and give every layer's Gram matrix."""
    inside = unwrap(model)
    count = inside.layers
    features = LayerFeatures(count)
    with eval_mode(inside):
        for some in to_model(inside, images).split(AT_ONCE):
            for layer, maps in enumerate(inside.feature_map(some, range(count))):
                features.add(layer, maps)
    return features.grams()
