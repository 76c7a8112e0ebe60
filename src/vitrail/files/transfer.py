"""One file over HTTP into a partial file that a later try continues; what is short is never taken as whole."""

import hashlib
import http.client
import itertools
import json
import re
import shutil
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from email.message import Message
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import SplitResult, quote, unquote, urlsplit

from vitrail.errors import CheckpointError
from vitrail.files.atomic import open_to_append, write_bytes, writing
from vitrail.files.progress import Progress
from vitrail.files.reading import read_json

PAUSES = (1.0, 2.0, 4.0, 8.0)  # seconds before each further try
TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 20
SLOW, LEAST = 30.0, 1 << 14  # seconds in which fewer bytes than these are as good as none: asked for again
BUSY = (408, 425, 429)  # what a server says that may give the file later, beside its own failures
REMOTE = ("https://", "http://")
STORES = ("s3", "gs", "gcs", "az", "abfs", "hf", "memory")  # schemes that fsspec opens
LARGEST_RECORD = 1 << 16  # bytes
LONGEST_TAG = 1000  # signs of what a server calls a version
ELSEWHERE = "or download the file elsewhere and give its path"

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
SUM = re.compile(r"sha256=([0-9a-fA-F]{64})")


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a file is, what may be printed of that, its name, its name in the cache, and its checksum if given."""

    url: str
    shown: str
    host: str
    name: str
    key: str
    sha256: str | None


def is_stored(text: str) -> bool:
    """Tell an address in an object store, such as s3://BUCKET/NAME."""
    scheme, colon, _ = text.partition("://")
    return bool(colon) and scheme in STORES


def is_remote(text: str) -> bool:
    """Tell an address that is fetched: of a server, or in an object store."""
    return text.startswith(REMOTE) or is_stored(text)


def parse(url: str) -> Address:
    """Read `https://HOST/PATH[#sha256=HEX]`, or s3:// and its like; what is not safe to fetch is refused."""
    parts = urlsplit(url) if is_stored(url) else _split(url)
    match = SUM.fullmatch(parts.fragment)
    if parts.fragment and match is None:
        raise CheckpointError(
            f"expected #sha256= and 64 hexadecimal digits after the address; got #{parts.fragment}. "
            "Correct the checksum, or leave it out."
        )
    # Letters beyond ASCII are legal in what people paste and illegal in a request.
    plain = (
        parts._replace(fragment="")
        if is_stored(url)
        else parts._replace(
            path=quote(parts.path or "/", safe="/%:@!$&'()*+,;=~"),
            query=quote(parts.query, safe="/%:@!$&'()*+,;=~?"),
            fragment="",
        )
    )
    name = _name(parts.path)
    return Address(
        url=plain.geturl(),
        shown=shown(url),
        host=parts.hostname or "",
        name=str(name),
        key=f"{name.stem[:80]}-{hashlib.sha256(plain.geturl().encode()).hexdigest()[:12]}{name.suffix[:16]}",
        sha256=match[1].lower() if match else None,
    )


def check_redirect(source: str, target: str) -> None:
    """Refuse to be sent on to an address that is not taken, or from a safe one to an unsafe one."""
    parts = _split(target)
    if urlsplit(source).scheme == "https" and parts.scheme != "https":
        raise CheckpointError(
            f"{shown(source)} sends on from https to {shown(target)}, which is not safe. "
            "Download the file yourself and give its path."
        )


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # is read here since it is checked only when read
    except ValueError as error:
        raise CheckpointError(
            f"expected an address such as https://HOST/FILE; got one that is none: {error}."
        ) from error
    if "@" in parts.netloc:  # first of all: no later message may print the password
        raise CheckpointError(
            "addresses with a user name or a password are not taken. Download the file yourself and give its path."
        )
    if re.search(r"[\x00-\x20\x7f]", url):
        raise CheckpointError(f"expected an address without blanks; got {shown(url)!r}. Write %20 for a blank.")
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise CheckpointError(f"expected an address such as https://HOST/FILE; got {shown(url)!r}.")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise CheckpointError(
            f"{shown(url)} is not safe: anybody on the way can change what http:// brings. "
            "Use https://, or download the file yourself and give its path."
        )
    return parts


def shown(url: str) -> str:
    """Leave out the query: it can hold a signature that opens the file, and is never printed nor written down."""
    return urlsplit(url)._replace(query="", fragment="").geturl()


def _name(path: str) -> PurePosixPath:
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", PurePosixPath(unquote(path)).name)
    return PurePosixPath(safe.lstrip(".-") or "file")


@dataclass(frozen=True)
class Part:
    """A partial file, and beside it the record of which version of the file it is a part of."""

    path: Path

    @property
    def record(self) -> Path:
        """Where the version is written down."""
        return self.path.with_name(f"{self.path.name}.json")

    def begin(self, shown: str, validator: str | None, total: int | None) -> None:
        """Start from nothing; the old bytes go before the new record comes, so that the two never mix."""
        self.clear()
        record = {"url": shown, "validator": validator, "total": total}
        write_bytes(self.record, json.dumps(record, indent=1).encode())

    def state(self) -> tuple[int, str, int | None]:
        """The bytes that can be continued, the version that they are of, and its size; 0 where that is not known."""
        try:
            record = read_json(self.record, most=LARGEST_RECORD)
            validator, total = record["validator"], record["total"]
            size = self.path.stat().st_size
        except (OSError, ValueError, KeyError, TypeError):
            return 0, "", None
        if not isinstance(validator, str) or not isinstance(total, int | None):
            return 0, "", None
        return size, validator, total

    def clear(self) -> None:
        """Forget what came so far."""
        self.path.unlink(missing_ok=True)
        self.record.unlink(missing_ok=True)


