"""What queries are compared with, and how: objects matched to queries, then losses of classes, masks and boxes."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor
from torch.nn import functional as F

from vitrail.ops.assignment import assign

# How much each loss counts, as in EoMT and Mask2Former, and of boxes as in DETR; in matching too.
CLASS, MASK, DICE, EDGES, OVERLAP = 2.0, 5.0, 5.0, 5.0, 2.0
NOTHING = 0.1  # weight of the class loss of a query that no object is matched to
LEVELS = 256  # of a mask's numbers


class Targets(NamedTuple):
    """The objects of images: what they are, where they are, and which part of the image counts."""

    classes: Int64[Tensor, "B M"]  # -1: there is none
    masks: Float[Tensor, "B M h w"]  # the share of each pixel that is of the object
    known: Float[Tensor, "B h w"]  # the share of each pixel that counts
    boxes: Float[Tensor, "B M 4"]  # left, top, right, bottom, in shares of the sides; B M 0 where there are none


def targets_of_masks(masks: UInt8[Tensor, "B H W"], size: tuple[int, int], void: int) -> Targets:
    """Take every class that an image has as an object; what is void counts nowhere."""
    counts = torch.zeros(len(masks), LEVELS, device=masks.device, dtype=torch.int64)
    flat = masks.flatten(1).long()
    counts.scatter_add_(1, flat, (flat != void).long())
    most = max(int((counts > 0).sum(dim=1).max()), 1) if len(masks) else 1
    found, classes = counts.sort(dim=1, descending=True, stable=True)
    classes = torch.where(found > 0, classes, -1)[:, :most]
    known = F.adaptive_avg_pool2d((masks != void).float(), size)  # B h w
    parts = [F.adaptive_avg_pool2d((masks == each[:, None, None]).float(), size) for each in classes.unbind(1)]
    shares = torch.stack(parts, dim=1) / known.clamp(min=1e-6)[:, None]
    return Targets(classes, shares, known, shares.new_zeros(*classes.shape, 0))


def targets_of_boxes(objects: Float[Tensor, "B M 5"], size: tuple[int, int]) -> Targets:
    """Take objects (class + 1, box); the mask of one is its box."""
    classes, boxes = objects[..., 0].long() - 1, objects[..., 1:]
    left, top, right, bottom = boxes.unbind(2)
    cover = []
    for low, high, length in ((top, bottom, size[0]), (left, right, size[1])):
        edges = torch.arange(length + 1, device=boxes.device, dtype=boxes.dtype) / length
        inside = torch.minimum(high[..., None], edges[1:]) - torch.maximum(low[..., None], edges[:-1])
        cover.append(inside.clamp(min=0) * length)  # B M length
    masks = cover[0][..., :, None] * cover[1][..., None, :]
    return Targets(classes, masks, masks.new_ones(len(masks), *size), boxes)


def overlap(
    first: Float[Tensor, "*batch 4"], second: Float[Tensor, "*batch 4"]
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Give intersection over union of boxes, and its generalized form (Rezatofighi et al., 2019)."""
    areas = [(box[..., 2:] - box[..., :2]).clamp(min=0).prod(dim=-1) for box in (first, second)]
    low, high = torch.maximum(first[..., :2], second[..., :2]), torch.minimum(first[..., 2:], second[..., 2:])
    both = (high - low).clamp(min=0).prod(dim=-1)
    either = areas[0] + areas[1] - both
    low, high = torch.minimum(first[..., :2], second[..., :2]), torch.maximum(first[..., 2:], second[..., 2:])
    hull = (high - low).clamp(min=0).prod(dim=-1)
    shared = both / either.clamp(min=1e-9)
    return shared, shared - (hull - either) / hull.clamp(min=1e-9)


@torch.no_grad()
def match(
    classes: Float[Tensor, "B Q K"], masks: Float[Tensor, "B Q h w"], boxes: Float[Tensor, "B R 4"], targets: Targets
) -> Int64[Tensor, "B M"]:
    """Give every object the query that predicts it most cheaply, each query once; -1 where there is no object."""
    chosen = targets.classes.clamp(min=0)  # B M
    shares = classes.float().softmax(dim=2).transpose(1, 2)  # B K Q
    costs = -CLASS * shares.gather(1, chosen[:, :, None].expand(-1, -1, shares.shape[2]))  # B M Q
    flat, wanted = masks.float().flatten(2), targets.masks.flatten(2)
    known = targets.known.flatten(1)[:, None]  # B 1 P
    pixels = known.sum(dim=2, keepdim=True).clamp(min=1e-6)
    wanted = wanted * known
    unlike = (F.softplus(flat) * known).sum(dim=2)[:, None] - torch.einsum("bmp,bqp->bmq", wanted, flat)
    covered = flat.sigmoid() * known
    both = torch.einsum("bmp,bqp->bmq", wanted, covered)
    total = wanted.sum(dim=2)[:, :, None] + covered.sum(dim=2)[:, None]
    costs = costs + MASK * unlike / pixels + DICE * (1 - (2 * both + 1) / (total + 1))
    if targets.boxes.shape[2]:
        ours, theirs = targets.boxes[:, :, None], boxes.float()[:, None]
        far = (ours - theirs).abs().sum(dim=3)
        costs = costs + EDGES * far - OVERLAP * overlap(*torch.broadcast_tensors(ours, theirs))[1]
    found = torch.full(chosen.shape, -1, dtype=torch.int64)
    present = (targets.classes >= 0).cpu()
    for row, table, there in zip(found, costs.cpu(), present, strict=True):
        if there.any():
            row[there] = torch.from_numpy(assign(table[there].numpy()))
    return found.to(chosen.device)


