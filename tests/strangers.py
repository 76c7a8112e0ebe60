"""Small ViTs as people write them by hand, each in a style of its own; their names are nobody's layout."""

# ruff: noqa: ANN001, ANN201, ANN204, N806
import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

D, H, M, K, P, S = 24, 3, 40, 7, 4, 16  # width, heads, MLP, classes, patch, image
N = (S // P) ** 2
Net: Any = nn.Module  # whose attributes are whatever is set


class PatchEmbedding(Net):
    def __init__(self, name="projection"):
        super().__init__()
        self.key = name
        setattr(self, name, nn.Conv2d(3, D, P, P))

    def forward(self, x):
        return getattr(self, self.key)(x).flatten(2).transpose(1, 2)


class QkvAttention(Net):
    """Packed, [q|k|v] rows."""

    def __init__(self, bias=True, heads=H):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(D, 3 * D, bias=bias)
        self.proj = nn.Linear(D, D)

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = self.qkv(x).reshape(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
        return self.proj((a @ v).transpose(1, 2).reshape(B, T, D))


class FromScratch(Net):
    """The usual tutorial: conv patches, cls_token, pos_emb, pre-norm, packed qkv."""

    class Layer(Net):
        def __init__(self, act):
            super().__init__()
            self.norm1, self.attn, self.norm2 = nn.LayerNorm(D), QkvAttention(), nn.LayerNorm(D)
            self.mlp = nn.Sequential(nn.Linear(D, M), act, nn.Dropout(0.1), nn.Linear(M, D), nn.Dropout(0.1))

        def forward(self, x):
            x = x + self.attn(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    def __init__(self, act=None, depth=2):
        super().__init__()
        self.patch_embedding = PatchEmbedding()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, D))
        self.pos_emb = nn.Parameter(torch.zeros(1, N + 1, D))
        self.encoder_layers: Any = nn.ModuleList([self.Layer(act or nn.GELU()) for _ in range(depth)])
        self.ln_final = nn.LayerNorm(D)
        self.classifier = nn.Linear(D, K)

    def forward(self, x):
        x = self.patch_embedding(x)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_emb
        for layer in self.encoder_layers:
            x = layer(x)
        return self.classifier(self.ln_final(x)[:, 0])


class SeparateAttention(Net):
    """Query, key and value apart, under names that are given; `scaled` is what products are divided by."""

    def __init__(self, names=("query", "key", "value", "out"), scaled="head", bias=True, heads=H):
        super().__init__()
        self.names, self.scaled, self.heads = names, scaled, heads
        for name in names:
            setattr(self, name, nn.Linear(D, D, bias=bias or name == names[3]))

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = (getattr(self, n)(x).view(B, T, self.heads, -1).transpose(1, 2) for n in self.names[:3])
        over = {"head": math.sqrt(D // self.heads), "width": math.sqrt(D), "none": 1.0}[self.scaled]
        a = torch.softmax(q @ k.transpose(-1, -2) / over, -1)
        return getattr(self, self.names[3])((a @ v).transpose(1, 2).contiguous().view(B, T, D))


class Separate(Net):
    """Query, key, value apart; mean pooling; a norm in the head; positions of the patches alone."""

    class Block(Net):
        def __init__(self, attention, act):
            super().__init__()
            self.layer_norm_1, self.attention = nn.LayerNorm(D, eps=1e-6), attention
            self.layer_norm_2 = nn.LayerNorm(D, eps=1e-6)
            self.fc1, self.fc2, self.act = nn.Linear(D, M), nn.Linear(M, D), act

        def forward(self, x):
            x = x + self.attention(self.layer_norm_1(x))
            return x + self.fc2(self.act(self.fc1(self.layer_norm_2(x))))

    def __init__(self, make: Any = SeparateAttention, act=None, token=False):
        super().__init__()
        self.to_patches = nn.Conv2d(3, D, kernel_size=P, stride=P)
        self.class_embedding = nn.Parameter(torch.randn(D)) if token else None
        self.position_embedding = nn.Embedding(N, D)
        self.blocks = nn.ModuleList([self.Block(make(), act or nn.GELU()) for _ in range(3)])
        self.head = nn.Sequential(nn.LayerNorm(D, eps=1e-6), nn.Linear(D, K))

    def forward(self, x):
        x = self.to_patches(x).flatten(2).permute(0, 2, 1) + self.position_embedding.weight
        if self.class_embedding is not None:
            x = torch.cat([self.class_embedding.repeat(len(x), 1, 1), x], 1)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0] if self.class_embedding is not None else x.mean(1))


class TorchEncoder(Net):
    """Torch's own encoder: post- or pre-norm, ReLU or GELU, with or without a final norm."""

    def __init__(self, first=False, act="relu", norm=False, token=True, mean=False):
        super().__init__()
        layer = nn.TransformerEncoderLayer(D, H, M, 0.0, act, batch_first=True, norm_first=first)
        self.patchify = nn.Conv2d(3, D, P, P, bias=False)
        self.cls = nn.Parameter(torch.randn(1, 1, D)) if token else None
        self.pos = nn.Parameter(torch.randn(1, N + token, D))
        self.transformer = nn.TransformerEncoder(
            layer, 2, norm=nn.LayerNorm(D) if norm else None, enable_nested_tensor=False
        )
        self.fc, self.mean = nn.Linear(D, K), mean

    def forward(self, x):
        x = self.patchify(x).flatten(2).transpose(1, 2)
        if self.cls is not None:
            x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1)
        x = self.transformer(x + self.pos)
        return self.fc(x.mean(1) if self.cls is None or self.mean else x[:, 0])


