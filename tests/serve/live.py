"""A server in a process of its own, for tests that end it, starve it, or change its files."""

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


class Live:
    """A running server."""

    def __init__(self, process: "subprocess.Popen[str]", port: int) -> None:
        self.process, self.port = process, port

    def ask(
        self, method: str, path: str, body: bytes = b"", kind: str = "application/octet-stream", **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        """Send one request; give the status, the document and the headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            given = {"Content-Type": kind, **{name.replace("_", "-"): value for name, value in headers.items()}}
            connection.request(method, path, body or None, given)
            answer = connection.getresponse()
            data = answer.read()
            told = {name.lower(): value for name, value in answer.getheaders()}
            is_json = told.get("content-type", "").startswith("application/json")
            return answer.status, json.loads(data) if is_json else data, told
        finally:
            connection.close()

    def end(self, sig: int = signal.SIGTERM) -> int:
        """Send a signal, and wait for the end."""
        self.process.send_signal(sig)
        return self.process.wait(60)


@contextmanager
def live(*words: str) -> Iterator[Live]:
    """Run `vitrail serve` with these words on a free port; the port is read from its log."""
    command = [sys.executable, "-m", "vitrail", "serve", *words, "--port", "0", "--log-format", "json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        port, said = 0, []
        for line in process.stderr:
            said.append(line)
            if " at http" in line:
                port = int(json.loads(line)["message"].rpartition(":")[2].partition(" ")[0])
                break
        assert port, "".join(said)
        drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
        try:
            yield Live(process, port)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            drain.kill()
            drain.wait()


def wait_until(true: Any, seconds: float = 30.0) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not become true"
        time.sleep(0.05)
