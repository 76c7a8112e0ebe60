"""A model made fast on a CPU: weights laid out once, activations inside products; half or eight bits where it has them.

Nothing is traced or compiled, so it is made in the time of a few images. Each core takes images of its own.
"""

import copy
from concurrent.futures import ThreadPoolExecutor

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.config import ViTConfig
from vitrail.config.positions import PairPositions
from vitrail.errors import ConfigError
from vitrail.models import Model, ViT
from vitrail.models.encoder import Mlp, SelfAttention
from vitrail.models.resnet import same_padding
from vitrail.models.vit import PatchEmbedding
from vitrail.ops import packed
from vitrail.runtime.class_token import ClassTokenForward
from vitrail.runtime.folded import FixedConv, convert, fold_filters
from vitrail.runtime.machine import multiplies_bfloat16, one_thread
from vitrail.runtime.rebuilt import FastModules, FastPath, Forward, Outputs, rebuild
from vitrail.runtime.scales import Scales, find_scales

USUAL_BATCH = 16
FEW = 4  # images of a core: where there are fewer, and not as many for each, cores share every product instead


class PackedLinear(nn.Module):
    """A dense layer whose weight is laid out once, and what follows it; it multiplies in its own precision."""

    def __init__(
        self, layer: nn.Linear, rows: int, dtype: torch.dtype, out: torch.dtype, activation: str | None = None
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.dtype, self.out, self.activation = dtype, out, activation
        self.weight = packed.pack(layer.weight.detach().to(dtype), rows)
        self.bias = None if layer.bias is None else layer.bias.detach().to(dtype)

    def forward(self, tokens: Float[Tensor, "*B D"]) -> Float[Tensor, "*B E"]:
        """Multiply."""
        found = packed.packed_product(tokens.to(self.dtype), self.weight, self.bias, self.activation)
        return found.to(self.out)


class Int8Linear(nn.Module):
    """A dense layer in eight bits, with scales that were found before, and what follows it."""

    def __init__(
        self,
        layer: nn.Linear,
        rows: int,
        read: Float[Tensor, "2"],
        scales: Float[Tensor, " E"],
        out: torch.dtype,
        activation: str | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.out, self.activation = out, activation
        self.scale, self.zero = packed.scale_and_zero(read)
        self.given: tuple[float, int] = (1.0, 0)  # scale and zero of what it gives, where that is levels
        self.scales = scales.clone()
        self.weight = packed.pack_int8(packed.to_int8(layer.weight, scales), rows)
        self.bias = None if layer.bias is None else layer.bias.detach()

    def forward(self, tokens: Tensor) -> Tensor:
        """Multiply; levels are taken as they are."""
        levels = tokens if tokens.dtype == torch.uint8 else packed.to_levels(tokens, self.scale, self.zero)
        how = (self.scale, self.zero, self.weight, self.scales, self.bias, self.activation)
        return packed.int8_product(levels, *how, dtype=self.out, given=self.given)


class FastMlp(nn.Module):
    """An MLP whose activation is part of its first product."""

    def __init__(self, expand: nn.Module, contract: nn.Module) -> None:
        super().__init__()
        self.expand, self.contract = expand, contract
        if isinstance(expand, Int8Linear) and isinstance(contract, Int8Linear):  # which hands levels on
            expand.out, expand.given = torch.uint8, (contract.scale, contract.zero)

    def forward(self, tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Transform every token on its own."""
        return self.contract(self.expand(tokens))


class HalfAttention(nn.Module):
    """Self-attention in bfloat16 (eqs. 5 to 8), by products over all heads."""

    def __init__(self, attention: SelfAttention) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = attention.heads, attention.qkv, attention.out

    def forward(
        self, tokens: Float[Tensor, "B T D"], grid: object = None, pairs: None = None
    ) -> Float[Tensor, "B T D"]:
        """Mix the tokens; each attends to all."""
        split = self.qkv(tokens).unflatten(2, (3, self.heads, tokens.shape[2] // self.heads))  # B T 3 h d
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)  # B h T d
        return self.out(packed.attend_in_halves(query, key, value).transpose(1, 2).flatten(2))


class PackedConv(nn.Module):
    """A convolution whose filters are laid out once."""

    def __init__(self, conv: FixedConv) -> None:
        super().__init__()
        self.same, self.stride, self.side = conv.same, conv.stride, conv.weight.shape[2]
        self.padding = self.side // 2
        self.weight = packed.pack_filters(conv.weight, self.stride, self.padding)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        """Convolve."""
        padding = self.padding
        if self.same:
            rows, cols = (same_padding(side, self.side, self.stride) for side in images.shape[2:])
            padding = rows[0]
            if len({*rows, *cols}) > 1:
                images, padding = F.pad(images, (*cols, *rows)), 0
        return packed.convolve_packed(images, self.weight, None, self.stride, padding)


class HalfStem(nn.Module):
    """A ResNet in bfloat16, between tensors of single precision."""

    def __init__(self, resnet: nn.Module) -> None:
        super().__init__()
        self.resnet = copy.deepcopy(resnet)
        convert(self.resnet, torch.bfloat16)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        """Convolve."""
        return self.resnet(images.bfloat16()).float()


class Lanes:
    """A forward pass whose images are shared out among the cores, without gradients."""

    def __init__(self, forward: Forward) -> None:
        self.forward = forward

    def __call__(self, images: Float[Tensor, "B C H W"]) -> Outputs:
        """Let each core take some, unless they would not be as many."""
        cores, count = torch.get_num_threads(), len(images)
        if cores == 1 or count < cores or (count % cores and count < FEW * cores):
            return self._pass(images)
        with one_thread(), ThreadPoolExecutor(cores) as pool:
            parts = list(pool.map(self._pass, images.chunk(cores)))
        logits = [part for _, part in parts if part is not None]
        return torch.cat([features for features, _ in parts]), torch.cat(logits) if logits else None

    def _pass(self, images: Tensor) -> Outputs:
        with torch.no_grad():  # of each thread
            return self.forward(images)


def has_bfloat16() -> bool:
    """Tell whether the processor multiplies in bfloat16."""
    return multiplies_bfloat16(torch.device("cpu"))


def has_int8() -> bool:
    """Tell whether the processor multiplies eight bits and adds in one step."""
    return bool(torch.cpu._is_vnni_supported() or torch.cpu._is_amx_tile_supported())  # pyright: ignore[reportPrivateUsage]


def words(half: bool, eight: bool) -> str:  # noqa: FBT001
    """Say which precisions a processor has beside float32."""
    return " and ".join(name for name, there in (("bfloat16", half), ("int8", eight)) if there) or "no other"


def check_cpu(model: Model, precision: str) -> str:
    """Choose a precision where it is left open: the exact one; refuse one that processor, torch or model has not."""
    if precision == "float8":
        raise ConfigError("float8 is of GPUs; on a CPU eight bits are int8. Take precision=int8.")
    if precision == "bfloat16" and not has_bfloat16():
        raise ConfigError("this processor has no products in bfloat16 (avx512_bf16 or AMX). Take precision=float32.")
    if precision == "int8":
        if not has_int8():
            raise ConfigError("this processor has no products in int8 (VNNI or AMX). Take precision=float32.")
        if not isinstance(model, ViT):
            raise ConfigError("int8 is of a Vision Transformer's products; a BiT has none. Take precision=bfloat16.")
    if precision in ("bfloat16", "int8") and not packed.can_pack():
        raise ConfigError(f"this torch is built without oneDNN, which has {precision}. Take precision=float32.")
    return "float32" if precision == "auto" else precision


def run_on_cpu(model: Model, precision: str, batch_size: int | None, scales: Scales) -> Forward:
    """Give the passes of a model made fast."""
    if packed.can_pack():
        return Lanes(modules_for_cpu(model, precision, batch_size or USUAL_BATCH, scales))
    if isinstance(model, ViT) and model.config.reads_class_token_alone:
        return Lanes(ClassTokenForward(model).outputs)
    return Lanes(model.outputs)


def modules_for_cpu(model: Model, precision: str, batch_size: int, scales: Scales) -> FastModules:
    """Copy a model with its products laid out for batches of this size; all other weights are its own."""
    shared: dict[int, object] = {id(held): held for held in (*model.parameters(), *model.buffers())}
    made = copy.deepcopy(model, shared).eval()
    fold_filters(made)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    if not isinstance(made, ViT):
        if precision == "bfloat16":
            half = copy.deepcopy(made)
            convert(half, torch.bfloat16)
            return FastModules(half, lambda images: half.outputs(images.bfloat16()))
        pack_convolutions(made)
        return FastModules(made, made.outputs)
    config, rows = made.config, batch_size * made.config.tokens
    mixes = mixes_in_halves(config) and (precision == "bfloat16" or (precision == "int8" and has_bfloat16()))

    def dense(name: str, layer: nn.Linear, part: slice, activation: str | None = None) -> nn.Module:
        out = torch.bfloat16 if mixes and name.endswith("qkv") else torch.float32
        if precision == "int8":
            return Int8Linear(layer, rows, scales.read[name], scales.weight[name][part], out, activation)
        halves = mixes or not name.endswith("qkv")
        return PackedLinear(layer, rows, dtype, dtype if halves else torch.float32, activation)

    def mlp(name: str, plain: Mlp) -> nn.Module:
        expand = dense(f"{name}.expand", plain.expand, slice(None), config.activation)
        return FastMlp(expand, dense(f"{name}.contract", plain.contract, slice(None)))

    patches = made.embedding if isinstance(made.embedding, PatchEmbedding) else made.embedding.patches
    plain = patches.get_submodule("projection")
    assert isinstance(plain, nn.Linear)
    patches.register_module("projection", PackedLinear(plain, rows, torch.float32, torch.float32))
    if not isinstance(made.embedding, PatchEmbedding):
        if precision == "bfloat16":
            made.embedding.register_module("resnet", HalfStem(made.embedding.resnet))
        else:
            pack_convolutions(made.embedding)
    return rebuild(made, dense, mlp, HalfAttention if mixes else lambda attention: attention)


def mixes_in_halves(config: ViTConfig) -> bool:
    """Tell whether attention is of all tokens to all others, and of nothing else."""
    return config.attention == "full" and not config.causal and not isinstance(config.positions, PairPositions)


def pack_convolutions(model: nn.Module) -> None:
    """Lay out the filters of every convolution."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, FixedConv):
                parent.register_module(name, PackedConv(child))


CPU = FastPath(
    engine=lambda: "oneDNN" if packed.can_pack() else "torch",
    check=check_cpu,
    why=lambda precision: f"the exact precision; the processor has {words(has_bfloat16(), has_int8())}",
    find_scales=lambda model, images: find_scales(model, images, packed.weight_scales),  # one for each output
    make=run_on_cpu,
)
