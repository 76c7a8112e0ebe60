"""What merging tokens brings: `python benchmarks/merging.py [--device cuda] [--shares 0.5,0.6,0.7]`.

Images a second of a ViT whose layers merge a share of its patches against the same ViT without mergers, both by the
same code, of whose last layer the class token alone is computed; in turns, so that both see the same clocks. A figure
is the median of the turns' own ratios, with the lowest and highest. On a GPU in bfloat16, what is around the mergers
compiled. Weights are random: what merging costs is measured by `vitrail evaluate RUN DATA --token-merging SHARE
--against RUN`.
"""

import argparse
import statistics
import time

import torch
from timing import rate

from vitrail.config import Grid
from vitrail.models import ViT, create
from vitrail.runtime.merging import MergedModel
from vitrail.runtime.packing import half_copy


class Unmerged(MergedModel):
    """The same passes with nothing merged."""

    def schedule(self, grid: Grid) -> tuple[int, ...]:
        """Merge none."""
        return (0,) * self.layers


def main() -> None:
    """Measure and print a table."""
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--models", default="ViT-L/16@224,ViT-B/16@384")
    reader.add_argument("--shares", default="0.5,0.6,0.7")
    reader.add_argument("--device", default="cpu")
    reader.add_argument("--batch", type=int, help="4; 128 on a GPU")
    reader.add_argument("--repeats", type=int, default=5)
    reader.add_argument("--steps", type=int, help="of each repeat: 1; 10 on a GPU")
    reader.add_argument("--threads", type=int, default=2)
    given = reader.parse_args()
    torch.set_num_threads(given.threads)
    torch.set_grad_enabled(mode=False)
    device = torch.device(given.device)
    gpu = device.type == "cuda"
    batch, steps = given.batch or (128 if gpu else 4), given.steps or (10 if gpu else 1)
    where = torch.cuda.get_device_name(device) if gpu else f"CPU, {given.threads} threads"
    print(f"torch {torch.__version__}, {where}; batch {batch}, {'bfloat16' if gpu else 'float32'}")  # noqa: T201
    print(f"{'model':<16}{'merged':>8}{'tokens':>14}{'images/s':>10}{'ratio':>8}  (lowest to highest)")  # noqa: T201
    for named in given.models.split(","):
        measure(named, [float(share) for share in given.shares.split(",")], device, batch, given.repeats, steps)


def measure(named: str, shares: list[float], device: torch.device, batch: int, repeats: int, steps: int) -> None:
    """Measure one model with every share, in turns, and print its rows."""
    name, _, side = named.partition("@")
    plain, gpu = create(name, image_size=int(side), classes=1000).to(device).eval(), device.type == "cuda"
    assert isinstance(plain, ViT)
    model = half_copy(plain) if gpu else plain
    models = {0.0: Unmerged(model, 0.1, compiled=gpu)}
    models |= {share: MergedModel(model, share, compiled=gpu) for share in shares}
    images = torch.randn(batch, 3, int(side), int(side), device=device, dtype=next(model.parameters()).dtype)
    start, rates = time.perf_counter(), {share: list[float]() for share in models}
    for each in models.values():
        each.eval()(images)
    warm = time.perf_counter() - start
    for _ in range(repeats):
        for share, each in models.items():
            rates[share].append(rate(lambda each=each: each(images), steps, batch, device))
    for share, found in rates.items():
        ratios = [rate / base for rate, base in zip(found, rates[0.0], strict=True)]
        left = plain.config.tokens - round(share * plain.config.tokens)
        print(  # noqa: T201
            f"{named:<16}{share:>8.0%}{f'{plain.config.tokens} to {left}':>14}{statistics.median(found):>10,.1f}"
            f"{statistics.median(ratios):>8.2f}  ({min(ratios):.2f} to {max(ratios):.2f})"
        )
    print(f"{'':<16}first passes {warm:.0f} s")  # noqa: T201


if __name__ == "__main__":
    main()
