"""Names and shapes of any model in the authors' layout, and so its number of parameters."""

import math

Shapes = dict[str, tuple[int, ...]]


def vit(
    *,
    width: int,
    depth: int,
    heads: int,
    mlp: int,
    patch: int,
    tokens: int,
    classes: int,
    channels: int = 3,
    token: bool = True,
    hidden: int | None = None,
    units: tuple[int, ...] | None = None,
    root: int = 64,
) -> Shapes:
    """A ViT, or a hybrid where `units` are given; `tokens` counts the class token."""
    shapes: Shapes = {}
    inward = channels
    if units is not None:
        shapes["conv_root/kernel"] = (7, 7, channels, root)
        shapes |= {"gn_root/scale": (root,), "gn_root/bias": (root,)}
        inward = root
        for stage, count in enumerate(units):
            narrow = root * 2**stage
            for unit in range(count):
                name = f"block{stage + 1}/unit{unit + 1}"
                shapes[f"{name}/conv1/kernel"] = (1, 1, inward, narrow)
                shapes[f"{name}/conv2/kernel"] = (3, 3, narrow, narrow)
                shapes[f"{name}/conv3/kernel"] = (1, 1, narrow, 4 * narrow)
                norms = {"gn1": narrow, "gn2": narrow, "gn3": 4 * narrow}
                if unit == 0:
                    shapes[f"{name}/conv_proj/kernel"] = (1, 1, inward, 4 * narrow)
                    norms["gn_proj"] = 4 * narrow
                for norm, size in norms.items():
                    shapes |= {f"{name}/{norm}/scale": (size,), f"{name}/{norm}/bias": (size,)}
                inward = 4 * narrow
    shapes |= {"embedding/kernel": (patch, patch, inward, width), "embedding/bias": (width,)}
    if token:
        shapes["cls"] = (1, 1, width)
    shapes["Transformer/posembed_input/pos_embedding"] = (1, tokens, width)
    for index in range(depth):
        block = f"Transformer/encoderblock_{index}"
        attention = f"{block}/MultiHeadDotProductAttention_0"
        for part in ("query", "key", "value"):
            shapes[f"{attention}/{part}/kernel"] = (width, heads, width // heads)
            shapes[f"{attention}/{part}/bias"] = (heads, width // heads)
        shapes |= {f"{attention}/out/kernel": (heads, width // heads, width), f"{attention}/out/bias": (width,)}
        shapes |= {f"{block}/MlpBlock_0/Dense_0/kernel": (width, mlp), f"{block}/MlpBlock_0/Dense_0/bias": (mlp,)}
        shapes |= {f"{block}/MlpBlock_0/Dense_1/kernel": (mlp, width), f"{block}/MlpBlock_0/Dense_1/bias": (width,)}
        for norm in ("LayerNorm_0", "LayerNorm_1"):
            shapes |= {f"{block}/{norm}/scale": (width,), f"{block}/{norm}/bias": (width,)}
    shapes |= {"Transformer/encoder_norm/scale": (width,), "Transformer/encoder_norm/bias": (width,)}
    if hidden:
        shapes |= {"pre_logits/kernel": (width, hidden), "pre_logits/bias": (hidden,)}
    return shapes | {"head/kernel": (hidden or width, classes), "head/bias": (classes,)}


def bit(*, units: tuple[int, ...], factor: int, classes: int, channels: int = 3) -> Shapes:
    root = 64 * factor
    shapes: Shapes = {"resnet/root_block/standardized_conv2d/kernel": (7, 7, channels, root)}
    inward = root
    for stage, count in enumerate(units):
        narrow = root * 2**stage
        for unit in range(count):
            name = f"resnet/block{stage + 1}/unit{unit + 1:02d}"
            convs = {"a": (1, 1, inward, narrow), "b": (3, 3, narrow, narrow), "c": (1, 1, narrow, 4 * narrow)}
            for letter, shape in convs.items():
                shapes[f"{name}/{letter}/standardized_conv2d/kernel"] = shape
                for part in ("gamma", "beta"):
                    shapes[f"{name}/{letter}/group_norm/{part}"] = (shape[2],)
            if unit == 0:
                shapes[f"{name}/a/proj/standardized_conv2d/kernel"] = (1, 1, inward, 4 * narrow)
            inward = 4 * narrow
    shapes |= {"resnet/group_norm/gamma": (inward,), "resnet/group_norm/beta": (inward,)}
    return shapes | {"resnet/head/conv2d/kernel": (1, 1, inward, classes), "resnet/head/conv2d/bias": (classes,)}


def count(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())
