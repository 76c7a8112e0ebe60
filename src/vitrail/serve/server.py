"""The server's process, or one for each device behind one port: sockets, signals and an end that loses nothing."""

import asyncio
import functools
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from types import FrameType
from typing import Any

import uvicorn

from vitrail.config.serving import Serving
from vitrail.errors import ConfigError, VitrailError
from vitrail.runtime.machine import share_memory, usable_cores
from vitrail.serve.app import create_app
from vitrail.serve.door import State
from vitrail.serve.logs import set_up
from vitrail.serve.metrics import SHARED
from vitrail.serve.protocol import Deadline

log = logging.getLogger("vitrail.serve")
BACKLOG = 2048
KEEP_ALIVE = 20  # seconds that a quiet connection is kept
SAME = 1.0  # seconds in which a signal may come twice: to all processes, and from the first of them
AGAIN = 2.0  # seconds before a process that died is started again


class Server(uvicorn.Server):
    """A web engine that goes on answering for a while after SIGTERM, and ends when nothing is under way."""

    def __init__(self, config: uvicorn.Config, state: State, drain: float) -> None:
        super().__init__(config)
        self.state, self.drain, self._told, self._until = state, drain, 0.0, 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, with an end to handshakes that take too long: a request has not begun before them."""
        loop = asyncio.get_running_loop()
        if self.config.is_ssl:
            seconds = self.config.http_protocol_class.seconds  # pyright: ignore[reportAttributeAccessIssue]
            loop.create_server = functools.partial(loop.create_server, ssl_handshake_timeout=seconds)
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop being ready at the first signal, and end; at the second, end at once.

        Until the models are loaded nothing was taken, and the first is the end.
        """
        now = time.monotonic()
        if not self.state.loaded:
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        elif not self.state.draining:
            self.state.draining = True
            self._told, self._until = now, now + (self.drain if sig == signal.SIGTERM else 0.0)
        elif now > self._told + SAME:
            self.should_exit = True
            self.force_exit = sig == signal.SIGINT

    async def on_tick(self, counter: int) -> bool:
        """Look ten times a second whether it is time to end."""
        parent = multiprocessing.parent_process()
        if parent is not None and not self.state.draining and not parent.is_alive():
            self.handle_exit(signal.SIGTERM, None)  # nobody else would end this process
        if self.state.draining and not self.should_exit and time.monotonic() >= self._until:
            self.should_exit = not self.server_state.tasks or time.monotonic() >= self._until + self.drain
        return await super().on_tick(counter)


def run(models: Mapping[str, str], *, quiet: bool = False, **given: Any) -> None:  # noqa: ANN401
    """Serve models until SIGTERM or Ctrl-C; options are those of `create_app`."""
    fields = {name: given.pop(name) for name in [*given] if name in Serving.__dataclass_fields__}
    options = Serving(**fields)
    set_up(options.log_format, quiet=quiet)
    if not options.is_local and options.token is None:
        log.warning(
            "anybody who reaches %s:%d may use this server: give it a token (VITRAIL_TOKEN), and TLS or a proxy.",
            options.host,
            options.port,
        )
    elif not options.is_local and options.tls_cert is None:
        log.warning("the token and all images travel unencrypted: give TLS files, or put a proxy before the server.")
    with _bind(options) as listener:
        if len(options.devices) == 1:
            _serve(dict(models), options, given, listener)
        else:
            _serve_several(dict(models), options, given, listener, quiet=quiet)


def _bind(options: Serving) -> socket.socket:
    """Take the port, so that a wrong one is told before any model is loaded."""
    try:
        found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.set_inheritable(True)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(
            f"cannot listen at {options.host}:{options.port}: {reason}. Take another: host=..., port=..."
        ) from error
    return listener


def _serve(models: dict[str, str], options: Serving, said: dict[str, Any], listener: socket.socket) -> None:
    """Serve in this process."""
    share_memory(max(usable_cores(), 2))
    app = create_app(models, options=options, **said)
    desk = app.state.desk

    class Protocol(Deadline):
        seconds, most = options.receive, options.max_connections
        refused = staticmethod(desk.metrics.refused)

    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=int(options.deadline) + 5,
        ssl_certfile=options.tls_cert,
        ssl_keyfile=options.tls_key,
        backlog=BACKLOG,
    )
    server = Server(config, desk.state, options.drain)
    desk.on_ready = lambda: _say_where(options, listener, models)
    logging.getLogger("uvicorn.error").addFilter(
        lambda record: not isinstance(desk.failure, VitrailError)
    )  # said below
    try:
        server.run(sockets=[listener])
    except SystemExit:  # where a model could not be opened
        if desk.failure is None:
            raise
    if desk.failure is not None:
        raise desk.failure
    log.info("ended; every request that was taken is answered")


def _say_where(options: Serving, listener: socket.socket, models: Mapping[str, str]) -> None:
    host, port = listener.getsockname()[:2]
    scheme = "https" if options.tls_cert else "http"
    shown = f"[{host}]" if ":" in host else host
    log.info("%s at %s://%s:%d (pid %d)", ", ".join(models), scheme, shown, port, os.getpid())


def _serve_several(
    models: dict[str, str], options: Serving, said: dict[str, Any], listener: socket.socket, *, quiet: bool
) -> None:
    """Start a process for each device, which all take connections from one socket; start again those that die."""
    shared = tempfile.mkdtemp(prefix="vitrail-metrics-")
    os.environ[SHARED] = shared
    context = multiprocessing.get_context("spawn")
    ending = False

    def start(number: int) -> None:
        if ending:
            return
        own = replace(options, device=options.devices[number])
        process = context.Process(target=_child, args=(models, own, said, listener, quiet), daemon=False)
        process.start()
        running[number] = (process, time.monotonic())
        if ending:  # a signal came before this process was known
            end(signal.SIGTERM, None)

    def end(sig: int, frame: FrameType | None) -> None:
        nonlocal ending
        ending = True
        listener.close()  # the processes have it: when the last of them ends, nobody is kept waiting
        for process, _ in running.values():
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, sig)

    running: dict[int, tuple[Any, float]] = {}
    before = {sig: signal.signal(sig, end) for sig in (signal.SIGTERM, signal.SIGINT)}
    try:
        for number in range(len(options.devices)):
            start(number)
        while any(process.is_alive() for process, _ in running.values()) or not ending:
            time.sleep(0.1)
            for number, (process, begun) in [*running.items()]:
                if process.is_alive() or ending:
                    continue
                if time.monotonic() - begun < 10 * AGAIN:  # it did not come up: the same would happen again
                    end(signal.SIGTERM, None)
                    raise ConfigError(f"the process of {options.devices[number]} ended with {process.exitcode}.")
                log.error("the process of %s died (%s); it is started again", options.devices[number], process.exitcode)
                time.sleep(AGAIN)
                start(number)
    finally:
        for process, _ in running.values():
            process.join(options.deadline + 10)
        for sig, handler in before.items():
            signal.signal(sig, handler)
        shutil.rmtree(shared, ignore_errors=True)


def _child(
    models: dict[str, str],
    options: Serving,
    said: dict[str, Any],
    listener: socket.socket,
    quiet: bool,  # noqa: FBT001
) -> None:
    """Serve in a process of one device."""
    set_up(options.log_format, quiet=quiet)
    try:
        _serve(models, options, said, listener)
    except Exception as error:
        log.error("%s", error)
        sys.exit(1)
