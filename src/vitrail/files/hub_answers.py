"""What a hub, or whoever stands between, calls files and their contents: checked before it is used as a path.

The Hub's client keeps a file under the name that the server gives to its contents (the ETag), in a folder of the name
that it gives to the commit: an absolute path there would be written to, wherever it leads.
"""

import re
from collections.abc import Iterator
from typing import Any

from vitrail.errors import CheckpointError
from vitrail.files.reading import parse_json

NAMES = ("X-Linked-Etag", "ETag", "X-Repo-Commit")  # headers that become names of files
LISTS = re.compile(r"/api/(models|datasets)/[^/]+/[^/]+(/(revision|tree)/.*)?")  # documents whose words do
LONGEST = 200  # signs of a name


def check_answers() -> None:
    """Have every answer to the Hub's client checked from now on, whatever connection it makes."""
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils import _http

    make = _http._GLOBAL_CLIENT_FACTORY
    if getattr(make, "checks_answers", False):
        return

    def watched() -> Any:  # noqa: ANN401
        session = make()
        hooks = session.event_hooks
        session.event_hooks = {**hooks, "response": [*hooks.get("response", ()), check_answer]}
        return session

    watched.checks_answers = True  # pyright: ignore[reportFunctionMemberAccess]
    set_client_factory(watched)


def check_answer(response: Any) -> None:  # noqa: ANN401
    """Refuse an answer with a name that leads out of its folder."""
    wrong: str | None = None
    if response.request.method == "HEAD":  # of a file: what it is called
        said = (response.headers.get(name) for name in NAMES)
        wrong = next((text for text in said if text and not is_name(text.lstrip("W/").strip('"'))), None)
    elif LISTS.fullmatch(response.request.url.path):
        response.read()
        wrong = _unsafe(response.content)
    if wrong is not None:
        raise CheckpointError(
            f"{response.request.url.host} calls a file {wrong[:100]!r}, which would lead out of the cache. Nothing was "
            "written there. Check the address of the Hub (HF_ENDPOINT), and who stands between."
        )


def is_name(text: str) -> bool:
    """Tell the name of a file from a path, and from what no file is called."""
    return 0 < len(text) <= LONGEST and text.isprintable() and text not in (".", "..") and not {*text} & {*"/\\"}


def is_inside(path: str) -> bool:
    """Tell a path that stays inside the folder that it is put into."""
    return all(map(is_name, path.split("/")))


def _unsafe(content: bytes) -> str | None:
    """Find what a list of files names and must not."""
    try:
        document = parse_json(content)
    except ValueError:  # the client says so
        return None
    paths, names = zip(*_named(document), strict=True)
    wrong = [path for path in paths if isinstance(path, str) and not is_inside(path)]
    wrong += [name for name in names if isinstance(name, str) and not is_name(name)]
    return next(iter(wrong), None)


def _named(document: Any) -> Iterator[tuple[object, object]]:  # noqa: ANN401
    """Give the paths, and the names of contents and commits, that a list of files has."""
    known: dict[str, Any] = document if isinstance(document, dict) else {"siblings": document}
    yield None, known.get("sha")
    files = known.get("siblings")
    for file in files if isinstance(files, list) else ():
        if isinstance(file, dict):
            yield file.get("path"), file.get("oid")
            yield file.get("rfilename"), file.get("blobId")
            kept = file.get("lfs")
            for word in ("oid", "sha256"):
                yield None, kept.get(word) if isinstance(kept, dict) else None
            yield None, file.get("xetHash")
