"""What torch.save wrote, read without running anything: the pickle's opcodes are followed on symbols.

Nothing is imported and nothing is called. A global that a state dict does not need is refused by its name; so is any
opcode that torch.save does not write. What comes out are plain containers, numbers, texts and records of tensors.
"""

import pickletools
from collections.abc import Iterator
from typing import Any, NamedTuple

from vitrail.errors import CheckpointError

MOST_OPCODES = 2_000_000
REBUILDS = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor")
PARAMETERS = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
DICTIONARIES = ("collections.OrderedDict",)
PLAIN = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
NUMBERS_AND_TEXTS = (
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "SHORT_BINSTRING"),
    *("BINSTRING", "SHORT_BINBYTES", "BINBYTES"),
)


class Global(NamedTuple):
    """A name that the pickle would import."""

    name: str


class Storage(NamedTuple):
    """A run of numbers in the file: of which type, under which key, how many."""

    kind: str
    key: str
    length: int


class TensorRecord(NamedTuple):
    """A tensor: where in its storage it begins, its sides, and the steps along them."""

    storage: Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class Refused(Exception):  # noqa: N818
    """What a pickle asks for beyond tensors, in words."""


class _Mark:
    pass


def follow(opcodes: Iterator[tuple[Any, Any, Any]]) -> Any:  # noqa: ANN401
    """Follow one pickle to its end and give what it describes."""
    return _Machine().run(opcodes)


def opcodes(stream: object) -> Iterator[tuple[Any, Any, Any]]:
    """Read a pickle's opcodes; damage is refused."""
    try:
        yield from pickletools.genops(stream)  # pyright: ignore[reportArgumentType]
    except (Refused, CheckpointError):
        raise
    except Exception as error:  # a damaged pickle stops the parser in many types
        raise Refused(f"a damaged pickle ({error})") from error