def query_losses(
    classes: Float[Tensor, "B Q K"],
    masks: Float[Tensor, "B Q h w"],
    boxes: Float[Tensor, "B R 4"],
    targets: Targets,
    matched: Int64[Tensor, "B M"],
) -> Float[Tensor, " B"]:
    """Give every image's loss, of objects and their matched queries; masks and boxes as the mean over its objects."""
    there = matched >= 0  # B M; an object beyond the number of queries has none
    place = matched.clamp(min=0)
    nothing = classes.shape[2] - 1
    wanted = torch.full(classes.shape[:2], nothing, device=classes.device)
    wanted = _put(wanted, place, targets.classes, there)
    weights = torch.where(wanted == nothing, NOTHING, 1.0)
    unlike = F.cross_entropy(classes.float().transpose(1, 2), wanted, reduction="none")
    losses = CLASS * (unlike * weights).sum(dim=1) / weights.sum(dim=1)
    each = there.float() / there.sum(dim=1, keepdim=True).clamp(min=1)  # B M: one in all
    chosen = masks.float().flatten(2).gather(1, place[:, :, None].expand(-1, -1, masks.shape[2] * masks.shape[3]))
    known = targets.known.flatten(1)[:, None]
    flat = targets.masks.flatten(2)
    pixels = F.binary_cross_entropy_with_logits(chosen, flat, reduction="none") * known
    losses = losses + MASK * (pixels.sum(dim=2) / known.sum(dim=2).clamp(min=1e-6) * each).sum(dim=1)
    flat, covered = flat * known, chosen.sigmoid() * known
    dice = 1 - (2 * (flat * covered).sum(dim=2) + 1) / (flat.sum(dim=2) + covered.sum(dim=2) + 1)
    losses = losses + DICE * (dice * each).sum(dim=1)
    if targets.boxes.shape[2]:
        ours = boxes.float().gather(1, place[:, :, None].expand(-1, -1, 4))
        far = (ours - targets.boxes).abs().sum(dim=2)
        apart = 1 - overlap(ours, targets.boxes)[1]
        losses = losses + ((EDGES * far + OVERLAP * apart) * each).sum(dim=1)
    return losses


def _put(
    rows: Int64[Tensor, "B Q"], place: Int64[Tensor, "B M"], values: Int64[Tensor, "B M"], there: Tensor
) -> Int64[Tensor, "B Q"]:
    """Put values at places of rows, where they are there."""
    wider = torch.cat([rows, rows[:, :1]], dim=1)  # one more, for those that are not
    return wider.scatter(1, torch.where(there, place, rows.shape[1]), values)[:, :-1]


def pixel_losses(scores: Float[Tensor, "B K h w"], masks: UInt8[Tensor, "B H W"], void: int) -> Float[Tensor, " B"]:
    """Give every image's mean cross-entropy of its pixels that count, of scores that are interpolated."""
    whole = F.interpolate(scores.float(), size=masks.shape[1:], mode="bilinear")
    known = masks != void
    unlike = F.cross_entropy(whole, torch.where(known, masks, 0).long(), reduction="none")
    return (unlike * known).sum(dim=(1, 2)) / known.sum(dim=(1, 2)).clamp(min=1)


def class_scores(classes: Float[Tensor, "B Q K"], masks: Float[Tensor, "B R h w"]) -> Float[Tensor, "B K2 h w"]:
    """Give the scores of every class at every pixel: what its queries cover, by how likely each is of it."""
    if not classes.shape[1]:  # of a linear head, whose masks are of classes
        return masks.float().softmax(dim=1)
    shares = classes.float().softmax(dim=2)[:, :, :-1]
    return torch.einsum("bqk,bqhw->bkhw", shares, masks.float().sigmoid())
