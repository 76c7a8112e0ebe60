"""What the endpoints share: the models, the engine, and how a request is read and answered."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from vitrail.config.serving import Serving
from vitrail.errors import DataError, shortened
from vitrail.files import fetch_public
from vitrail.models import Model
from vitrail.runtime.inference import InferenceOptions
from vitrail.runtime.machine import Group, choose_device, give_memory_back, resident_memory
from vitrail.serve.door import State
from vitrail.serve.engine import Engine
from vitrail.serve.finding import Find
from vitrail.serve.jobs import Task, Ticket
from vitrail.serve.metrics import Metrics
from vitrail.serve.models import Look, Represent, Served, Shelf
from vitrail.serve.requests import Images, RequestError, read_document, read_images, read_inputs
from vitrail.serve.schema import EmbeddingsRequest

Result = TypeVar("Result")
FETCHING = 10.0  # most seconds for all addresses of a request
TIDYING = 1.0  # seconds between looks whether memory can be given back
GROWN = 1.02  # times as much memory as there was: then it is
SMALL = 64 << 10  # bytes of a body that is taken apart in the event loop
PREFER = re.compile(r"(?:^|,)\s*wait=(\d{1,5}(?:\.\d{1,3})?)\s*(?:$|[,;])")


async def tidy(
    is_idle: Callable[[], bool],
    resident: Callable[[], int] = resident_memory,
    give_back: Callable[[], object] = give_memory_back,
    every: float = TIDYING,
) -> None:
    """Give back what large images left, whenever nothing is done: the C library keeps it for its threads."""
    usual = resident()
    while usual:
        await asyncio.sleep(every)
        if is_idle() and resident() > GROWN * usual:
            await asyncio.to_thread(give_back)
            usual = resident()


class Desk:
    """What the endpoints share: models, engine, limits."""

    def __init__(self, models: Mapping[str, str | Model], options: Serving, said: Mapping[str, Any]) -> None:
        self.options, self.metrics, self.state = options, Metrics(), State()
        self.failure: Exception | None = None  # why it did not start
        self.on_ready: Callable[[], None] = lambda: None
        self.device = choose_device(options.devices[0])
        self.shelf = Shelf(
            models,
            self.metrics,
            device=self.device,
            passes=InferenceOptions(
                group=Group(device=self.device),
                batch_size=options.batch_size or InferenceOptions.batch_size,
                precision=options.precision,
                engine=options.engine,
            ),
            max_pixels=options.max_pixels,
            said=said,
        )
        self.engine = Engine(
            self.metrics,
            device=self.device,
            batch_size=options.batch_size,
            batch_tokens=options.batch_tokens,
            queue=options.queue,
        )

    @contextlib.asynccontextmanager
    async def running(self, app: FastAPI) -> AsyncIterator[None]:
        """Load the models, start the threads, look for new checkpoints; at the end, finish what was taken."""
        try:
            await asyncio.to_thread(self.shelf.load)
        except Exception as error:
            self.failure = error  # whoever runs the server says why
            raise
        self.engine.start(asyncio.get_running_loop())
        watching = [asyncio.create_task(self._watch()), asyncio.create_task(tidy(self.engine.is_idle))]
        self.state.loaded = True
        self.on_ready()
        try:
            yield
        finally:
            self.state.draining = True
            for task in watching:
                task.cancel()
            await asyncio.to_thread(self.engine.stop)
            self.state.loaded = self.state.draining = False  # it may be started again

    async def _watch(self) -> None:
        while self.options.watch:
            await asyncio.sleep(self.options.watch)
            await asyncio.to_thread(self.shelf.look, self._forget)

    def _forget(self, old: Served) -> None:
        for task in (Represent(old), Look(old), Find(old)):
            self.engine.forget(task)

    def find(self, name: str | None) -> Served:
        """Give the model that a request asks for."""
        if (served := self.shelf.find(name)) is None:
            known = ", ".join(self.shelf.models)
            raise RequestError(
                404, "model", f"there is no model {shortened(name or '', 100)!r} here. There are: {known}."
            )
        return served

    async def read(self, request: Request) -> bytes:
        """Read the body of a request."""
        return await request.body()

    async def images_of(self, request: Request) -> Images:
        """Read the images of a request; what is large is taken apart beside the event loop."""
        body, kind = await self.read(request), request.headers.get("content-type", "")
        fetch = self._fetcher()
        if len(body) <= SMALL and fetch is None:
            return read_images(body, kind, self.options.max_images)
        return await asyncio.to_thread(read_images, body, kind, self.options.max_images, fetch)

    def read_embeddings(self, body: bytes) -> tuple[EmbeddingsRequest, Images]:
        """Read a request in the shape of OpenAI's."""
        try:
            asked = EmbeddingsRequest.model_validate(document := read_document(body))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"][:2])
            raise RequestError(422, "json", f"{place}: {shortened(first['msg'], 200)}.") from error
        fetch = self._fetcher()
        return asked, read_inputs(document["input"], self.options.max_images, fetch)

    def _fetcher(self) -> Callable[[str], bytes] | None:
        """Give what fetches the addresses of one request, all of them within the same seconds."""
        if not self.options.allow_urls:
            return None
        seconds = min(self.options.deadline, FETCHING)
        end = time.monotonic() + seconds

        def fetch(url: str) -> bytes:
            if (left := end - time.monotonic()) <= 0:
                message = (
                    f"the addresses of a request are fetched within {seconds:g} seconds in all, and these took more."
                )
                raise RequestError(422, "url", f"{message} Send the images themselves, or fewer.")
            try:
                return fetch_public(url, most=self.options.max_bytes, seconds=left)
            except DataError as error:
                raise RequestError(422, "url", str(error)) from error

        return fetch

    async def answer(self, request: Request, task: Task, images: Images) -> Ticket:
        """Answer images within the request's deadline, or until its client has gone."""
        notes = request.scope["state"]["notes"]
        notes["images"] = len(images.data)
        seconds = self.options.deadline
        if wait := PREFER.search(request.headers.get("prefer", "")):  # RFC 7240: how long the client will wait
            seconds = min(float(wait[1]), seconds)
        work = self.engine.answer(task, images.data, time.monotonic() + seconds)
        ticket = await unless_gone(request, work)
        notes |= {f"{name}_ms": round(1000 * taken, 1) for name, taken in ticket.seconds.items()}
        return ticket


async def unless_gone(request: Request, work: Awaitable[Result]) -> Result:
    """Wait for some work, and give it up where the client closes its connection."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(request.receive())  # after the body, nothing comes but the end
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
