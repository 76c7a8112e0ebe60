"""The application: HTTP around the engine. `create_app` gives it to any ASGI server."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from vitrail import __version__
from vitrail.config.serving import Serving, read_models
from vitrail.errors import ConfigError, shortened
from vitrail.inspection.page import TEMPLATE, fill_template
from vitrail.models import Model, ViT
from vitrail.runtime.dense import dense_task
from vitrail.runtime.engines import EngineModel
from vitrail.serve.answers import as_json, encoded, light, map_of, said_of
from vitrail.serve.dense import add_dense
from vitrail.serve.desk import Desk
from vitrail.serve.door import Door, error_document
from vitrail.serve.jobs import BadImagesError, RefusedError
from vitrail.serve.metrics import CONTENT_TYPE
from vitrail.serve.models import Look, Looked, Represent
from vitrail.serve.requests import RequestError
from vitrail.serve.schema import (
    ATTENTION,
    DESCRIPTION,
    EMBEDDINGS_BODY,
    ERRORS,
    IMAGES_BODY,
    Classified,
    Embedded,
    EmbeddingList,
    Health,
    ModelList,
)

# What the page is made of, by its address.
ASSETS = {
    **{name: ("vitrail.serve", f"page/{name}") for name in ("page.css", "page.js", "docs.js")},
    **{
        name: ("vitrail.inspection", f"template/{name}") for name in ("elements.js", "maps.js", "viewer.js", "icon.svg")
    },
    **{name: ("vitrail.inspection", f"template/{name}") for name in ("intake.js", "intake.css")},
    "inspector.css": ("vitrail.inspection", "template/page.css"),
}
TYPES = {"css": "text/css", "js": "text/javascript", "html": "text/html", "svg": "image/svg+xml"}

ModelName = Annotated[
    str | None, Query(alias="model", max_length=100, description="Which model, of those that /v1/models lists.")
]
Top = Annotated[int, Query(ge=1, le=1000, description="How many classes to give for each image.")]
Layer = Annotated[
    int | None, Query(ge=1, le=1000, description="A layer, from 1; left out: rollout through all layers.")
]
Head = Annotated[int | None, Query(ge=1, le=1000, description="A head of the layer, from 1; left out: their mean.")]
Form = Annotated[
    Literal["png", "json", "maps"],
    Query(
        alias="format",
        description="png: the images, lit where the model looked; json: numbers; maps: all of one image.",
    ),
]


def create_app(
    models: str | Model | Mapping[str, str | Model],
    *,
    options: Serving | None = None,
    **given: Any,  # noqa: ANN401
) -> FastAPI:
    """Make the ASGI application that serves models: a checkpoint, a model in memory, or several by name.

    Options are those of `vitrail.config.serving.Serving` (token, device, deadline, ...), and what a file leaves open of
    its model, as in `vitrail.load`. Models are loaded when the application starts (its lifespan).
    """
    fields = {name: given.pop(name) for name in [*given] if name in Serving.__dataclass_fields__}
    options = options or Serving(**fields)
    if isinstance(models, str):
        models = read_models([models])
    elif isinstance(models, Model):
        models = {"model": models}
    if not models:
        raise ConfigError("there is no model to serve. Give a checkpoint, or several by name.")
    desk = Desk(models, options, given)
    app = FastAPI(
        title="Vitrail",
        version=__version__,
        description=DESCRIPTION,
        lifespan=desk.running,
        docs_url=None,
        redoc_url=None,
    )
    app.state.desk = desk
    _add_errors(app)
    _add_answers(app, desk)
    add_dense(app, desk)
    _add_operation(app, desk)
    _add_page(app)
    paths = frozenset(str(path) for route in app.routes if (path := getattr(route, "path", None)))
    app.add_middleware(Door, options=options, metrics=desk.metrics, state=desk.state, paths=paths)
    return app


def _add_answers(app: FastAPI, desk: Desk) -> None:
    """Add what models answer."""

    @app.post("/v1/classify", openapi_extra=IMAGES_BODY, responses=ERRORS, tags=["models"])
    async def classify(request: Request, model: ModelName = None, top: Top = 5) -> Classified:
        """Classify images: for each the most probable classes, best first."""
        served = desk.find(model)
        if not served.model.config.classes:
            raise RequestError(400, "no_classifier", f"{served.name} has no classifier. Use /v1/embed.")
        if (task := dense_task(served.model)) is not None:
            raise RequestError(400, "no_classifier", f"{served.name} was trained to {task}. Use /v1/{task}.")
        images = await desk.images_of(request)
        ticket = await desk.answer(request, Represent(served), images)
        rows = zip(images.names, ticket.answers, strict=True)
        found = [{"name": name, **said_of(served, answer, top)} for name, answer in rows]
        return as_json({"model": served.name, "predictions": found}, served)

    @app.post("/v1/embed", openapi_extra=IMAGES_BODY, responses=ERRORS, tags=["models"])
    async def embed(request: Request, model: ModelName = None) -> Embedded:
        """Give what the classifier reads of each image: its features, as numbers."""
        served, images = desk.find(model), await desk.images_of(request)
        ticket = await desk.answer(request, Represent(served), images)
        rows = zip(images.names, ticket.answers, strict=True)
        found = [{"name": name, "embedding": answer.features.tolist()} for name, answer in rows]
        return as_json({"model": served.name, "embeddings": found}, served)

    @app.post("/v1/attention", openapi_extra=IMAGES_BODY, responses={**ERRORS, **ATTENTION}, tags=["models"])
    async def attention(
        request: Request, model: ModelName = None, form: Form = "png", layer: Layer = None, head: Head = None
    ) -> Response:
        """Show where the model looked: images lit up in one PNG, one below the other, or as numbers.

        Without a layer it is attention rollout through all layers (Appendix D.8); with one, what the class token (or
        the mean of all tokens, where there is none) attends to in that layer.
        """
        served = desk.find(model)
        if not isinstance(served.model, ViT):
            exported = isinstance(served.model, EngineModel)
            what = "an exported file, which gives logits and features alone" if exported else "a ResNet, which has none"
            raise RequestError(400, "no_attention", f"{served.name} shows no attention: it is {what}.")
        if (task := dense_task(served.model)) is not None:
            reason = f"{served.name} has queries, whose attention vitrail inspect shows. Use /v1/{task}."
            raise RequestError(400, "no_attention", reason)
        images = await desk.images_of(request)
        if form == "maps" and len(images.data) != 1:
            raise RequestError(422, "too_many_images", f"format=maps takes one image; got {len(images.data):,}.")
        ticket = await desk.answer(request, Look(served), images)
        looked: list[Looked] = ticket.answers
        if form == "maps":
            return as_json({"model": served.name, **await asyncio.to_thread(looked[0].document)}, served)
        seen = [map_of(each, layer, head) for each in looked]
        if form == "json":
            layers, heads = looked[0].attention.pooled.shape[1:3]
            values = {"grid": list(seen[0].shape), "layers": layers, "heads": heads, "layer": layer, "head": head}
            rows = zip(images.names, seen, strict=True)
            found = [{"name": name, "attention": one.tolist()} for name, one in rows]
            return as_json({"model": served.name, **values, "attentions": found}, served)
        png = await asyncio.to_thread(light, looked, seen, served.model)
        return Response(png, media_type="image/png", headers={"x-model-version": served.version})

    @app.post("/v1/embeddings", openapi_extra=EMBEDDINGS_BODY, responses=ERRORS, tags=["models"])
    async def embeddings(request: Request) -> EmbeddingList:
        """Embed images in the shape of OpenAI's API: `input` is a data URI, base64, or a list of them."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RequestError(415, "content_type", "expected application/json.")
        body = await desk.read(request)
        asked, images = await asyncio.to_thread(desk.read_embeddings, body)
        served = desk.find(asked.model)
        if asked.dimensions not in (None, width := served.model.config.representation):
            raise RequestError(
                422, "dimensions", f"{served.name} has {width} features; got dimensions={asked.dimensions}."
            )
        ticket = await desk.answer(request, Represent(served), images)
        rows = [encoded(answer, asked.encoding_format) for answer in ticket.answers]
        data = [{"object": "embedding", "index": place, "embedding": row} for place, row in enumerate(rows)]
        tokens = served.tokens * len(rows)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return as_json({"object": "list", "data": data, "model": served.name, "usage": usage}, served)

    @app.get("/v1/models", responses={401: ERRORS[401]}, tags=["models"])
    async def list_models() -> ModelList:
        """List the models that are served, and what is known of each."""
        found = [
            {**served.describe(), "refused": desk.shelf.errors.get(name)} for name, served in desk.shelf.models.items()
        ]
        return as_json({"object": "list", "data": found})


