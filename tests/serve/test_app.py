"""The endpoints: what they answer beside `vitrail.predict`, and what they refuse."""

import asyncio
import base64
import io
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

import vitrail
from vitrail.config.serving import Serving, read_models
from vitrail.errors import ConfigError
from vitrail.evaluation.cached import digest_of
from vitrail.runtime.cpu import has_int8
from vitrail.serve import create_app, desk

BOX = "vitrail-ti8"
RAW = {"content-type": "application/octet-stream"}


def picture(seed: int, size: tuple[int, int] = (90, 70), kind: str = "PNG") -> bytes:
    blocks = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(blocks).resize(size).save(buffer, kind)
    return buffer.getvalue()


PICTURES = [picture(0), picture(1, (33, 130), "JPEG"), picture(2, kind="GIF")]


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    app = create_app(
        {"box": BOX, "bare": vitrail.create("ViT-Ti/16", image_size=32, classes=None, depth=1)}, max_images=5
    )
    with TestClient(app) as opened:
        yield opened


@pytest.fixture(scope="module")
def expected() -> Any:
    return vitrail.predict(BOX, PICTURES, features=True, top=5)


def tops(answer: Any) -> list[list[tuple[str, float]]]:
    return [[(each["label"], each["probability"]) for each in row["top"]] for row in answer.json()["predictions"]]


def same(found: list[list[tuple[str, float]]], expected: Any) -> None:
    for row, wanted in zip(found, expected, strict=True):
        assert [name for name, _ in row] == [name for name, _ in wanted.top(len(row))]
        assert [share for _, share in row] == pytest.approx([share for _, share in wanted.top(len(row))], abs=1e-6)


def test_every_way_to_send_images_gets_the_answers_of_predict(client: TestClient, expected: Any) -> None:
    raw = [tops(client.post("/v1/classify?top=3", content=data, headers=RAW))[0] for data in PICTURES]
    same(raw, expected)
    files = [("image", (f"{number}.png", data, "image/png")) for number, data in enumerate(PICTURES)]
    form = client.post("/v1/classify", files=files)
    same(tops(form), expected)
    assert [row["name"] for row in form.json()["predictions"]] == ["0.png", "1.png", "2.png"]
    texts = [base64.b64encode(data).decode() for data in PICTURES]
    same(tops(client.post("/v1/classify", json={"images": texts})), expected)
    one = client.post("/v1/classify", json={"image": f"data:image/jpeg;base64,{texts[1]}"})
    same(tops(one), expected[1:2])


@pytest.mark.parametrize(("engine", "precision"), [("plain", "float32"), ("fast", "float32"), ("auto", "int8")])
def test_images_go_through_what_is_asked_for(engine: Any, precision: Any, expected: Any) -> None:
    if precision == "int8" and not has_int8():
        pytest.skip("no products in int8")
    with TestClient(create_app(BOX, engine=engine, precision=precision)) as client:
        said = client.get("/v1/models").json()["data"][0]
        found = client.post("/v1/embed", content=PICTURES[0], headers=RAW).json()["embeddings"][0]["embedding"]
        seen = client.post("/v1/attention?format=json", content=PICTURES[0], headers=RAW)
    assert (said["engine"] == "plain", said["precision"]) == (engine == "plain", precision)
    tolerance = 1e-4 if precision == "float32" else 0.3
    np.testing.assert_allclose(found, expected.features.numpy()[0], atol=tolerance)
    assert seen.status_code == 200  # of the plain model, whatever images go through
    assert said["version"] == digest_of(vitrail.load(BOX))[:16]


