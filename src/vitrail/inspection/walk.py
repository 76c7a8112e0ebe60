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
def walk(model: ViT, images: Float[Tensor, "B C H W"]) -> list[Step]:
    """Run the images through a plain ViT and write down the shape of everything on the way."""
    config = model.config
    if not isinstance(config.stem, PatchStem):
        raise ConfigError("the walk begins with patches of pixels; a hybrid begins with a ResNet. Take a plain ViT.")
    embedded = model.embed(images)
    patches, projected = patchify(images, config.stem.patch), model.embedding(images)
    block = model.blocks[0]
    normed = block.attention_norm(embedded)
    qkv, weights = block.attention.qkv(normed), block.attention.weights(normed)
    query = block.attention.project(normed)[0]
    hidden = block.mlp.expand(block.mlp_norm(embedded))
    tokens = model.tokens(images)
    representation, logits = model.represent(images), model(images)

    side, (rows, cols) = config.stem.patch, config.stem.grid(*images.shape[2:])
    count, flat = patches.shape[1:]
    token = "class token first, positions added" if config.class_tokens else "positions added"
    read = "class token" if config.pooling == "token" else "mean of all tokens"
    steps = [
        ("image", "", images, f"{images.shape[2]}x{images.shape[3]} pixels, {config.channels} channels"),
        ("patches", "3.1", patches, f"{rows}x{cols} patches of {side}x{side}x{config.channels} = {flat} values"),
        ("projected", "eq. 1", projected, f"{count} vectors of {config.width}"),
        ("tokens", "eq. 1", embedded, token),
        ("query, key, value", "eq. 5", qkv, f"3 x {config.width} = {qkv.shape[2]} a token"),
        ("queries by head", "eq. 5", query, f"{config.heads} heads of {config.head_width}"),
        ("attention weights", "eq. 6", weights, "token by token; rows sum to 1"),
        ("inside the MLP", "eq. 3", hidden, f"{config.width} to {config.mlp_width}, and back"),
        ("encoded tokens", "eqs. 2-3", tokens, f"after {config.depth} blocks and the final norm"),
        ("representation", "eq. 4", representation, f"{read}, for the classifier"),
        ("logits", "3.1", logits, f"a score for each of {config.classes} classes"),
    ]
    return [Step(what, where, tuple(tensor.shape), words) for what, where, tensor, words in steps]
