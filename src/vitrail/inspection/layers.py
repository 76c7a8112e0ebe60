"""Which layers are alike, of one model or of two: CKA of their features over images."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.errors import ConfigError, ShapeError
from vitrail.inspection.looking import in_parts, to_model, unwrap
from vitrail.models import BiT, ViT, eval_mode
from vitrail.ops.similarity import FEWEST, gram, kernel_alignment

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
    assert isinstance(inside, ViT | BiT)
    count = len(inside.blocks if isinstance(inside, ViT) else inside.stages)
    features = LayerFeatures(count)
    with eval_mode(inside):
        for some in in_parts(to_model(inside, images)):
            for layer, maps in enumerate(inside.feature_map(some, range(count))):
                features.add(layer, maps)
    return features.grams()
