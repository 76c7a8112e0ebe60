"""Images of many shapes against images of one: `python benchmarks/packing.py [--device cuda] [--models ViT-B/16]`.

Tokens a second of a ViT that reads images of random aspect ratios, from 1:3 to 3:1, in one sequence each batch
(`vitrail.predict(keep_aspect_ratio=True)`: planning the batch, its positions and all the rest are in the time), against
the same ViT on images of its own size, with the same tokens in a batch. In turns, so that both see the same clocks; a
figure is the median of the turns' own ratios, with the lowest and highest. "grid by grid" is the plain way to have the
same answers. Both compute of the last layer the class token alone. On a GPU in bfloat16 with fused products: the plain
model compiled whole, the packed one block by block.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from timing import rate
from torch import Tensor

from vitrail.config import Grid
from vitrail.models import ViT, create
from vitrail.ops.packing import fit_grid
from vitrail.runtime.class_token import ClassTokenForward
from vitrail.runtime.packing import PackedModel, by_grid, half_copy

BATCHES = 4  # of other images each, in turns
LONGEST = 3.0  # sides of an image to each other


def main() -> None:
    """Measure and print a table."""
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--models", help="ViT-Ti/16,ViT-B/16; ViT-B/16 on a GPU")
    reader.add_argument("--device", default="cpu")
    reader.add_argument("--batch", type=int, help="images of one size: 16; 256 on a GPU")
    reader.add_argument("--repeats", type=int, default=7)
    reader.add_argument("--threads", type=int, default=2)
    given = reader.parse_args()
    torch.set_num_threads(given.threads)
    torch.set_grad_enabled(mode=False)
    device = torch.device(given.device)
    gpu = device.type == "cuda"
    batch = given.batch or (256 if gpu else 16)
    where = torch.cuda.get_device_name(device) if gpu else f"CPU, {given.threads} threads"
    print(f"torch {torch.__version__}, {where}; batch {batch}, {'bfloat16' if gpu else 'float32'}")  # noqa: T201
    for name in (given.models or ("ViT-B/16" if gpu else "ViT-Ti/16,ViT-B/16")).split(","):
        measure(name, device, batch, given.repeats)


def measure(name: str, device: torch.device, batch: int, repeats: int) -> None:
    """Measure one model and print its rows."""
    made, gpu = create(name, classes=1000), device.type == "cuda"
    assert isinstance(made, ViT)
    model = made.to(device).eval()
    start, tokens = time.perf_counter(), batch * model.config.tokens
    uniform = torch.randn(batch, 3, *model.config.image_size, device=device)
    batches = [draw(model, tokens, seed, device) for seed in range(BATCHES)]
    packed = PackedModel(model, half=gpu, compiled=gpu).eval()
    plain = uniform_forward(model, compiled=gpu)
    ways: dict[str, list[tuple[Callable[[], object], int]]] = {
        "one size": [(lambda: plain(uniform), tokens)] * BATCHES,
        "packed": [(lambda each=each: packed.at(each[1])(each[0]), count(model, each[1])) for each in batches],
    }
    if not gpu:
        ways["grid by grid"] = [
            (partial(by_grid, model, *each, model.config.stem.stride), count(model, each[1])) for each in batches
        ]
    rates = {way: list[float]() for way in ways}
    for steps in ways.values():
        for step, _ in steps:
            step()
    warm = time.perf_counter() - start
    for _ in range(repeats):
        for way, steps in ways.items():
            seconds = sum(have / rate(step, 1, have, device) for step, have in steps)
            rates[way].append(sum(have for _, have in steps) / seconds)
    images, shapes = sum(len(grids) for _, grids in batches), {grid for _, grids in batches for grid in grids}
    print(f"{name}: {images} images of {len(shapes)} grids in {BATCHES} batches; first passes {warm:.0f} s")  # noqa: T201
    for way, found in rates.items():
        ratios = [rate / base for rate, base in zip(found, rates["one size"], strict=True)]
        print(  # noqa: T201
            f"  {way:<14}{statistics.median(found):>12,.0f} tokens/s{statistics.median(ratios):>8.3f}"
            f"  ({min(ratios):.3f} to {max(ratios):.3f})"
        )


def draw(model: ViT, tokens: int, seed: int, device: torch.device) -> tuple[Tensor, list[Grid]]:
    """Draw images of random shapes, as many as have so many tokens at most."""
    random, grids, patches = np.random.default_rng(seed), list[Grid](), model.config.grid[0] * model.config.grid[1]
    while True:
        ratio = LONGEST ** random.uniform(-1, 1)
        grid = fit_grid(1000, round(1000 * ratio), patches)
        if count(model, [*grids, grid]) > tokens:
            break
        grids.append(grid)
    total = sum(rows * cols for rows, cols in grids)
    return torch.randn(total, model.config.stem.stride**2 * model.config.channels, device=device), grids


def count(model: ViT, grids: list[Grid]) -> int:
    """Count the tokens of images."""
    return sum(model.config.class_tokens + rows * cols for rows, cols in grids)


def uniform_forward(model: ViT, *, compiled: bool) -> Callable[[Tensor], object]:
    """Give the pass for images of one size."""
    given = half_copy(model) if compiled else model
    forward = ClassTokenForward(given) if given.config.reads_class_token_alone else given
    if not compiled:
        return forward
    fast = torch.compile(forward, dynamic=False)
    return lambda images: fast(images.to(torch.bfloat16))


if __name__ == "__main__":
    main()
