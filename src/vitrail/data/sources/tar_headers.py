"""The members of a tar file, by its headers alone, which may be made to hurt."""

import re
import tarfile
from collections.abc import Iterator
from typing import IO, Any, BinaryIO, NamedTuple, cast
from zlib import adler32

LARGEST_HEADER = 1 << 20  # bytes of a long name and its like
MOST_HEADERS = 64  # reads until a member is found: a header and what makes it longer
NUMBER = re.compile(rb"[0-9]{200}")
BLOCK = 512  # bytes of a header, of which what is in a member is a multiple
# The header of a plain file: name, mode and owners, size, time, checksum, kind; link and names of owners; devices, the
# prefix of the name.
PLAIN = re.compile(
    rb"(.{100})[0-7 \0]{24}([0-7]{11})[ \0]([0-7]{11})[ \0](?=([0-7]{6}))(.{8})[0\0].{172}[0-7 \0]{16}(.{155}).{12}",
    re.S,
)
ADLER = 65_521


class Member(NamedTuple):
    """A plain file in a tar file."""

    name: str
    size: int
    mtime: float
    chksum: int
    offset_data: int


class HeadersAlone:
    """A tar file as its library reads it: forwards, a few short headers for each member, and nothing else.

    The library's search in a header grows with the square of its length, and it follows headers that make others
    longer, or that lead back, without end.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._reads, self._furthest = file, 0, -1
        self.tell = file.tell
        file.seek(0)

    def found(self) -> None:
        """A member was found: the next one may be read."""
        self._reads = 0

    def read(self, size: int) -> bytes:
        """Read a part of a header."""
        self._reads += 1
        if size > LARGEST_HEADER or self._reads > MOST_HEADERS:
            raise ValueError(f"a header of {size:,} bytes" if size > LARGEST_HEADER else "a chain of headers")
        data = self._file.read(size)
        if NUMBER.search(data):
            raise ValueError("a header with a number that has no end")
        return data

    def seek(self, place: int) -> None:
        """Go on to the next header."""
        if place <= self._furthest:
            raise ValueError("a member that leads back")
        self._furthest = place
        self._file.seek(place)


def plain_member(header: bytes, place: int) -> Member | None:
    """Read a header that is a plain file's and nothing else; None where the library must say what it is.

    The library takes 20 microseconds for what is nearly every header of a tar file of images.
    """
    found = PLAIN.fullmatch(header)
    if found is None:
        return None
    name, size, mtime, stated, checksum, prefix = found.groups()
    name, _, _ = name.partition(b"\0")
    said = int(stated, 8)
    # The sum of all bytes, with the checksum's own as spaces: half of another checksum is such a sum.
    own = sum(checksum) - 8 * ord(" ")
    if not name or name.endswith(b"/") or checksum[6:].strip(b" \0") or said >= ADLER - 1:
        return None
    if (adler32(header) & 0xFFFF) != (said + own + 1) % ADLER:
        return None
    prefix, _, _ = prefix.partition(b"\0")
    text = (prefix + b"/" + name if prefix else name).decode("utf-8", "surrogateescape")
    return Member(text, int(size, 8), int(mtime, 8), said, place + BLOCK)


def members(opened: BinaryIO, length: int, problems: list[str]) -> Iterator[Member]:
    """Give the members that are whole, one at a time; what is not used is added to `problems`, with the reason."""
    file = HeadersAlone(opened)
    try:
        with tarfile.open(fileobj=cast(IO[bytes], file), mode="r:", encoding="utf-8") as found:
            tar: Any = found  # its list of members is public, and in no stub
            begun = False
            while True:
                if begun and not tar.pax_headers:  # which are of all members that follow
                    place = tar.offset
                    opened.seek(place)
                    plain = plain_member(opened.read(BLOCK), place)
                    if plain is not None:
                        tar.offset = plain.offset_data + -(-plain.size // BLOCK) * BLOCK
                        if plain.offset_data + plain.size > length:
                            problems.append(f"{plain.name} is cut off, and what follows it is missing")
                            return
                        yield plain
                        continue
                    opened.seek(0)  # elsewhere: the library then looks whether what is before its place is there
                begun = True
                if (member := tar.next()) is None:
                    break
                file.found()
                if member.size < 0:
                    raise ValueError(f"{member.name} has a negative size")
                tar.members.clear()  # it would hold all of them
                if member.isreg() and not member.issparse():
                    if member.offset_data + member.size > length:
                        problems.append(f"{member.name} is cut off, and what follows it is missing")
                        return
                    yield Member(member.name, member.size, member.mtime, member.chksum, member.offset_data)
                elif not member.isdir():
                    problems.append(f"{member.name} is a link or no plain file")
            file.seek(tar.offset)
            end = file.read(512)
            if end.strip(b"\0"):
                problems.append(f"damaged at byte {tar.offset:,}: what follows is not used")
            elif len(end) < 512:
                problems.append(f"ends at byte {length:,} without the mark of an end; members may be missing")
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        problems.append(f"damaged or cut off: {error}")
