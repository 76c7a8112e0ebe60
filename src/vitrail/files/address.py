"""Addresses of files on the net: which are taken, how they are shown, and the names they get here."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import SplitResult, quote, unquote, urlsplit

from vitrail.errors import CheckpointError

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


def parse(url: str) -> Address:
    """Read `https://HOST/PATH[#sha256=HEX]`; anything that is not safe to fetch is refused."""
    parts = _split(url)
    match = SUM.fullmatch(parts.fragment)
    if parts.fragment and match is None:
        raise CheckpointError(
            f"expected #sha256= and 64 hexadecimal digits after the address; got #{parts.fragment}. "
            "Correct the checksum, or leave it out."
        )
    # Letters beyond ASCII are legal in what people paste and illegal in a request.
    plain = parts._replace(
        path=quote(parts.path or "/", safe="/%:@!$&'()*+,;=~"),
        query=quote(parts.query, safe="/%:@!$&'()*+,;=~?"),
        fragment="",
    )
    name = _name(parts.path)
    return Address(
        url=plain.geturl(),
        shown=_shown(parts),
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
            f"{_shown(urlsplit(source))} sends on from https to {_shown(parts)}, which is not safe. "
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
        raise CheckpointError(f"expected an address without blanks; got {_shown(parts)!r}. Write %20 for a blank.")
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise CheckpointError(f"expected an address such as https://HOST/FILE; got {_shown(parts)!r}.")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise CheckpointError(
            f"{_shown(parts)} is not safe: anybody on the way can change what http:// brings. "
            "Use https://, or download the file yourself and give its path."
        )
    return parts


def _shown(parts: SplitResult) -> str:
    # A query can hold a signature that opens the file: it is never printed nor written down.
    return parts._replace(query="", fragment="").geturl()


def _name(path: str) -> PurePosixPath:
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", PurePosixPath(unquote(path)).name)
    return PurePosixPath(safe.lstrip(".-") or "file")