class RefusedError(CheckpointError):
    """The server was reached and does not give the file."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code  # of HTTP


class BusyError(RefusedError):
    """The server does not give the file now; it may later."""


class UnavailableError(CheckpointError):
    """The file did not come; it may when it is asked for again."""


class _CutError(Exception):
    """The connection ended before the file did."""


class _UnreachableError(_CutError):
    """No connection came about."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes] | http.client.HTTPResponse,
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        try:
            check_redirect(req.full_url, newurl)
        except CheckpointError:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def transfer(address: Address, part: Part, progress: Progress) -> None:
    """Bring the whole file into `part`, going on where an earlier try stopped, trying again after a cut."""
    for tried in itertools.count():
        try:
            _receive(address, part, progress)
        except _CutError as cut:
            if tried == 0 and isinstance(cut, _UnreachableError):
                raise UnavailableError(
                    f"cannot reach {address.host} for {address.shown}: {cut}. Check the connection, {ELSEWHERE}."
                ) from cut
            if tried == len(PAUSES):
                raise UnavailableError(
                    f"the download of {address.shown} was cut {tried + 1} times: {cut}. "
                    f"Run again: it continues at {part.state()[0]:,} bytes."
                ) from cut
            time.sleep(PAUSES[tried])
        else:
            return


def _receive(address: Address, part: Part, progress: Progress) -> None:
    done, validator, total = part.state()
    headers = {"User-Agent": "vitrail", "Accept-Encoding": "identity"}
    if done:
        headers |= {"Range": f"bytes={done}-", "If-Range": validator}
    opener = urllib.request.build_opener(_Redirects())
    try:
        response = opener.open(urllib.request.Request(address.url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and done:
                if re.fullmatch(rf"bytes \*/{done}", error.headers.get("Content-Range", "")):
                    return  # all was there already
                part.clear()
                raise _CutError("the server's file is another than before") from error
            kind = BusyError if error.code in BUSY or error.code >= 500 else RefusedError
            raise kind(_refusal(error.code, address), error.code) from error
    except (OSError, http.client.HTTPException) as error:
        raise _UnreachableError(str(getattr(error, "reason", error)) or type(error).__name__) from error
    with response:
        if done and response.status == 206:
            total = _check_continued(response.headers, part, done, validator, total)
        elif response.status == 200:
            done, total = 0, _whole(response.headers, address)
            part.begin(address.shown, _validator(response.headers), total)
        else:
            raise CheckpointError(f"{address.shown}: expected a file; the server answered HTTP {response.status}.")
        check_space(part.path.parent, (total or 0) - done, address)
        progress.begin(done, total)
        _append(response, part, progress)
    size = part.path.stat().st_size
    if total is not None and size != total:
        if size > total:
            part.clear()
        raise _CutError(f"{size:,} of {total:,} bytes came")


def _append(response: http.client.HTTPResponse, part: Part, progress: Progress) -> None:
    clock, came = time.monotonic(), 0  # since when, and how much since then
    with writing(part.path), open_to_append(part.path) as file:
        while True:
            if (passed := time.monotonic() - clock) > SLOW:
                if came < LEAST:
                    raise _CutError(f"only {came:,} bytes came in {passed:.0f} s")
                clock, came = time.monotonic(), 0
            try:
                chunk = response.read1(CHUNK)
            except (OSError, http.client.HTTPException) as error:
                raise _CutError(str(error) or type(error).__name__) from error
            if not chunk:
                return
            file.write(chunk)
            came += len(chunk)
            progress.advance(len(chunk))


def _validator(headers: Message) -> str | None:
    etag = headers.get("ETag")
    # A weak tag promises the same meaning, not the same bytes: RFC 9110 forbids it in If-Range.
    found = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")
    # It is kept, and sent back as a header of ours.
    return found if found and len(found) <= LONGEST_TAG and found.isascii() and found.isprintable() else None


def _whole(headers: Message, address: Address) -> int | None:
    if headers.get("Content-Encoding", "identity") != "identity":
        raise CheckpointError(
            f"{address.shown}: expected the file as it is; the server packs it ({headers['Content-Encoding']}). "
            "Download the file yourself and give its path."
        )
    length = headers.get("Content-Length", "")
    return int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None


def _check_continued(headers: Message, part: Part, done: int, validator: str, total: int | None) -> int:
    match = re.fullmatch(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)", headers.get("Content-Range", ""))
    # Some servers do ranges but ignore If-Range: the version is compared here too.
    known = _validator(headers) in (validator, None)
    end = None if match is None else int(match[2]) + 1 if match[3] == "*" else int(match[3])
    if match is None or end is None or int(match[1]) != done or not known or total not in (end, None):
        part.clear()
        raise _CutError("the server sent another part than the one asked for")
    return end


def check_space(folder: Path, needed: int, address: Address) -> None:
    """Refuse what the disk has no room for."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise CheckpointError(
            f"{address.shown} needs {needed / 1e6:,.0f} MB more; {folder} has {free / 1e6:,.0f} MB free. "
            "Free some space, or set VITRAIL_CACHE to a folder on another disk."
        )


def _refusal(code: int, address: Address) -> str:
    if code in (404, 410):
        return f"there is no file at {address.shown} (HTTP {code}). Check the address."
    if code in (401, 403, 407):
        return f"{address.host} refuses access to {address.shown} (HTTP {code}). Check the address, {ELSEWHERE}."
    if code == 429 or code >= 500:
        return f"{address.host} cannot serve {address.shown} now (HTTP {code}). Try again later, {ELSEWHERE}."
    return f"{address.host} answered HTTP {code} for {address.shown}. Check the address, {ELSEWHERE}."