def test_features_are_those_of_predict_in_both_shapes(client: TestClient, expected: Any) -> None:
    wanted = expected.features.numpy()
    found = client.post("/v1/embed", content=PICTURES[0], headers=RAW).json()["embeddings"][0]["embedding"]
    np.testing.assert_allclose(found, wanted[0], atol=1e-5)
    uris = [f"data:image/png;base64,{base64.b64encode(data).decode()}" for data in PICTURES]
    answer = client.post("/v1/embeddings", json={"input": uris, "model": "box", "encoding_format": "base64"}).json()
    rows = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in answer["data"]]
    np.testing.assert_allclose(np.stack(rows), wanted, atol=1e-5)
    assert answer["usage"] == {"prompt_tokens": 3 * 64, "total_tokens": 3 * 64}
    parts = [{"type": "image_url", "image_url": {"url": uris[2]}}]
    (row,) = client.post("/v1/embeddings", json={"input": parts}).json()["data"]
    np.testing.assert_allclose(row["embedding"], wanted[2], atol=1e-5)


def test_attention_is_that_of_inspection(client: TestClient) -> None:
    model = vitrail.load(BOX)
    images = model.preprocess(PICTURES[0])
    rollout = vitrail.inspection.rollout(model, images)[0].numpy()
    pooled = vitrail.inspection.pooled_attention(model, images)[0].numpy()
    ask = lambda words: client.post(f"/v1/attention?{words}", content=PICTURES[0], headers=RAW)  # noqa: E731
    numbers = lambda words: ask(f"format=json{words}").json()["attentions"][0]["attention"]  # noqa: E731
    np.testing.assert_allclose(numbers(""), rollout, atol=1e-6)
    np.testing.assert_allclose(numbers("&layer=3"), pooled[2].mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(numbers("&layer=3&head=2"), pooled[2, 1], atol=1e-6)
    lit = ask("format=png")
    assert lit.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(lit.content)).mode == "RGB"
    assert ask("format=json&layer=8").status_code == 422
    assert ask("format=json&head=2").status_code == 422


def test_attention_to_many_images_is_that_to_each(client: TestClient) -> None:
    files = [("image", (f"{number}.png", data, "image/png")) for number, data in enumerate(PICTURES)]
    many = client.post("/v1/attention?format=json", files=files).json()["attentions"]
    alone = [client.post("/v1/attention?format=json", content=data, headers=RAW).json() for data in PICTURES]
    assert [row["name"] for row in many] == ["0.png", "1.png", "2.png"]
    for row, one in zip(many, alone, strict=True):
        np.testing.assert_allclose(row["attention"], one["attentions"][0]["attention"], atol=1e-6)
    sheet = np.asarray(Image.open(io.BytesIO(client.post("/v1/attention", files=files).content)))
    top = 0
    for data in PICTURES:
        lit = np.asarray(Image.open(io.BytesIO(client.post("/v1/attention", content=data, headers=RAW).content)))
        below = sheet[top : top + lit.shape[0]]
        np.testing.assert_array_equal(below[:, : lit.shape[1]], lit)
        assert not below[:, lit.shape[1] :].any()
        top += lit.shape[0]
    assert top == sheet.shape[0]
    assert client.post("/v1/attention?format=maps", files=files).status_code == 422


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


