"""PIXELS to what a model reads: crops, sizes, colours, maps and mixtures, as functions of given random numbers."""

from vitrail.data.transforms.finish import Finished, augment, draw_slots, finish, scale, unscale
from vitrail.data.transforms.geometry import crop_resize, inception_box, inception_boxes, middle_box
from vitrail.data.transforms.resize import evaluation_image, resize, resize_small

__all__ = [
    "Finished",
    "augment",
    "crop_resize",
    "draw_slots",
    "evaluation_image",
    "finish",
    "inception_box",
    "inception_boxes",
    "middle_box",
    "resize",
    "resize_small",
    "scale",
    "unscale",
]
