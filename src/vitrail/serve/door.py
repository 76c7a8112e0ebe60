"""What every request passes: its number, who may come in, how much it may bring, and what is written down of it."""

import hmac
import json
import logging
import re
import secrets
import time
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitrail.config.serving import Serving
from vitrail.errors import one_line, shortened
from vitrail.serve.metrics import Metrics
from vitrail.serve.requests import RequestError

log = logging.getLogger("vitrail.serve")
access = logging.getLogger("vitrail.serve.access")
REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
OPEN = ("/", "/docs", "/openapi.json", "/healthz", "/readyz")  # without a token, and all of /assets
QUIET = ("/healthz", "/readyz", "/metrics")  # asked so often that only failures are written down
IN_FLIGHT = 8  # bodies of the largest size that may be in memory at once
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", POLICY.encode()),
]


class State:
    """What a server is doing; shared by the application and its process."""

    def __init__(self) -> None:
        self.loaded = False
        self.draining = False
        self.bytes = 0  # of bodies in memory


class Door:
    """An ASGI application around another."""

    def __init__(self, app: ASGIApp, options: Serving, metrics: Metrics, state: State, paths: frozenset[str]) -> None:
        self.app, self.options, self.metrics, self.state = app, options, metrics, state
        self._paths = paths  # that are counted by their names; all others are one

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens in it."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":  # no websockets
            return await send({"type": "websocket.close", "code": 1000})
        await _Visit(self, scope, receive, send).run()
        return None

    def counted_path(self, path: str) -> str:
        """Give a path as metrics name it: there are only so many."""
        return path if path in self._paths else "other"


class _Visit:
    """One request on its way through the door."""

    def __init__(self, door: Door, scope: Scope, receive: Receive, send: Send) -> None:
        self.door, self.scope, self._receive, self._send = door, scope, receive, send
        self.headers: Mapping[bytes, bytes] = dict(reversed(scope["headers"]))
        given = self.headers.get(b"x-request-id", b"")
        self.id = given.decode() if REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        self.begun = time.perf_counter()
        self.status = 0
        self.bytes = 0
        scope.setdefault("state", {})
        scope["state"] |= {"request_id": self.id, "notes": {}}

    async def run(self) -> None:
        path, state = self.scope["path"], self.door.state
        try:
            if not self._is_allowed(path):
                header = (b"www-authenticate", b'Bearer realm="vitrail"')
                await self._refuse(401, "token", "this server needs a token: Authorization: Bearer TOKEN.", header)
            elif (reason := self._too_much()) is not None:
                await self._refuse(413, "too_large", reason)
            else:
                await self.door.app(self.scope, self.receive, self.send)
        except Exception:
            log.exception("request %s failed", self.id)
            await self._refuse(500, "internal", "something failed in the server; its log says what, by the request_id.")
        finally:
            state.bytes -= self.bytes
            self._write_down(path)

    def _is_allowed(self, path: str) -> bool:
        token = self.door.options.token
        if token is None or path in OPEN or path.startswith("/assets/"):
            return True
        kind, _, given = self.headers.get(b"authorization", b"").partition(b" ")
        return kind.lower() == b"bearer" and hmac.compare_digest(given.strip(), token.encode())

    def _too_much(self) -> str | None:
        """Say that a body is too large before any of it is read, where its length is said."""
        said = self.headers.get(b"content-length", b"0")
        length = int(said) if said.isdigit() and len(said) < 20 else 0
        return self._limit() if length > self.door.options.max_bytes else None

    def _limit(self) -> str:
        return f"a request has at most {self.door.options.max_bytes:,} bytes here. Send fewer or smaller images."

    async def receive(self) -> Message:
        """Hand on what arrives, and count it."""
        message = await self._receive()
        if message["type"] == "http.request":
            size, state = len(message.get("body", b"")), self.door.state
            self.bytes += size
            state.bytes += size
            if self.bytes > self.door.options.max_bytes:
                raise RequestError(413, "too_large", self._limit())
            if state.bytes > IN_FLIGHT * self.door.options.max_bytes:
                self.door.metrics.refused("memory")
                message = "too many large requests at once. Try again in a moment, or send smaller images."
                raise RequestError(413, "too_large", message)
        return message

    async def send(self, message: Message) -> None:
        """Hand an answer on, with what every answer carries."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", []), (b"x-request-id", self.id.encode()), *HEADERS]
            if self.door.state.draining or self.status == 413:  # the rest of a body that is too large is not read
                headers.append((b"connection", b"close"))
            message = {**message, "headers": headers}
        await self._send(message)

    async def _refuse(self, status: int, kind: str, message: str, *more: tuple[bytes, bytes]) -> None:
        if self.status:  # an answer has begun: nothing can be said any more
            return
        if status != 500:
            self.door.metrics.refused(kind)
        body = json.dumps(error_document(kind, message, self.id)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *more]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})

    def _write_down(self, path: str) -> None:
        taken, door = time.perf_counter() - self.begun, self.door
        counted = door.counted_path(path)
        door.metrics.requests.labels(counted, str(self.status or 499)).inc()
        door.metrics.request_seconds.observe(taken)
        if path in QUIET and self.status < 400:
            return
        client = self.scope.get("client") or ("", 0)
        notes: dict[str, Any] = {
            "request_id": self.id,
            "client": client[0],
            "method": self.scope["method"],
            "path": shortened(one_line(path), 200),
            "status": self.status or 499,  # 499: the client has gone
            "ms": round(1000 * taken, 1),
            "bytes": self.bytes,
            **self.scope["state"]["notes"],
        }
        access.info("%(method)s %(path)s %(status)s %(ms)s ms", notes, extra={"notes": notes})


def error_document(kind: str, message: str, request_id: str | None) -> dict[str, Any]:
    """Give an error as every endpoint gives it: OpenAI's fields, and the request's number."""
    return {"error": {"type": kind, "message": message, "param": None, "code": None, "request_id": request_id}}
