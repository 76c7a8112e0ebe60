"""What bfloat16, int8 and float8 cost in accuracy: the same images through the plain model and each, paired.

python benchmarks/eight_bits.py DATA [--model vitrail-ti8] [--images 10000] [--calibrate SOURCE]

float8 is of a GPU; without one its numbers are rounded in the same way and multiplied in single precision, in bfloat16
between the products, as there. Eight bits are calibrated on the sample in the box unless other images are given.
"""

import argparse
import time

import torch
from torch import Tensor

import vitrail
from vitrail.data.open import choose_split, open_data
from vitrail.data.source import Source, Subset
from vitrail.evaluation.answers import answers
from vitrail.inspection.views import spread
from vitrail.models import Model
from vitrail.ops.fused import float8_product_plainly
from vitrail.ops.metrics import compare
from vitrail.runtime.cpu import has_bfloat16, has_int8
from vitrail.runtime.fast import Choice, FastModel, make_fast
from vitrail.runtime.gpu import GPU, Float8Linear, modules_for_gpu
from vitrail.runtime.inference import inference_options
from vitrail.runtime.machine import Group
from vitrail.runtime.rebuilt import Forward
from vitrail.runtime.scales import sample_for


def in_float8(model: Model, images: Tensor) -> FastModel:
    """A model in float8, on a GPU or by the plain products."""
    if images.is_cuda:
        return make_fast(model, precision="float8", images=images)
    scales = GPU.find_scales(model, images)

    def make() -> Forward:
        Float8Linear.multiply = staticmethod(float8_product_plainly)
        made = modules_for_gpu(model, "float8", scales)
        return lambda batch: made(batch.bfloat16())

    return FastModel(model, make, Choice(engine="plain products", precision="float8", device="cpu", why=""), scales)


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--model", default="vitrail-ti8")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--calibrate")
    given = parser.parse_args()
    model, splits = vitrail.load(given.model), open_data(given.data)
    source: Source = splits[choose_split(splits, given.data, None)]
    source = Subset(source, spread(len(source), min(given.images, len(source))))
    device = next(model.parameters()).device
    options = inference_options(Group(device=device), workers=0, fresh=True)
    others: Source | None = None
    if given.calibrate is not None:
        held = open_data(given.calibrate, unlabeled=True)
        others = held[choose_split(held, given.calibrate, None)]
    images = sample_for(model, others)

    def correct(asked: Model) -> tuple[Tensor, float]:
        start = time.perf_counter()
        found = answers(asked, source, options, labeled=True)
        return torch.from_numpy(found.answer == source.labels[found.samples]), time.perf_counter() - start

    before, seconds = correct(model)
    print(f"{given.model}, {len(source):,} images; float32 {before.float().mean():.2%} ({seconds:.0f} s)")  # noqa: T201
    made = {"float8": in_float8(model, images)}
    if device.type == "cpu":
        made |= {"bfloat16": make_fast(model, precision="bfloat16")} if has_bfloat16() else {}
        made |= {"int8": make_fast(model, precision="int8", images=images)} if has_int8() else {}
    for name, asked in made.items():
        after, seconds = correct(asked)
        found = compare(before.numpy(), after.numpy())
        low, high = (-100 * end for end in reversed(found.interval))
        lost = f"{-100 * found.difference:+.2f} points lost (95 %: {low:.2f} to {high:.2f})"
        other = int((before != after).sum())
        print(f"{name:9} {after.float().mean():.2%}: {lost}, {other:,} judged otherwise ({seconds:.0f} s)")  # noqa: T201


if __name__ == "__main__":
    main()
