"""The story of an image's shapes on its way through a Vision Transformer (Fig. 1)."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.config import PatchStem
from vitrail.errors import ConfigError
from vitrail.models import ViT
from vitrail.ops import patchify


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
