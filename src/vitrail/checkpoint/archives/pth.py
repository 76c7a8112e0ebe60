"""`.pth` files of torch.save: tensors alone, through torch's own restricted reader; what needs more is refused by name.

Before torch reads it, the pickle is looked at without being run: its archive must hold no compressed member (a bomb),
and it may name nothing but tensors, their storages and plain containers.
"""

import io
import pickle
import pickletools
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoint.archives.base import Archive, Entry, damaged
from vitrail.errors import CheckpointError
from vitrail.files import replacing

# What a state dict is made of. Others that torch would let pass, such as bytearray, can ask for any amount of memory.
ALLOWED = re.compile(
    r"collections\.OrderedDict|torch\._utils\._rebuild_(tensor|tensor_v2|parameter|parameter_with_state)"
    r"|torch\.(\w+Storage|storage\.\w*Storage|Size|Tensor|nn\.parameter\.Parameter|device)"
    r"|torch\.(float16|float32|float64|bfloat16|int8|int16|int32|int64|uint8|bool)"
)
# Where trainers put the weights, best first: averaged ones, DINO's teacher, then the plain ones.
WRAPPERS = (
    *("model_ema", "state_dict_ema", "ema", "teacher", "state_dict", "model_state_dict", "model", "module", "weights"),
    "student",
)
LEGACY = pickle.dumps(0x1950A86A20F9469CFC6C, 2)  # how torch.save began before version 1.6
LARGEST_PICKLE = 256 * 2**20  # bytes, of the structure without its storages


class PthArchive(Archive):
    """A state dict, bare or in a trainer's checkpoint."""

    kind = "pth"

    def __init__(self, path: Path) -> None:
        zipped = zipfile.is_zipfile(path)
        for name in _globals(path, zipped=zipped):
            if not ALLOWED.fullmatch(name):
                raise CheckpointError(
                    f"{path} needs {name} to be read, which is more than tensors: a pickle can run anything, so it was "
                    "not opened. Where you trust it, save its weights alone: "
                    "torch.save(torch.load(FILE, weights_only=False)['model'], NEW), or take model.state_dict()."
                )
        try:
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
        except pickle.UnpicklingError as error:
            reason = str(error).split("\n")[0]
            raise CheckpointError(f"{path} holds more than tensors or is damaged: {reason}") from error
        except Exception as error:  # torch's reader fails in many types on a damaged file
            raise damaged(path, str(error).split("\n")[0]) from error
        self._tensors, strangers = _unwrap(path, loaded)
        entries = {name: Entry(tuple(tensor.shape), _precision(tensor)) for name, tensor in self._tensors.items()}
        super().__init__(path, entries, strangers=strangers, notes={})

    def read(self, name: str) -> Tensor:
        """Copy one tensor out of the file."""
        return self._tensors[name].detach().clone(memory_format=torch.contiguous_format)

    def close(self) -> None:
        """Let the tensors go."""
        self._tensors = {}


def is_pickle(path: Path) -> bool:
    """Tell whether a file is one of torch.save, of today or of before version 1.6."""
    with path.open("rb") as file:
        start = file.read(len(LEGACY))
    if start[:2] == b"PK" and zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                return any(name.endswith("/data.pkl") or name == "data.pkl" for name in archive.namelist())
        except (zipfile.BadZipFile, OSError, ValueError):
            return False
    return start == LEGACY


def write_pth(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a bare state dict, to a temporary name that is renamed last."""
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        torch.save(ready, temporary)


def _globals(path: Path, *, zipped: bool) -> Iterator[str]:
    """List everything that the pickles of a file would import, without running them."""
    try:
        for stream in _zipped(path) if zipped else _legacy(path):
            texts: list[str] = []
            for opcode, argument, _ in pickletools.genops(stream):
                if opcode.name == "GLOBAL" or opcode.name == "INST":
                    yield str(argument).replace(" ", ".")
                elif opcode.name == "STACK_GLOBAL":
                    yield ".".join(texts[-2:])
                elif isinstance(argument, str):
                    texts.append(argument)
    except CheckpointError:
        raise
    except Exception as error:  # a damaged pickle stops its parser in many types
        raise damaged(path, error) from error


def _zipped(path: Path) -> Iterator[io.BytesIO]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                raise CheckpointError(f"{path} holds {info.filename!r} compressed, which torch.save never does.")
        if sum(info.file_size for info in archive.infolist()) > path.stat().st_size:
            raise damaged(path, "its parts are larger than the whole")
        pickles = [info for info in archive.infolist() if info.filename.endswith(".pkl")]
        if not pickles or any(info.file_size > LARGEST_PICKLE for info in pickles):
            raise damaged(path, "it has no 'data.pkl' of a likely size")
        for info in pickles:
            yield io.BytesIO(archive.read(info))


def _legacy(path: Path) -> Iterator[Any]:
    """Give the five pickles of a file of before torch 1.6; the numbers come after them."""
    with path.open("rb") as file:
        for count in range(5):
            if count and not file.peek(1):
                return
            yield file


def _unwrap(path: Path, loaded: object) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Find the state dict in what was saved; give it, and the names of what lies beside it."""
    beside: list[str] = []
    while isinstance(loaded, Mapping):
        tensors = {name: value for name, value in loaded.items() if isinstance(value, Tensor)}
        inner = next((name for name in WRAPPERS if isinstance(loaded.get(name), Mapping)), None)
        if inner is None or len(tensors) > 1:
            if not tensors or not all(isinstance(name, str) for name in tensors):
                break
            beside += [str(name) for name in loaded if name not in tensors]
            return {str(name): tensor for name, tensor in tensors.items()}, tuple(beside)
        beside += [str(name) for name in loaded if name != inner]
        loaded = loaded[inner]
    found = f"a {type(loaded).__name__}"
    if isinstance(loaded, Mapping):
        found += f" of {', '.join(map(str, list(loaded)[:5]))}"
    raise CheckpointError(
        f"{path} holds no state dict: expected tensors by name, bare or under one of {', '.join(WRAPPERS)}; "
        f"got {found}."
    )


def _precision(tensor: Tensor) -> torch.dtype | str:
    usable = tensor.is_floating_point() and tensor.layout == torch.strided and tensor.itemsize > 1
    return tensor.dtype if usable else str(tensor.dtype)
