"""Connections with deadlines: a request must arrive, and its answer be read, at a least rate."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LEAST_RATE = 16_384  # bytes a second of a request that goes on after its first seconds
LONGEST = 60.0  # seconds of any request's arrival
UNREAD = 30.0  # seconds in which a client reads nothing of its answer
LAST = 0.5  # seconds in which a quiet connection may still bring a request, when the server ends
LARGEST_HEAD = 64 << 10  # bytes of a request's line and headers


class Deadline(HttpToolsProtocol):
    """HTTP as uvicorn speaks it, with an end to what arrives or leaves too slowly."""

    seconds = 5.0  # that a request may take to arrive at whatever rate
    refused: Callable[[str], None] = staticmethod(lambda reason: None)

    _arriving: asyncio.TimerHandle | None = None
    _leaving: asyncio.TimerHandle | None = None
    _ending = False
    _begun = 0.0
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
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Stop the clock: the request is here."""
        self._disarm()
        self._in_head = False
        super().on_message_complete()

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
        self._begun, self._bytes, self._in_head = self.loop.time(), 0, True
        self._arm(self.seconds)

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._arriving = self.loop.call_later(seconds, self._look)

    def _disarm(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    def _look(self) -> None:
        """Cut off a request that takes too long; one that keeps to the least rate goes on."""
        self._arriving = None
        if self.pipeline:  # it waits for the answer to the request before it, and nothing is read meanwhile
            self._expect()
            return
        past = self.loop.time() - self._begun
        if self._bytes < LEAST_RATE * past or past >= LONGEST:
            self._cut(HTTPStatus.REQUEST_TIMEOUT, "slow")
        else:
            self._arm(1.0)

    def _cut(self, status: HTTPStatus, reason: str) -> None:
        """Say why, where nothing was said yet, and close."""
        self._disarm()
        if self.transport.is_closing():
            return
        self.refused(reason)
        cycle: Any = self.cycle
        if self._bytes and (cycle is None or cycle.response_complete or not cycle.response_started):
            kind = {"slow": "the request arrives too slowly", "headers": "the request's headers are too long"}[reason]
            text = f'{{"error":{{"type":"{reason}","message":"{kind}."}}}}'.encode()
            head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            self.transport.write(f"{head}content-length: {len(text)}\r\nconnection: close\r\n\r\n".encode() + text)
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True  # nothing more is written
                cycle.message_event.set()
        self.transport.close()
