"""Near-copies: how many planted ones are found, how many clean images are flagged, and how long a million takes.

python benchmarks/near.py DATA [--copies 2500] [--million 1000000]

DATA is anything with JPEG images, such as a folder of parquet files. Every kind of copy is planted once for each of
some images, one kind at a time among all images. The million are thumbnails of DATA turned, mirrored, blended and made
negative, as alike as photographs are, and 1,000 copies of some with noise. Times are of the CPU, on one core.
"""

import argparse
import io
import time

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.joined import Joined
from vitrail.data.near import make_thumbnail
from vitrail.data.open import open_data
from vitrail.data.splits import contents
from vitrail.ops.near import SIDE, near_pairs

Thumbnails = NDArray[np.uint8]
PLANTED = 1000


def main() -> None:
    """Measure all three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--copies", type=int, default=2500)
    parser.add_argument("--million", type=int, default=1_000_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    source = Joined(list(open_data(options.data).values()))
    start = time.process_time()
    _, clean = contents(source)
    each = 1000 * (time.process_time() - start) / len(source)
    print(f"{len(source):,} images read and made small: {each:.2f} ms each")  # noqa: T201
    start = time.process_time()
    before = near_pairs(clean)
    flagged = len(np.unique(before))
    seconds = time.process_time() - start
    print(f"{len(before)} pairs, {flagged} images flagged ({flagged / len(clean):.3%}): {seconds:.1f} s")  # noqa: T201
    for first, second in before.tolist():
        print(f"  {source.name(first)} ~ {source.name(second)}")  # noqa: T201
    measure_recall(source, clean, options.copies)
    if options.million:
        measure_time(clean, options.million)


def measure_recall(source: Joined, clean: Thumbnails, count: int) -> None:
    """Plant each kind of copy among all images, and count those that are found."""
    random = np.random.default_rng(0)
    chosen = random.choice(len(source), min(count, len(source)), replace=False)
    planted: dict[str, list[Thumbnails]] = {}
    for index in chosen.tolist():
        data = source.read(index)
        assert isinstance(data, bytes)
        for kind, copy in copies(Image.open(io.BytesIO(data)).convert("RGB"), random).items():
            planted.setdefault(kind, []).append(make_thumbnail(copy))
    for kind, made in planted.items():
        pairs = {tuple(pair) for pair in near_pairs(np.concatenate([clean, np.stack(made)])).tolist()}
        found = sum((index, len(clean) + place) in pairs for place, index in enumerate(chosen.tolist()))
        print(f"{kind:40s} {found / len(chosen):.2%} of {len(chosen)}")  # noqa: T201


def copies(image: Image.Image, random: np.random.Generator) -> dict[str, bytes]:
    """Make near-copies of an image: encoded again, resized, cropped, and all of it."""
    width, height = image.size
    low = random.uniform(0, 0.05, 4)
    edges = [
        round(width * low[0]),
        round(height * low[1]),
        width - round(width * low[2]),
        height - round(height * low[3]),
    ]
    left, top = round(0.05 * width), round(0.05 * height)
    some = image.crop((edges[0], edges[1], edges[2], edges[3]))
    both = some.resize([max(1, round(side * random.uniform(0.4, 2))) for side in some.size], Image.Resampling.BICUBIC)
    made = {f"JPEG of quality {quality}": _jpeg(image, quality) for quality in (30, 50, 75)}
    for factor in (0.25, 0.5, 0.75, 1.5, 2):
        size = (max(1, round(width * factor)), max(1, round(height * factor)))
        made[f"resized by {factor}"] = _jpeg(image.resize(size, Image.Resampling.BICUBIC))
    made["cropped by 5 % at all edges"] = _jpeg(image.crop((left, top, width - left, height - top)))
    made["cropped by 5 % at two edges"] = _jpeg(image.crop((left, top, width, height)))
    made["cropped by 0 to 5 % at each edge"] = _jpeg(some)
    made["cropped so, resized, JPEG of 30 to 90"] = _jpeg(both, int(random.integers(30, 91)))
    return made


def _jpeg(image: Image.Image, quality: int = 90) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()


def measure_time(clean: Thumbnails, count: int) -> None:
    """Search many thumbnails, and count the planted copies among them."""
    random = np.random.default_rng(0)
    parts = []
    for at in range(0, count, len(clean)):
        turn = (at // len(clean)) % 8
        other = clean[random.permutation(len(clean))]
        blended = (0.65 * clean + 0.35 * other).round().astype(np.uint8) if at >= len(clean) else clean
        blended = 255 - blended if at >= 8 * len(clean) else blended
        bright = np.rot90(blended[:, : SIDE * SIDE].reshape(-1, SIDE, SIDE), turn % 4, axes=(1, 2))
        bright = bright[:, :, ::-1] if turn >= 4 else bright
        parts.append(np.concatenate([bright.reshape(len(clean), -1), blended[:, SIDE * SIDE :]], axis=1))
    every = np.concatenate(parts)[: count - PLANTED]
    originals = random.choice(len(every), PLANTED, replace=False)
    noise = random.normal(0, 3, every[originals].shape)
    every = np.concatenate([every, (every[originals] + noise).round().clip(0, 255).astype(np.uint8)])
    start = time.process_time()
    pairs = {tuple(pair) for pair in near_pairs(every).tolist()}
    seconds = time.process_time() - start
    found = sum((int(original), count - PLANTED + place) in pairs for place, original in enumerate(originals))
    print(f"{count:,} searched in {seconds:.1f} s: {found} of {PLANTED} planted, {len(pairs) - found} other pairs")  # noqa: T201


if __name__ == "__main__":
    main()
