"""DICOM files as images: windows, slopes, inverted gray, frames, colors; what cannot be read is said."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitrail.data.decode import ImageError, OpenImage, decode
from vitrail.data.open import open_data

pydicom = pytest.importorskip("pydicom")


def dicom(pixels: np.ndarray, **said: Any) -> bytes:
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    meta = FileMetaDataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = ExplicitVRLittleEndian, SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid()
    made = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    made.Rows, made.Columns = pixels.shape[-2:] if said.get("SamplesPerPixel", 1) == 1 else pixels.shape[:2]
    made.SamplesPerPixel, made.PhotometricInterpretation = 1, "MONOCHROME2"
    made.BitsAllocated = made.BitsStored = 8 * pixels.itemsize
    made.HighBit, made.PixelRepresentation = made.BitsStored - 1, int(pixels.dtype.kind == "i")
    if pixels.ndim == 3 and said.get("SamplesPerPixel", 1) == 1:
        made.NumberOfFrames = len(pixels)
    for name, value in said.items():
        setattr(made, name, value)
    made.PixelData = pixels.tobytes()
    file = io.BytesIO()
    made.save_as(file, enforce_file_format=True)
    return file.getvalue()


GRAY = np.arange(5 * 7, dtype=np.uint16).reshape(5, 7) * 40


def test_gray_is_spread_over_its_stored_range_and_white_is_the_highest() -> None:
    found = OpenImage(dicom(GRAY))
    assert (found.format, found.height, found.width, found.channels, found.bits) == ("DICOM", 5, 7, (1,), 16)
    wanted = np.rint(GRAY / GRAY.max() * 65535).astype(np.uint16)
    np.testing.assert_array_equal(found.numbers()[:, :, 0], wanted)
    inverted = OpenImage(dicom(GRAY, PhotometricInterpretation="MONOCHROME1")).numbers()[:, :, 0]
    np.testing.assert_allclose(inverted, 65535 - wanted.astype(np.int64), atol=1)
    assert decode(dicom(GRAY)).shape == (5, 7, 3)


def test_a_window_shows_its_part_of_rescaled_numbers() -> None:
    data = dicom(GRAY, RescaleSlope=2, RescaleIntercept=-1000, WindowCenter=0, WindowWidth=800)
    values = GRAY.astype(np.float64) * 2 - 1000
    shown = ((values - (0 - 0.5)) / (800 - 1) + 0.5).clip(0, 1)  # as the standard has it, PS3.3 C.11.2.1.2
    np.testing.assert_allclose(OpenImage(data).numbers()[:, :, 0] / 65535, shown, atol=1e-5)
    part = dicom(GRAY[:1], WindowCenter=5000, WindowWidth=20000)  # far wider than what is there
    assert OpenImage(part).numbers().max() < 65535 / 2


def test_frames_are_channels_and_colors_are_three() -> None:
    frames = np.stack([GRAY, GRAY[::-1], GRAY * 0])
    found = OpenImage(dicom(frames))
    assert found.channels == (3,)
    assert found.numbers().shape == (5, 7, 3)
    colors = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    data = dicom(colors, SamplesPerPixel=3, PhotometricInterpretation="RGB", PlanarConfiguration=0)
    np.testing.assert_array_equal(OpenImage(data).numbers(), colors)


def test_folders_of_dicom_files_are_a_source(tmp_path: Path) -> None:
    for name in ("sick", "well"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.dcm").write_bytes(dicom(GRAY))
    source = open_data(tmp_path)["all"]
    assert source.class_names == ("sick", "well")
    data = source.read(0)
    assert isinstance(data, bytes)
    assert OpenImage(data).pixels(channels=1).shape == (5, 7, 1)


def test_what_is_damaged_or_too_large_is_an_image_that_cannot_be_read() -> None:
    data = dicom(GRAY)
    for bad in (data[:140], data[:132] + b"\xff" * 40, data[:-20]):
        with pytest.raises(ImageError):
            OpenImage(bad).numbers()
    with pytest.raises(ImageError, match="without an image"):
        OpenImage(dicom(GRAY, Rows=None))
    with pytest.raises(ImageError, match="at most"):
        OpenImage(dicom(GRAY, Rows=60000, Columns=60000))
    with pytest.raises(ImageError, match="palette"):
        OpenImage(dicom(GRAY, PhotometricInterpretation="PALETTE COLOR"))
