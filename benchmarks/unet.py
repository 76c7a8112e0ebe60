"""A U-Net beside `benchmarks/dense.py`: segmentation-models-pytorch's, with ResNet-34 and no weights from elsewhere.

`python benchmarks/unet.py ROOT --out RUN [--seed 0] [--minutes 14]`: ROOT holds pets/, as `dense.py prepare` writes it.
Trained on the same images with the same crops, flips and colors, and measured by the same code.
"""

import argparse
import importlib
import json
import time
from pathlib import Path

import torch
from torch.nn import functional as F

from vitrail.config import Preprocessing
from vitrail.config.recipes import adjust, recipe
from vitrail.data.annotated.feed import annotated_feed, annotated_train_feed
from vitrail.data.annotated.open import open_annotated
from vitrail.data.annotation import VOID
from vitrail.data.transforms.annotated import squashed
from vitrail.ops.pixel_metrics import PixelCounts, count_pixels
from vitrail.runtime.machine import usual_workers
from vitrail.studies.bench.peers import mend_torchvision

UNET, CROPS = "segmentation_models_pytorch", (0.2, 1.0)


def unet(root: Path, out: Path, seed: int, minutes: float, workers: int | None) -> None:
    """Train a U-Net on the pets and measure it as ours is measured."""
    mend_torchvision()
    smp = importlib.import_module(UNET)  # which the package does not need
    start = time.monotonic()
    torch.manual_seed(seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    workers = usual_workers(gpu=device.type == "cuda") if workers is None else workers
    splits, size = open_annotated(root / "pets", "segment"), (128, 128)
    read_as = squashed(Preprocessing(mean=(0.5,), deviation=(0.5,)))
    feed = annotated_train_feed(
        splits["train"],
        size,
        augmentation=adjust(recipe("segment").training, {"crop_area": CROPS}).augmentation,
        preprocessing=read_as,
        batch=64,
        seed=seed,
        workers=workers,
        device=device,
        full=True,
    )
    classes = len(splits["train"].class_names)
    model = smp.Unet("resnet34", encoder_weights=None, classes=classes).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999), use_buffers=True
    )
    limit, steps = 60 * minutes, 0
    for batch in feed.stream():
        share = (time.monotonic() - start) / limit
        if share >= 1:
            break
        rate = 1e-3 * min(1.0, (steps + 1) / 100) * 0.5 * (1 + torch.cos(torch.tensor(share * torch.pi)).item())
        for group in optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            scores = model(batch.images)
        assert batch.masks is not None
        loss = F.cross_entropy(scores.float(), batch.masks.long(), ignore_index=VOID)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.update_parameters(model)
        steps += 1
    counts = torch.zeros(classes, classes, dtype=torch.int64)
    average.eval()
    test = annotated_feed(splits["test"], size, preprocessing=read_as, batch=64, workers=workers, device=device)
    with torch.no_grad():
        for batch in test.epoch(0):
            for scores, known in zip(average(batch.images), batch.truths or [], strict=True):
                assert known.mask is not None
                whole = F.interpolate(scores[None].softmax(dim=1), size=known.mask.shape, mode="bilinear")[0]
                counts += count_pixels(torch.from_numpy(known.mask), whole.argmax(dim=0).cpu(), classes, VOID)
    found = PixelCounts(confusion=counts.numpy())
    (out / "evaluation").mkdir(parents=True, exist_ok=True)
    document = {"metrics": found.metrics(), "steps": steps, "iou": found.iou.tolist()}
    (out / "evaluation" / "evaluation.json").write_text(json.dumps(document))


def main() -> None:
    """Read the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=14.0)
    parser.add_argument("--workers", type=int)
    given = parser.parse_args()
    unet(given.root, given.out, given.seed, given.minutes, given.workers)


if __name__ == "__main__":
    main()
