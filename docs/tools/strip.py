"""The picture at the top of the README: `python docs/tools/strip.py PHOTOS`, a folder or table of photographs.

Each photograph with the answer of the model in the box, and below it where the model looked (rollout, Figure 6).
"""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

import vitrail

TARGET = Path(__file__).parents[1] / "looked.jpg"
TILE, GAP, TEXT = 160, 12, 26
STRENGTH = 0.75  # of the colors over the photograph


def looked_at(model: torch.nn.Module, path: object) -> tuple[Image.Image, Image.Image, str]:
    """Give a photograph as the model reads it, where it looked, and what it says."""
    images = model.preprocess(path)  # pyright: ignore[reportCallIssue]
    photo = Image.fromarray(((images[0].permute(1, 2, 0) + 1) * 127.5).round().byte().numpy()).resize((TILE, TILE))
    rollout = vitrail.inspection.rollout(model, images)[0].numpy()  # pyright: ignore[reportArgumentType]
    share = (rollout - rollout.min()) / (rollout.max() - rollout.min())
    heat = Image.fromarray((share * 255).astype(np.uint8)).resize((TILE, TILE), Image.Resampling.BICUBIC)
    dimmed = np.asarray(photo, np.float32) * (1 - STRENGTH + STRENGTH * np.asarray(heat, np.float32)[..., None] / 255)
    answer = vitrail.predict(model, path)[0]  # pyright: ignore[reportArgumentType]
    return photo, Image.fromarray(dimmed.astype(np.uint8)), f"{answer.label}, {answer.probability:.0%}"


def main(paths: list[str]) -> None:
    """Draw the strip."""
    model = vitrail.load("vitrail-ti8").eval()
    width, height = len(paths) * (TILE + GAP) - GAP, 2 * TILE + GAP + TEXT
    strip = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(strip)
    font = ImageFont.load_default(size=14)
    for place, path in enumerate(paths):
        photo, seen, text = looked_at(model, path)
        left = place * (TILE + GAP)
        strip.paste(photo, (left, 0))
        draw.text((left, TILE + 3), text, fill="black", font=font)
        strip.paste(seen, (left, TILE + TEXT))
    strip.save(TARGET, quality=88)
    sys.stdout.write(f"{TARGET}: {width} x {height}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
