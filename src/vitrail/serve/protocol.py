"""Connections with deadlines: a request must arrive, and its answer be read, at a least rate."""

import asyncio
import json
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from vitrail.serve.door import error_document

LEAST_RATE = 16_384  # bytes a second of a request that goes on after its first seconds
LONGEST = 60.0  # seconds of any request's arrival
UNREAD = 30.0  # seconds in which a client reads nothing of its answer
LAST = 0.5  # seconds in which a quiet connection may still bring a request, when the server ends
LARGEST_HEAD = 64 << 10  # bytes of a request's line and headers
UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
WORDS = {
    "slow": "the request arrives too slowly.",
    "headers": "the request's headers are too long.",
    "http": "this is no HTTP that is read here.",
    "connections": "there are too many connections at once. Try again in a moment.",
}


class Deadline(HttpToolsProtocol):
    """HTTP as uvicorn speaks it, with an end to what arrives or leaves too slowly."""

    seconds = 5.0  # that a request may take to arrive at whatever rate
    most = 512  # connections at once; a request of another is refused
    refused: Callable[[str], None] = staticmethod(lambda reason: None)

    _arriving: asyncio.TimerHandle | None = None
    _leaving: asyncio.TimerHandle | None = None
    _ending = False
    _begun = 0.0
    _looked = 0.0  # when its rate was looked at last
    _fresh = 0  # bytes since then
    _bytes = 0
    _in_head = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Expect a request from now on."""
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing any more."""
        self._disarm()
        if self._leaving is not None:
            self._leaving.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what arrives; where nothing was expected, the next request begins."""
        if self._arriving is None and not self._is_answering():
            self._expect()
        self._bytes += len(data)
        self._fresh += len(data)
        if self._in_head and UPGRADE.search(data):  # no other protocol is spoken, and the parser would skip the body
            head, gap, rest = data.partition(b"\r\n\r\n")
            data = UPGRADE.sub(rb"\r\nx-upgrade:", head) + gap + rest
        super().data_received(data)
        if self._in_head and self._bytes > LARGEST_HEAD:
            self._cut(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "headers")

    def on_message_begin(self) -> None:
        """Start the clock of a request that came behind another."""
        super().on_message_begin()
        if self._arriving is None:
            self._expect()

    def on_headers_complete(self) -> None:
        """Begin an answer; what follows is the body."""
        self._in_head = False
        app = self.app
        if len(self.connections) > self.most:
            self.app = self._refuse_one_more  # pyright: ignore[reportAttributeAccessIssue]
        super().on_headers_complete()
        self.app = app

    def on_message_complete(self) -> None:
        """Stop the clock: the request is here."""
        self._disarm()
        self._in_head = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP as every error is answered."""
        self._cut(HTTPStatus.BAD_REQUEST, "http")

    async def _refuse_one_more(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.refused("connections")
        text, status = _document("connections"), HTTPStatus.SERVICE_UNAVAILABLE.value
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(text))]
        headers += [(b"retry-after", b"1"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": text})

    def pause_writing(self) -> None:
        """Give a client that reads nothing some time."""
        super().pause_writing()
        if self._leaving is None:
            self._leaving = self.loop.call_later(UNREAD, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: it reads."""
        super().resume_writing()
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    def shutdown(self) -> None:
        """End after the answer that is due; a quiet connection ends a moment later, as a request may be under way."""
        self._ending = True
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(LAST, self._end_if_quiet)
        else:
            super().shutdown()

    def on_response_complete(self) -> None:
        """Take the next request, unless the server ends."""
        super().on_response_complete()
        if self._ending and not self.pipeline and not self.transport.is_closing():
            self.loop.call_later(LAST, self._end_if_quiet)

    def _end_if_quiet(self) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect(self) -> None:
        self._begun = self._looked = self.loop.time()
        self._fresh, self._bytes, self._in_head = 0, 0, True
        self._arm(self.seconds)

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._arriving = self.loop.call_later(seconds, self._look)

    def _disarm(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    def _look(self) -> None:
        """Cut off a request that takes too long; one that kept to the least rate since the last look goes on."""
        self._arriving = None
        if self.pipeline:  # it waits for the answer to the request before it, and nothing is read meanwhile
            self._expect()
            return
        now = self.loop.time()
        if self._fresh < LEAST_RATE * (now - self._looked) or now - self._begun >= LONGEST:
            self._cut(HTTPStatus.REQUEST_TIMEOUT, "slow")
        else:
            self._looked, self._fresh = now, 0
            self._arm(self.seconds)

    def _cut(self, status: HTTPStatus, reason: str) -> None:
        """Say why, where nothing was said yet, and close."""
        self._disarm()
        if self.transport.is_closing():
            return
        self.refused(reason)
        cycle: Any = self.cycle
        if self._bytes and (cycle is None or cycle.response_complete or not cycle.response_started):
            text = _document(reason)
            head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            self.transport.write(f"{head}content-length: {len(text)}\r\nconnection: close\r\n\r\n".encode() + text)
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True  # nothing more is written
                cycle.message_event.set()
        self.transport.close()


def _document(reason: str) -> bytes:
    return json.dumps(error_document(reason, WORDS[reason], None)).encode()
