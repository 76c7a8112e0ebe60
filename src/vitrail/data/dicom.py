"""DICOM, with the extra `dicom`: medical images as stacks, in 16 bits over their window, or over all that is stored."""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.pixels import ImageError, Numbers
from vitrail.data.stacks import Stack

PREAMBLE = 128  # bytes before its sign
SIGN = b"DICM"
EXTRA = "pip install 'vitrail[dicom]' reads it"
FULL = 65_535
INVERTED = "MONOCHROME1"  # of which the lowest is white


def is_dicom(data: bytes) -> bool:
    """Tell a DICOM file by its sign."""
    return data[PREAMBLE : PREAMBLE + len(SIGN)] == SIGN


def dicom_stack(data: bytes) -> Stack:
    """Read its header: a frame of one sample is a channel; colors are of one frame."""
    said = _read(data, pixels=False)
    try:
        height, width = int(said.Rows), int(said.Columns)
        samples, frames = int(said.get("SamplesPerPixel", 1)), int(said.get("NumberOfFrames", 1) or 1)
        kind = str(said.get("PhotometricInterpretation", "MONOCHROME2"))
    except (AttributeError, TypeError, ValueError) as error:
        raise ImageError(f"a DICOM file without an image: {error}") from error
    if kind == "PALETTE COLOR":
        raise ImageError("a DICOM file of a palette, which is not read. Save it in colors")
    if samples > 1 and frames > 1:
        raise ImageError(f"a DICOM file of {frames} frames in colors. Keep one frame")

    def read() -> Numbers:
        return _numbers(data, samples, frames)

    return Stack("DICOM", height, width, frames if samples == 1 else samples, 8 if samples > 1 else 16, read)


def _numbers(data: bytes, samples: int, frames: int) -> Numbers:
    """Give H W C: colors as they are; of gray what its window shows, over 16 bits, and white as the highest."""
    from pydicom.pixels.processing import apply_modality_lut, convert_color_space

    said = _read(data, pixels=True)
    kind = str(said.get("PhotometricInterpretation", "MONOCHROME2"))
    found = np.asarray(said.pixel_array)
    if samples > 1:
        return found if kind == "RGB" else np.asarray(convert_color_space(found, kind, "RGB"))
    values = np.asarray(apply_modality_lut(found, said), dtype=np.float64)
    if "WindowCenter" in said and "WindowWidth" in said:
        scaled = _shown(values, said)
    else:
        low, high = float(values.min()), float(values.max())
        scaled = (values - low) / max(high - low, 1e-12)
    scaled = (1 - scaled if kind == INVERTED else scaled).clip(0, 1)
    levels = np.rint(scaled * FULL).astype(np.uint16)
    return levels[:, :, None] if frames == 1 else np.moveaxis(levels, 0, 2)


def _shown(values: NDArray[np.float64], said: Any) -> NDArray[np.float64]:  # noqa: ANN401
    """Give from 0 to 1 what the first window of a file shows, as the standard has it (PS3.3, C.11.2.1)."""
    center, width = (float(np.atleast_1d(said[name].value)[0]) for name in ("WindowCenter", "WindowWidth"))
    how = str(said.get("VOILUTFunction", "LINEAR"))
    if how == "SIGMOID":
        return 1 / (1 + np.exp(-4 * (values - center) / max(width, 1e-12)))
    if how == "LINEAR_EXACT":
        return (values - center) / max(width, 1e-12) + 0.5
    return (values - (center - 0.5)) / max(width - 1, 1e-12) + 0.5


def _read(data: bytes, *, pixels: bool) -> Any:  # noqa: ANN401
    try:
        import pydicom
    except ImportError as error:
        raise ImageError(f"a DICOM file; {EXTRA}") from error
    try:
        return pydicom.dcmread(io.BytesIO(data), stop_before_pixels=not pixels)
    except Exception as error:  # whatever its damage makes the library raise
        raise ImageError(f"damaged header of a DICOM file: {error}") from error
