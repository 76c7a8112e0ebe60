"""Pictures that look like photographs to a search for near-copies, and copies of them."""

import io

import numpy as np
from PIL import Image

from vitrail.data.decode import Pixels


def picture(seed: int, height: int = 96, width: int = 120) -> Pixels:
    """Draw colored noise whose amplitude falls with the frequency, as a photograph's does."""
    random = np.random.default_rng(seed)
    down, across = np.fft.fftfreq(height)[:, None] * height, np.fft.rfftfreq(width)[None] * width
    falling = 1 / np.maximum(np.hypot(down, across), 1) ** 1.2
    waves = random.normal(size=(3, *falling.shape)) + 1j * random.normal(size=(3, *falling.shape))
    waves[1:] = 0.8 * waves[:1] + 0.4 * waves[1:]
    drawn = np.fft.irfft2(waves * falling, s=(height, width))
    drawn = (drawn - drawn.mean()) / drawn.std() * 50 + random.uniform(90, 160, (3, 1, 1))
    return drawn.clip(0, 255).astype(np.uint8).transpose(1, 2, 0)


def encoded(image: Image.Image, quality: int = 90) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()


def copies(pixels: Pixels) -> dict[str, bytes]:
    """Encode, resize and crop a picture in the ways that a near-copy may have been made."""
    image = Image.fromarray(pixels)
    width, height = image.size
    left, top = round(0.05 * width), round(0.05 * height)
    return {
        "quality 30": encoded(image, 30),
        "a quarter": encoded(image.resize((width // 4, height // 4), Image.Resampling.BICUBIC)),
        "twice": encoded(image.resize((2 * width, 2 * height), Image.Resampling.LANCZOS)),
        "cropped": encoded(image.crop((left, top, width - left, height - top))),
        "a corner": encoded(image.crop((left, top, width, height)), 60),
    }
