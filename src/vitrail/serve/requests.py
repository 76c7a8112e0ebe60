"""From the body of a request to images: raw bytes, a form with files, or JSON with base64; within limits."""

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from python_multipart import FormParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from vitrail.errors import VitrailError, one_line, shortened
from vitrail.files import parse_json

DEEPEST = 8  # levels of a JSON body
LONGEST_NAME = 200  # signs of a file's name that an answer repeats
RAW = re.compile(r"image/[a-z0-9.+-]+|application/(?:octet-stream|dicom)")
DATA_URI = re.compile(r"data:(?P<type>[^;,]*)(?P<rest>(?:;[^;,]*)*),", re.IGNORECASE)
BLANKS = str.maketrans("", "", " \t\r\n")
TYPES = "the bytes of an image (image/*), multipart/form-data, or application/json"


class RequestError(VitrailError):
    """A request that cannot be answered, with its HTTP status and a word for programs."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


@dataclass(frozen=True)
class Images:
    """The images of a request, as bytes of files, and what an answer calls each."""

    data: Sequence[bytes]
    names: Sequence[str]
    fields: dict[str, Any]  # what a JSON body says beside them


Fetch = Callable[[str], bytes]


def read_images(body: bytes, content_type: str, most: int, fetch: Fetch | None = None) -> Images:
    """Read the images of a request by its content type; `fetch` gets those that are named by an address."""
    kind, options = parse_options_header(content_type)
    word = kind.decode("latin-1")
    if word == "multipart/form-data":
        found = _read_form(body, options.get(b"boundary"), most)
    elif word == "application/json":
        found = _read_json(body, most, fetch)
    elif RAW.fullmatch(word):
        found = [("image 0", body)]
    else:
        got = repr(shortened(word, 100)) if word else "none"
        raise RequestError(415, "content_type", f"expected {TYPES}; got the content type {got}.")
    return _within(found, most)


def read_inputs(document: object, most: int, fetch: Fetch | None = None) -> Images:
    """Read the `input` of OpenAI's shape: a text or several, each a data URI or base64; or parts of type image_url."""
    items = document if isinstance(document, list) else [document]
    if len(items) > most:
        raise _too_many(len(items), most)
    texts = [_text_of(item, place) for place, item in enumerate(items)]
    return _within([(f"image {place}", _read_text(text, place, fetch)) for place, text in enumerate(texts)], most)


def read_document(body: bytes) -> dict[str, Any]:
    """Read a JSON object of a request."""
    try:
        document = parse_json(body, DEEPEST)
    except ValueError as error:
        raise RequestError(
            400, "json", f"the body is no JSON that is read here: {shortened(str(error), 200)}."
        ) from error
    if not isinstance(document, dict):
        raise RequestError(400, "json", f"expected a JSON object; got {type(document).__name__}.")
    return document


def _within(found: Sequence[tuple[str, bytes]], most: int) -> Images:
    if not found:
        raise RequestError(400, "no_image", "there is no image in the request. Send one.")
    if len(found) > most:
        raise _too_many(len(found), most)
    for name, data in found:
        if not data:
            raise RequestError(422, "bad_image", f"{name}: empty file.")
    return Images([data for _, data in found], [name for name, _ in found], {})


def _too_many(count: int, most: int) -> RequestError:
    return RequestError(422, "too_many_images", f"{count:,} images in a request; at most {most:,} are taken.")


def _read_form(body: bytes, boundary: bytes | None, most: int) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []

    def take_field(field: Any) -> None:  # noqa: ANN401
        name = one_line(shortened((field.field_name or b"").decode("utf-8", "replace"), 60))
        raise RequestError(
            400, "form", f"the form's field {name!r} is no file. Parameters stand in the address: ?{name}=..."
        )

    def take_file(file: Any) -> None:  # noqa: ANN401
        kind = parse_options_header(file.content_type or "")[0].decode("latin-1")
        if kind and not RAW.fullmatch(kind):
            raise RequestError(415, "content_type", f"expected files of type image/*; got {shortened(kind, 100)!r}.")
        if len(found) >= most:
            raise _too_many(len(found) + 1, most)
        file.file_object.seek(0)
        found.append((_plain_name(file.file_name, len(found)), file.file_object.read()))

    ended: list[bool] = []  # the form has its last line
    if not boundary:
        raise RequestError(400, "form", "the form's content type names no boundary.")
    config: Any = {"MAX_MEMORY_FILE_SIZE": len(body) + 1, "MAX_BODY_SIZE": len(body) + 1, "MAX_FIELDS": most + 1}
    try:
        parser = FormParser(
            "multipart/form-data", take_field, take_file, lambda: ended.append(True), boundary=boundary, config=config
        )
        parser.write(body)
        parser.finalize()
        parser.close()
    except (FormParserError, ValueError, UnicodeError) as error:
        reason = shortened(str(error), 200)
        raise RequestError(400, "form", f"the form is damaged: {reason}.") from error
    if not ended:
        raise RequestError(400, "form", "the form is cut off: its last line is missing. Send all of it.")
    return found


def _plain_name(name: bytes | None, place: int) -> str:
    """Give the last part of a file's name, as one line; nothing is done with it but to repeat it in the answer."""
    text = (name or b"").decode("utf-8", "replace")
    last = one_line(re.split(r"[/\\]", text)[-1]).strip()
    return shortened(last, LONGEST_NAME) or f"image {place}"


def _read_json(body: bytes, most: int, fetch: Fetch | None) -> list[tuple[str, bytes]]:
    document = read_document(body)
    if unknown := document.keys() - {"image", "images"}:
        name = shortened(min(unknown), 60)
        raise RequestError(
            422, "json", f"unknown field {name!r}. A JSON body has image or images; parameters stand in the address."
        )
    if len(document) != 1:
        raise RequestError(422, "json", "expected image, a text of base64, or images, a list of them.")
    texts = document.get("images", [document.get("image")])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise RequestError(422, "json", "expected image, a text of base64, or images, a list of them.")
    if len(texts) > most:
        raise _too_many(len(texts), most)
    return [(f"image {place}", _read_text(text, place, fetch)) for place, text in enumerate(texts)]


def _text_of(item: object, place: int) -> str:
    """Give the text of an input: itself, or the address of a part of type image_url."""
    if isinstance(item, dict) and item.get("type") == "image_url":
        item = item.get("image_url")
        item = item.get("url") if isinstance(item, dict) else item
    if not isinstance(item, str):
        raise RequestError(422, "json", f"input {place}: expected a data URI, data:image/png;base64,...")
    return item


def _read_text(text: str, place: int, fetch: Fetch | None) -> bytes:
    """Read an image that is a data URI, plain base64, or an address where those are fetched."""
    if text[:8].lower().startswith(("http://", "https://")):
        if fetch is None:
            raise RequestError(
                400, "url", f"image {place}: addresses are not fetched here. Send the image itself, as base64."
            )
        return fetch(text)
    if found := DATA_URI.match(text[:300]):
        if not found["rest"].lower().endswith(";base64"):
            raise RequestError(
                422, "base64", f"image {place}: expected a data URI in base64, data:image/png;base64,..."
            )
        if found["type"] and not RAW.fullmatch(found["type"].lower()):
            raise RequestError(
                415, "content_type", f"image {place}: expected image/*; got {shortened(found['type'], 100)!r}."
            )
        text = text[found.end() :]
    try:
        return base64.b64decode(text.translate(BLANKS), validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(422, "base64", f"image {place}: no base64: {shortened(str(error), 100)}.") from error
