"""Slow, obvious ViT, hybrid and BiT on the authors' names and axes; one loop an image, a head, a patch."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

Weights = dict[str, Tensor]


def norm(x: Tensor, scale: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + epsilon) * scale + bias


def group_norm(x: Tensor, scale: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    batch, channels, height, width = x.shape
    groups = x.reshape(batch, 32, -1)
    ones = torch.ones(1, dtype=x.dtype)
    normed = norm(groups, ones, 0 * ones, epsilon).reshape(batch, channels, height, width)
    return normed * scale.reshape(1, -1, 1, 1) + bias.reshape(1, -1, 1, 1)


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def attention(x: Tensor, w: Weights, prefix: str) -> Tensor:
    """T D to T D, head by head."""
    heads = w[f"{prefix}/query/kernel"].shape[1]
    total = w[f"{prefix}/out/bias"].clone().expand(x.shape[0], -1)
    for head in range(heads):
        query, key, value = (
            x @ w[f"{prefix}/{part}/kernel"][:, head] + w[f"{prefix}/{part}/bias"][head]
            for part in ("query", "key", "value")
        )
        logits = query @ key.T / math.sqrt(query.shape[1])
        scores = torch.exp(logits - logits.max(dim=1, keepdim=True).values)
        scores = scores / scores.sum(dim=1, keepdim=True)
        total = total + scores @ value @ w[f"{prefix}/out/kernel"][head]
    return total


def vit(w: Weights, images: Tensor) -> Tensor:
    """B H W C to logits."""
    return torch.stack([_vit_one(w, image) for image in images])


def _vit_one(w: Weights, image: Tensor) -> Tensor:
    features = hybrid_stem(w, image) if "conv_root/kernel" in w else image
    kernel = w["embedding/kernel"]
    side = kernel.shape[0]
    tokens = []
    for row in range(features.shape[0] // side):
        for col in range(features.shape[1] // side):
            patch = features[row * side : (row + 1) * side, col * side : (col + 1) * side]
            tokens.append(torch.einsum("pqc,pqcd->d", patch, kernel) + w["embedding/bias"])
    if "cls" in w:
        tokens.insert(0, w["cls"].reshape(-1))
    x = torch.stack(tokens) + w["Transformer/posembed_input/pos_embedding"][0]
    index = 0
    while f"Transformer/encoderblock_{index}/LayerNorm_0/scale" in w:
        block = f"Transformer/encoderblock_{index}"
        y = norm(x, w[f"{block}/LayerNorm_0/scale"], w[f"{block}/LayerNorm_0/bias"], 1e-6)
        x = x + attention(y, w, f"{block}/MultiHeadDotProductAttention_0")
        y = norm(x, w[f"{block}/LayerNorm_1/scale"], w[f"{block}/LayerNorm_1/bias"], 1e-6)
        y = gelu(y @ w[f"{block}/MlpBlock_0/Dense_0/kernel"] + w[f"{block}/MlpBlock_0/Dense_0/bias"])
        x = x + y @ w[f"{block}/MlpBlock_0/Dense_1/kernel"] + w[f"{block}/MlpBlock_0/Dense_1/bias"]
        index += 1
    x = norm(x, w["Transformer/encoder_norm/scale"], w["Transformer/encoder_norm/bias"], 1e-6)
    pooled = x[0] if "cls" in w else x.mean(0)
    if "pre_logits/kernel" in w:
        pooled = torch.tanh(pooled @ w["pre_logits/kernel"] + w["pre_logits/bias"])
    return pooled @ w["head/kernel"] + w["head/bias"]


def _same(side: int, window: int, stride: int) -> tuple[int, int]:
    out = math.ceil(side / stride)
    total = max((out - 1) * stride + window - side, 0)
    return total // 2, total - total // 2


def _conv_same(x: Tensor, kernel: Tensor, stride: int) -> Tensor:
    flat = kernel.reshape(-1, kernel.shape[-1])
    mean = flat.mean(0)
    deviation = torch.sqrt(((flat - mean) ** 2).mean(0))
    kernel = (kernel - mean) / (deviation + 1e-5)
    top, bottom = _same(x.shape[2], kernel.shape[0], stride)
    left, right = _same(x.shape[3], kernel.shape[1], stride)
    padded = F.pad(x, (left, right, top, bottom))
    return F.conv2d(padded, kernel.permute(3, 2, 0, 1), stride=stride)


def hybrid_stem(w: Weights, image: Tensor) -> Tensor:
    """H W C to the feature map, rows cols channels."""

    def normed(x: Tensor, name: str) -> Tensor:
        return group_norm(x, w[f"{name}/scale"], w[f"{name}/bias"], 1e-6)

    x = image.permute(2, 0, 1)[None]
    x = torch.relu(normed(_conv_same(x, w["conv_root/kernel"], 2), "gn_root"))
    top, bottom = _same(x.shape[2], 3, 2)
    left, right = _same(x.shape[3], 3, 2)
    x = F.max_pool2d(F.pad(x, (left, right, top, bottom), value=-math.inf), 3, 2)
    stage = 1
    while f"block{stage}/unit1/conv1/kernel" in w:
        unit = 1
        while f"block{stage}/unit{unit}/conv1/kernel" in w:
            name = f"block{stage}/unit{unit}"
            stride = 2 if unit == 1 and stage > 1 else 1
            y = torch.relu(normed(_conv_same(x, w[f"{name}/conv1/kernel"], 1), f"{name}/gn1"))
            y = torch.relu(normed(_conv_same(y, w[f"{name}/conv2/kernel"], stride), f"{name}/gn2"))
            y = normed(_conv_same(y, w[f"{name}/conv3/kernel"], 1), f"{name}/gn3")
            if f"{name}/conv_proj/kernel" in w:
                x = normed(_conv_same(x, w[f"{name}/conv_proj/kernel"], stride), f"{name}/gn_proj")
            x = torch.relu(x + y)
            unit += 1
        stage += 1
    return x[0].permute(1, 2, 0)


def _conv_padded(x: Tensor, kernel: Tensor, stride: int) -> Tensor:
    flat = kernel.reshape(-1, kernel.shape[-1])
    mean = flat.mean(0)
    variance = ((flat - mean) ** 2).mean(0)
    kernel = (kernel - mean) / torch.sqrt(variance + 1e-10)
    return F.conv2d(x, kernel.permute(3, 2, 0, 1), stride=stride, padding=kernel.shape[0] // 2)


def bit(w: Weights, images: Tensor) -> Tensor:
    """B H W C to logits."""

    def active(x: Tensor, name: str) -> Tensor:
        return torch.relu(group_norm(x, w[f"{name}/gamma"], w[f"{name}/beta"], 1e-5))

    x = _conv_padded(images.permute(0, 3, 1, 2), w["resnet/root_block/standardized_conv2d/kernel"], 2)
    x = F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)
    stage = 1
    while f"resnet/block{stage}/unit01/a/group_norm/gamma" in w:
        unit = 1
        while f"resnet/block{stage}/unit{unit:02d}/a/group_norm/gamma" in w:
            name = f"resnet/block{stage}/unit{unit:02d}"
            stride = 2 if unit == 1 and stage > 1 else 1
            first = active(x, f"{name}/a/group_norm")
            y = _conv_padded(first, w[f"{name}/a/standardized_conv2d/kernel"], 1)
            y = _conv_padded(active(y, f"{name}/b/group_norm"), w[f"{name}/b/standardized_conv2d/kernel"], stride)
            y = _conv_padded(active(y, f"{name}/c/group_norm"), w[f"{name}/c/standardized_conv2d/kernel"], 1)
            proj = f"{name}/a/proj/standardized_conv2d/kernel"
            x = y + (_conv_padded(first, w[proj], stride) if proj in w else x)
            unit += 1
        stage += 1
    x = active(x, "resnet/group_norm").mean(dim=(2, 3))
    return x @ w["resnet/head/conv2d/kernel"][0, 0] + w["resnet/head/conv2d/bias"]
