"""ONNX: a graph whose batch, height and width are free, with what belongs to the model in its metadata."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from vitrail.errors import ConfigError
from vitrail.runtime.engines import NOTES, need, notes_text

OPSET = 20  # whose Gelu has the tanh form
LARGEST = 2**31 - 2**20  # bytes of a file of protobuf


def write_onnx(program: ExportedProgram, path: Path, *, outputs: tuple[str, ...], pixels: bool) -> None:
    """Write the graph of a program."""
    need("export", "onnx", "onnxscript", "onnxruntime")
    import torch

    held = sum(tensor.nbytes for tensor in program.state_dict.values())
    if held > LARGEST:
        raise ConfigError(
            f"the weights are {held / 2**30:.1f} GiB, and an ONNX file holds 2. Take precision=float16, or to=openvino."
        )
    name = "pixels" if pixels else "images"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own workings
        made = torch.onnx.export(
            program,
            dynamo=True,
            optimize=True,
            opset_version=OPSET,
            input_names=[name],
            output_names=list(outputs),
            external_data=False,
            verbose=False,
        )
    assert made is not None
    _name_axes(made.model, pixels=pixels)
    for part in (made.model.graph, *made.model.graph):  # where each operator was traced: paths of this machine
        part.metadata_props.clear()
    made.save(path, external_data=False)


def _name_axes(graph: Any, *, pixels: bool) -> None:  # noqa: ANN401
    """Give the free axes of the input names that people know."""
    (entry,) = graph.graph.inputs
    names = ("batch", "height", "width", "channels") if pixels else ("batch", "channels", "height", "width")
    shape = type(entry.shape)  # onnx_ir's, which comes with onnxscript
    entry.shape = shape(side if isinstance(side, int) else name for side, name in zip(entry.shape, names, strict=True))
    for output in graph.graph.outputs:
        output.shape = shape(["batch", *list(output.shape)[1:]])


def note_onnx(path: Path, notes: Mapping[str, Any]) -> None:
    """Write into a file what it says of itself: all for Vitrail, and each part for other programs."""
    onnx = need("export", "onnx")
    card, how = notes["card"], notes["card"]["preprocessing"]
    said = {NOTES: notes_text(notes), "class_names": notes_text(card["class_names"] or [])}
    said |= {name: notes_text(how[name]) for name in how}
    said |= {"temperature": notes_text(card["temperature"]), "image_size": notes_text(notes["sizes"]["own"])}
    said |= {"outputs": notes_text(card["outputs"])} if "outputs" in card else {}
    said |= {"largest_difference": notes_text(notes["verified"]["difference"])}
    entries = [onnx.StringStringEntryProto(key=key, value=value) for key, value in said.items()]
    with path.open("ab") as file:  # a message of protobuf is added to by one that follows it
        file.write(onnx.ModelProto(metadata_props=entries).SerializeToString())
