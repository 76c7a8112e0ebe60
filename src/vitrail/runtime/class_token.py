"""A ViT whose last block computes the class token alone, since nothing else of it is read: the same logits for less."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.models import ViT
from vitrail.models.encoder import Block, maybe_checkpoint
from vitrail.models.lora import LoRALinear
from vitrail.ops.attention import fused_attention


class ClassTokenBlock(nn.Module):
    """The last block of a model that `reads_class_token_alone`: it gives that; its parameters are the block's own.

    Where the packed layer of queries, keys and values is taken apart, `query` and `key_value` are its parts.
    """

    def __init__(self, block: Block, query: nn.Module | None = None, key_value: nn.Module | None = None) -> None:
        super().__init__()
        self.block, self.query, self.key_value = block, query, key_value
        self.heads, self.width = block.attention.heads, block.attention.out.in_features

    def forward(self, tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "B 1 D"]:
        """Eqs. 2 and 3 of the first token."""
        block, attention = self.block, self.block.attention
        read, split = block.attention_norm(tokens), (self.heads, self.width // self.heads)
        query = self.project(read[:, :1], self.query, slice(None, self.width))  # B 1 D
        pair = self.project(read, self.key_value, slice(self.width, None)).unflatten(2, (2, *split))  # B T 2 h d
        key, value = pair.permute(2, 0, 3, 1, 4).unbind(0)  # B h T d
        dropout = attention.attention_dropout if attention.training else 0.0
        mixed = fused_attention(query.unflatten(2, split).transpose(1, 2), key, value, None, dropout)  # B h 1 d
        mixed = block.attention_output_dropout(attention.out(mixed.transpose(1, 2).flatten(2)))
        token = tokens[:, :1] + block.attention_stochastic_depth(block.attention_scale(mixed))
        thought = block.mlp_output_dropout(block.mlp(block.mlp_norm(token)))
        return token + block.mlp_stochastic_depth(block.mlp_scale(thought))

    def project(self, tokens: Float[Tensor, "B T D"], made: nn.Module | None, part: slice) -> Float[Tensor, "B T E"]:
        """Some of queries, keys and values: by a layer made of them, or by their rows of the packed one."""
        if made is not None:
            return made(tokens)
        packed = self.block.attention.qkv
        if isinstance(packed, LoRALinear):
            return packed.some(tokens, part)
        return F.linear(tokens, packed.weight[part], None if packed.bias is None else packed.bias[part])


class ClassTokenForward(nn.Module):
    """The forward pass of a ViT through a last block that gives the class token alone; exact, also its gradients."""

    def __init__(self, model: ViT, last: ClassTokenBlock | None = None) -> None:
        super().__init__()
        self.model = model
        self.last = last or ClassTokenBlock(model.blocks[len(model.blocks) - 1])

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        """Logits."""
        return self.model.head(self.represent(images))

    def represent(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B R"]:
        """What the linear classifier reads."""
        model, grid = self.model, self.model.grid_of(images)
        tokens, end = model.embed(images), len(model.blocks) - 1
        for layer in range(end):
            tokens = model.run_block(tokens, layer, grid)
        tokens, _ = model.block_input(tokens, end, grid)
        token = maybe_checkpoint(self.last, tokens, checkpointing=model.config.checkpointing)
        return model.read_out(model.norm(token))

    def outputs(self, images: Float[Tensor, "B C H W"]) -> tuple[Tensor, Tensor | None]:
        """What the linear classifier reads, and the logits that it gives; None without a classifier."""
        features = self.represent(images)
        return features, self.model.head(features) if self.model.config.classes else None
