"""The members of a tar file, by its headers alone, which may be made to hurt."""

import re
import tarfile
from collections.abc import Iterator
from typing import IO, Any, BinaryIO, cast

LARGEST_HEADER = 1 << 20  # bytes of a long name and its like
MOST_HEADERS = 64  # reads until a member is found: a header and what makes it longer
NUMBER = re.compile(rb"[0-9]{200}")


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


def members(opened: BinaryIO, length: int, problems: list[str]) -> Iterator[tarfile.TarInfo]:
    """Give the members that are whole, one at a time; what is not used is added to `problems`, with the reason."""
    file = HeadersAlone(opened)
    try:
        with tarfile.open(fileobj=cast(IO[bytes], file), mode="r:") as found:
            tar: Any = found  # its list of members is public, and in no stub
            while (member := tar.next()) is not None:
                file.found()
                if member.size < 0:
                    raise ValueError(f"{member.name} has a negative size")
                tar.members.clear()  # it would hold all of them
                if member.isreg() and not member.issparse():
                    if member.offset_data + member.size > length:
                        problems.append(f"{member.name} is cut off, and what follows it is missing")
                        return
                    yield member
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
