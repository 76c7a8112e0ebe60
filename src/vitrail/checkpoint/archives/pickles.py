"""What torch.save wrote, read without running anything: the pickle's opcodes are followed on symbols.

Nothing is imported and nothing is called. What comes out are plain containers, numbers, texts and records of tensors;
anything else that the pickle would make is an `Opaque`, a name with what was given to it. An opcode that torch.save
does not write is refused.
"""

import pickletools
from collections.abc import Iterator
from typing import Any, NamedTuple

MOST_OPCODES = 2_000_000
MOST_AXES = 64  # of a tensor, as torch has it
LONGEST_WORD = 1000  # signs of a name, of a storage's key, of a device
LARGEST_NUMBER = 2**63  # of a side, a step, an offset, a length
UNTYPED = "torch._utils._rebuild_tensor_v3"  # of numbers that have no storage of their own kind, such as float8
REBUILDS = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor")
PARAMETERS = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
TYPED = "torch._tensor._rebuild_from_type_v2"  # of a tensor's subclass


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


class Opaque:
    """An object that the pickle would make, and nobody does: what it is called, and all that was given to it."""

    def __init__(self, name: str, *given: object) -> None:
        self.name, self.given = name, list(given)  # arguments and states, which are kept and never copied

    def __str__(self) -> str:
        return self.name

    @property
    def is_tensor(self) -> bool:
        """Whether it would be a tensor of a kind that no weight is: sparse, quantised, without numbers."""
        return self.name.startswith(("torch._utils.", "torch._tensor."))

    @property
    def attributes(self) -> dict[Any, Any]:
        """What the object would know by name, where it is put together as most are."""
        states = [part[0] if isinstance(part, tuple) and len(part) == 2 else part for part in reversed(self.given)]
        return next((state for state in states if isinstance(state, dict)), {})


class Refused(Exception):  # noqa: N818
    """What a pickle asks for beyond tensors, in words."""


class Broken(ValueError):  # noqa: N818
    """What is wrong with a pickle that none would write, in words."""


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
    raise Broken("its pickle has no end")


