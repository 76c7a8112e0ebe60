"""A page of a model beside `vitrail predict`: `python benchmarks/html_page.py --data photos/ --data other.parquet`.

Writes the page, opens it in headless Chromium from the disk, and gives it images spread over the data, and then odd
ones made of the first: grey, transparent, of a palette, turned by Exif, CMYK, large, small and long. Prints on how many
the first class is the same, the largest difference of any probability, and the milliseconds that an image takes from
its choice to its answer. Needs playwright and a Chromium (set CHROMIUM).
"""

import argparse
import base64
import io
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Page, sync_playwright

import vitrail
from vitrail.data.open import choose_split, open_images
from vitrail.exports.html import write_html
from vitrail.models import Model

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
ANSWER = """async ([name, bytes]) => {
  const start = performance.now();
  await examineEach([new File([Uint8Array.from(atob(bytes), (sign) => sign.charCodeAt(0))], name)], answered);
  const ms = performance.now() - start;
  return { shares: seen[0]?.shares, name: seen[0]?.name, ms, problem: byId("problem").textContent };
}"""


def main() -> None:
    """Measure and print."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--model", default="vitrail-ti8")
    reader.add_argument("--precision", default="float16")
    reader.add_argument("--loss", type=float, help="of int8: points that it may lose")
    reader.add_argument("--data", action="append", default=[])
    reader.add_argument("--images", type=int, default=100)
    arguments = reader.parse_args()
    model = vitrail.load(arguments.model)
    images = chosen(arguments.data or ["sample"], arguments.images)
    odd = odd_ones(next(iter(images.values())))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "model.html"
        found = write_html(model, path, precision=arguments.precision, loss=arguments.loss)
        print(f"{arguments.model}: {path.stat().st_size / 1e6:.1f} MB, {found}")  # noqa: T201
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page, troubles = browser.new_page(), []
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: troubles.append(request.url))
        page.goto(path.as_uri())
        for what, some in (("images", images), ("odd ones", odd)):
            compare(page, model, what, some)
        others = [each[:100] for each in troubles[1:] if not each.startswith(("blob:", "data:"))]
        print(f"requests and console: {others}")  # noqa: T201
        browser.close()


def compare(page: Page, model: Model, what: str, images: dict[str, bytes]) -> None:
    """Ask both for every image, and print how far they agree."""
    found = vitrail.predict(model, [*images.values()])
    expected = (found.logits / model.card.temperature).softmax(dim=1).numpy()
    same, far, times = 0, {}, []
    for (name, data), share in zip(images.items(), expected, strict=True):
        answer = page.evaluate(ANSWER, [name, base64.b64encode(data).decode()])
        if answer["name"] != name or answer["problem"]:
            print(f"{name}: {answer['problem']}")  # noqa: T201
            continue
        shares = np.array(answer["shares"])
        same += int(shares.argmax() == share.argmax())
        far[name] = float(np.abs(shares - share).max())
        times.append(answer["ms"])
    worst = sorted(far, key=lambda name: -far[name])[:5]
    print(f"{what}: the same first class on {same} of {len(images)}; probabilities within {max(far.values()):.2e}")  # noqa: T201
    print("  farthest: " + ", ".join(f"{name} {far[name]:.1e}" for name in worst))  # noqa: T201
    print(f"  {statistics.median(times):.0f} ms an image (median), {max(times):.0f} at most")  # noqa: T201


def chosen(data: list[str], count: int) -> dict[str, bytes]:
    """Give so many images in all, spread over each of the sources."""
    images: dict[str, bytes] = {}
    for number, what in enumerate(data):
        splits = open_images(what)
        source = splits[choose_split(splits, what, None)]
        share = count * (number + 1) // len(data) - count * number // len(data)
        for index in np.linspace(0, len(source) - 1, share).round().astype(int):
            read = source.read(int(index))
            images[f"{number}/{index}"] = read if isinstance(read, bytes) else encoded(Image.fromarray(read), "PNG")
    return images


def odd_ones(data: bytes) -> dict[str, bytes]:
    """Make of an image what people have beside plain photographs."""
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    noise = np.random.default_rng(0).normal(0, 12, (3000, 4000, 3))
    large = np.asarray(picture.resize((4000, 3000), Image.Resampling.BICUBIC)) + noise
    large_photo = Image.fromarray(large.clip(0, 255).astype(np.uint8))
    see_through = picture.copy()
    see_through.putalpha(Image.linear_gradient("L").resize(picture.size))
    turned = Image.Exif()
    turned[0x0112] = 6
    wide = picture.resize((900, 700), Image.Resampling.BICUBIC)
    return {
        "gray.jpg": encoded(picture.convert("L"), "JPEG"),
        "see-through.png": encoded(see_through, "PNG"),
        "palette.png": encoded(picture.quantize(32), "PNG"),
        "palette.gif": encoded(picture.quantize(32), "GIF"),
        "webp.webp": encoded(picture, "WEBP", quality=90),
        "turned.jpg": encoded(wide, "JPEG", quality=90, exif=turned),
        "cmyk.jpg": encoded(picture.convert("CMYK"), "JPEG", quality=90),
        "900x700.jpg": encoded(wide, "JPEG", quality=90),
        "900x700-444.jpg": encoded(wide, "JPEG", quality=90, subsampling=0),
        "900x700.png": encoded(wide, "PNG"),
        "903x701.jpg": encoded(picture.resize((903, 701), Image.Resampling.BICUBIC), "JPEG", quality=90),
        "several.jpg": encoded(wide, "MPO", save_all=True, append_images=[picture]),
        "progressive.jpg": encoded(wide, "JPEG", progressive=True),
        "large.jpg": encoded(large_photo, "JPEG", quality=90),
        "large-turned.jpg": encoded(large_photo, "JPEG", quality=90, exif=turned),
        "one-pixel.png": encoded(picture.resize((1, 1)), "PNG"),
        "small.png": encoded(picture.resize((9, 5)), "PNG"),
        "long.png": encoded(picture.resize((2000, 20)), "PNG"),
    }


def encoded(picture: Image.Image, kind: str, **options: object) -> bytes:
    """Give the bytes of a file."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


if __name__ == "__main__":
    start = time.perf_counter()
    main()
    print(f"{time.perf_counter() - start:.0f} s in all")  # noqa: T201
