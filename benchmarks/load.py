"""Closed-loop load on a server of this machine: `python benchmarks/load.py PORT FILES... [--clients 64 --total 2000]`.

Each client sends its next request when its last is answered, over a connection that it keeps. All clients are sockets
of one process and one loop, and every request is made before the first is sent, since the server shares the machine's
cores. Only loopback is asked: it measures one's own server, and is no way to burden another's.
"""

import argparse
import ipaddress
import json
import select
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

LARGEST_PIECE = 1 << 18
END = b"\r\n\r\n"


class Answer(NamedTuple):
    """What came for a request: its place among all, its status (0: the connection ended), the body and the seconds."""

    request: int
    status: int
    body: bytes
    seconds: float


@dataclass
class Load:
    """What a load found."""

    seconds: float = 0.0  # from the first request to the last answer
    cpu_seconds: float = 0.0  # of this process
    statuses: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)  # seconds, of all that were answered
    answers: list[Answer] = field(default_factory=list)  # where they are kept

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.latencies) / self.seconds if self.seconds else 0.0

    def percentile(self, share: float) -> float:
        """Seconds within which this share of the answers came."""
        ordered = sorted(self.latencies)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0

    def summary(self) -> dict[str, Any]:
        """The numbers, in units to read."""
        return {
            "requests": sum(self.statuses.values()),
            "seconds": round(self.seconds, 3),
            "per_second": round(self.rate, 1),
            "p50_ms": round(1000 * self.percentile(0.5), 2),
            "p99_ms": round(1000 * self.percentile(0.99), 2),
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "client_cpu_ms_per_request": round(1000 * self.cpu_seconds / max(sum(self.statuses.values()), 1), 4),
        }


def run_load(
    host: str,
    port: int,
    path: str,
    requests: Sequence[bytes],
    clients: int,
    total: int,
    *,
    headers: Sequence[tuple[str, str]] = (("Content-Type", "application/octet-stream"),),
    keep: bool = False,
    limit: float = 600.0,
) -> Load:
    """POST `total` bodies, cycling through `requests`, by so many clients at once; `keep` gives the answers too.

    A connection that ends before its answer counts as status 0, and is not tried again. Past `limit` seconds it is a
    TimeoutError.
    """
    address = (_loopback(host), port)
    if not requests or clients < 1 or total < 0:
        raise ValueError(f"expected bodies, clients and a total; got {len(requests)}, {clients} and {total}.")
    return _Loop(address, [_request(host, path, body, headers) for body in requests], total, keep=keep).run(
        min(clients, total), limit
    )


def _loopback(host: str) -> str:
    found = "127.0.0.1" if host == "localhost" else host
    try:
        if ipaddress.ip_address(found).is_loopback:
            return found
    except ValueError:
        pass
    raise ValueError(f"expected an address of this machine's loopback, such as 127.0.0.1; got {host}.")


