"""A file from an address that a stranger names: of the public internet alone, bounded in bytes, time and redirects.

A name is looked up once, every address found is checked, and the connection goes to a checked address: there is no
second lookup that could answer differently. No proxy is asked and no credential is sent.
"""

import contextlib
import functools
import http.client
import io
import ipaddress
import queue
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast
from urllib.parse import quote, urljoin, urlsplit

from vitrail.errors import DataError

REDIRECTS = 3
PORTS = {"http": 80, "https": 443}  # no other: what listens elsewhere is seldom meant for strangers
LONGEST_URL = 4096  # signs
MOST_ADDRESSES = 4  # of one name that are tried
MOST_LOOKUPS = 32  # at a time: one that the system does not answer outlives its request
CHUNK = 1 << 16
HEADERS = 1 << 17  # bytes that an answer may have beside its body
MOVED = (301, 302, 303, 307, 308)
INSTEAD = "Send the image itself instead."
NAME = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*")
NUMBER = re.compile(r"(.*\.)?([0-9]+|0x[0-9a-f]*)")  # how a name ends that systems read as an IPv4 address

# IANA's registries of special addresses, since each version of Python has its own idea of them.
REFUSED_V4 = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # carriers' own
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's machines ask it for their secrets
        "169.254.0.0/16",  # link-local; most clouds' secrets
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocols
        "192.0.2.0/24",  # documentation, as two below
        "192.88.99.0/24",  # 6to4's relays
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
UNICAST_V6 = ipaddress.IPv6Network("2000::/3")  # mapped, compatible, local and multicast addresses lie outside
REFUSED_V6 = tuple(
    ipaddress.IPv6Network(network)
    for network in (
        "2001::/23",  # Teredo and protocol assignments
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "3fff::/20",
    )
)
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # an IPv4 address in its last four bytes


def is_public(address: str) -> bool:
    """Whether an address in digits is one of the public internet, and holds no other that is not."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv4Address):
        return found.is_global and not any(found in network for network in REFUSED_V4)
    if found in NAT64:
        return is_public(str(ipaddress.IPv4Address(found.packed[-4:])))
    return found in UNICAST_V6 and found.is_global and not any(found in network for network in REFUSED_V6)


def look_up(host: str) -> list[str]:
    """Ask the system for the addresses of a name."""
    return [str(row[4][0]) for row in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]


def dial(address: str, port: int, seconds: float) -> socket.socket:
    """Connect to an address in digits."""
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.settimeout(seconds)
        made.connect((address, port))
    except BaseException:
        made.close()
        raise
    return made


@functools.cache
def trust() -> ssl.SSLContext:
    """Verify certificates, and their names, by the system's authorities."""
    return ssl.create_default_context()


@dataclass(frozen=True, kw_only=True)
class Network:
    """How a name becomes addresses, an address a connection, and whose certificates are trusted."""

    look_up: Callable[[str], Sequence[str]] = look_up
    dial: Callable[[str, int, float], socket.socket] = dial
    trust: Callable[[], ssl.SSLContext] = trust


INTERNET = Network()


