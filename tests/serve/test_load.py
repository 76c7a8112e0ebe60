"""The load generator: every request is counted once, whatever becomes of its connection."""

import importlib.util
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

PLACE = Path(__file__).parents[2] / "benchmarks" / "load.py"
SPEC = importlib.util.spec_from_file_location("load", PLACE)
assert SPEC is not None
assert SPEC.loader is not None
load = importlib.util.module_from_spec(SPEC)
sys.modules["load"] = load  # dataclasses look their module up
SPEC.loader.exec_module(load)


@contextmanager
def serving(behave: Callable[[int, bytes], bytes]) -> Iterator[int]:
    """Answer the n-th request with what `behave` says of its body; nothing ends the connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    counts = iter(range(10_000))

    def talk(connection: socket.socket) -> None:
        with connection, suppress(ConnectionError):
            file = connection.makefile("rb")
            while line := file.readline():
                length = 0
                while line not in (b"\r\n", b""):
                    name, _, value = line.partition(b":")
                    length = int(value) if name == b"Content-Length" else length
                    line = file.readline()
                answer = behave(next(counts), file.read(length))
                if not answer:
                    connection.shutdown(socket.SHUT_RDWR)
                    return
                connection.sendall(answer)
                if b"close" in answer:
                    return

    def listen() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=talk, args=listener.accept()[:1], daemon=True).start()

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def echo(number: int, body: bytes) -> bytes:
    text = f"{len(body)} {body[:1].decode()}"
    return f"HTTP/1.1 20{number % 2} OK\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()


def test_every_request_is_answered_with_its_own_answer() -> None:
    bodies = [b"a" * 11, b"b" * 3_000_000, b"c"]  # the second is larger than what a socket takes at once
    with serving(echo) as port:
        found = load.run_load("127.0.0.1", port, "/", bodies, 3, 23, keep=True)
    assert sorted(answer.request for answer in found.answers) == [*range(23)]
    expected = [f"{len(body)} {body[:1].decode()}".encode() for body in bodies]
    assert all(answer.body == expected[answer.request % 3] for answer in found.answers)
    assert found.statuses == {200: 12, 201: 11}
    assert 0 < found.percentile(0.5) <= found.percentile(0.99) <= found.seconds
    assert found.summary()["requests"] == 23


def test_a_connection_that_ends_is_counted_and_replaced() -> None:
    closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\ncontent-length: 2\r\n\r\nok"
    with serving(lambda number, body: b"" if number % 5 == 0 else closing) as port:
        found = load.run_load("localhost", port, "/", [b"x"], 2, 20, keep=True)
    assert found.statuses == {0: 4, 200: 16}
    assert len(found.latencies) == 16
    assert sorted(answer.request for answer in found.answers) == [*range(20)]


@pytest.mark.parametrize("host", ["10.0.0.1", "example.org", "0.0.0.0", "::"])
def test_no_other_machine_is_loaded(host: str) -> None:
    with pytest.raises(ValueError, match="loopback"):
        load.run_load(host, 80, "/", [b"x"], 1, 1)


def test_a_server_that_says_nothing_is_left_at_the_limit() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(TimeoutError, match="0 of 3 requests were answered"),
    ):
        load.run_load("127.0.0.1", silent.getsockname()[1], "/", [b"x"], 2, 3, limit=0.05)
