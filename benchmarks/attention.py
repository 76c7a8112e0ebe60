"""Attention of a GPU at every length: `python benchmarks/attention.py [--longest 1100] [--widths 64,32,80]`.

The kernels that `ops.attention_kernels.kernels_for` chooses, bfloat16, forward and backward, with gradients and not,
on random tokens and on tokens whose logits are all far below zero (where cuDNN's backward pass gives NaN at some
lengths): no number may be NaN or infinite, and random ones are compared with single precision. A length is tried with
every width before the next one, those of half a tile beyond whole ones first. The last line has the verdict.
"""

import argparse
import sys
import time
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitrail.ops.attention_kernels import HALF_TILE, TILE, kernels_for

BOUND = 0.03  # of the largest number, between bfloat16 and single precision
SMALL = 0.01  # of the largest gradient: a smaller one is rounding, as that of a query that has one key
FAR = 12.0  # of every feature of the tokens whose logits are far below zero


def tokens(length: int, width: int, device: str, *, far: bool) -> list[Tensor]:
    """Query, key and value of two images and two heads."""
    made = [torch.randn(2, 2, length, width, device=device) for _ in range(3)]
    if far:
        made[0], made[1] = FAR + made[0], made[1] - FAR
    return [part.bfloat16().requires_grad_() for part in made]


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Mix the values by the kernels that may prove sound."""
    with sdpa_kernel(kernels_for(query, key), set_priority=True):
        return F.scaled_dot_product_attention(query, key, value)


def passes(inputs: list[Tensor]) -> list[Tensor]:
    """What attention gives with gradients and without them, and the gradients."""
    query, key, value = inputs
    with torch.no_grad():
        still = attend(query, key, value)
    mixed = attend(query, key, value)
    grads = torch.autograd.grad(mixed.float().square().mean() * mixed.numel() / 2, inputs)
    return [still, mixed.detach(), *grads]


def exact(inputs: list[Tensor]) -> list[Tensor]:
    """The same in single precision."""
    wide = [part.detach().float().requires_grad_() for part in inputs]
    with sdpa_kernel(SDPBackend.MATH):
        mixed = F.scaled_dot_product_attention(wide[0], wide[1], wide[2])
    grads = torch.autograd.grad(mixed.bfloat16().float().square().mean() * mixed.numel() / 2, wide)
    return [mixed.detach(), mixed.detach(), *grads]


def errors_of(found: list[Tensor], known: list[Tensor]) -> list[float]:
    """Give the largest difference of each part, of its largest number."""
    least = [0.0, 0.0] + [SMALL * max(float(part.abs().max()) for part in known[2:])] * 3
    pairs = zip(found, known, least, strict=True)
    return [float((a - b).abs().max()) / max(float(b.abs().max()), floor, 1e-3) for a, b, floor in pairs]


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)  # noqa: T201


def main() -> None:
    """Try every length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--longest", type=int, default=1100)
    parser.add_argument("--widths", default="64,32,80")
    parser.add_argument("--seconds", type=float, default=600.0, help="after which it ends where it is")
    parser.add_argument("--device", default="cuda", help="cpu, to try the script")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    query = torch.empty(1, 1, 197, 64, dtype=torch.bfloat16, device=given.device, requires_grad=True)
    name = torch.cuda.get_device_name() if given.device == "cuda" else given.device
    say(f"{name}, torch {torch.__version__}; at length 197: {kernels_for(query, query)[0]}")
    widths, bad, worst = [int(word) for word in given.widths.split(",")], list[str](), 0.0
    lengths = sorted(range(1, given.longest + 1), key=lambda length: (length % TILE != HALF_TILE, length))
    start, done = time.perf_counter(), 0
    for length in lengths:
        if time.perf_counter() - start > given.seconds:
            break
        for width, far in product(widths, (False, True)):
            inputs = tokens(length, width, given.device, far=far)
            found = passes(inputs)
            if not all(bool(part.isfinite().all()) for part in found):
                bad.append(f"{length} of width {width}{', logits far below zero' if far else ''}")
            elif not far:
                errors = errors_of(found, exact(inputs))
                worst = max(worst, *errors)
                if max(errors) > BOUND:
                    bad.append(f"{length} of width {width}: off by {max(errors):.3f}")
        done += 1
        if done % 100 == 0:
            say(f"{done} lengths, the last {length}; {len(bad)} bad; {time.perf_counter() - start:.0f} s")
    seconds = time.perf_counter() - start
    say(f"{done} of {len(lengths)} lengths in {seconds:.0f} s; largest difference {worst:.4f} of the largest number")
    say(f"bad: {bad or 'none'}")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