def _add_operation(app: FastAPI, desk: Desk) -> None:
    """Add what those who run the server ask."""

    @app.get("/healthz", tags=["operation"])
    async def healthz() -> Health:
        """Say that the process lives."""
        return as_json({"status": "ok"})

    @app.get("/readyz", responses={503: {"model": Health, "description": "Not yet, or no longer."}}, tags=["operation"])
    async def readyz() -> Health:
        """Say whether requests are welcome: not before the models are loaded, nor after SIGTERM."""
        if desk.state.draining or not desk.state.loaded:
            return JSONResponse({"status": "draining" if desk.state.draining else "loading"}, 503)  # pyright: ignore[reportReturnType]
        return as_json({"status": "ok"})

    words = {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "In Prometheus's text format."}

    @app.get("/metrics", response_class=Response, responses={200: words, 401: ERRORS[401]}, tags=["operation"])
    async def metrics() -> Response:
        """Give counts and times for Prometheus."""
        return Response(await asyncio.to_thread(desk.metrics.text), headers={"content-type": CONTENT_TYPE})


def _add_page(app: FastAPI) -> None:
    """Add the page, which needs nothing from any other host."""

    def page(name: str) -> Callable[[], Awaitable[Response]]:
        async def show() -> Response:
            text = fill_template(name, files("vitrail.serve") / "page", TEMPLATE)
            return Response(text, media_type=TYPES["html"], headers={"cache-control": "no-cache"})

        return show

    app.get("/", include_in_schema=False)(page("index.html"))
    app.get("/docs", include_in_schema=False)(page("docs.html"))

    @app.get("/assets/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in ASSETS:
            raise HTTPException(404)
        return _file(*ASSETS[name])


def _file(package: str, path: str) -> Response:
    data = (files(package) / path).read_bytes()
    return Response(data, media_type=TYPES[path.rpartition(".")[2]], headers={"cache-control": "no-cache"})


def _add_errors(app: FastAPI) -> None:
    """Answer every error in one shape, without a traceback."""

    def answer(request: Request, status: int, kind: str, message: str, **headers: str) -> Response:
        document = error_document(kind, message, request.scope["state"]["request_id"])
        request.scope["state"]["notes"]["error"] = kind
        return JSONResponse(document, status, headers=headers)

    @app.exception_handler(RequestError)
    async def _(request: Request, error: RequestError) -> Response:
        return answer(request, error.status, error.kind, str(error))

    @app.exception_handler(BadImagesError)
    async def _(request: Request, error: BadImagesError) -> Response:
        return answer(request, 422, "bad_image", str(error))

    @app.exception_handler(RefusedError)
    async def _(request: Request, error: RefusedError) -> Response:
        status = 503 if error.reason == "late" else 429
        return answer(request, status, error.reason, str(error), **{"retry-after": str(error.retry_after)})

    @app.exception_handler(RequestValidationError)
    async def _(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        return answer(request, 422, "parameter", f"{place}: {shortened(first['msg'], 200)}.")

    @app.exception_handler(HTTPException)
    async def _(request: Request, error: HTTPException) -> Response:
        kind = {404: "not_found", 405: "method"}.get(error.status_code, "http")
        words = {
            404: "there is nothing at this address; /docs lists what there is.",
            405: "this address takes another method.",
        }
        message = words.get(error.status_code, str(error.detail))
        return answer(request, error.status_code, kind, message, **dict(error.headers or {}))

    @app.exception_handler(ClientDisconnect)
    async def _(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)