BOMB = (
    b"\x89PNG\r\n\x1a\n"
    + chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0))
    + chunk(b"IDAT", zlib.compress(b"\0" * 1_000_000))
    + chunk(b"IEND", b"")
)
DEEP = b"[" * 5_000
WRONG: dict[str, tuple[int, str, bytes, str]] = {
    "no image": (422, "bad_image", b"hello, this is text", "image/png"),
    "truncated": (422, "bad_image", PICTURES[0][:200], "image/png"),
    "bomb": (422, "bad_image", BOMB, "image/png"),
    "nothing": (422, "bad_image", b"", "image/png"),
    "svg": (422, "bad_image", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"),
    "html": (415, "content_type", PICTURES[0], "text/html"),
    "no type": (415, "content_type", PICTURES[0], ""),
    "deep": (400, "json", DEEP, "application/json"),
    "list": (400, "json", b"[]", "application/json"),
    "field": (422, "json", b'{"image": "AAAA", "url": "x"}', "application/json"),
    "number": (422, "json", b'{"image": 3}', "application/json"),
    "none": (400, "no_image", b'{"images": []}', "application/json"),
    "base64": (422, "base64", b'{"image": "%%%%"}', "application/json"),
    "uri": (422, "base64", b'{"image": "data:image/png,abc"}', "application/json"),
    "url": (400, "url", b'{"image": "http://127.0.0.1/secret"}', "application/json"),
    "form": (400, "form", b"--x\r\nbroken", "multipart/form-data; boundary=x"),
    "boundary": (400, "form", b"--x--", "multipart/form-data"),
    "text": (
        400,
        "form",
        b'--x\r\nContent-Disposition: form-data; name="top"\r\n\r\n3\r\n--x--',
        "multipart/form-data; boundary=x",
    ),
    "script": (
        415,
        "content_type",
        b'--x\r\nContent-Disposition: form-data; name="f"; filename="a"\r\nContent-Type: text/html\r\n\r\n3\r\n--x--',
        "multipart/form-data; boundary=x",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_image_is_refused_with_a_reason(case: str, client: TestClient) -> None:
    status, kind, body, content_type = WRONG[case]
    answer = client.post("/v1/classify", content=body, headers={"content-type": content_type, "x-request-id": "mine-1"})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (status, kind), error
    assert error["message"]
    assert "Traceback" not in answer.text
    assert error["request_id"] == answer.headers["x-request-id"] == "mine-1"


def test_names_of_files_are_repeated_without_their_folders_and_signs(client: TestClient) -> None:
    answer = client.post("/v1/classify", files={"image": ("../../etc/pass\x1bwd", PICTURES[0], "image/png")})
    assert answer.json()["predictions"][0]["name"] == "pass\\x1bwd"


def test_other_misuse_is_answered(client: TestClient) -> None:
    assert client.post("/v1/classify?model=nothere", content=PICTURES[0], headers=RAW).status_code == 404
    assert client.post("/v1/classify?top=0", content=PICTURES[0], headers=RAW).status_code == 422
    bare = client.post("/v1/classify?model=bare", content=PICTURES[0], headers=RAW)
    assert (bare.status_code, bare.json()["error"]["type"]) == (400, "no_classifier")
    many = client.post("/v1/classify", json={"images": ["AAAA"] * 6})
    assert (many.status_code, many.json()["error"]["type"]) == (422, "too_many_images")
    assert client.put("/v1/classify").status_code == 405
    assert client.get("/nothere").json()["error"]["type"] == "not_found"
    assert client.get("/assets/..%2Fapp.py").status_code == 404
    assert client.post("/v1/embeddings", json={"input": "AAAA", "extra": 1}).status_code == 422
    assert client.post("/v1/embeddings", json={"input": "AAAA", "dimensions": 3}).status_code == 422
    soon = client.post("/v1/classify", content=PICTURES[0], headers={**RAW, "prefer": "wait=0"})
    assert soon.status_code == 429
    assert int(soon.headers["retry-after"]) >= 1


def test_those_who_run_it_see_how_it_is(client: TestClient) -> None:
    assert client.get("/healthz").json() == client.get("/readyz").json() == {"status": "ok"}
    models = {row["id"]: row for row in client.get("/v1/models").json()["data"]}
    assert models["box"]["classes"] == 200
    assert models["bare"]["classes"] is None
    text = client.get("/metrics").text
    assert 'vitrail_requests_total{path="/v1/classify",status="200"}' in text
    assert "vitrail_queue_images 0.0" in text
    for name in ("batch_images_count", "waiting_seconds_sum", "decoding_seconds_sum", "computing_seconds_sum"):
        assert f"vitrail_{name}" in text
    assert 'vitrail_refusals_total{reason="deadline"}' in text
    app: Any = client.app
    assert app.state.desk.state.bytes == 0


def test_a_token_is_asked_for_and_bodies_are_bounded() -> None:
    app = create_app(
        {"bare": vitrail.create("ViT-Ti/16", image_size=32, classes=3, depth=1)}, token="secret", max_bytes=20_000
    )
    with TestClient(app) as opened:
        assert opened.get("/v1/models").status_code == opened.get("/metrics").status_code == 401
        assert opened.get("/v1/models", headers={"authorization": "Bearer wrong"}).status_code == 401
        told = {"authorization": "Bearer secret"}
        assert opened.get("/v1/models", headers=told).status_code == 200
        assert opened.get("/healthz").status_code == opened.get("/").status_code == 200
        large = opened.post("/v1/classify", content=b"x" * 20_001, headers={**told, **RAW})
        assert large.status_code == 413
        pieces = (b"x" * 5_000 for _ in range(5))  # whose length is not said
        assert opened.post("/v1/classify", content=pieces, headers={**told, **RAW}).status_code == 413


def test_a_changed_checkpoint_is_taken_up_and_a_broken_one_refused(tmp_path: Path) -> None:
    first, second = (vitrail.create("ViT-Ti/16", image_size=32, classes=3, depth=1, seed=seed) for seed in (0, 1))
    for model in (first, second):
        torch.nn.init.normal_(model.get_parameter("head.weight"))
    folder = tmp_path / "run"
    vitrail.save(first, folder)
    app = create_app({"m": str(folder)}, watch=0)
    with TestClient(app) as opened:
        shelf = app.state.desk.shelf

        def ask() -> Any:
            return opened.post("/v1/classify?top=3", content=PICTURES[0], headers=RAW)

        same(tops(ask()), vitrail.predict(first, PICTURES[:1]))
        vitrail.save(second, folder, overwrite=True)
        shelf.look()  # it has changed, and may still be written to
        same(tops(ask()), vitrail.predict(first, PICTURES[:1]))
        shelf.look()
        same(tops(ask()), vitrail.predict(second, PICTURES[:1]))
        version = ask().headers["x-model-version"]
        weights = folder / "weights.safetensors"
        weights.write_bytes(weights.read_bytes()[:1000])
        shelf.look()
        shelf.look()
        assert ask().headers["x-model-version"] == version
        assert opened.get("/v1/models").json()["data"][0]["refused"]


def test_memory_is_given_back_when_it_has_grown_and_nothing_is_done() -> None:
    # idle and grown a little; busy; idle and grown, then what is left; idle and grown a little; and the end
    idle, resident, given = iter([True, False, True, True]), iter([100, 101, 150, 120, 122]), []
    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(desk.tidy(lambda: next(idle), lambda: next(resident), lambda: given.append(True), every=0.0))
    assert given == [True]
    assert next(resident, None) is None


def test_options_are_checked_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigError, match="tls_cert is given without tls_key"):
        Serving(tls_cert="a.pem")
    with pytest.raises(ConfigError, match="visible ASCII"):
        Serving(token="two words")
    with pytest.raises(ConfigError, match="deadline must be positive"):
        Serving(deadline=0.0)
    assert Serving(device="cuda:0, cuda:1").devices == ("cuda:0", "cuda:1")
    assert [Serving(host=host).is_local for host in ("::1", "127.0.0.9", "localhost", "0.0.0.0")] == [
        True,
        True,
        True,
        False,
    ]
    assert read_models(["runs/pets", "b=x/birds.npz"]) == {"pets": "runs/pets", "b": "x/birds.npz"}
    with pytest.raises(ConfigError, match="two models are called 'pets'"):
        read_models(["a/pets", "b/pets.npz"])


def test_the_schema_describes_every_endpoint(client: TestClient) -> None:
    schema = client.get("/openapi.json").json()
    assert {*schema["paths"]} >= {
        "/v1/classify",
        "/v1/embed",
        "/v1/attention",
        "/v1/embeddings",
        "/v1/models",
        "/readyz",
    }
    assert json.dumps(schema).count("#/$defs") == 0
