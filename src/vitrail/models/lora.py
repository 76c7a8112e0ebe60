"""Low-rank changes of linear layers (LoRA, Hu et al., 2022): W + alpha / rank * B A, of which A and B are trained.

Query, key and value of the packed layer have matrices of their own, each for its rows.
"""

from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.config.objective import LoRA
from vitrail.models.base import Model
from vitrail.models.build import draw

PACKED = {"qkv": ("query", "key", "value")}  # layers of several matrices, which have as many rows each
MARK = ".lora_"  # in the names of what is trained


class LoRALinear(nn.Linear):
    """A linear layer that stays as it is, with a low-rank change of some of its parts."""

    def __init__(self, layer: nn.Linear, parts: tuple[str, ...], changed: frozenset[str], config: LoRA) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.scale = config.alpha / config.rank
        each = layer.out_features // len(parts)
        self.parts = {name: range(number * each, (number + 1) * each) for number, name in enumerate(parts)}
        self.lora_A, self.lora_B = nn.ParameterDict(), nn.ParameterDict()
        for name in parts:
            if name in changed:
                self.lora_A[name] = nn.Parameter(layer.weight.new_empty(config.rank, layer.in_features))
                self.lora_B[name] = nn.Parameter(layer.weight.new_empty(each, config.rank))

    def forward(self, input: Float[Tensor, "... D"]) -> Float[Tensor, "... E"]:
        """The layer's own outputs, and what the change adds to them."""
        return self.some(input, slice(None))

    def some(self, input: Float[Tensor, "... D"], rows: slice) -> Float[Tensor, "... E"]:
        """Those of the outputs that whole parts give, by their rows."""
        wanted = range(self.out_features)[rows]
        names = [name for name, held in self.parts.items() if held[0] in wanted]
        outputs = F.linear(input, self.weight[rows], None if self.bias is None else self.bias[rows])
        changed = [self.lora_A[name] for name in names if name in self.lora_A]
        if not changed:
            return outputs
        return outputs + F.linear(F.linear(input, torch.cat(changed)) * self.scale, self._outward(names, self.lora_B))

    def merged(self, weight: Float[Tensor, "E D"], matrices: Mapping[str, Tensor]) -> Float[Tensor, "E D"]:
        """Give a weight with the change of these matrices, lora_A.NAME and lora_B.NAME, added in double precision."""
        inward = torch.cat([matrices[f"lora_A.{name}"] for name in self.lora_A]).double()
        outward = {name: matrices[f"lora_B.{name}"].double() for name in self.lora_B}
        return (weight.double() + self.scale * self._outward([*self.parts], outward) @ inward).to(weight.dtype)

    def _outward(self, names: list[str], matrices: Mapping[str, Tensor] | nn.ParameterDict) -> Float[Tensor, "E R"]:
        """Give one matrix of all parts: each reads its own numbers, and what has no change reads none."""
        like = self.weight.new_empty(0, 0)
        parts = [matrices[name] if name in matrices else like.new_empty(len(self.parts[name]), 0) for name in names]
        return torch.block_diag(*parts)

    def extra_repr(self) -> str:
        """Show what is changed, and by what rank."""
        rank = next(iter(self.lora_A.values())).shape[0]
        return f"{super().extra_repr()}, changed={[*self.lora_A]}, rank={rank}, scale={self.scale:g}"


@torch.no_grad()
def add_lora(model: Model, config: LoRA, *, seed: int) -> None:
    """Put a change that is nothing yet beside the matrices that the configuration names, in every block."""
    changed = frozenset(config.matrices)
    for path, layer in [*_layers(model)]:
        parent, _, leaf = path.rpartition(".")
        parts = PACKED.get(leaf, (leaf,))
        if changed.intersection(parts):
            made = LoRALinear(layer, parts, changed, config)
            for name, parameter in made.named_parameters():
                if name.startswith(MARK.removeprefix(".")):
                    parameter.copy_(draw(f"{path}.{name}", parameter.shape, seed))
            setattr(model.get_submodule(parent), leaf, made)


def _layers(model: Model) -> Iterator[tuple[str, nn.Linear]]:
    """List the linear layers of the blocks."""
    for path, module in model.named_modules():
        if path.startswith("blocks.") and isinstance(module, nn.Linear):
            yield path, module


def merge(module: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give the weights of the plain model, by the names of the module's parameters: changes are added."""
    plain = {name: tensor for name, tensor in weights.items() if MARK not in name}
    for path, layer in module.named_modules():
        if isinstance(layer, LoRALinear):
            start = f"{path}."
            held = {name.removeprefix(start): tensor for name, tensor in weights.items() if name.startswith(start)}
            plain[f"{start}weight"] = layer.merged(held["weight"], held)
    return plain


def changed_names(model: nn.Module) -> set[str]:
    """Name the weights that have a change beside them."""
    return {f"{path}.weight" for path, layer in model.named_modules() if isinstance(layer, LoRALinear)}
