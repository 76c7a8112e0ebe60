"""A loopback server that answers with bytes given in advance, and a network in which it stands for public hosts."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from vitrail.files.public import Network

PUBLIC = "93.184.215.14"
# Of images.example, signed by itself until 2126; it guards nothing.
CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgA2n02oHQVfPGKN+n
8im1Uvztk1RCB54lax0gNXs9Zh2hRANCAAQk+zCTOJ1sM8AOKtSvBbLIpz9TiLkN
N6iJEU7q9zW0aN9ZHQMBMZWw3RmgZOEyM3Qou12K58hMzsWHO8EewYz2
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBpTCCAUqgAwIBAgIUOn4XVeKnf9/5LHoD8WRnmJh0X0AwCgYIKoZIzj0EAwIw
GTEXMBUGA1UEAwwOaW1hZ2VzLmV4YW1wbGUwIBcNMjYxMTE4MDcwMzM2WhgPMjEy
NjEwMjUwNzAzMzZaMBkxFzAVBgNVBAMMDmltYWdlcy5leGFtcGxlMFkwEwYHKoZI
zj0CAQYIKoZIzj0DAQcDQgAEJPswkzidbDPADirUrwWyyKc/U4i5DTeoiRFO6vc1
tGjfWR0DATGVsN0ZoGThMjN0KLtdiufITM7FhzvBHsGM9qNuMGwwHQYDVR0OBBYE
FPl/FBPYaShN0YDI4GL4DcWQnP07MB8GA1UdIwQYMBaAFPl/FBPYaShN0YDI4GL4
DcWQnP07MA8GA1UdEwEB/wQFMAMBAf8wGQYDVR0RBBIwEIIOaW1hZ2VzLmV4YW1w
bGUwCgYIKoZIzj0EAwIDSQAwRgIhAN40mIsn9xwTMisu5CAyW6iuW1tIUahEWukP
hWF9IVAAAiEAvS5QQhTLMwK88MI+kEfQUhEOYiVmpt30BiBw8US4yqA=
-----END CERTIFICATE-----
"""


class Stranger:
    """Answers each connection with the next of some scripts; a script is pieces, a number among them a pause."""

    def __init__(self, *scripts: bytes | Sequence[bytes | float], context: ssl.SSLContext | None = None) -> None:
        self.scripts, self.context = list(scripts), context
        self.asked: list[bytes] = []
        self.sent = 0
        self.dialed: list[tuple[str, int]] = []
        self.names: list[str | None] = []  # which clients ask for when TLS begins
        self.listener = socket.create_server(("127.0.0.1", 0))

    def network(
        self, hosts: Mapping[str, Sequence[str]] | Callable[[str], Sequence[str]], trust: ssl.SSLContext | None = None
    ) -> Network:
        """Give a network in which hosts have these addresses, and every address is this server."""

        def look_up(host: str) -> Sequence[str]:
            return hosts(host) if callable(hosts) else hosts[host]

        def dial(address: str, port: int, seconds: float) -> socket.socket:
            self.dialed.append((address, port))
            return socket.create_connection(self.listener.getsockname(), timeout=seconds)

        return Network(look_up=look_up, dial=dial, trust=lambda: trust or ssl.create_default_context())

    @contextmanager
    def running(self) -> Iterator["Stranger"]:
        thread = threading.Thread(target=self._serve, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            with suppress(OSError):
                self.listener.shutdown(socket.SHUT_RDWR)
            self.listener.close()
            thread.join()

    def _serve(self) -> None:
        for script in self.scripts:
            with suppress(OSError):  # a client that is refused, or that had enough, has gone
                connection, _ = self.listener.accept()
                with self._secured(connection) as secured:
                    self.asked.append(secured.recv(1 << 16))
                    for piece in (script,) if isinstance(script, bytes) else script:
                        if isinstance(piece, bytes):
                            secured.sendall(piece)
                            self.sent += len(piece)
                        else:
                            time.sleep(piece)

    def _secured(self, connection: socket.socket) -> socket.socket:
        if self.context is None:
            return connection
        self.context.sni_callback = lambda made, name, context: self.names.append(name)
        return self.context.wrap_socket(connection, server_side=True)


def answer(body: bytes = b"", status: str = "200 OK", **headers: str | int) -> bytes:
    """An answer as it goes over the wire; `_` in a header's name stands for `-`."""
    fields = {"Content_Length": len(body)} | headers
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in fields.items() if value != ""]
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode() + body


def contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The contexts of images.example, and of a client that trusts it alone."""
    file = folder / "images.example.pem"
    file.write_text(CERTIFICATE)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    return server, ssl.create_default_context(cafile=str(file))
