"""The words of an export: its targets and precisions, for those who only name them; `export` has the rest."""

from vitrail.config.check import one_of, positive
from vitrail.config.words import suggest
from vitrail.errors import ConfigError

# By target: how its file ends, and the extra that it needs.
SUFFIX = {"onnx": ".onnx", "torch": ".pt2", "aotinductor": ".pt2", "openvino": ".xml"}
SUFFIX |= {"executorch": ".pte", "html": ".html"}
EXTRA = {"onnx": "export", "openvino": "openvino", "executorch": "executorch"}
PRECISIONS = {
    "onnx": ("float32", "float16", "int8"),
    "torch": ("float32", "float16"),
    "aotinductor": ("float32",),
    "openvino": ("float32", "float16", "int8"),
    "executorch": ("float32",),
    "html": ("float16", "int8"),
}
# Other programs' words, and what to say to those that nothing here stands for.
TARGET_WORDS = {"ort": "onnx", "onnxruntime": "onnx", "ov": "openvino", "pt2": "torch", "torch.export": "torch"}
TARGET_WORDS |= {"aoti": "aotinductor", "inductor": "aotinductor", "pte": "executorch", "xnnpack": "executorch"}
TARGET_WORDS |= {"page": "html", "web": "html"}
ANSWERS = {
    "torchscript": "TorchScript is no longer developed: take to=torch, or to=aotinductor for a program without Python.",
    "tensorrt": "TensorRT reads ONNX: take to=onnx.",
    "coreml": "coremltools reads a program of torch.export: take to=torch.",
    "tflite": "LiteRT (TFLite) reads a program of torch.export: take to=torch.",
    "safetensors": "That is a file of weights, not a program: vitrail.convert writes it.",
}
PRECISION_WORDS = {"fp32": "float32", "fp16": "float16", "half": "float16", "quantized": "int8", "qint8": "int8"}
# Options of other exporters, each with what to say instead.
OPTIONS = {
    "dynamic_axes": "Batch, height and width are free already; fixed_size=True fixes the size.",
    "dynamic_shapes": "Batch, height and width are free already; fixed_size=True fixes the size.",
    "dynamic": "Batch, height and width are free already; fixed_size=True fixes the size.",
    "opset": "The file is written in opset 20, which its operators need; it is not chosen.",
    "opset_version": "The file is written in opset 20, which its operators need; it is not chosen.",
    "input_names": "The input is images (or pixels), the outputs are logits and features.",
    "output_names": "The input is images (or pixels), the outputs are logits and features.",
    "quantize": "Set precision=int8.",
    "half": "Set precision=float16.",
    "fp16": "Set precision=float16.",
    "simplify": "The graph is simplified already.",
    "do_constant_folding": "Constants are folded already.",
    "format": "Give to=..., such as to=onnx.",
    "target": "Give to=..., such as to=onnx.",
}


def read_export(to: str, precision: str | None, loss: float | None, *, calibrates: bool) -> tuple[str, str]:
    """Read a target and a precision, in other programs' words too; refuse what goes with neither."""
    word = (to if isinstance(to, str) else one_of("to", to, tuple(SUFFIX))).lower()
    target = TARGET_WORDS.get(word, word)
    if target not in SUFFIX:
        hint = f" {ANSWERS[word]}" if word in ANSWERS else suggest(word, SUFFIX)
        raise ConfigError(f"there is no target {to!r}.{hint}")
    able = PRECISIONS[target]
    given = able[0] if precision is None else precision
    chosen = PRECISION_WORDS.get(given.lower(), given.lower()) if isinstance(given, str) else given
    if chosen not in able:
        one_of("precision", chosen, ("float32", "float16", "int8"))
        raise ConfigError(f"{target} is written in {' or '.join(able)}; got precision={chosen}.")
    if chosen != "int8":
        for name, given in (("calibrate", calibrates), ("loss", loss is not None)):
            if given:
                raise ConfigError(f"{name} is of precision=int8; got precision={chosen}. Leave {name} out.")
    if loss is not None:
        positive("loss", loss)
    return target, chosen