class LibraryAttention(Net):
    """nn.MultiheadAttention in blocks by hand; linear patches cut by unfold."""

    class EncoderBlock(Net):
        def __init__(self):
            super().__init__()
            self.ln1, self.mha = nn.LayerNorm(D), nn.MultiheadAttention(D, H, batch_first=True)
            self.ln2, self.ffn = nn.LayerNorm(D), nn.Sequential(nn.Linear(D, M), nn.GELU(), nn.Linear(M, D))

        def forward(self, x):
            y = self.ln1(x)
            x = x + self.mha(y, y, y, need_weights=False)[0]
            return x + self.ffn(self.ln2(x))

    def __init__(self):
        super().__init__()
        self.linear_projection = nn.Linear(3 * P * P, D)
        self.class_token = nn.Parameter(torch.randn(1, D))
        self.positions = nn.Parameter(torch.randn(N + 1, D))
        self.enc = nn.Sequential(*[self.EncoderBlock() for _ in range(2)])
        self.mlp_head = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, K))

    def forward(self, x):
        x = F.unfold(x, P, stride=P).transpose(1, 2)  # channel row column
        x = self.linear_projection(x)
        x = torch.cat([self.class_token.expand(len(x), 1, D), x], 1) + self.positions
        return self.mlp_head(self.enc(x)[:, 0])


class EinopsStyle(Net):
    """vit-pytorch's way of old: lists of lists, PreNorm wrappers, linear patches by row, column and channel."""

    class PreNorm(Net):
        def __init__(self, fn):
            super().__init__()
            self.norm, self.fn = nn.LayerNorm(D), fn

        def forward(self, x):
            return self.fn(self.norm(x))

    class Attention(Net):
        def __init__(self, inner):
            super().__init__()
            self.to_qkv = nn.Linear(D, 3 * inner, bias=False)
            self.to_out = nn.Sequential(nn.Linear(inner, D), nn.Dropout(0.0))

        def forward(self, x):
            q, k, v = (t.unflatten(2, (H, -1)).transpose(1, 2) for t in self.to_qkv(x).chunk(3, -1))
            a = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
            return self.to_out((a @ v).transpose(1, 2).flatten(2))

    def __init__(self, inner=3 * 16):
        super().__init__()
        self.patch_to_embedding = nn.Linear(3 * P * P, D)
        self.pos_embedding = nn.Parameter(torch.randn(1, N + 1, D))
        self.cls_token = nn.Parameter(torch.randn(1, 1, D))
        mlp = lambda: nn.Sequential(nn.Linear(D, M), nn.GELU(), nn.Dropout(0.0), nn.Linear(M, D))  # noqa: E731
        wrap = self.PreNorm
        self.body: Any = nn.ModuleList([nn.ModuleList([wrap(self.Attention(inner)), wrap(mlp())]) for _ in range(3)])
        self.out = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, K))

    def forward(self, x):
        x = x.unflatten(3, (-1, P)).unflatten(2, (-1, P)).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        x = self.patch_to_embedding(x)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embedding
        for attend, think in self.body:
            x = x + attend(x)
            x = x + think(x)
        return self.out(x[:, 0])


class HeadAttention(Net):
    """A module for each head, in the style of books: query, key and value of D to d."""

    class Head(Net):
        def __init__(self):
            super().__init__()
            for name in ("q", "k", "v"):
                setattr(self, name, nn.Linear(D, D // H))

        def forward(self, x):
            q, k, v = self.q(x), self.k(x), self.v(x)
            return F.scaled_dot_product_attention(q, k, v)

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([self.Head() for _ in range(H)])
        self.output_linear = nn.Linear(D, D)

    def forward(self, x):
        return self.output_linear(torch.cat([head(x) for head in self.heads], -1))


class SliceAttention(Net):
    """A list of layers for each of query, key and value, each of d to d: a head reads its own features."""

    def __init__(self):
        super().__init__()
        for name in ("q_mappings", "k_mappings", "v_mappings"):
            setattr(self, name, nn.ModuleList([nn.Linear(D // H, D // H) for _ in range(H)]))

    def forward(self, x):
        parts = []
        for i, part in enumerate(x.chunk(H, -1)):
            q, k, v = self.q_mappings[i](part), self.k_mappings[i](part), self.v_mappings[i](part)
            parts.append((q @ k.mT / (D // H) ** 0.5).softmax(-1) @ v)
        return torch.cat(parts, -1)


class InterleavedAttention(Net):
    """Packed rows by head: (h 3 d), or with the parts last: (h d 3)."""

    def __init__(self, last=True, scaled=1.0):
        super().__init__()
        self.last, self.scaled = last, scaled
        self.qkv, self.projection = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x):
        every = self.qkv(x)
        every = every.unflatten(2, (H, D // H, 3)).movedim(4, 3) if self.last else every.unflatten(2, (H, 3, D // H))
        q, k, v = every.permute(3, 0, 2, 1, 4)
        a = F.softmax(q @ k.mT / (D**0.5 if self.last else (D // H) ** 0.5), -1)
        return self.projection((a @ v).transpose(1, 2).flatten(2))
