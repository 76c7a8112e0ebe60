"""More ViTs as people write them: odd names and axes, and some whose mathematics no configuration here holds."""

# ruff: noqa: ANN001, ANN201, ANN204, N806
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from strangers import (
    D,
    EinopsStyle,
    FromScratch,
    H,
    HeadAttention,
    InterleavedAttention,
    K,
    LibraryAttention,
    M,
    N,
    Net,
    P,
    QkvAttention,
    Separate,
    SeparateAttention,
    SliceAttention,
    TorchEncoder,
)
from torch import nn
from torch.nn import functional as F


class ByHand(Net):
    """Raw parameters, multiplied from the other side, numbered from 1 without dots; class token last."""

    def __init__(self, depth=2, factor="gamma", shift="beta"):
        super().__init__()
        self.depth, self.norms = depth, (factor, shift)
        shapes = {"W_patch": (P * P * 3, D), "b_patch": (D,), "cls": (1, 1, D), "pos_table": (N + 1, D)}
        for i in range(1, depth + 1):
            block = {"Wq": (D, D), "Wk": (D, D), "Wv": (D, D), "Wo": (D, D), "W1": (D, M), "W2": (M, D)}
            block |= {"b1": (M,), "b2": (D,)} | {f"ln{n}_{part}": (D,) for n in (1, 2) for part in self.norms}
            shapes |= {f"layer{i}_{name}": shape for name, shape in block.items()}
        shapes |= {f"lnf_{factor}": (D,), f"lnf_{shift}": (D,), "W_head": (D, K), "b_head": (K,)}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape) * 0.3))

    def norm(self, x, name):
        weight, bias = (getattr(self, f"{name}_{part}") for part in self.norms)
        return F.layer_norm(x, (D,), weight, bias, 1e-5)

    def forward(self, x):
        x = x.unflatten(3, (-1, P)).unflatten(2, (-1, P)).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        x = x @ self.W_patch + self.b_patch
        x = torch.cat([x, self.cls.expand(len(x), -1, -1)], 1) + self.pos_table
        for i in range(1, self.depth + 1):
            get = lambda name, i=i: getattr(self, f"layer{i}_{name}")  # noqa: E731
            y = self.norm(x, f"layer{i}_ln1")
            q, k, v = ((y @ get(w)).unflatten(2, (H, -1)).transpose(1, 2) for w in ("Wq", "Wk", "Wv"))
            x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2) @ get("Wo")
            y = self.norm(x, f"layer{i}_ln2")
            x = x + F.gelu(y @ get("W1") + get("b1"), approximate="tanh") @ get("W2") + get("b2")
        return self.norm(x, "lnf")[:, -1] @ self.W_head + self.b_head


class Alternating(Net):
    """One list in which attention and MLP take turns, each with its norm; no positions but fixed ones."""

    class Residual(Net):
        def __init__(self, body):
            super().__init__()
            self.ln, self.body = nn.LayerNorm(D), body

        def forward(self, x):
            return x + self.body(self.ln(x))

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, D, P, P)
        think = lambda: nn.Sequential(nn.Linear(D, M), nn.SiLU(), nn.Linear(M, D))  # noqa: E731
        parts = [self.Residual(QkvAttention(bias=False) if i % 2 == 0 else think()) for i in range(6)]
        self.pos = nn.Parameter(torch.randn(1, N, D))
        self.net = nn.Sequential(*parts)
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, K, bias=False)

    def forward(self, x):
        x = self.net(self.stem(x).flatten(2).mT + self.pos)
        return self.head(self.norm(x).mean(1))


class Apart(Net):
    """Norms, attentions and MLPs each in a list of their own, with factors of the residual branches."""

    def __init__(self, depth=2):
        super().__init__()
        self.embed = nn.Conv2d(3, D, P, P)
        self.token, self.pos = nn.Parameter(torch.randn(D)), nn.Parameter(torch.randn(N + 1, D))
        self.attn_norms = nn.ModuleList([nn.LayerNorm(D) for _ in range(depth)])
        self.attns = nn.ModuleList([SeparateAttention(("wq", "wk", "wv", "wo")) for _ in range(depth)])
        self.mlp_norms = nn.ModuleList([nn.LayerNorm(D) for _ in range(depth)])
        self.mlps = nn.ModuleList([nn.Sequential(nn.Linear(D, M), nn.ReLU(), nn.Linear(M, D)) for _ in range(depth)])
        self.attn_gamma = nn.ParameterList([nn.Parameter(torch.rand(D)) for _ in range(depth)])
        self.mlp_gamma = nn.ParameterList([nn.Parameter(torch.rand(D)) for _ in range(depth)])
        self.head_norm, self.head = nn.LayerNorm(D), nn.Linear(D, K)

    def forward(self, x):
        x = self.embed(x).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), 1, D), x], 1) + self.pos
        for i in range(len(self.attns)):
            x = x + self.attn_gamma[i] * self.attns[i](self.attn_norms[i](x))
            x = x + self.mlp_gamma[i] * self.mlps[i](self.mlp_norms[i](x))
        return self.head(self.head_norm(x[:, 0]))


