"""Token merging (Bolya et al., 2023): tokens that are alike become one, which stands for all of its patches.

The paper merges as many after every layer, those whose keys have the smallest angle. Here the first layers merge none
and each later one fewer, and what a merger moves decides: at the same speed the logits stay two to three times closer
(LOG.md).
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitrail.errors import ConfigError

UNTOUCHED = 8  # the first layer of so many merges nothing
MERGING = 12  # layers that may merge: of more every second one does, or every third, since merging takes time itself
MASKED_KERNELS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]  # of a GPU, that take a number to add to the logits


class Matches(NamedTuple):
    """Which tokens are merged into which: places among the even and the odd tokens of each image."""

    merged: Int64[Tensor, "B r"]  # even ones, the most alike first
    kept: Int64[Tensor, "B S"]  # the other even ones
    into: Int64[Tensor, "B r"]  # odd ones, one for each that is merged


def merging_schedule(patches: int, layers: int, share: float) -> tuple[int, ...]:
    """How many tokens each layer merges: this share of the patches in all, none at first, then fewer and fewer.

    No layer merges more than half of the patches that are left, since no odd token is merged.
    """
    first, step, total = -(-layers // UNTOUCHED), max(layers // MERGING, 1), round(share * patches)
    those = range(first, layers - 1, step)
    weights = [layers - 1 - layer if layer in those else 0 for layer in range(layers)]
    counts, done, reached = [], 0, 0
    for weight in weights:
        reached += weight
        wanted = round(total * reached / max(sum(weights), 1)) - done
        counts.append(min(wanted, (patches - done) // 2) if weight else 0)
        done += counts[-1]
    if done < total:
        raise ConfigError(
            f"token_merging must be at most {done / patches:.2g} for {patches} patches in {layers} layers, of which no "
            f"one merges over half; got {share:g}."
        )
    return tuple(counts)


def match_tokens(features: Float[Tensor, "B N D"], sizes: Float[Tensor, "B N"], count: int) -> Matches:
    """Choose the even tokens that cost least to merge, each with the odd token that makes it so.

    The cost is Ward's: how much the squared distances of patches to their token grow, s t / (s + t) |a - b|^2 for
    directions a and b of features that stand for s and t patches. Of equal costs the first wins.
    """
    # In single precision: the directions of tokens that are alike differ by less than half precision tells apart.
    with torch.autocast(features.device.type, enabled=False):
        directions = F.normalize(features.float(), dim=2)
        squares = 2 - 2 * torch.einsum("bid,bjd->bij", directions[:, ::2], directions[:, 1::2])  # B S R
    even, odd = sizes[:, ::2, None], sizes[:, None, 1::2]
    costs, nearest = (squares * (even * odd / (even + odd))).min(dim=2)
    order = costs.argsort(dim=1, stable=True)
    merged = order[:, :count]
    return Matches(merged=merged, kept=order[:, count:], into=nearest.gather(1, merged))


def merge_tokens(
    tokens: Float[Tensor, "B N D"], sizes: Float[Tensor, "B N"], matches: Matches
) -> tuple[Float[Tensor, "B M D"], Float[Tensor, "B M"]]:
    """Put the mean of all its patches in place of each group: first the even tokens that are kept, then the odd ones.

    Sums are products of matrices, so that they are the same every time on a GPU too.
    """
    even, odd, ours = tokens[:, ::2], tokens[:, 1::2], sizes[:, ::2]
    weights = ours.gather(1, matches.merged)  # B r
    places = torch.arange(odd.shape[1], device=tokens.device)
    parts = torch.where(matches.into[:, None, :] == places[:, None], weights[:, None, :], 0)  # B R r
    grown = sizes[:, 1::2] + parts.sum(dim=2)
    stays = (sizes[:, 1::2] / grown)[:, :, None].to(tokens.dtype)
    added = torch.bmm((parts / grown[:, :, None]).to(tokens.dtype), _take(even, matches.merged))
    made = torch.cat([_take(even, matches.kept), odd * stays + added], dim=1)
    return made, torch.cat([ours.gather(1, matches.kept), grown], dim=1)


def proportional_attention(
    query: Float[Tensor, "B h Q d"],
    key: Float[Tensor, "B h T d"],
    value: Float[Tensor, "B h T d"],
    sizes: Float[Tensor, "B T"],
) -> Float[Tensor, "B h Q d"]:
    """Attend to each token as often as it stands for patches: the logarithm of its size is added to its logits."""
    bias = sizes.log().to(query.dtype)[:, None, None]  # B 1 1 T
    if query.device.type != "cuda":
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    with sdpa_kernel(MASKED_KERNELS):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias)


def _take(tokens: Float[Tensor, "B N D"], places: Int64[Tensor, "B M"]) -> Float[Tensor, "B M D"]:
    return tokens.gather(1, places[:, :, None].expand(-1, -1, tokens.shape[2]))
