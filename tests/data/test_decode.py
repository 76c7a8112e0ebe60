"""Images of every kind that people have: decoded right, or refused with the reason."""

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitrail.data import decode as module
from vitrail.data.decode import Box, ImageError, OpenImage, decode

GENERATOR = np.random.RandomState(5)
COLORS = np.asarray(
    Image.fromarray(GENERATOR.randint(0, 256, (6, 9, 3)).astype(np.uint8)).resize((45, 30), Image.Resampling.BICUBIC)
)


def encoded(image: Image.Image | np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.fixture(params=["pillow", "simplejpeg"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "simplejpeg":
        pytest.importorskip("simplejpeg")
    else:
        monkeypatch.setattr(module, "_simplejpeg", lambda: None)
    return request.param


def test_lossless_formats_give_their_pixels() -> None:
    for kind in ("PNG", "BMP", "PPM", "TIFF", "GIF", "TGA"):
        image = Image.fromarray(COLORS)
        if kind == "GIF":
            image = image.quantize(64)
        expected = np.asarray(image.convert("RGB"))
        np.testing.assert_array_equal(decode(encoded(image, kind)), expected, err_msg=kind)


def test_jpegs_are_decoded_as_the_image_library_does(decoder: str) -> None:
    data = encoded(COLORS, "JPEG", quality=95)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
    assert np.abs(decode(data) - expected).max() <= 2
    gray = encoded(COLORS[:, :, 0], "JPEG")
    assert decode(gray).shape == (30, 45, 3)
    assert (decode(gray)[:, :, 0] == decode(gray)[:, :, 2]).all()
    assert decode(gray, channels=1).shape == (30, 45, 1)


def test_a_part_is_what_the_whole_has_there(decoder: str) -> None:
    data = encoded(COLORS, "JPEG", quality=95)
    box = Box(4, 7, 11, 20)
    np.testing.assert_array_equal(OpenImage(data).pixels(box), decode(data)[4:15, 7:27])


def test_a_large_jpeg_is_decoded_smaller_where_it_stays_large_enough(decoder: str) -> None:
    smooth = np.asarray(Image.fromarray(COLORS).resize((800, 640), Image.Resampling.BICUBIC))
    data = encoded(smooth, "JPEG", quality=95)
    for least, side in (((160, 200), 4), ((170, 200), 2), ((80, 100), 8), ((400, 500), 1), ((0, 0), 1)):
        pixels = OpenImage(data).pixels(least=least)
        assert pixels.shape == (640 // side, 800 // side, 3), least
    part = OpenImage(data).pixels(Box(160, 200, 320, 400), least=(80, 100))
    assert part.shape == (80, 100, 3)
    exact = np.asarray(Image.fromarray(smooth[160:480, 200:600]).resize((100, 80), Image.Resampling.BOX)).astype(int)
    assert np.abs(part - exact).mean() < 3


@pytest.mark.parametrize("orientation", range(1, 9))
def test_cameras_held_otherwise_are_turned_upright(orientation: int, decoder: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(COLORS, "JPEG", quality=95, exif=exif)
    turns = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: a.transpose(1, 0, 2)[:, ::-1],
        7: lambda a: a.transpose(1, 0, 2)[::-1, ::-1],
        8: lambda a: a.transpose(1, 0, 2)[::-1],
    }
    stored = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    upright = turns[orientation](stored).astype(int)
    image = OpenImage(data)
    assert (image.height, image.width) == upright.shape[:2]
    assert np.abs(image.pixels() - upright).max() <= 2


def test_other_kinds_of_pixels_are_decoded_right() -> None:
    ramp = np.arange(30 * 45, dtype=np.uint16).reshape(30, 45) * 48
    deep = decode(encoded(Image.fromarray(ramp), "PNG"), channels=1)[:, :, 0]
    assert np.abs(deep - ramp / 257).max() <= 0.5  # 16 bits
    alpha = np.dstack([COLORS, np.full((30, 45), 128, np.uint8)])
    alpha[:5, :, 3] = 0
    shown = decode(encoded(alpha, "PNG")).astype(int)
    assert (shown[:5] == 255).all()  # white behind
    assert np.abs(shown[5:] - (COLORS[5:] * (128 / 255) + 255 * (127 / 255))).max() <= 1
    ink = Image.fromarray(COLORS).convert("CMYK")
    assert np.abs(decode(encoded(ink, "TIFF")).astype(int) - np.asarray(ink.convert("RGB"))).max() == 0
    printed = encoded(ink, "JPEG", quality=98)
    assert np.abs(decode(printed).astype(int) - COLORS).mean() < 12
    bits = Image.fromarray(COLORS[:, :, 0]).convert("1")
    np.testing.assert_array_equal(decode(encoded(bits, "PNG"))[:, :, 1], np.asarray(bits) * 255)
    palette = Image.fromarray(COLORS).quantize(16)
    palette.info["transparency"] = 0
    seen = decode(encoded(palette, "PNG", transparency=0)).astype(int)
    hole = np.asarray(palette) == 0
    assert (seen[hole] == 255).all()
    assert (seen[~hole] == np.asarray(palette.convert("RGB"))[~hole]).all()


def made_png(depth: int, kind: int, numbers: np.ndarray, **more: bytes) -> bytes:
    """Write a PNG by hand from numbers, H W or H W C, of so many bits; `more` are chunks between header and pixels."""
    flat = numbers.reshape(len(numbers), -1)
    bits = np.unpackbits(flat.astype(">u2").view(np.uint8).reshape(*flat.shape, 2), axis=2)[:, :, 16 - depth :]
    rows = np.packbits(bits.reshape(len(flat), -1), axis=1)
    parts = (
        b"IHDR" + struct.pack(">IIBBBBB", numbers.shape[1], numbers.shape[0], depth, kind, 0, 0, 0),
        *(name.encode() + body for name, body in more.items()),
        b"IDAT" + zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows)),
        b"IEND",
    )
    chunks = (struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


TURNED = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"  # EXIF: orientation 6


@pytest.mark.parametrize("clear", [0, 1])
@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_the_transparent_gray_of_a_png_is_white(depth: int, clear: int) -> None:
    most = 2**depth - 1
    numbers = np.arange(7 * 11).reshape(7, 11) * (1 if depth < 16 else 601) % (most + 1)
    numbers[2, 3:6] = clear
    numbers[5, 1] = clear + 256 if depth == 16 else clear  # of the same low byte
    numbers[5, 2] = 2 - clear if depth == 16 else clear  # of the same 8 bits
    wanted = np.where(numbers == clear, 255, np.floor(numbers * 255 / most + 0.5)).astype(int)
    assert (wanted != 255).sum() > 20 or (depth, clear) == (1, 0)  # black alone is transparent, and white is white
    data = made_png(depth, 0, numbers, tRNS=struct.pack(">H", clear))
    assert OpenImage(data).is_see_through
    assert decode(data, channels=1)[:, :, 0].tolist() == wanted.tolist()
    assert (decode(data) == wanted[:, :, None]).all()
    assert decode(made_png(depth, 0, numbers), channels=1)[2, 3, 0] == round(clear * 255 / most)
    turned = made_png(depth, 0, numbers, tRNS=struct.pack(">H", clear), eXIf=TURNED)
    assert decode(turned, channels=1)[:, :, 0].tolist() == wanted.T[:, ::-1].tolist()


@pytest.mark.parametrize("depth", [8, 16])
def test_the_transparent_color_of_a_png_is_white(depth: int) -> None:
    scale = 1 if depth == 8 else 256
    numbers = np.random.RandomState(3).randint(0, 256, (7, 11, 3)) * scale
    clear = np.array([10, 200, 30]) * scale + (7 if depth == 16 else 0)
    numbers[2, 3:6] = clear
    numbers[4, 4] = clear + np.array([0, 0, 1])
    numbers[4, 5] = clear[::-1]
    wanted = numbers // scale
    wanted[2, 3:6] = 255
    data = made_png(depth, 2, numbers, tRNS=struct.pack(">HHH", *clear.tolist()))
    assert decode(data).tolist() == wanted.tolist()
    image = OpenImage(data)
    assert image.pixels().tolist() == image.pixels().tolist() == wanted.tolist()
    assert (decode(made_png(depth, 2, numbers))[2, 3] == clear // scale).all()
    turned = made_png(depth, 2, numbers, tRNS=struct.pack(">HHH", *clear.tolist()), eXIf=TURNED)
    assert decode(turned).tolist() == wanted.transpose(1, 0, 2)[:, ::-1].tolist()


@pytest.mark.parametrize(("depth", "kind"), [(8, 4), (8, 6), (16, 4), (16, 6)])
def test_behind_alpha_of_a_png_is_white(depth: int, kind: int) -> None:
    most, channels = 2**depth - 1, {4: 2, 6: 4}[kind]
    numbers = np.random.RandomState(4).randint(0, most + 1, (7, 11, channels))
    numbers[2, 3:6, -1], numbers[3, 3:6, -1] = 0, most
    alpha = numbers[:, :, -1:] / most
    exact = 255 * (numbers[:, :, :-1] / most * alpha + 1 - alpha)
    shown = decode(made_png(depth, kind, numbers))
    assert np.abs(shown - exact).max() <= (1 if depth == 8 else 2)  # of 16 bits the high 8 are read
    assert (shown[2, 3:6] == 255).all()


def test_behind_the_palette_of_a_png_and_of_others_is_white() -> None:
    palette = np.array([[250, 10, 20], [30, 240, 50], [60, 70, 230], [5, 6, 7]])
    numbers = np.arange(7 * 11).reshape(7, 11) % 4
    for depth in (2, 4, 8):
        for clear in (b"\x00\x80\xff", b"\xff\x00", b"\x80\x40\x20\x10"):
            alpha = np.array([*clear, *[255] * (4 - len(clear))])[:, None] / 255
            exact = (palette * alpha + 255 * (1 - alpha))[numbers]
            data = made_png(depth, 3, numbers, PLTE=palette.astype(np.uint8).tobytes(), tRNS=clear)
            assert np.abs(decode(data) - exact).max() <= 1
    mixed = Image.new("P", (11, 7))
    mixed.putdata(numbers.flatten().tolist())
    mixed.putpalette(palette.astype(np.uint8).tobytes())
    mixed.putalpha(Image.fromarray((numbers * 60).astype(np.uint8)))
    assert mixed.mode == "PA"
    alpha = numbers[:, :, None] * 60 / 255
    exact = palette[numbers] * alpha + 255 * (1 - alpha)
    assert np.abs(decode(encoded(mixed, "TIFF")) - exact).max() <= 1


def test_of_an_animation_the_first_frame_is_taken() -> None:
    frames = [Image.new("RGB", (12, 8), color) for color in ("red", "blue")]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    assert (decode(buffer.getvalue())[:, :, 0] == 255).all()


def png_header(width: int, height: int) -> bytes:
    small = made_png(8, 2, np.zeros((1, 1, 3)))
    header = b"IHDR" + struct.pack(">II", width, height) + small[24:29]
    return small[:12] + header + struct.pack(">I", zlib.crc32(header)) + small[33:]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty file"),
        (b"hello, this is no image", "no image of a known format; it starts with b'hello, t'"),
        (encoded(COLORS, "PNG")[:200], "damaged or truncated"),
        (encoded(COLORS, "JPEG")[:-90], "damaged or truncated"),
        (encoded(COLORS, "GIF")[:60], "damaged"),
        (png_header(20_000, 6_000), "20000x6000 pixels; at most 90,000,000"),
        (encoded(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"), "whose range is not said"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no image of a known format"),
    ],
    ids=["empty", "text", "cut png", "cut jpeg", "cut gif", "bomb", "float", "program"],
)
def test_what_cannot_be_decoded_is_refused_with_the_reason(data: bytes, words: str, decoder: str) -> None:
    with pytest.raises(ImageError) as caught:
        decode(data)
    assert words in str(caught.value)


def test_damage_anywhere_gives_an_image_or_a_reason(decoder: str) -> None:
    generator = np.random.RandomState(1)
    for kind in ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF"):
        whole = encoded(COLORS, kind)
        for _ in range(60):
            damaged = bytearray(whole)
            start = generator.randint(0, len(whole))
            damaged[start : start + generator.randint(1, 20)] = generator.bytes(generator.randint(0, 20))
            try:
                pixels = decode(bytes(damaged[: generator.randint(len(whole) // 2, len(whole) + 1)]))
            except ImageError:
                continue
            assert pixels.dtype == np.uint8
            assert pixels.shape[2] == 3
