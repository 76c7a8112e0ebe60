"""The authors' weights under the names of every generation: what each changes, written out."""

import re

import numpy as np

Arrays = dict[str, np.ndarray]


def first_release(arrays: Arrays, prefix: str = "") -> Arrays:
    """Before linen: parts of a block are numbered by place."""
    names = {"DotProductAttention_0": "DotProductAttention_1", "LayerNorm_1": "LayerNorm_2", "MlpBlock_0": "MlpBlock_3"}
    renamed = {}
    for name, array in arrays.items():
        for new, old in names.items():
            name = name.replace(new, old)
        renamed[prefix + name] = array
    return renamed


def big_vision(arrays: Arrays, prefix: str = "params/", *, stacked: bool = False) -> Arrays:
    """big_vision: a prefix, the table at the top without a class entry, which is in the class token."""
    renamed = {prefix + name: array for name, array in arrays.items()}
    table = renamed.pop(f"{prefix}Transformer/posembed_input/pos_embedding")
    if f"{prefix}cls" in renamed:
        renamed[f"{prefix}cls"] = renamed[f"{prefix}cls"] + table[:, :1]
        table = table[:, 1:]
    renamed[f"{prefix}pos_embedding"] = table
    if not stacked:
        return renamed
    layers: dict[str, dict[int, np.ndarray]] = {}
    for name in list(renamed):
        if match := re.match(rf"{prefix}Transformer/encoderblock_(\d+)/(.*)", name):
            layers.setdefault(match[2], {})[int(match[1])] = renamed.pop(name)
    stacks = {
        f"{prefix}Transformer/encoderblock/{name}": np.stack([parts[index] for index in range(len(parts))])
        for name, parts in layers.items()
    }
    return renamed | stacks


def wide_norms(arrays: Arrays) -> Arrays:
    """Old linen: the scale and bias of a GroupNorm have four axes."""
    return {
        name: array.reshape(1, 1, 1, -1) if re.search(r"(^|/)gn(\d|_root|_proj)/", name) else array
        for name, array in arrays.items()
    }


def as_bfloat16(arrays: Arrays) -> Arrays:
    """Weights cut to bfloat16, saved as two bytes without a type."""
    return {name: (array.view(np.uint32) >> 16).astype(np.uint16).view("V2") for name, array in arrays.items()}


def from_bfloat16(arrays: Arrays) -> Arrays:
    """What those bytes are in float32."""
    return {
        name: (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(array.shape)
        for name, array in arrays.items()
    }


def numbered_bit(arrays: Arrays) -> Arrays:
    """Some files of BiT number their convolutions."""
    return {
        name.replace("standardized_conv2d", f"standardized_conv2d_{index}") if "proj" in name else name: array
        for index, (name, array) in enumerate(arrays.items())
    }


def big_vision_bit(arrays: Arrays, prefix: str = "params/") -> Arrays:
    """big_vision's own names for BiT."""
    rules = (
        (r"^resnet/root_block/standardized_conv2d/", "root_block/conv_root/"),
        (r"^resnet/group_norm/", "norm-pre-head/"),
        (r"^resnet/head/conv2d/", "head/"),
        (r"^resnet/(block\d/unit\d+)/a/proj/standardized_conv2d/", r"\1/conv_proj/"),
    )
    renamed = {}
    for name, array in arrays.items():
        if name.startswith("resnet/head/conv2d/kernel"):
            array = array[0, 0]
        if "group_norm" in name:
            array = array.reshape(1, 1, 1, -1)
        for pattern, new in rules:
            name = re.sub(pattern, new, name)
        for number, letter in enumerate("abc", 1):
            name = re.sub(rf"^resnet/(block\d/unit\d+)/{letter}/standardized_conv2d/", rf"\1/conv{number}/", name)
            name = re.sub(rf"^resnet/(block\d/unit\d+)/{letter}/group_norm/", rf"\1/gn{number}/", name)
        renamed[prefix + name.replace("/gamma", "/scale").replace("/beta", "/bias")] = array
    return renamed