class PostByHand(Separate):
    """Norms after the residual sums, by hand; no norm at the end."""

    class Block(Net):
        def __init__(self, attention, act):
            super().__init__()
            self.self_attention, self.addnorm1 = attention, nn.LayerNorm(D, eps=1e-6)
            self.feed_forward = nn.Sequential(nn.Linear(D, M), act, nn.Linear(M, D))
            self.addnorm2 = nn.LayerNorm(D, eps=1e-6)

        def forward(self, x):
            x = self.addnorm1(x + self.self_attention(x))
            return self.addnorm2(x + self.feed_forward(x))

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(D, K)


class SharedNorm(FromScratch):
    """One norm in a block, used twice."""

    class Layer(Net):
        def __init__(self, act):
            super().__init__()
            self.norm, self.attn = nn.LayerNorm(D), QkvAttention()
            self.ff = nn.Sequential(nn.Linear(D, M), act, nn.Linear(M, D))

        def forward(self, x):
            x = x + self.attn(self.norm(x))
            return x + self.ff(self.norm(x))


class SilentNorms(FromScratch):
    """No norm has parameters, the last one neither."""

    def __init__(self):
        super().__init__()
        for part in (self, *self.encoder_layers):
            for name in [name for name, module in part.named_children() if isinstance(module, nn.LayerNorm)]:
                setattr(part, name, nn.LayerNorm(D, elementwise_affine=False))


class Probabilities(FromScratch):
    """Ends with a softmax."""

    def forward(self, x):
        return super().forward(x).softmax(-1)


class FixedPositions(FromScratch):
    """Fixed sines and cosines that are in no file."""

    def __init__(self):
        super().__init__()
        del self.pos_emb
        place, rate = torch.arange(N + 1)[:, None], 10000 ** (-torch.arange(0, D, 2) / D)
        self.pos_emb = torch.stack([(place * rate).sin(), (place * rate).cos()], 2).flatten(1)


class TanhHead(FromScratch):
    """A tanh layer before the classifier; weights divided after the softmax."""

    class Attention(QkvAttention):
        def forward(self, x):
            q, k, v = self.qkv(x).unflatten(2, (H, -1, 3)).permute(4, 0, 2, 1, 3)
            a = F.softmax(torch.einsum("bhqd, bhkd -> bhqk", q, k), dim=-1) / D**0.5
            return self.proj((a @ v).transpose(1, 2).flatten(2))

    def __init__(self):
        super().__init__()
        for layer in self.encoder_layers:
            layer.attn = self.Attention()
        self.classifier = nn.Sequential(nn.Linear(D, 20), nn.Tanh(), nn.Linear(20, K))


class MeanOfAll(FromScratch):
    """The mean of all tokens, the class token too."""

    def forward(self, x):
        x = self.patch_embedding(x)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_emb
        for layer in self.encoder_layers:
            x = layer(x)
        return self.classifier(self.ln_final(x).mean(1))


# What follows is held by no configuration here.
class MixedUp(QkvAttention):
    """Heads cut by a view that mixes tokens."""

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = (part.reshape(B, H, T, -1) for part in self.qkv(x).chunk(3, -1))
        return self.proj(F.scaled_dot_product_attention(q, k, v).reshape(B, T, D))


class WrongView(FromScratch):
    def __init__(self):
        super().__init__()
        for layer in self.encoder_layers:
            layer.attn = MixedUp()


class ResidualOfNorm(FromScratch):
    class Layer(FromScratch.Layer):
        def forward(self, x):
            x = self.norm1(x)
            x = x + self.attn(x)
            x = self.norm2(x)
            return x + self.mlp(x)


class ActiveTwice(FromScratch):
    class Layer(FromScratch.Layer):
        def forward(self, x):
            x = x + self.attn(self.norm1(x))
            return x + F.gelu(self.mlp(self.norm2(x)))


class Convolutional(Net):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Conv2d(3 if i == 0 else 8, 8, 3, padding=1)) for i in range(3)])
        self.fc = nn.Linear(8, K)


class Language(Net):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(50, D), nn.Embedding(N, D)
        self.h = nn.ModuleList([FromScratch.Layer(nn.GELU()) for _ in range(2)])
        self.lm_head = nn.Linear(D, 50, bias=False)


class Windowed(FromScratch):
    def __init__(self):
        super().__init__()
        for layer in self.encoder_layers:
            layer.attn.relative_position_bias_table = nn.Parameter(torch.randn(49, H))