def fetch_public(url: str, *, most: int, seconds: float, network: Network = INTERNET) -> bytes:
    """Fetch what a public http or https address gives, of at most so many bytes, within so many seconds in all.

    It blocks. Whatever goes wrong is a DataError whose sentence may be shown to whoever named the address; it never
    says what lies in a network that is not public.
    """
    clock = _Clock(seconds)
    target = _parse(url)
    try:
        for _ in range(REDIRECTS + 1):
            answer = _ask(target, most, clock, network)
            if isinstance(answer, bytes):
                return answer
            onward = _parse(answer)
            if (target.scheme, onward.scheme) == ("https", "http"):
                raise DataError(f"{target.host} sends on from https to http, which is not safe. {INSTEAD}")
            target = onward
    except TimeoutError as error:
        raise DataError(f"{target.host} did not answer in full within {seconds:g} seconds. {INSTEAD}") from error
    except ssl.SSLCertVerificationError as error:
        raise DataError(f"the certificate of {target.host} is not valid for it. {INSTEAD}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise DataError(f"{target.host} cannot be reached, or does not answer as a web server. {INSTEAD}") from error
    raise DataError(f"expected an address of an image; got one that sends on more than {REDIRECTS} times. {INSTEAD}")


@dataclass(frozen=True, kw_only=True)
class _Target:
    scheme: str
    host: str  # in ASCII, without brackets
    path: str  # and the query

    @property
    def authority(self) -> str:
        """The host as it is written in an address."""
        return f"[{self.host}]" if ":" in self.host else self.host


def _parse(url: str) -> _Target:
    """Read an address; whatever two programs could read in two ways is refused."""
    if len(url) > LONGEST_URL:
        raise DataError(f"expected an address of at most {LONGEST_URL:,} signs; got {len(url):,}. {INSTEAD}")
    # First of all, since the standard library takes line breaks out without a word.
    if re.search(r"[\x00-\x20\x7f\\\ud800-\udfff]", url):
        raise DataError(f"expected an address without blanks, line breaks and backslashes. {INSTEAD}")
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
    except ValueError as error:
        raise DataError(f"expected an address such as https://HOST/FILE; got one that is none. {INSTEAD}") from error
    if parts.scheme not in PORTS:
        raise DataError(f"expected an address that starts with https:// or http://. {INSTEAD}")
    if "@" in parts.netloc:  # before any message that quotes the host
        raise DataError(f"addresses with a user name or a password are not taken. {INSTEAD}")
    if port not in (None, PORTS[parts.scheme]):
        raise DataError(f"expected an address without a port; {parts.scheme} uses {PORTS[parts.scheme]}. {INSTEAD}")
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~")
    query = quote(parts.query, safe="/%:@!$&'()*+,;=~?")
    return _Target(scheme=parts.scheme, host=_host(host), path=f"{path}?{query}" if query else path)


def _host(host: str) -> str:
    """Give a host in the one way that it can be read: a name in ASCII, or an address in its usual digits."""
    try:
        if ":" in host:
            return str(ipaddress.IPv6Address(host))
        name = host.removesuffix(".").encode("idna").decode().lower()
        if NUMBER.fullmatch(name):  # 127.1, 0x7f000001, 2130706433 and 0177.0.0.1 are addresses to some
            return str(ipaddress.IPv4Address(name))
    except ValueError as error:
        raise DataError(f"expected a host by its name, or by its address in the usual digits. {INSTEAD}") from error
    if NAME.fullmatch(name) is None:
        raise DataError(f"expected a host of letters, digits, dots and hyphens. {INSTEAD}")
    return name


class _Clock:
    """Counts down from the seconds that all steps have together."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds that are left; none is a TimeoutError."""
        left = self.end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


def _ask(target: _Target, most: int, clock: _Clock, network: Network) -> bytes | str:
    """Give the body of an answer, or the address that it sends on to."""
    with _connect(target, clock, network) as connection:
        lines = (
            f"GET {target.path} HTTP/1.1",
            f"Host: {target.authority}",
            "User-Agent: vitrail",
            "Accept: image/*",
            "Accept-Encoding: identity",
            "Connection: close",
        )
        connection.settimeout(clock.left())
        connection.sendall("\r\n".join((*lines, "", "")).encode("ascii"))
        bounded = cast(socket.socket, _Bounded(connection, most + most // 16 + HEADERS, clock))
        with http.client.HTTPResponse(bounded, method="GET") as answer:
            answer.begin()
            return _read(answer, target, most)


def _connect(target: _Target, clock: _Clock, network: Network) -> socket.socket:
    addresses = _look_up(target.host, clock, network)
    # One that is not public is enough: which one a connection takes may be up to whoever answers for the name.
    if not addresses or not all(map(is_public, addresses)):
        raise _unfound(target.host)
    made = _dial(addresses[:MOST_ADDRESSES], PORTS[target.scheme], clock, network)
    if target.scheme == "http":
        return made
    try:
        made.settimeout(clock.left())
        return network.trust().wrap_socket(made, server_hostname=target.host)
    except BaseException:
        made.close()
        raise


def _dial(addresses: list[str], port: int, clock: _Clock, network: Network) -> socket.socket:
    """Connect to the first address that answers; each has its share of the time that is left."""
    for left in range(len(addresses), 1, -1):
        with contextlib.suppress(OSError):
            return network.dial(addresses[-left], port, clock.left() / left)
    return network.dial(addresses[-1], port, clock.left())


def _unfound(host: str) -> DataError:
    """One sentence for a name that nobody knows and for one of a private network, so that nothing is told of those."""
    return DataError(f"{host} is not found on the public internet. {INSTEAD}")


_lookups = threading.BoundedSemaphore(MOST_LOOKUPS)


def _look_up(host: str, clock: _Clock, network: Network) -> list[str]:
    """Look a name up in a thread, since the system's own lookup knows no deadline."""
    found: queue.SimpleQueue[list[str] | Exception] = queue.SimpleQueue()

    def work() -> None:
        try:
            found.put(list(dict.fromkeys(network.look_up(host))))
        except Exception as error:
            found.put(error)
        finally:
            _lookups.release()

    if not _lookups.acquire(timeout=clock.left()):
        raise TimeoutError
    try:
        threading.Thread(target=work, daemon=True).start()
    except RuntimeError as error:  # the machine has no more threads
        _lookups.release()
        raise TimeoutError from error
    try:
        answer = found.get(timeout=clock.left())
    except queue.Empty as error:
        raise TimeoutError from error
    if isinstance(answer, Exception):
        raise _unfound(host) from answer
    return answer


class _Bounded(io.RawIOBase):
    """A connection that is read under one deadline for all, however slowly it drips, and to a bounded number of bytes.

    The bound is of all that comes, since a wrong size of a chunk can make the standard library read to the end.
    """

    def __init__(self, connection: socket.socket, most: int, clock: _Clock) -> None:
        self.connection, self.left, self.clock = connection, most, clock

    def makefile(self, mode: str) -> io.BufferedReader:
        """What the standard library asks of a socket."""
        return io.BufferedReader(self, CHUNK)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Read what has come."""
        self.connection.settimeout(self.clock.left())
        count = self.connection.recv_into(buffer)
        self.left -= count
        if self.left < 0:
            raise ValueError("more bytes came than an answer may have")
        return count


def _read(answer: http.client.HTTPResponse, target: _Target, most: int) -> bytes | str:
    if answer.status in MOVED and (onward := answer.headers.get("Location")):
        return urljoin(f"{target.scheme}://{target.authority}{target.path}", onward)
    if answer.status != 200:
        raise DataError(f"{target.host} answered HTTP {answer.status} where an image was expected. {INSTEAD}")
    if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise DataError(f"{target.host} sends the file packed, which is not read. {INSTEAD}")
    expected = answer.length  # None where it is not said
    if expected is not None and expected > most:
        raise DataError(f"expected an image of at most {most:,} bytes; {target.host} sends {expected:,}. {INSTEAD}")
    body = bytearray()
    while chunk := answer.read(min(CHUNK, most + 1 - len(body))):
        body += chunk
        if len(body) > most:
            raise DataError(f"expected an image of at most {most:,} bytes; {target.host} sends more. {INSTEAD}")
    if expected is not None and len(body) < expected:
        raise DataError(f"{target.host} ended after {len(body):,} of {expected:,} bytes. Try again.")
    return bytes(body)
