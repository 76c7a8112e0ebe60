"""What a model goes through images in: the plain modules, or a faster path; and in which precision."""

from typing import Literal, get_args

from vitrail.config.check import one_of
from vitrail.config.words import suggest
from vitrail.errors import ConfigError

Engine = Literal["auto", "plain", "fast"]  # auto: fast where it repays
Precision = Literal["float32", "bfloat16", "float8", "int8"]
ENGINES: tuple[str, ...] = get_args(Engine)
PRECISIONS: tuple[str, ...] = get_args(Precision)
EIGHT = ("float8", "int8")  # precisions that are fitted to images
WORDS = {"fp32": "float32", "bf16": "bfloat16", "fp8": "float8", "quantized": "int8"}
WORDS |= {"float8_e4m3fn": "float8", "qint8": "int8"}
# Programs that are no engine here, and what to do instead.
EXPORTED = "Export the model, vitrail.export(model, to={0!r}), and give the file in its place."
ANSWERS = {
    "eager": "That is engine=plain.",
    "torch": "That is engine=plain.",
    "onednn": "That is engine=fast on a CPU.",
    "compile": "A GPU's fast path is compiled: engine=fast.",
    "inductor": "A GPU's fast path is compiled: engine=fast.",
    "cuda graphs": "They are part of a GPU's fast path: engine=fast.",
    "onnxruntime": EXPORTED.format("onnx"),
    "onnx": EXPORTED.format("onnx"),
    "openvino": EXPORTED.format("openvino"),
    "tensorrt": EXPORTED.format("onnx"),
}


def read_engine(name: str) -> Engine:
    """Read an engine; another program's name is answered with what to do."""
    word = str(name).lower()
    if word in ENGINES:
        return word  # pyright: ignore[reportReturnType]
    hint = f" {ANSWERS[word]}" if word in ANSWERS else suggest(word, ENGINES)
    raise ConfigError(f"engine must be one of {', '.join(ENGINES)}; got {name!r}.{hint}")


def read_precision(name: str, more: tuple[str, ...] = ()) -> str:
    """Read a precision of inference, in other programs' words too; `more` are also taken."""
    word = WORDS.get(str(name).lower(), str(name).lower())
    if word in ("float16", "fp16", "half"):
        raise ConfigError(f"precision must be one of {', '.join((*more, *PRECISIONS))}; got {name!r}. Take bfloat16.")
    return one_of("precision", word, (*more, *PRECISIONS))


def check_engine(engine: str, precision: str) -> None:
    """Refuse an engine or a precision that nothing is, and eight bits without the faster path."""
    if read_engine(engine) == "plain" and read_precision(precision) in EIGHT:
        raise ConfigError(f"precision={precision} is of the fast engine; got engine=plain. Leave engine out.")
