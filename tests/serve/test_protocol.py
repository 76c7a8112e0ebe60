"""Connections: what is no HTTP, what comes too slowly, and more of them than are taken; and signals."""

import asyncio
import json
import signal
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from files.strangers import CERTIFICATE
from starlette.types import Receive, Scope, Send

from vitrail.serve import server as serving
from vitrail.serve.door import State
from vitrail.serve.protocol import LEAST_RATE, Deadline
from vitrail.serve.server import Server

CLOSE = b"Connection: close\r\n"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the body."""
    body, more = b"", True
    while more:
        message = await receive()
        more = message.get("more_body", False)
        body += message.get("body", b"")
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def served(
    test: Callable[[int, Counter[str]], Coroutine[Any, Any, None]], arrival: float = 20.0, **options: Any
) -> None:
    """Run a test beside a server of `echo`; it is given the port, and what was refused."""
    told: Counter[str] = Counter()

    class Protocol(Deadline):
        seconds, most = arrival, 2
        refused = staticmethod(lambda reason: told.update([reason]))

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            config = uvicorn.Config(echo, http=Protocol, ws="none", log_config=None, lifespan="off", **options)
            config.load()
            state = State()
            state.loaded = True
            server = Server(config, state, 0.0)
            server.lifespan = config.lifespan_class(config)
            await server.startup([listener])
            await test(listener.getsockname()[1], told)
            await server.shutdown([listener])

    asyncio.run(run())


async def talk(port: int, *pieces: bytes, pause: float = 0.0) -> bytes:
    """Send pieces, and give all that is answered until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    reading = asyncio.create_task(reader.read())
    for piece in pieces:
        writer.write(piece)
        await asyncio.wait([reading], timeout=pause)
        if reading.done():
            break
    try:
        return await asyncio.wait_for(reading, 5)
    finally:
        writer.close()


def error_of(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-length: %d\r\n" % len(body) in head + b"\r\n"
    return int(head.split()[1]), json.loads(body)["error"]["type"]


def test_what_is_no_http_is_answered_as_every_error_is() -> None:
    async def test(port: int, refused: Counter[str]) -> None:
        assert error_of(await talk(port, b"\x16\x03\x01 nonsense\r\n\r\n")) == (400, "http")
        chunks = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n"
        assert error_of(await talk(port, chunks)) == (400, "http")
        assert refused == {"http": 2}

    served(test)


@pytest.mark.parametrize("word", [b"h2c", b"websocket"])
def test_the_wish_for_another_protocol_costs_no_body(word: bytes) -> None:
    async def test(port: int, refused: Counter[str]) -> None:
        wish = b"Connection: close, Upgrade\r\nUPGRADE: " + word  # as `curl --http2` and Java's client wish
        body = b"all\r\nUpgrade: of it"
        head = b"POST / HTTP/1.1\r\nHost: x\r\n%b\r\nContent-Length: %d\r\n\r\n" % (wish, len(body))
        answer = await talk(port, head + body)
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b"\r\n\r\n" + body)

    served(test)


def test_as_many_connections_are_taken_as_were_said_and_one_more_is_told_to_come_again() -> None:
    async def test(port: int, refused: Counter[str]) -> None:
        quiet = await asyncio.open_connection("127.0.0.1", port)
        ask = b"GET / HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"\r\n"
        assert (await talk(port, ask)).startswith(b"HTTP/1.1 200")
        other = await asyncio.open_connection("127.0.0.1", port)
        answer = await talk(port, ask)
        assert error_of(answer) == (503, "connections")
        assert b"retry-after: 1\r\n" in answer
        assert refused == {"connections": 1}
        for _, writer in (quiet, other):
            writer.close()

    served(test)


def test_a_client_that_hurries_first_is_cut_off_as_soon_as_it_dawdles() -> None:
    async def test(port: int, refused: Counter[str]) -> None:
        much = 20 * LEAST_RATE  # of which the mean rate would be enough for twenty seconds
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (2 * much)
        answer = await talk(port, head + b"x" * much, *[b"x"] * 40, pause=0.1)
        assert error_of(answer) == (408, "slow")
        assert refused == {"slow": 1}

    served(test, 0.3)


def test_a_handshake_that_does_not_go_on_is_cut_off(tmp_path: Path) -> None:
    (file := tmp_path / "images.example.pem").write_text(CERTIFICATE)

    async def test(port: int, refused: Counter[str]) -> None:
        assert await talk(port, b"\x16", b"\x03", pause=0.1) == b""
        trust = ssl.create_default_context(cafile=file)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust, server_hostname="images.example")
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()

    served(test, 0.3, ssl_certfile=file, ssl_keyfile=file)


def test_a_signal_ends_a_server_that_loads_and_one_that_comes_twice_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[int] = []
    monkeypatch.setattr(serving.signal, "signal", lambda sig, handler: None)
    monkeypatch.setattr(serving.signal, "raise_signal", raised.append)
    state = State()
    server = Server(uvicorn.Config(echo), state, drain=100.0)
    server.handle_exit(signal.SIGTERM, None)
    assert raised == [signal.SIGTERM]  # nothing was taken: the process ends as one that knows no signals
    state.loaded = True
    for _ in range(2):  # to the group of all processes, and from the first of them
        server.handle_exit(signal.SIGINT, None)
    assert state.draining
    assert not server.should_exit
    server._told = time.monotonic() - 2.0
    server.handle_exit(signal.SIGINT, None)
    assert server.should_exit
    assert server.force_exit
