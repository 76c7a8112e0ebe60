"""What queries are compared with, and how: objects matched to queries, then losses of classes, masks and boxes."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor
from torch.nn import functional as F

from vitrail.ops.assignment import assign_all

# How much each loss counts, as in EoMT and Mask2Former, and of boxes as in DETR; in matching too.
CLASS, MASK, DICE, EDGES, OVERLAP = 2.0, 5.0, 5.0, 5.0, 2.0
NOTHING = 0.1  # weight of the class loss of a query that no object is matched to
NEAR = 0.25  # of the sides of an object: patches no farther from its middle are it
LEVELS = 256  # of a mask's numbers


class Targets(NamedTuple):
    """The objects of images: what they are, where they are, and which part of the image counts."""

    classes: Int64[Tensor, "B M"]  # -1: there is none
    masks: Float[Tensor, "B M h w"]  # the share of each pixel that is of the object; B M 0 0 where there are none
    known: Float[Tensor, "B h w"]  # the share of each pixel that counts
    boxes: Float[Tensor, "B M 4"]  # left, top, right, bottom, in shares of the sides; B M 0 where there are none

    def repeat(self, times: int) -> "Targets":
        """Give the images so many times, one after the other."""
        return Targets(*(part.repeat(times, *[1] * (part.ndim - 1)) for part in self))

    def shrink(self, size: tuple[int, int]) -> "Targets":
        """Give masks of a smaller size."""
        known = F.adaptive_avg_pool2d(self.known, size)
        covered = F.adaptive_avg_pool2d(self.masks * self.known[:, None], size)
        return self._replace(masks=covered / known.clamp(min=1e-6)[:, None], known=known)


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


def targets_of_boxes(
    objects: Float[Tensor, "B M 5"], shapes: Bool[Tensor, "B M H W"] | None = None, size: tuple[int, int] = (0, 0)
) -> Targets:
    """Take objects (class + 1, box), with masks of a size where their pixels are known."""
    count = len(objects)
    if not objects.shape[1]:  # of any image
        objects = objects.new_zeros(count, 1, 5)
        shapes = None if shapes is None else shapes.new_zeros(count, 1, *shapes.shape[2:])
    masks = objects.new_zeros(*objects.shape[:2], 0, 0)
    if shapes is not None:
        masks = F.adaptive_avg_pool2d(shapes.float(), size)
    known = masks.new_ones(count, *masks.shape[2:])
    return Targets(objects[..., 0].long() - 1, masks, known, objects[..., 1:])


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
    classes: Float[Tensor, "B Q K"], masks: Float[Tensor, "B P h w"], boxes: Float[Tensor, "B R 4"], targets: Targets
) -> Int64[Tensor, "B M"]:
    """Give every object the query that predicts it most cheaply, each query once; -1 where there is no object."""
    chosen = targets.classes.clamp(min=0)  # B M
    shares = classes.float().softmax(dim=2).transpose(1, 2)  # B K Q
    costs = -CLASS * shares.gather(1, chosen[:, :, None].expand(-1, -1, shares.shape[2]))  # B M Q
    if masks.shape[1]:
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
    found = assign_all(costs.cpu().numpy(), (targets.classes >= 0).cpu().numpy())
    return torch.from_numpy(found).to(chosen.device)


def query_losses(
    classes: Float[Tensor, "B Q K"],
    masks: Float[Tensor, "B P h w"],
    boxes: Float[Tensor, "B R 4"],
    targets: Targets,
    matched: Int64[Tensor, "B M"],
) -> Float[Tensor, " B"]:
    """Give every image's loss, of objects and their matched queries; masks and boxes as the mean over its objects.

    Predicted masks are interpolated to the size of the known ones, as they are when an image is segmented.
    """
    there = matched >= 0  # B M; an object beyond the number of queries has none
    place = matched.clamp(min=0)
    nothing = classes.shape[2] - 1
    wanted = torch.full(classes.shape[:2], nothing, device=classes.device)
    wanted = _put(wanted, place, targets.classes, there)
    weights = torch.where(wanted == nothing, NOTHING, 1.0)
    unlike = F.cross_entropy(classes.float().transpose(1, 2), wanted, reduction="none")
    losses = CLASS * (unlike * weights).sum(dim=1) / weights.sum(dim=1)
    each = there.float() / there.sum(dim=1, keepdim=True).clamp(min=1)  # B M: one in all
    if masks.shape[1]:
        chosen = masks.float().flatten(2).gather(1, place[:, :, None].expand(-1, -1, masks.shape[2] * masks.shape[3]))
        chosen = chosen.unflatten(2, masks.shape[2:])
        chosen = F.interpolate(chosen, size=targets.masks.shape[2:], mode="bilinear").flatten(2)
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


def guess_losses(
    classes: Float[Tensor, "B N K"], boxes: Float[Tensor, "B N 4"], targets: Targets, grid: tuple[int, int]
) -> Float[Tensor, " B"]:
    """Give every image's loss of what its patches are guessed to be.

    A patch near the middle of an object is that object, of several the smallest; any other is none.
    """
    there, theirs = targets.classes >= 0, targets.boxes  # B M
    rows, cols = ((torch.arange(length, device=boxes.device) + 0.5) / length for length in grid)
    y, x = torch.meshgrid(rows, cols, indexing="ij")
    places = torch.stack([x, y], dim=2).flatten(0, 1)  # N 2
    middle, sides = (theirs[..., :2] + theirs[..., 2:]) / 2, theirs[..., 2:] - theirs[..., :2]
    half = torch.tensor([0.5 / grid[1], 0.5 / grid[0]], device=boxes.device)
    reach = torch.maximum(NEAR * sides, half)[:, :, None]  # B M 1 2
    near = ((places - middle[:, :, None]).abs() <= reach).all(dim=3) & there[:, :, None]  # B M N
    area = torch.where(near, sides.prod(dim=2)[:, :, None], torch.inf)
    object_of, taken = area.argmin(dim=1), near.any(dim=1)  # B N
    nothing = classes.shape[2] - 1
    wanted = torch.where(taken, targets.classes.gather(1, object_of), nothing)
    weights = torch.where(taken, 1.0, NOTHING)
    unlike = F.cross_entropy(classes.float().transpose(1, 2), wanted, reduction="none")
    losses = CLASS * (unlike * weights).sum(dim=1) / weights.sum(dim=1)
    real = theirs.gather(1, object_of[:, :, None].expand(-1, -1, 4))
    each = taken.float() / taken.sum(dim=1, keepdim=True).clamp(min=1)
    far = (boxes.float() - real).abs().sum(dim=2)
    apart = 1 - overlap(boxes.float(), real)[1]
    return losses + ((EDGES * far + OVERLAP * apart) * each).sum(dim=1)


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


def class_scores(
    classes: Float[Tensor, "B Q K"], masks: Float[Tensor, "B R h w"], size: tuple[int, int]
) -> Float[Tensor, "B K2 H W"]:
    """Give the scores of every class at every pixel of an image: what its queries cover, by how likely each is of it.

    Masks are interpolated before anything else, as in training: an edge is finer so than between mixed scores.
    """
    whole = F.interpolate(masks.float(), size=size, mode="bilinear")
    if not classes.shape[1]:  # of a linear head, whose masks are of classes
        return whole.softmax(dim=1)
    shares = classes.float().softmax(dim=2)[:, :, :-1]
    return torch.einsum("bqk,bqhw->bkhw", shares, whole.sigmoid())
