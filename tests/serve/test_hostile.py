"""Whatever is sent, the server answers with a reason, never with a failure of its own, and its memory comes back."""

import gc
import os
import random
from pathlib import Path

import pytest
from serve.test_app import BOMB, PICTURES
from starlette.testclient import TestClient

import vitrail
from vitrail.serve import create_app

TYPES = (
    *("image/png", "image/jpeg", "application/octet-stream", "application/json", "multipart/form-data; boundary=x"),
    *(
        "text/html",
        "",
        "multipart/form-data",
        "image/png; charset=\xff",
        "application/json; charset=utf-16",
        "a/b/c;;;==\"'",
    ),
)
PATHS = (
    "/v1/classify",
    "/v1/embed",
    "/v1/attention",
    "/v1/embeddings",
    "/v1/attention?format=maps",
    "/v1/classify?top=9",
)
HEAD = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
SEEDS = (
    *PICTURES,
    BOMB,
    b"GIF89a/*" + b"A" * 99 + b"*/=1;alert(1)",
    b"\xff\xd8\xff\xe0" + b"\xff\xda" * 500,
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    b'{"image": "' + b"A" * 5000 + b'"}',
    b'{"input": ' + b"[" * 50 + b"]" * 50 + b"}",
    b'{"images": [' + b'"AAAA",' * 200 + b'"AAAA"]}',
    b'{"image": "\\ud800"}',
    b'{"image": NaN}',
    b'{"input": "data:image/png;base64,' + b"=" * 99 + b'"}',
    HEAD + PICTURES[0] + b"\r\n--x--\r\n",
    HEAD + PICTURES[0],
    HEAD * 300 + b"--x--",
    b"--x\r\n" + b"A: b\r\n" * 2000 + b"\r\n--x--",
    b"",
    b"\0" * 100_000,
)


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Flip, cut, repeat or insert."""
    made = bytearray(data)
    for _ in range(draw.randrange(1, 6)):
        place = draw.randrange(len(made) + 1)
        match draw.randrange(4):
            case 0 if made:
                made[min(place, len(made) - 1)] = draw.randrange(256)
            case 1:
                del made[place:]
            case 2:
                made[place:place] = made[: min(place, 1000)]
            case _:
                made[place:place] = draw.randbytes(draw.randrange(1, 20))
    return bytes(made)


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def send(client: TestClient, count: int, seed: int) -> None:
    draw = random.Random(seed)
    for number in range(count):
        body = SEEDS[number % len(SEEDS)]
        body = body if number < len(SEEDS) else damaged(body, draw)
        kind, path = draw.choice(TYPES), draw.choice(PATHS)
        answer = client.post(path, content=body, headers={b"content-type": kind.encode("latin-1")})
        assert answer.status_code < 500, (path, kind, body[:80], answer.text[:300])
        if answer.status_code >= 400:
            error = answer.json()["error"]
            assert error["message"]
            assert "Traceback" not in answer.text
            assert len(answer.text) < 5_000


@pytest.fixture(scope="module")
def client() -> TestClient:
    model = vitrail.create("ViT-Ti/16", image_size=32, classes=3, depth=1)
    return TestClient(create_app({"m": model}), raise_server_exceptions=False)


def test_hostile_bodies_are_refused_with_a_reason(client: TestClient) -> None:
    with client:
        send(client, 120, seed=0)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not say how much memory is resident")
def test_memory_comes_back_after_a_thousand_hostile_bodies(client: TestClient) -> None:
    with client:
        send(client, 500, seed=1)  # what is loaded once is loaded now
        gc.collect()
        before = resident()
        send(client, 1000, seed=2)
        gc.collect()
        assert resident() < 1.05 * before
