"""Loopback servers that can misbehave on purpose: of single files, and of the Hub's protocol."""

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Served:
    """A file, and how it is served."""

    body: bytes
    etag: str | None = '"one"'
    status: int = 200
    ranges: bool = True
    if_range: bool = True  # whether a range of another version is refused, as it should be
    length: bool = True
    chunked: bool = False
    shift: int = 0  # how far a range starts from where it should
    cuts: list[int] = field(default_factory=list)  # bytes after which each answer ends, the first first
    headers: dict[str, str] = field(default_factory=dict)
    drip: float = 0.0  # seconds between any two bytes


@dataclass
class Asked:
    """One request, as the server saw it."""

    method: str
    path: str
    range: str | None
    if_range: str | None


class Server(ThreadingHTTPServer):
    """Serves `files` by path, and remembers what was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, Served] = {}
        self.asked: list[Asked] = []
        self.stopping = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def url(self, path: str) -> str:
        return f"{self.address}/{path}"

    def ranges(self) -> list[str | None]:
        return [asked.range for asked in self.asked]

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            self.stop()
            thread.join()

    def stop(self) -> None:
        self.stopping.set()
        self.shutdown()
        self.server_close()


class HubServer(Server):
    """Speaks as much of the Hub's protocol as its client needs for one repository."""

    def __init__(self, repository: str, files: dict[str, bytes], kind: str = "models") -> None:
        super().__init__()
        self.repository = repository
        listing = [{"type": "file", "path": name, "size": len(body), "oid": _sum(body)} for name, body in files.items()]
        info = {"id": repository, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
        api = f"/api/{kind}/{repository}"
        place = f"/{repository}" if kind == "models" else f"/{kind}/{repository}"
        for path, answer in (
            (api, info),
            (f"{api}/revision/main", info),
            (f"{api}/revision/v1", info),
            (f"{api}/tree/{COMMIT}", listing),
        ):
            self.files[path] = Served(json.dumps(answer).encode(), headers={"Content-Type": "application/json"})
        for name, body in files.items():
            served = Served(body, etag=f'"{_sum(body)}"', headers={"X-Repo-Commit": COMMIT})
            self.files[f"{place}/resolve/{COMMIT}/{name}"] = served

    def fetched(self) -> set[str]:
        """The names of the files whose contents were asked for."""
        return {asked.path.split(f"{COMMIT}/")[1] for asked in self.asked if "/resolve/" in asked.path}


def _sum(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        asked = Asked(self.command, path, self.headers.get("Range"), self.headers.get("If-Range"))
        self.server.asked.append(asked)
        served = self.server.files.get(path) or self.server.files.get(path[1:])
        if served is None:
            code = "RevisionNotFound" if "/revision/" in path else "RepoNotFound"
            served = Served(b"none", status=404, headers={"X-Error-Code": code})
        start, status = self._start(served, asked)
        body = b"" if status == 416 else served.body[start:]
        self.protocol_version = "HTTP/1.1" if served.chunked else "HTTP/1.0"
        self.send_response(status)
        for name, value in served.headers.items():
            self.send_header(name, value)
        if served.etag and status < 400:
            self.send_header("ETag", served.etag)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(served.body) - 1}/{len(served.body)}")
        if status == 416:
            self.send_header("Content-Range", f"bytes */{len(served.body)}")
        if served.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        elif served.length:
            self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        if self.command == "HEAD":
            return
        for byte in body if served.drip else ():
            with contextlib.suppress(OSError):  # whom it served is gone
                self.wfile.write(bytes([byte]))
            if self.server.stopping.wait(served.drip):
                return
        if served.drip:
            return
        cut = served.cuts.pop(0) if served.cuts else len(body)
        if served.chunked:
            self.wfile.write(f"{len(body):x}\r\n".encode() + body[:cut])
            self.wfile.write(b"\r\n0\r\n\r\n" if cut >= len(body) else b"")
        else:
            self.wfile.write(body[:cut])

    def _start(self, served: Served, asked: Asked) -> tuple[int, int]:
        match = re.fullmatch(r"bytes=(\d+)-", asked.range or "")
        fresh = served.if_range and asked.if_range != served.etag
        if served.status != 200 or match is None or not served.ranges or fresh:
            return 0, served.status
        start = int(match[1]) + served.shift
        return (start, 206) if start < len(served.body) else (0, 416)
