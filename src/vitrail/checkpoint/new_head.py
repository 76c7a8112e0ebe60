"""A new head for a model's weights: a classifier of images, or what reads every patch."""

from torch import Tensor

from vitrail.config import ModelConfig
from vitrail.config.dense import DenseHead
from vitrail.config.model import ViTConfig
from vitrail.models import skeleton
from vitrail.models.build import DIRECTIONS, draw

Weights = dict[str, Tensor]
Adapted = tuple[Weights, tuple[str, ...]]  # new weights, and in words what is new


def head_of(config: ModelConfig) -> DenseHead | None:
    """Give the head of pixels or objects, where there is one."""
    return config.head if isinstance(config, ViTConfig) else None


def dense_head(weights: Weights, new: ViTConfig) -> Adapted:
    """Take what reads the tokens away, and draw a head of pixels or objects."""
    wanted = {name: tensor.shape for name, tensor in skeleton(new).state_dict().items()}
    kept = {name: tensor for name, tensor in weights.items() if name in wanted and not name.startswith("head.")}
    like = next(iter(kept.values()))
    fresh = {name: draw(name, shape, seed=0).to(like) for name, shape in wanted.items() if name.startswith("head.")}
    assert new.head is not None
    return kept | fresh, (f"new head to {new.head.task} {new.classes} classes",)


def replace_head(weights: Weights, new: ModelConfig) -> Adapted:
    """Take the whole head away and put a zero one there (Section 3.2), or drawn directions where it is by cosines.

    The tanh layer stays where `new` has one.
    """
    if isinstance(new, ViTConfig) and new.head is not None:
        return dense_head(weights, new)
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("head.")}
    fresh = "zero classifier" if new.cosine_scale is None else "classifier by cosines"
    said = "classifier dropped" if new.classes is None else f"new {fresh} of {new.classes} classes"
    if isinstance(new, ViTConfig) and "hidden.weight" in weights:
        if new.pre_logits is None:
            kept = {name: tensor for name, tensor in kept.items() if not name.startswith("hidden.")}
            said += ", pre-training layer dropped"
        else:
            said += ", pre-training layer kept"
    if new.classes is None:
        return kept, (said,)
    like = next(iter(kept.values()))
    if new.cosine_scale is not None:
        directions = draw(DIRECTIONS, (new.classes, new.representation), seed=0)
        return kept | {DIRECTIONS: directions.to(like)}, (said,)
    two = isinstance(new, ViTConfig) and new.pooling == "distilled"
    for name in ("head.first", "head.second") if two else ("head",):
        kept[f"{name}.weight"] = like.new_zeros(new.classes, new.representation // (1 + two))
        kept[f"{name}.bias"] = like.new_full((new.classes,), new.head_bias)
    return kept, (said,)