class TwoNets(Net):
    def __init__(self):
        super().__init__()
        self.student, self.teacher = FromScratch(), FromScratch()


named: Any = SeparateAttention
interleaved: Any = InterleavedAttention
by_head: Any = HeadAttention
by_slice: Any = SliceAttention
HELD: dict[str, Callable[[], Any]] = {
    "from scratch": FromScratch,
    "one layer": partial(FromScratch, depth=1),
    "relu": lambda: FromScratch(nn.ReLU()),
    "gelu tanh": lambda: FromScratch(nn.GELU(approximate="tanh")),
    "apart, mean": Separate,
    "apart, token without position": partial(Separate, token=True),
    "values keys queries fc_out, over the width": lambda: Separate(
        partial(named, ("queries", "keys", "values", "fc_out"), "width", bias=False), nn.ReLU()
    ),
    "no scale": lambda: Separate(partial(named, ("q_proj", "k_proj", "v_proj", "o_proj"), "none")),
    "nameless layers": lambda: Separate(partial(named, ("l1", "l2", "l3", "l4"))),
    "torch post relu": TorchEncoder,
    "torch post gelu, norm": partial(TorchEncoder, act="gelu", norm=True),
    "torch pre, no norm": partial(TorchEncoder, first=True),
    "torch pre, norm, mean": partial(TorchEncoder, first=True, norm=True, token=False, act="gelu"),
    "library attention": LibraryAttention,
    "einops": EinopsStyle,
    "einops, narrow": partial(EinopsStyle, inner=12),
    "a module a head": lambda: Separate(by_head),
    "a slice a head": lambda: Separate(by_slice, token=True),
    "interleaved": lambda: Separate(partial(interleaved, last=False)),
    "parts last, over the width": lambda: Separate(interleaved, token=True),
    "by hand": ByHand,
    "by hand, in letters": partial(ByHand, factor="g", shift="b"),
    "norms without parameters": SilentNorms,
    "alternating": Alternating,
    "lists apart, factors": Apart,
    "post by hand": PostByHand,
    "one norm": SharedNorm,
    "probabilities": Probabilities,
    "fixed positions": FixedPositions,
    "tanh head, divided after": TanhHead,
    "mean of all": MeanOfAll,
    "torch, mean of all": partial(TorchEncoder, mean=True),
}
WRONG: dict[str, Callable[[], Any]] = {  # a table can be proposed, and no way to settle it agrees
    "a wrong view": WrongView,
    "residual of the norm": ResidualOfNorm,
    "active twice": ActiveTwice,
}
NONE: dict[str, Callable[[], Any]] = {
    "convolutions": Convolutional,
    "language": Language,
    "windows": Windowed,
    "two": TwoNets,
}

# What their authors know and no tensor says, where it is not as usual.
USUAL = {"heads": H, "activation": "gelu", "epsilon": 1e-5, "norm": "pre", "pooling": "token", "final_norm": "tokens"}
USUAL |= {"qkv": "part head feature", "scale": "head", "class_entry": "first", "order": "query key value"}
USUAL |= {"hidden": "tanh"}
USUAL |= {"patch": "row column channel", "image_size": (16, 16), "positions": "sinusoidal", "norms": "as named"}
MEAN = {"epsilon": 1e-6, "pooling": "mean", "final_norm": "pooled"}
KNOWN: dict[str, dict[str, Any]] = {
    "relu": {"activation": "relu"},
    "gelu tanh": {"activation": "gelu-tanh"},
    "apart, mean": MEAN,
    "apart, token without position": {"epsilon": 1e-6},
    "values keys queries fc_out, over the width": {**MEAN, "activation": "relu", "scale": "width"},
    "no scale": {**MEAN, "scale": "none"},
    "nameless layers": MEAN,
    "torch post relu": {"norm": "post", "activation": "relu"},
    "torch post gelu, norm": {"norm": "post"},
    "torch pre, no norm": {"activation": "relu"},
    "torch pre, norm, mean": {"pooling": "mean"},
    "library attention": {"patch": "channel row column"},
    "a module a head": MEAN,
    "a slice a head": {"epsilon": 1e-6},
    "interleaved": {**MEAN, "qkv": "head part feature"},
    "parts last, over the width": {"epsilon": 1e-6, "qkv": "head feature part", "scale": "width"},
    "tanh head, divided after": {"scale": "after width", "qkv": "head feature part"},
    "by hand": {"activation": "gelu-tanh", "class_entry": "last"},
    "by hand, in letters": {"activation": "gelu-tanh", "class_entry": "last"},
    "alternating": {"activation": "silu", "pooling": "mean"},
    "lists apart, factors": {"activation": "relu"},
    "post by hand": {**MEAN, "norm": "post"},
    "mean of all": {"pooling": "mean-all"},
    "torch, mean of all": {"norm": "post", "activation": "relu", "pooling": "mean-all"},
}