def _opcodes(stream: object) -> Iterator[tuple[Any, Any, Any]]:
    try:
        yield from pickletools.genops(stream)  # pyright: ignore[reportArgumentType]
    except Exception as error:  # a damaged pickle stops the parser in many types
        raise Broken(f"its pickle cannot be followed ({error})") from error


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
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "LONG4" | "BINFLOAT":
                push(argument)
            case "SHORT_BINUNICODE" | "BINUNICODE" | "BINUNICODE8" | "SHORT_BINSTRING" | "BINSTRING":
                push(argument)
            case "SHORT_BINBYTES" | "BINBYTES" | "BINBYTES8" | "BYTEARRAY8":
                push(argument)
            case "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = self.top()
            case "MEMOIZE":
                self.memo[len(self.memo)] = self.top()
            case "BINGET" | "LONG_BINGET":
                if argument not in self.memo:
                    raise Broken("its pickle recalls what it never said")
                push(self.memo[argument])
            case "MARK":
                push(MARK)
            case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_TUPLE":
                push({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[opcode]())
            case "EMPTY_SET" | "FROZENSET":
                push(Opaque("a set", *(self.pop_to_mark() if opcode == "FROZENSET" else ())))
            case "TUPLE":
                push(tuple(self.pop_to_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                push(tuple([pop() for _ in range(int(opcode[-1]))][::-1]))
            case "APPEND" | "APPENDS":
                items = [pop()] if opcode == "APPEND" else self.pop_to_mark()
                self.container(list).extend(items)
            case "ADDITEMS":
                items = self.pop_to_mark()
                self.container(list).extend(items)
            case "SETITEM" | "SETITEMS":
                items = [pop(), pop()][::-1] if opcode == "SETITEM" else self.pop_to_mark()
                self.put(items)
            case "GLOBAL":
                push(Global(str(argument).replace(" ", ".", 1)))
            case "STACK_GLOBAL":
                name, module = pop(), pop()
                push(Global(f"{_word(module)}.{_word(name)}"))
            case "INST":
                raise Refused(str(argument).replace(" ", ".", 1))
            case "BINPERSID":
                match words := pop():
                    case ("module", Global() as module, *_):  # of before torch 1.6
                        push(module)
                    case _:
                        push(_storage(words))
            case "REDUCE":
                arguments, function = pop(), pop()
                if not isinstance(function, Global | Opaque) or not isinstance(arguments, tuple):
                    raise Refused("a call of something that is no name")
                push(_called(function.name, arguments))
            case "NEWOBJ" | "NEWOBJ_EX":
                given = [pop() for _ in range(1 + (opcode == "NEWOBJ_EX"))]
                if not isinstance(made := pop(), Global | Opaque):
                    raise Refused("an object of something that is no name")
                push(Opaque(made.name, *given))
            case "BUILD":
                state = pop()  # of a dictionary: notes of the state dict's versions
                if isinstance(self.top(), Opaque):
                    self.top().given.append(state)
                elif not isinstance(self.top(), dict | TensorRecord):
                    raise Refused("the state of an object")
            case _:
                raise Refused(f"the pickle opcode {opcode}")

    def top(self) -> Any:  # noqa: ANN401
        """Look at what was put last."""
        if not self.stack or self.stack[-1] is MARK:
            raise Broken("its pickle takes what is not there")
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
        raise Broken("a mark is missing in its pickle")

    def container(self, kind: type) -> Any:  # noqa: ANN401
        """Give the list or dictionary that is filled; of an object, what it would be filled with."""
        if isinstance(made := self.top(), Opaque):
            if not made.given or not isinstance(made.given[-1], kind):
                made.given.append(kind())
            return made.given[-1]
        if not isinstance(made, kind):
            raise Broken(f"its pickle lacks a {kind.__name__}")
        return made

    def put(self, items: list[Any]) -> None:
        """Put names and values, in turn, into a dictionary."""
        target = self.container(dict)
        if len(items) % 2:
            raise Broken("its pickle has a key without a value")
        for name, value in zip(items[::2], items[1::2], strict=True):
            plain = isinstance(name, str | int | float | bool | None)  # a key that nests would take forever to hash
            target[name if plain else Opaque(type(name).__name__, name)] = value


def _storage(words: Any) -> Storage:  # noqa: ANN401
    """Read what stands for a storage in the pickle."""
    words = words if isinstance(words, tuple) else ()
    fits = len(words) in (5, 6) and words[0] == "storage"
    if not fits or not isinstance(words[1], Global) or not _wholes(words[4:5]):
        raise Refused("a persistent object that is no storage")
    if len(words) == 6 and words[5] is not None:
        raise Refused("a storage that is a view of another, as torch wrote before 0.4")
    if not words[1].name.startswith("torch.") or not words[1].name.endswith("Storage"):
        raise Refused(words[1].name)
    return Storage(words[1].name.rsplit(".", 1)[1], _word(words[2]), words[4])


def _called(name: str, arguments: tuple[Any, ...]) -> Any:  # noqa: ANN401
    """Give what a call would make: a tensor, an empty dictionary, or something opaque."""
    if name == "collections.OrderedDict" and arguments in ((), ([],)):
        return {}
    if name == "collections.defaultdict" and len(arguments) < 2:
        return {}
    if name == TYPED and len(arguments) > 2 and isinstance(arguments[2], tuple):
        inner = arguments[0].name if isinstance(arguments[0], Global) else ""
        name, arguments = (inner, arguments[2]) if inner in (*REBUILDS, *PARAMETERS) else (name, arguments)
    if name in REBUILDS and len(arguments) >= 4:
        storage, offset, size, stride = arguments[:4]
        if isinstance(storage, Storage) and _wholes((offset,)) and _wholes(size) and _wholes(stride, len(size)):
            return TensorRecord(storage, offset, tuple(size), tuple(stride))
        raise Refused("a tensor that is put together otherwise than torch does")
    if name == UNTYPED and len(arguments) > 6 and isinstance(arguments[0], Storage):
        kind = arguments[6].name.rpartition(".")[2] if isinstance(arguments[6], Global) else "unknown numbers"
        return TensorRecord(arguments[0]._replace(kind=kind), 0, (), ())
    if name in PARAMETERS and arguments and isinstance(arguments[0], TensorRecord):
        return arguments[0]
    if name == "torch.Size" and len(arguments) == 1 and _wholes(arguments[0]):
        return tuple(arguments[0])
    if name == "torch.device" and len(arguments) <= 2:
        return ":".join(map(_word, arguments))
    return Opaque(name, arguments)


def _wholes(value: object, count: int | None = None) -> bool:
    """Tell a tuple of so many numbers that a tensor could have, without looking through a long one."""
    if not isinstance(value, tuple) or len(value) > MOST_AXES or count not in (None, len(value)):
        return False
    return all(type(side) is int and 0 <= side < LARGEST_NUMBER for side in value)


def _word(value: object) -> str:
    """Read a short text or a number; what refers to itself again and again would have no end as a text."""
    if not isinstance(value, str | int) or len(text := str(value)) > LONGEST_WORD:
        raise Refused(f"a name that is a {type(value).__name__} of no likely length")
    return text
