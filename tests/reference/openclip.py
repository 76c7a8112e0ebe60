"""CLIP's image tower as its authors write it, out of torch's own parts: slow, obvious, independent of the package."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Layer(nn.Module):
    """Attention and MLP, each with a norm before it and a residual beside it."""

    def __init__(self, width: int, heads: int, wide: int, *, quick: bool) -> None:
        super().__init__()
        self.quick = quick
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, wide), "c_proj": nn.Linear(wide, width)})

    def forward(self, tokens: Tensor) -> Tensor:
        """Both, one after the other."""
        normed = self.ln_1(tokens)
        tokens = tokens + self.attn(normed, normed, normed, need_weights=False)[0]
        hidden = self.mlp["c_fc"](self.ln_2(tokens))
        hidden = hidden * torch.sigmoid(1.702 * hidden) if self.quick else F.gelu(hidden)
        return tokens + self.mlp["c_proj"](hidden)


class Tower(nn.Module):
    """The image tower, by the names of OpenAI and OpenCLIP."""

    def __init__(
        self, *, side: int, patch: int, width: int, depth: int, heads: int, wide: int, out: int, quick: bool
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, patch, patch, bias=False)
        self.class_embedding = nn.Parameter(torch.randn(width) / 5)
        self.positional_embedding = nn.Parameter(torch.randn((side // patch) ** 2 + 1, width) / 5)
        self.ln_pre, self.ln_post = nn.LayerNorm(width), nn.LayerNorm(width)
        layers = [Layer(width, heads, wide, quick=quick) for _ in range(depth)]
        self.transformer = nn.ModuleDict({"resblocks": nn.ModuleList(layers)})
        self.proj = nn.Parameter(torch.randn(width, out) / 5)

    def forward(self, images: Tensor) -> Tensor:
        """The embedding of each image; positions are resampled where the grid is another."""
        patches = self.conv1(images)  # B D rows cols
        rows, cols = patches.shape[2:]
        table = self.positional_embedding[1:]
        side = round(len(table) ** 0.5)
        square = table.T.reshape(1, -1, side, side)
        if (rows, cols) != (side, side):
            square = F.interpolate(square, (rows, cols), mode="bicubic", antialias=True, align_corners=False)
        tokens = (patches + square).flatten(2).transpose(1, 2)
        first = (self.class_embedding + self.positional_embedding[0]).expand(len(images), 1, -1)
        tokens = self.ln_pre(torch.cat([first, tokens], dim=1))
        for layer in self.transformer["resblocks"]:  # pyright: ignore[reportGeneralTypeIssues]
            tokens = layer(tokens)
        return self.ln_post(tokens[:, 0]) @ self.proj
