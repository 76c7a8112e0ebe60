"""Images in tar files, in the manner of WebDataset: members of one name belong together, whatever their suffixes."""

import itertools
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrail.data.decode import ImageError
from vitrail.data.source import Names, Source
from vitrail.data.sources.tar_index import index_of
from vitrail.errors import WITHOUT_LABELS, ConfigError, DataError
from vitrail.files import cache_folder, fetch, replacing, short_hash, writing

Location = str | os.PathLike[str]
MOST_SHARDS = 100_000
MOST_CLASSES = 1_000_000
BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")


class TarSource(Source):
    """The images of tar files, read where they lie in them; each file is looked through once and its index kept.

    `paths` are files, https addresses or `pipe:` commands (run by the shell, where allowed); `{000..009}` in them
    counts and `{a,b}` lists. Labels are a member `.cls`, `.json` with a "label", or `.txt`. `problems` lists what
    is not used: the tar file and the reason.
    """

    def __init__(
        self,
        paths: Location | Sequence[Location],
        *,
        class_names: Sequence[str] | None = None,
        unlabeled: bool = False,
        allow_pipe: bool = False,
    ) -> None:
        listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        texts = [text for path in listed for text in expand(os.fspath(path))]
        if not texts:
            raise ConfigError("expected one tar file or more; got none.")
        self.paths = tuple(_local(text, allow_pipe=allow_pipe) for text in texts)
        indices = [index_of(path) for path in self.paths]
        problems = [
            (path.name, each) for path, index in zip(self.paths, indices, strict=True) for each in index["problems"]
        ]
        samples: list[tuple[int, int, int]] = []
        names: list[str] = []
        found: list[int | str | None] = []
        for number, index in enumerate(indices):
            for name, offset, size, label in index["samples"]:
                if label is None and not unlabeled:
                    problems.append((self.paths[number].name, f"{name} has no label"))
                    continue
                samples.append((number, offset, size))
                names.append(name)
                found.append(label)
        if not samples:
            seen = "; ".join(f"{shard}: {reason}" for shard, reason in problems[:3]) or "no image in them"
            raise ConfigError(
                f"expected labelled images in {self.paths[0]} and its like; got none ({seen}). "
                "Labels are members .cls, .json or .txt beside the image's; or say that the images are unlabeled; "
                f"{WITHOUT_LABELS}"
            )
        self.problems = problems
        self._stamps = tuple((index["size"], index["mtime_ns"]) for index in indices)
        self._members = np.array(samples, dtype=np.int64)  # shard, offset, size
        self._names = Names(names)
        given = tuple(class_names) if class_names is not None else class_list(self.paths[0].with_name("classes.txt"))
        self._labels, self.class_names = numbered(found, given, self.paths[0])
        self._labels.flags.writeable = False
        parts = [f"{part}\0" for part in (*(index["headers"] for index in indices), *self.class_names)]
        rest = "".join(parts).encode("utf-8", "surrogatepass")
        self._fingerprint = f"tar-{short_hash(self._members.tobytes(), self._labels.tobytes(), rest).hex()}"

    @property
    def labels(self) -> NDArray[np.int64]:
        """The label of every sample; -1 where an unlabeled one is allowed."""
        return self._labels

    @property
    def fingerprint(self) -> str:
        """A digest of the members' headers and places, of the labels and of the names of the classes."""
        return self._fingerprint

    def read(self, index: int) -> bytes:
        """Read an image's bytes where they lie."""
        if not 0 <= index < len(self._members):
            raise IndexError(index)
        shard, offset, size = (int(value) for value in self._members[index])
        try:
            number = os.open(self.paths[shard], os.O_RDONLY)
            try:
                stamp = os.fstat(number)
                if (stamp.st_size, stamp.st_mtime_ns) != self._stamps[shard]:
                    raise ImageError(f"{self.paths[shard]} has changed since it was opened")
                data = os.pread(number, size, offset)
            finally:
                os.close(number)
        except OSError as error:
            raise ImageError(f"cannot read {self.paths[shard]}: {error.strerror or error}") from error
        if len(data) != size:
            raise ImageError(f"{len(data):,} of {size:,} bytes could be read")
        return data

    def name(self, index: int) -> str:
        """Name a member by its tar file and its name there."""
        return f"{self.paths[int(self._members[index, 0])].name}/{self._names[index]}"


def expand(pattern: str) -> Iterator[str]:
    """Write out `shard-{000..009}.tar` and `{a,b}.tar`, every combination in order."""
    pieces: list[Sequence[str]] = []
    end, count = 0, 1
    for match in BRACES.finditer(pattern):
        first, last = match[1], match[2]
        if first is None:
            choices: Sequence[str] = match[3].split(",")
        else:
            width = len(first) if first.startswith("0") or len(first) == len(last) else 0
            if not int(first) <= int(last) < int(first) + MOST_SHARDS:
                raise ConfigError(f"expected {{FIRST..LAST}} with at most {MOST_SHARDS:,} numbers; got {match[0]}.")
            choices = [f"{number:0{width}}" for number in range(int(first), int(last) + 1)]
        count *= len(choices)
        pieces += [[pattern[end : match.start()]], choices]
        end = match.end()
    if count > MOST_SHARDS:
        raise ConfigError(f"expected at most {MOST_SHARDS:,} files; {pattern} are {count:,}.")
    yield from ("".join(parts) for parts in itertools.product(*pieces, [pattern[end:]]))


def _local(text: str, *, allow_pipe: bool) -> Path:
    if re.match(r"https?://", text):
        return fetch(text)
    if not text.startswith("pipe:"):
        return Path(os.path.realpath(text))
    if not allow_pipe:
        raise ConfigError(
            f"{text!r} would run a command. Say allow_pipe=True where you trust it, or give files or https addresses."
        )
    command = text.removeprefix("pipe:")
    file = cache_folder() / "pipes" / f"{short_hash(command).hex()}.tar"
    if not file.exists():
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as temporary, temporary.open("wb") as out:
            code = subprocess.run(command, shell=True, stdout=out, stdin=subprocess.DEVNULL, check=False).returncode
            if code:
                raise DataError(f"the command {command!r} ended with {code}; expected 0. Try it in a shell.")
    return file


def class_list(file: Path) -> tuple[str, ...] | None:
    """Read the names of classes, a name a line, where there is such a file."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the names of the classes, {file}: {error}. Check the file.") from error
    return tuple(line.strip() for line in lines if line.strip())


def numbered(
    found: Sequence[int | str | None], given: tuple[str, ...] | None, path: Location
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """BatchIndices labels into numbers of classes; names without a list of them are numbered in their order."""
    kinds = {type(label) for label in found if label is not None}
    if len(kinds) > 1:
        raise DataError(f"{path}: expected labels of one kind; some are numbers and some are names.")
    if kinds == {str}:
        names = tuple(sorted({label for label in found if isinstance(label, str)})) if given is None else given
        places: dict[int | str | None, int] = {name: number for number, name in enumerate(names)}
    else:
        highest = max((label for label in found if isinstance(label, int)), default=-1)
        if given is None and highest >= MOST_CLASSES:
            raise DataError(f"{path}: expected fewer than {MOST_CLASSES:,} classes; got the label {highest}.")
        names = tuple(str(number) for number in range(highest + 1)) if given is None else given
        places = {number: number for number in range(len(names))}
    places[None] = -1
    unknown = next((label for label in found if label not in places), None)
    if unknown is not None:
        raise DataError(f"{path}: the label {unknown!r} is none of the {len(names)} classes. Check their names.")
    return np.array([places[label] for label in found], dtype=np.int64), names
