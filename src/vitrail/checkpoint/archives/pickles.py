"""What torch.save wrote, read without running anything: the pickle's opcodes are followed on symbols.

Nothing is imported and nothing is called. A global that a state dict does not need is refused by its name; so is any
opcode that torch.save does not write. What comes out are plain containers, numbers, texts and records of tensors.
"""

import pickletools
from collections.abc import Iterator
from typing import Any, NamedTuple

MOST_OPCODES = 2_000_000
REBUILDS = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor")
PARAMETERS = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")


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


MARK = object()


def follow(stream: object) -> Any:  # noqa: ANN401
    """Follow one pickle to its end and give what it describes."""
    machine = _Machine()
    for count, (opcode, argument, _) in enumerate(_opcodes(stream)):
        if count > MOST_OPCODES:
            raise Refused("a pickle of millions of steps")
        if opcode.name == "STOP":
            return machine.pop()
        machine.step(opcode.name, argument)
    raise Refused("a pickle without an end")


def _opcodes(stream: object) -> Iterator[tuple[Any, Any, Any]]:
    try:
        yield from pickletools.genops(stream)  # pyright: ignore[reportArgumentType]
    except Exception as error:  # a damaged pickle stops the parser in many types
        raise Refused(f"a damaged pickle ({error})") from error


class _Machine:
    """The pickle's stack and memo, holding symbols."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, opcode: str, argument: Any) -> None:  # noqa: ANN401
        """Do what an opcode says."""
        push, pop = self.stack.append, self.pop
        match opcode:
            case "PROTO" | "FRAME":
                pass
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                push({"NEWTRUE": True, "NEWFALSE": False}.get(opcode))
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT" | "BINUNICODE" | "SHORT_BINUNICODE":
                push(argument)
            case "SHORT_BINSTRING" | "BINSTRING" | "SHORT_BINBYTES" | "BINBYTES":
                push(argument)
            case "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = self.top()
            case "MEMOIZE":
                self.memo[len(self.memo)] = self.top()
            case "BINGET" | "LONG_BINGET":
                if argument not in self.memo:
                    raise Refused("a pickle that recalls what it never said")
                push(self.memo[argument])
            case "MARK":
                push(MARK)
            case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_TUPLE":
                push({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[opcode]())
            case "TUPLE":
                push(tuple(self.pop_to_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                push(tuple([pop() for _ in range(int(opcode[-1]))][::-1]))
            case "APPEND" | "APPENDS":
                items = [pop()] if opcode == "APPEND" else self.pop_to_mark()
                self.container(list).extend(items)
            case "SETITEM" | "SETITEMS":
                items = [pop(), pop()][::-1] if opcode == "SETITEM" else self.pop_to_mark()
                self.put(items)
            case "GLOBAL":
                push(Global(str(argument).replace(" ", ".", 1)))
            case "STACK_GLOBAL":
                name, module = pop(), pop()
                push(Global(f"{module}.{name}"))
            case "INST":
                raise Refused(str(argument).replace(" ", ".", 1))
            case "BINPERSID":
                push(_storage(pop()))
            case "REDUCE":
                arguments, function = pop(), pop()
                if not isinstance(function, Global) or not isinstance(arguments, tuple):
                    raise Refused("a call of something that is no name")
                push(_called(function.name, arguments))
            case "NEWOBJ":
                _, made = pop(), pop()
                raise Refused(made.name if isinstance(made, Global) else "an object")
            case "BUILD":
                pop()  # a state dict's notes of its versions
                if not isinstance(self.top(), dict):
                    raise Refused("the state of an object")
            case _:
                raise Refused(f"the pickle opcode {opcode}")

    def top(self) -> Any:  # noqa: ANN401
        """Look at what was put last."""
        if not self.stack or self.stack[-1] is MARK:
            raise Refused("a damaged pickle (nothing is there to take)")
        return self.stack[-1]

    def pop(self) -> Any:  # noqa: ANN401
        """Take what was put last."""
        self.top()
        return self.stack.pop()

    def pop_to_mark(self) -> list[Any]:
        """Take what was put since the last mark, and the mark."""
        items: list[Any] = []
        while self.stack:
            item = self.stack.pop()
            if item is MARK:
                return items[::-1]
            items.append(item)
        raise Refused("a damaged pickle (a mark is missing)")

    def container(self, kind: type) -> Any:  # noqa: ANN401
        """Give the list or dictionary that is filled."""
        if not isinstance(self.top(), kind):
            raise Refused(f"a damaged pickle (expected a {kind.__name__})")
        return self.top()

    def put(self, items: list[Any]) -> None:
        """Put names and values, in turn, into a dictionary."""
        target = self.container(dict)
        if len(items) % 2:
            raise Refused("a damaged pickle (a key without a value)")
        for name, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(name, str | int | float | bool | None):  # a key that nests would take forever to hash
                raise Refused(f"a dictionary with a {type(name).__name__} as its key")
            target[name] = value


def _storage(words: Any) -> Storage:  # noqa: ANN401
    """Read what stands for a storage in the pickle."""
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
    return Storage(words[1].name.rsplit(".", 1)[1], str(words[2]), words[4])


def _called(name: str, arguments: tuple[Any, ...]) -> Any:  # noqa: ANN401
    """Give what a call would make, where it makes a tensor or an empty dictionary."""
    if name == "collections.OrderedDict" and arguments in ((), ([],)):
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
