"""What servers answer of models that segment or detect: masks and boxes of images, as JSON and as pictures."""

import asyncio
import base64
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import FastAPI, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from vitrail.config.dense import DenseTask
from vitrail.data.decode import encode
from vitrail.data.mask_files import encode_mask
from vitrail.data.overlays import colors_of
from vitrail.evaluation.dense_page import overlay as draw_overlay
from vitrail.runtime.dense import dense_task
from vitrail.serve.answers import as_json
from vitrail.serve.desk import Desk
from vitrail.serve.finding import Find, Seen
from vitrail.serve.models import Served
from vitrail.serve.requests import RequestError
from vitrail.serve.schema import ERRORS, IMAGES_BODY

Model = Annotated[
    str | None, Query(alias="model", max_length=100, description="Which model, of those that /v1/models lists.")
]
Masks = Annotated[
    Literal["json", "png", "overlay"],
    Query(alias="format", description="json: shares and masks; png: the mask of one image; overlay: drawn over it."),
]
Boxes = Annotated[
    Literal["json", "overlay"], Query(alias="format", description="json: objects; overlay: drawn over one image.")
]
Score = Annotated[float, Query(ge=0, le=1, description="How sure an object must be.")]
Overlay = Annotated[
    bool, Query(description="Also give each image with its mask or boxes drawn over it, as a data URI.")
]


COLOR = Field(
    None, description="That of the class in masks and overlays, #rrggbb; null of a background, which has none."
)


class ClassShare(BaseModel):
    """A class and the share of the pixels that it has."""

    label: str
    share: float
    color: str | None = COLOR


class SegmentedImage(BaseModel):
    """The classes of an image's pixels."""

    name: str
    height: int
    width: int
    classes: list[ClassShare] = Field(description="Those that are there, the largest first.")
    mask: str = Field(description="An indexed PNG as a data URI; the number of a pixel is that of its class.")
    overlay: str | None = None


class Segmented(BaseModel):
    """The classes of the pixels of every image, in the order given."""

    model: str
    class_names: list[str] = Field(description="By the numbers of the masks.")
    predictions: list[SegmentedImage]


class Segmentation(BaseModel):
    """The pixels of an object, as COCO's tools read them."""

    size: list[int] = Field(description="Height and width of the image.")
    counts: str = Field(description="Lengths of runs down the columns, packed.")


class DetectedObject(BaseModel):
    """An object of an image."""

    label: str
    score: float
    color: str | None = COLOR
    box: list[float] = Field(description="Left, top, right, bottom in pixels of the image.")
    segmentation: Segmentation | None = Field(None, description="Its pixels, of a model that draws objects.")


class DetectedImage(BaseModel):
    """The objects of an image."""

    name: str
    height: int
    width: int
    objects: list[DetectedObject] = Field(description="The surest first.")
    overlay: str | None = None


class Detected(BaseModel):
    """The objects of every image, in the order given."""

    model: str
    predictions: list[DetectedImage]


def draw(served: Served, seen: Seen, score: float) -> bytes:
    """Draw a mask or boxes over an image, as PNG."""
    return encode(np.ascontiguousarray(draw_overlay(seen.pixels, seen.answer, served.labels, least=score)))


def document_of(served: Served, name: str, seen: Seen, score: float, *, overlay: bool) -> dict[str, Any]:
    """Say what was found in an image."""
    found: dict[str, Any] = {"name": name, "height": seen.pixels.shape[0], "width": seen.pixels.shape[1]}
    labels = served.labels
    colors = [f"#{bytes(color).hex()}" if any(color) else None for color in colors_of(labels)[: len(labels)].tolist()]
    if seen.answer.mask is not None:
        mask = seen.answer.mask.cpu().numpy()
        counts = np.bincount(mask.ravel(), minlength=len(labels))
        order = [number for number in np.argsort(-counts, kind="stable").tolist() if counts[number]]
        found["classes"] = [
            {"label": labels[number], "share": counts[number] / mask.size, "color": colors[number]} for number in order
        ]
        found["mask"] = _uri(encode_mask(mask, colors_of(labels)))
    else:
        boxes, classes, scores = seen.answer.found or ((), (), ())
        shapes = [None] * len(boxes) if seen.answer.shapes is None else seen.answer.shapes
        rows = zip(boxes, classes, scores, shapes, strict=True)
        found["objects"] = [
            {
                "label": labels[number],
                "score": float(sure),
                "color": colors[number],
                "box": [round(edge, 2) for edge in box.tolist()],
                **({} if shape is None else {"segmentation": shape.document()}),
            }
            for box, number, sure, shape in rows
            if sure >= score
        ]
    return found | ({"overlay": _uri(draw(served, seen, score))} if overlay else {})


def add_dense(app: FastAPI, desk: Desk) -> None:
    """Add what models of pixels and objects answer."""
    pictures: dict[int | str, dict[str, Any]] = {
        **ERRORS,
        200: {"content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}},
    }

    async def answer(
        request: Request, model: str | None, task: DenseTask, form: str, score: float, *, overlay: bool
    ) -> Any:  # noqa: ANN401
        served = desk.find(model)
        if (own := dense_task(served.model)) != task:
            use = {"segment": "/v1/segment", "detect": "/v1/detect", None: "/v1/classify"}[own]
            raise RequestError(400, f"no_{task}", f"{served.name} was not trained to {task}. Use {use}.")
        images = await desk.images_of(request)
        if form != "json" and len(images.data) != 1:
            raise RequestError(422, "too_many_images", f"format={form} takes one image; got {len(images.data):,}.")
        ticket = await desk.answer(request, Find(served), images)
        seen: list[Seen] = ticket.answers
        headers = {"x-model-version": served.version}
        if form == "png":
            mask = seen[0].answer.mask
            assert mask is not None
            return Response(
                encode_mask(mask.cpu().numpy(), colors_of(served.labels)), media_type="image/png", headers=headers
            )
        if form == "overlay":
            drawn = await asyncio.to_thread(draw, served, seen[0], score)
            return Response(drawn, media_type="image/png", headers=headers)

        def documents() -> list[dict[str, Any]]:
            rows = zip(images.names, seen, strict=True)
            return [document_of(served, name, each, score, overlay=overlay) for name, each in rows]

        names = {"class_names": list(served.labels)} if task == "segment" else {}
        return as_json({"model": served.name, **names, "predictions": await asyncio.to_thread(documents)}, served)

    @app.post("/v1/segment", openapi_extra=IMAGES_BODY, responses=pictures, response_model=Segmented, tags=["models"])
    async def segment(request: Request, model: Model = None, form: Masks = "json", overlay: Overlay = False) -> Any:  # noqa: ANN401, FBT002
        """Say the class of every pixel of images, of a model that was trained to segment."""
        return await answer(request, model, "segment", form, 0.0, overlay=overlay)

    @app.post("/v1/detect", openapi_extra=IMAGES_BODY, responses=pictures, response_model=Detected, tags=["models"])
    async def detect(
        request: Request,
        model: Model = None,
        form: Boxes = "json",
        score: Score = 0.5,
        overlay: Overlay = False,  # noqa: FBT002
    ) -> Any:  # noqa: ANN401
        """Find the objects of images, of a model that was trained to detect: a class, how sure it is, and a box."""
        return await answer(request, model, "detect", form, score, overlay=overlay)


def _uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
