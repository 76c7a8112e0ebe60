"""A ViT's depth, width and MLP width for a compute budget: the rule of SoViT (Alabdulmohsin et al., 2023).

"Getting ViT in Shape" (arXiv 2305.13035): every dimension grows as compute^(s/3), where s is 0.45 for depth, 0.22 for
width and 0.6 for the MLP (Section 4.1, and w = 1/3 of Section 3). Here it goes through the shape that they trained
largest, SoViT-400m/14, at the compute it was made for: that of ViT-g/14 on 16 billion images at 224 pixels. So the rule
gives that shape back exactly, and is 2 to 18 % off in each dimension of the two others that they state: SoViT-150m/14
(880, 18, 2320) for ViT-B/14 on 4 billion images, and (608, 10, 928), where their sweep began, on 600 million.
"""

from vitrail.config import ViTConfig, parse
from vitrail.errors import ConfigError
from vitrail.ops.cost.counts import EXA, exaflops

EXPONENTS = {"width": 0.22 / 3, "depth": 0.45 / 3, "mlp_width": 0.6 / 3}
ANCHOR = {"width": 1152, "depth": 27, "mlp_width": 4304}  # SoViT-400m/14
EQUAL = ("ViT-g/14", 16e9)  # the model and the images whose compute it was made for
HEAD = 64  # features of a head, of which the width is a multiple; SoViT-400m itself has 16 heads of 72
MLP = 16  # of which the MLP's width is a multiple, as 4304 is
LEAST, MOST = 1e15, 1e27  # FLOPs


def shape_for(compute: float, patch: int = 14, image_size: tuple[int, int] = (224, 224)) -> ViTConfig:
    """Propose a ViT for so many FLOPs of training, forward and backward; rounded to whole heads and layers."""
    if not LEAST <= compute <= MOST:
        raise ConfigError(
            f"shape must be the FLOPs of a whole training, from {LEAST:g} to {MOST:g}; got {compute:g}. "
            "ViT-B/16 on ImageNet for 300 epochs takes 4e19."
        )
    grown = {name: ANCHOR[name] * (compute / anchor_flops()) ** power for name, power in EXPONENTS.items()}
    width = max(round(grown["width"] / HEAD), 1) * HEAD
    fields = {
        "patch": patch,
        "image_size": image_size,
        "width": width,
        "heads": width // HEAD,
        "depth": max(round(grown["depth"]), 1),
        "mlp_width": max(round(grown["mlp_width"] / MLP), 1) * MLP,
    }
    config = parse("ViT-B/16", fields)
    assert isinstance(config, ViTConfig)
    return config


def anchor_flops() -> float:
    """Count the FLOPs that SoViT-400m/14 was made for."""
    name, images = EQUAL
    return exaflops(parse(name), images=images) * EXA