class _Machine:
    """The pickle's stack and memo, holding symbols."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, stream: Iterator[tuple[Any, Any, Any]]) -> Any:  # noqa: ANN401
        for count, (opcode, argument, _) in enumerate(stream):
            if count > MOST_OPCODES:
                raise Refused("a pickle of millions of steps")
            if opcode.name == "STOP":
                return self.pop()
            self.step(opcode.name, argument)
        raise Refused("a pickle without an end")

    def step(self, name: str, argument: Any) -> None:  # noqa: ANN401
        if name in ("PROTO", "FRAME"):
            return
        if name in PLAIN:
            self.stack.append(PLAIN[name])
        elif name in NUMBERS_AND_TEXTS:
            self.stack.append(argument)
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = self.top()
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.top()
        elif name in ("BINGET", "LONG_BINGET"):
            if argument not in self.memo:
                raise Refused("a pickle that recalls what it never said")
            self.stack.append(self.memo[argument])
        elif handler := getattr(self, f"on_{name.lower()}", None):
            handler(argument)
        else:
            raise Refused(f"the pickle opcode {name}")

    def top(self) -> Any:  # noqa: ANN401
        if not self.stack or self.stack[-1] is _Mark:
            raise Refused("a damaged pickle (nothing is there to take)")
        return self.stack[-1]

    def pop(self) -> Any:  # noqa: ANN401
        top = self.top()
        self.stack.pop()
        return top

    def pop_to_mark(self) -> list[Any]:
        items: list[Any] = []
        while self.stack:
            item = self.stack.pop()
            if item is _Mark:
                return items[::-1]
            items.append(item)
        raise Refused("a damaged pickle (a mark is missing)")

    def on_mark(self, _: object) -> None:
        self.stack.append(_Mark)

    def on_empty_dict(self, _: object) -> None:
        self.stack.append({})

    def on_empty_list(self, _: object) -> None:
        self.stack.append([])

    def on_empty_tuple(self, _: object) -> None:
        self.stack.append(())

    def on_tuple(self, _: object) -> None:
        self.stack.append(tuple(self.pop_to_mark()))

    def on_tuple1(self, _: object) -> None:
        self.stack.append((self.pop(),))

    def on_tuple2(self, _: object) -> None:
        last = self.pop()
        self.stack.append((self.pop(), last))

    def on_tuple3(self, _: object) -> None:
        last, middle = self.pop(), self.pop()
        self.stack.append((self.pop(), middle, last))

    def on_append(self, _: object) -> None:
        item = self.pop()
        self.container(list).append(item)

    def on_appends(self, _: object) -> None:
        items = self.pop_to_mark()
        self.container(list).extend(items)

    def on_setitem(self, _: object) -> None:
        value, name = self.pop(), self.pop()
        self.put([name, value])

    def on_setitems(self, _: object) -> None:
        self.put(self.pop_to_mark())

    def put(self, items: list[Any]) -> None:
        target = self.container(dict)
        if len(items) % 2:
            raise Refused("a damaged pickle (a key without a value)")
        for name, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(name, str | int | float | bool | None):  # a key that nests would take forever to hash
                raise Refused(f"a dictionary with a {type(name).__name__} as its key")
            target[name] = value

    def container(self, kind: type) -> Any:  # noqa: ANN401
        if not isinstance(self.top(), kind):
            raise Refused(f"a damaged pickle (expected a {kind.__name__})")
        return self.top()

    def on_global(self, argument: object) -> None:
        self.stack.append(Global(str(argument).replace(" ", ".", 1)))

    def on_stack_global(self, _: object) -> None:
        name, module = self.pop(), self.pop()
        self.stack.append(Global(f"{module}.{name}"))

    def on_inst(self, argument: object) -> None:
        raise Refused(str(argument).replace(" ", ".", 1))

    def on_binpersid(self, _: object) -> None:
        words: Any = self.pop()
        words = words if isinstance(words, tuple) else ()
        if len(words) > 1 and words[0] == "module" and isinstance(words[1], Global):
            raise Refused(words[1].name)  # a whole module of before torch 1.6
        fits = len(words) in (5, 6) and words[0] == "storage"
        if not fits or not isinstance(words[1], Global) or not isinstance(words[4], int) or words[4] < 0:
            raise Refused("a persistent object that is no storage")
        if len(words) == 6 and words[5] is not None:
            raise Refused("a storage that is a view of another, as torch wrote before 0.4")
        if not words[1].name.startswith("torch.") or not words[1].name.endswith("Storage"):
            raise Refused(words[1].name)
        self.stack.append(Storage(words[1].name.rsplit(".", 1)[1], str(words[2]), words[4]))

    def on_reduce(self, _: object) -> None:
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            raise Refused("a call of something that is no name")
        self.stack.append(_called(function.name, arguments))

    def on_newobj(self, _: object) -> None:
        self.pop()
        made = self.pop()
        raise Refused(made.name if isinstance(made, Global) else "an object")

    def on_build(self, _: object) -> None:
        self.pop()  # a state dict's notes of its versions
        if not isinstance(self.top(), dict):
            raise Refused("the state of an object")


def _called(name: str, arguments: tuple[Any, ...]) -> Any:  # noqa: ANN401
    """Give what a call would make, where it makes a tensor or an empty dictionary."""
    if name in DICTIONARIES and not arguments:
        return {}
    if name in DICTIONARIES and len(arguments) == 1 and arguments[0] == []:
        return {}
    if name in REBUILDS and len(arguments) >= 4:
        storage, offset, size, stride = arguments[:4]
        whole = isinstance(offset, int) and _wholes(size) and _wholes(stride) and len(size) == len(stride)
        if isinstance(storage, Storage) and whole and offset >= 0:
            return TensorRecord(storage, offset, tuple(size), tuple(stride))
        raise Refused("a tensor that is put together otherwise than torch does")
    if name in PARAMETERS and arguments and isinstance(arguments[0], TensorRecord):
        return arguments[0]
    if name == "torch.Size" and len(arguments) == 1 and _wholes(arguments[0]):
        return tuple(arguments[0])
    if name == "torch.device" and all(isinstance(word, str | int) for word in arguments):
        return ":".join(map(str, arguments))
    raise Refused(name)


def _wholes(value: object) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(side, int) and not isinstance(side, bool) and side >= 0 for side in value
    )
