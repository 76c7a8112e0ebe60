"""Exported files behind the server: its answers are those of the model, and what it cannot do is said."""

import io
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from families import family
from PIL import Image
from starlette.testclient import TestClient

import vitrail
from vitrail.cli import main
from vitrail.config import Card
from vitrail.models import Model
from vitrail.serve import create_app


def small() -> Model:
    model = family("vit", depth=1)
    model.card = Card(class_names=tuple(f"kind {number}" for number in range(7)), temperature=1.7)
    return model


def test_the_server_answers_with_an_exported_file_as_predict_does_with_the_model(untyped: None, tmp_path: Path) -> None:
    path = vitrail.export(small(), out=tmp_path / "small.onnx").path
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(3).integers(0, 256, (15, 31, 3), dtype=np.uint8)).save(buffer, "PNG")
    (wanted,) = vitrail.predict(small(), [buffer.getvalue()])
    with TestClient(create_app({"small": str(path)})) as client:
        answer = client.post("/v1/classify?top=7", content=buffer.getvalue(), headers={"content-type": "image/png"})
        image = {"content": buffer.getvalue(), "headers": {"content-type": "image/png"}}
        embedding = client.post("/v1/embed", **image).json()["embeddings"][0]["embedding"]
        refused = client.post("/v1/attention", **image)
    assert embedding == pytest.approx(vitrail.embed(small(), [buffer.getvalue()])[0].tolist(), abs=1e-5)
    assert refused.status_code == 400
    assert "an exported file, which gives logits and features alone" in refused.json()["error"]["message"]
    (row,) = answer.json()["predictions"]
    assert {each["label"]: each["probability"] for each in row["top"]} == pytest.approx(dict(wanted.top(7)), abs=1e-5)


@pytest.fixture
def own_logs() -> Iterator[None]:
    """Give the loggers back as they were: a server has its process to itself."""
    loggers = [logging.getLogger(name) for name in ("vitrail", "uvicorn", "uvicorn.error")]
    before = [(logger, logger.handlers, logger.propagate, logger.level, logger.filters[:]) for logger in loggers]
    yield
    for logger, handlers, propagate, level, filters in before:
        logger.handlers, logger.propagate, logger.filters = handlers, propagate, filters
        logger.setLevel(level)


@pytest.mark.usefixtures("own_logs")
def test_a_server_of_a_file_that_cannot_be_opened_says_why_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short.pt2").write_bytes(b"PK")
    assert main(["serve", str(tmp_path / "short.pt2"), "--port", "0"]) == 1
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) == 1
    assert "short.pt2 cannot be run: File is not a zip file" in said
