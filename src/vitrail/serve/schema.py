"""What goes in and out, for the documentation at /docs and /openapi.json."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

DESCRIPTION = """Vision Transformers by HTTP. Every error is `{"error": {"type", "message", "request_id"}}`.
A 429 or 503 says in `Retry-After` when to try again. `Prefer: wait=SECONDS` says how long a client will wait; a
request that would take longer is refused at once. Send an `X-Request-Id` to find a request in the server's log."""
# The smallest PNG there is: one grey pixel.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGOoBwAAgQCA05RTSgAAAABJRU5ErkJggg=="
IMAGE = {
    "type": "string",
    "contentEncoding": "base64",
    "description": "Base64, or a data URI: data:image/png;base64,...",
}
BYTES = {"schema": {"type": "string", "format": "binary"}}


class Error(BaseModel):
    """Why a request was not answered."""

    type: str = Field(description="A word for programs.")
    message: str = Field(description="What was expected, what came, and what to do.")
    param: None = Field(None, description="As in OpenAI's errors.")
    code: None = Field(None, description="As in OpenAI's errors.")
    request_id: str | None = None


class Failure(BaseModel):
    """An error, as every endpoint gives it."""

    error: Error


class TopClass(BaseModel):
    """A class and its probability."""

    label: str
    probability: float


class Prediction(BaseModel):
    """What a classifier says of one image."""

    name: str = Field(description="The file's name, or image 0, image 1, ...")
    top: list[TopClass] = Field(description="Best first; empty of a model that answers with numbers.")
    labels: list[str] | None = Field(None, description="Those that are said, of a model of several labels an image.")
    values: dict[str, float] | None = Field(None, description="The numbers by name, of a model that answers with such.")
    label: str | None = Field(None, description="The median class, of a model of ordered classes.")


class Classified(BaseModel):
    """What a classifier says of every image, in the order given."""

    model: str
    predictions: list[Prediction]


class Embedding(BaseModel):
    """The features of one image."""

    name: str
    embedding: list[float]


class Embedded(BaseModel):
    """The features of every image, in the order given."""

    model: str
    embeddings: list[Embedding]


class ImageURL(BaseModel):
    """An image, as a data URI."""

    model_config = ConfigDict(extra="forbid", strict=True)
    url: str
    detail: str | None = None


class ImagePart(BaseModel):
    """A part of type image_url."""

    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["image_url"]
    image_url: ImageURL


class EmbeddingsRequest(BaseModel):
    """A request in the shape of OpenAI's."""

    model_config = ConfigDict(extra="forbid", strict=True)
    input: str | ImagePart | list[str | ImagePart] = Field(
        description="An image, or a list: data URIs, data:image/png;base64,... or base64 alone."
    )
    model: str | None = Field(None, max_length=100, description="Which model; left out: the first.")
    encoding_format: Literal["float", "base64"] = Field("float", description="base64: little-endian float32.")
    dimensions: int | None = Field(None, ge=1, description="Must be the model's own, where it is given.")
    user: str | None = Field(None, max_length=256, description="Taken and not used.")


class EmbeddingRow(BaseModel):
    """The features of one input."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Tokens of the images: patches, and class tokens."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(BaseModel):
    """Features in the shape of OpenAI's."""

    object: Literal["list"]
    data: list[EmbeddingRow]
    model: str
    usage: Usage


class ModelCard(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    description: str
    classes: int | None = Field(description="None: it has no classifier.")
    task: str = Field(
        description="What it says of images: classify, multilabel, regression, ordinal, segment or detect."
    )
    image_size: list[int] = Field(description="Height and width in pixels; images are resized to it.")
    features: int
    attention: bool
    version: str = Field(description="Of the weights: the same on every replica.")
    engine: str = Field(description="What images go through: plain, or this machine's faster path.")
    precision: str
    refused: str | None = Field(description="Why a newer checkpoint is not served.")


class ModelList(BaseModel):
    """The models that are served."""

    object: Literal["list"]
    data: list[ModelCard]


class Health(BaseModel):
    """How a server is."""

    status: Literal["ok", "loading", "draining"]


class AttentionTo(BaseModel):
    """Where a model looked in one image."""

    name: str
    attention: list[list[float]] = Field(description="Shares of the patches, row by row.")


class Attention(BaseModel):
    """Where a model looked in every image, as numbers, in the order given."""

    model: str
    grid: list[int]
    layers: int
    heads: int
    layer: int | None
    head: int | None
    attentions: list[AttentionTo]


class Maps(BaseModel):
    """All attention to an image, as the inspector's page reads it: base64 of a byte a weight, and of float32 peaks."""

    model: str
    rows: int
    cols: int
    layers: int
    heads: int
    all_heads: bool
    class_token: bool
    maps: str
    peaks: str
    pooled: str
    pooled_peaks: str
    rollout: str
    rollout_peak: float
    picture: dict[str, str | int]


def inlined(kind: type[BaseModel]) -> dict[str, Any]:
    """Give the schema of a model with what it refers to in its place."""
    schema = kind.model_json_schema()
    parts = schema.pop("$defs", {})

    def fill(item: Any) -> Any:  # noqa: ANN401
        if isinstance(item, list):
            return [fill(each) for each in item]
        if not isinstance(item, dict):
            return item
        if "$ref" in item:
            return fill(parts[item["$ref"].rpartition("/")[2]])
        return {key: fill(value) for key, value in item.items()}

    return fill(schema)


def _failure(words: str) -> dict[str, Any]:
    return {"model": Failure, "description": words}


ERRORS: dict[int | str, dict[str, Any]] = {
    400: _failure("The request cannot be read, or the model cannot do this."),
    401: _failure("A token is needed: Authorization: Bearer TOKEN."),
    404: _failure("There is no such model."),
    408: _failure("The request arrived too slowly."),
    413: _failure("Too many bytes."),
    415: _failure("No content type that is read here."),
    422: _failure("An image that cannot be decoded, or a value out of range."),
    429: _failure("Too much waits already; Retry-After says for how long."),
    503: _failure("No answer within the deadline, or too many connections; Retry-After says when to try again."),
}
ATTENTION: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The pictures in one PNG, one below the other, or numbers.",
        "content": {
            "image/png": {"schema": {"type": "string", "format": "binary"}},
            "application/json": {"schema": {"anyOf": [inlined(Attention), inlined(Maps)]}},
        },
    }
}
IMAGES_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "One image or several.",
        "content": {
            "image/jpeg": BYTES,
            "image/png": BYTES,
            "application/octet-stream": BYTES,
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"image": {"type": "array", "items": BYTES["schema"], "minItems": 1}},
                    "required": ["image"],
                    "additionalProperties": False,
                }
            },
            "application/json": {
                "schema": {
                    "oneOf": [
                        {
                            "type": "object",
                            "properties": {"image": IMAGE},
                            "required": ["image"],
                            "additionalProperties": False,
                        },
                        {
                            "type": "object",
                            "properties": {"images": {"type": "array", "items": IMAGE, "minItems": 1, "maxItems": 64}},
                            "required": ["images"],
                            "additionalProperties": False,
                        },
                    ]
                },
                "example": {"image": PNG},
            },
        },
    }
}
EMBEDDINGS_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": inlined(EmbeddingsRequest),
                "example": {"input": f"data:image/png;base64,{PNG}"},
            }
        },
    }
}
