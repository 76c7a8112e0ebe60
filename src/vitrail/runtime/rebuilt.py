"""A copy of a model whose layers that multiply are others, whatever a device makes of them."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.models import Model, ViT
from vitrail.models.encoder import Mlp, SelfAttention
from vitrail.runtime.class_token import ClassTokenBlock, ClassTokenForward
from vitrail.runtime.scales import Scales

Outputs = tuple[Tensor, Tensor | None]  # representation, and logits where there is a classifier
Forward = Callable[[Tensor], Outputs]
Dense = Callable[[str, nn.Linear, slice], nn.Module]  # from a product's name, some of its rows and which those are
EVERY = slice(None)


@dataclass(frozen=True, kw_only=True)
class FastPath:
    """How a device runs models fast."""

    engine: Callable[[], str]  # what they run in
    check: Callable[[Model, str], str]  # chooses a precision where it is "auto"; refuses what there is not
    why: Callable[[str], str]  # one is chosen
    find_scales: Callable[[Model, Tensor], Scales]
    make: Callable[[Model, str, int | None, Scales], Forward]  # for a precision and batches of this size


class FastModules(nn.Module):
    """The copy of a model that is run: its outputs are those of its forward pass."""

    def __init__(self, model: nn.Module, outputs: Callable[[Tensor], Outputs]) -> None:
        super().__init__()
        self.model, self.outputs = model, outputs

    def forward(self, images: Float[Tensor, "B C H W"]) -> Outputs:
        """Representation and logits."""
        return self.outputs(images)


def rebuild(
    made: Model,
    dense: Dense,
    mlp: Callable[[str, Mlp], nn.Module] | None = None,
    attention: Callable[[SelfAttention], nn.Module] = lambda attention: attention,
) -> FastModules:
    """Put other products into the blocks of a copy; where the class token alone is read, its last block gives that.

    `mlp` makes a whole MLP, where its products belong together; `attention` is given one whose products are replaced.
    """
    if not isinstance(made, ViT) or not made.config.plain_blocks:
        return FastModules(made, made.outputs)
    end = len(made.blocks) - 1
    alone = made.config.reads_class_token_alone
    for number, block in enumerate(made.blocks):
        name = f"blocks.{number}"
        block.attention.register_module("out", dense(f"{name}.attention.out", block.attention.out, EVERY))
        if mlp is not None:
            block.register_module("mlp", mlp(f"{name}.mlp", block.mlp))
        else:
            block.mlp.register_module("expand", dense(f"{name}.mlp.expand", block.mlp.expand, EVERY))
            block.mlp.register_module("contract", dense(f"{name}.mlp.contract", block.mlp.contract, EVERY))
        packed, width = block.attention.qkv, made.config.width
        if alone and number == end:
            parts = [(part_of(packed, part), part) for part in (slice(None, width), slice(width, None))]
            last = ClassTokenBlock(block, *(dense(f"{name}.attention.qkv", *part) for part in parts))
            whole = ClassTokenForward(made, last)
            return FastModules(whole, whole.outputs)
        block.attention.register_module("qkv", dense(f"{name}.attention.qkv", packed, EVERY))
        block.register_module("attention", attention(block.attention))
    return FastModules(made, made.outputs)


def part_of(packed: nn.Linear, part: slice) -> nn.Linear:
    """Give some rows of a dense layer as a layer."""
    weight = packed.weight[part]
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=packed.bias is not None, device="meta")
    made.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if packed.bias is not None:
        made.bias = nn.Parameter(packed.bias[part].detach(), requires_grad=False)
    return made
