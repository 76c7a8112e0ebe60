"""Attention that begins as trained attention looks (Trockman and Kolter, 2023): products near the identity."""

from hashlib import blake2b
from math import sqrt

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from vitrail.config import ModelConfig, ViTConfig
from vitrail.config.recipe import Mimetic
from vitrail.errors import ConfigError
from vitrail.models.base import Model


@torch.no_grad()
def initialize_attention(model: Model, config: Mimetic, *, seed: int) -> None:
    """Set query, key, value and output of every block: by head, queries and keys have a product near a Z + b I.

    What a layer gets is a function of the seed and its name alone. Biases stay zero.
    """
    check_mimetic(model.config, fresh=True)
    for name, layer in model.named_modules():
        if not name.startswith("blocks.") or not name.endswith(".attention"):
            continue
        heads, qkv, out = layer.heads, layer.qkv.weight, layer.out.weight  # pyright: ignore[reportAttributeAccessIssue]
        assert isinstance(heads, int)
        assert isinstance(qkv, Tensor)
        assert isinstance(out, Tensor)
        generator = Generator("cpu").manual_seed(_seed_of(f"{seed}/{name}"))
        query, key, value = qkv.chunk(3)  # hd D
        for query_head, key_head in zip(query.chunk(heads), key.chunk(heads), strict=True):
            left, right = two_factors(draw_noise(qkv.shape[1], generator), *config.query_key, rank=len(query_head))
            query_head.copy_(left)
            key_head.copy_(right)
        noise, (spread, weight) = draw_noise(qkv.shape[1], generator), config.value_output
        left, right = two_factors(noise, spread, -weight, rank=len(value))
        value.copy_(left)
        out.copy_(right.T)


def two_factors(
    noise: Float[Tensor, "D D"], spread: float, weight: float, *, rank: int
) -> tuple[Float[Tensor, "R D"], Float[Tensor, "R D"]]:
    """Give matrices whose product, of the first's transpose and the second, is nearest to spread Z + weight I.

    Each has the root of its singular values.
    """
    left, values, right = torch.linalg.svd(spread * noise + weight * torch.eye(len(noise)))
    roots = values[:rank].sqrt()[:, None]
    return roots * left.T[:rank], roots * right[:rank]


def draw_noise(width: int, generator: Generator) -> Float[Tensor, "D D"]:
    """Draw Z, whose variance is 1 / D, on the CPU, so that every device has the same."""
    return torch.randn(width, width, generator=generator, device="cpu") / sqrt(width)


def check_mimetic(config: ModelConfig, *, fresh: bool) -> None:
    """Refuse a model that has its weights already, or no attention, or attention that is wider than its tokens."""
    if not fresh:
        raise ConfigError(
            "initialization=mimetic is of a new model; this one comes with weights. Set initialization=none."
        )
    if not isinstance(config, ViTConfig):
        raise ConfigError("initialization=mimetic is of attention, and a BiT has none. Set initialization=none.")
    if (mixed := config.heads * config.head_width) > config.width:
        raise ConfigError(
            f"initialization=mimetic needs attention that is at most as wide as the tokens, {config.width}; got "
            f"{mixed}. Leave model.attention_width out, or set initialization=none."
        )


def _seed_of(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=7).digest())
