"""Servers of models that read other images than photographs answer as `vitrail.predict` does."""

import io

import numpy as np
import pytest
import tifffile
import torch
from numpy.typing import NDArray
from starlette.testclient import TestClient

import vitrail
from vitrail.serve import create_app


def npy(array: NDArray[np.uint16]) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def bands(array: NDArray[np.uint16]) -> bytes:
    out = io.BytesIO()
    tifffile.imwrite(out, array, photometric="minisblack", planarconfig="contig")
    return out.getvalue()


def test_four_bands_of_sixteen_bits_are_answered_and_lit_and_three_are_refused() -> None:
    image = np.random.default_rng(0).integers(0, 4000, (20, 24, 4), dtype=np.uint16)
    model = vitrail.create("ViT-Ti/8", image_size=16, depth=1, width=24, heads=3, classes=3, channels=4)
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    how = {"value_range": (0, 4095), "mean": (0.5,) * 4, "deviation": (0.3,) * 4}
    model.card = model.card.prepared(how, 4)
    (wanted,) = vitrail.predict(model, image)
    with TestClient(create_app({"one": model})) as client:
        for data in (npy(image), bands(image)):
            for kind in ("application/octet-stream", "image/tiff"):
                answer = client.post("/v1/classify", content=data, headers={"content-type": kind}).json()
                found = {each["label"]: each["probability"] for each in answer["predictions"][0]["top"]}
                assert found == pytest.approx(dict(wanted.top(3)), abs=1e-6)
        lit = client.post("/v1/attention", content=bands(image), headers={"content-type": "image/tiff"})
        assert lit.content.startswith(b"\x89PNG")
        less = client.post("/v1/classify", content=npy(image[:, :, :3]), headers={"content-type": "image/tiff"})
        assert less.status_code == 422
        assert "3 channels; the model reads 4" in less.text