def _request(host: str, path: str, body: bytes, headers: Sequence[tuple[str, str]]) -> bytes:
    shown = f"[{host}]" if ":" in host else host
    lines = [f"POST {path} HTTP/1.1", f"Host: {shown}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join((*lines, "", "")).encode() + body


class _Client:
    """A connection: what is still to be sent, and what has come of the answer."""

    __slots__ = ("begun", "came", "connection", "expected", "left", "number")

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.number, self.begun = -1, 0.0
        self.left: memoryview | None = None
        self.came, self.expected = b"", 0  # bytes of head and body; 0: not known yet


class _Loop:
    def __init__(self, address: tuple[str, int], requests: list[bytes], total: int, *, keep: bool) -> None:
        self.address, self.requests, self.total, self.keep = address, requests, total, keep
        self.sent, self.load = 0, Load()
        self.poll = select.epoll() if hasattr(select, "epoll") else select.poll()
        self.clients: dict[int, _Client] = {}

    def run(self, clients: int, limit: float) -> Load:
        """Connect all clients first, then send."""
        for client in [self._connect() for _ in range(clients)]:
            self.clients[client.connection.fileno()] = client
        cpu, begun = time.process_time(), time.perf_counter()
        try:
            for client in [*self.clients.values()]:
                self._send_next(client)
            unit = 1 if hasattr(select, "epoll") else 1000  # epoll waits in seconds, poll in milliseconds
            while self.clients:
                left = limit - (time.perf_counter() - begun)
                if left <= 0:
                    raise TimeoutError(f"{sum(self.load.statuses.values())} of {self.total} requests were answered.")
                for number, event in self.poll.poll(left * unit):
                    client = self.clients[number]
                    if event & select.POLLOUT and client.left is not None:
                        self._push(client)
                    if event & ~select.POLLOUT and number in self.clients:
                        self._receive(client)
        finally:
            for client in self.clients.values():
                client.connection.close()
        self.load.seconds, self.load.cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu
        return self.load

    def _connect(self) -> _Client:
        connection = socket.create_connection(self.address, timeout=10)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(0)
        self.poll.register(connection.fileno(), select.POLLIN)
        return _Client(connection)

    def _send_next(self, client: _Client) -> None:
        if self.sent == self.total:
            self._drop(client)
            return
        client.number = self.sent
        self.sent += 1
        request = self.requests[client.number % len(self.requests)]
        client.came, client.expected, client.begun = b"", 0, time.perf_counter()
        try:
            done = client.connection.send(request)
        except BlockingIOError:
            done = 0
        except OSError:
            self._lose(client)
            return
        if done < len(request):
            client.left = memoryview(request)[done:]
            self.poll.modify(client.connection.fileno(), select.POLLIN | select.POLLOUT)

    def _push(self, client: _Client) -> None:
        """Send more of a request that the socket did not take whole."""
        assert client.left is not None
        try:
            client.left = client.left[client.connection.send(client.left) :]
        except BlockingIOError:
            return
        except OSError:
            self._lose(client)
            return
        if not client.left:
            client.left = None
            self.poll.modify(client.connection.fileno(), select.POLLIN)

    def _receive(self, client: _Client) -> None:
        try:
            piece = client.connection.recv(LARGEST_PIECE)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._lose(client)
            return
        came = client.came = client.came + piece if client.came else piece
        if not client.expected:
            end = came.find(END)
            if end < 0:
                return
            client.expected = end + len(END) + _length(came[:end])
        if len(came) < client.expected:
            return
        seconds = time.perf_counter() - client.begun
        head, _, body = came.partition(END)
        self._note(client, int(head[9:12]), body, seconds)
        self.load.latencies.append(seconds)
        if client.left is not None or b"connection: close" in head.lower():
            self._replace(client)  # answered before the whole request was taken, or for the last time
        else:
            self._send_next(client)

    def _note(self, client: _Client, status: int, body: bytes, seconds: float) -> None:
        self.load.statuses[status] += 1
        if self.keep:
            self.load.answers.append(Answer(client.number, status, body, seconds))

    def _lose(self, client: _Client) -> None:
        """Count a request without an answer; a connection of its own goes on with the next."""
        self._note(client, 0, b"", time.perf_counter() - client.begun)
        self._replace(client)

    def _replace(self, client: _Client) -> None:
        self._drop(client)
        while self.sent < self.total:
            try:
                fresh = self._connect()
            except OSError:  # nobody listens any more
                self.load.statuses[0] += 1
                if self.keep:
                    self.load.answers.append(Answer(self.sent, 0, b"", 0.0))
                self.sent += 1
                continue
            self.clients[fresh.connection.fileno()] = fresh
            self._send_next(fresh)
            return

    def _drop(self, client: _Client) -> None:
        self.poll.unregister(client.connection.fileno())
        del self.clients[client.connection.fileno()]
        client.connection.close()


def _length(head: bytes) -> int:
    """Read how long a body is; an answer in chunks is not understood."""
    lower = head.lower()
    start = lower.find(b"\r\ncontent-length:")
    if start < 0:
        raise ValueError(f"expected an answer with its length; got {head[:200]!r}.")
    end = lower.find(b"\r", start + 2)
    return int(lower[start + 17 : end if end > 0 else None])


def main() -> None:
    """Read the files, load the server, and print what was found as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--path", default="/v1/classify")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--total", type=int, default=2000)
    parser.add_argument("--token")
    given = parser.parse_args()
    headers = [("Content-Type", "application/octet-stream")]
    headers += [("Authorization", f"Bearer {given.token}")] if given.token else []
    bodies = [file.read_bytes() for file in given.files]
    found = run_load(given.host, given.port, given.path, bodies, given.clients, given.total, headers=headers)
    print(json.dumps(found.summary()))  # noqa: T201


if __name__ == "__main__":
    main()
