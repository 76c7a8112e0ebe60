"""OpenVINO: a graph (.xml) and its weights (.bin), for Intel's processors and others."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.runtime.engines import NOTES, need, notes_text


def write_openvino(onnx: Path, path: Path, *, precision: str) -> None:
    """Write the pair of files from an ONNX graph; in float16 the weights are, what is computed is the machine's."""
    openvino = need("openvino", "openvino")
    graph = openvino.Core().read_model(os.fspath(onnx))  # convert_model does this too, and reports it to Intel
    openvino.save_model(graph, os.fspath(path), compress_to_fp16=precision == "float16")


def note_openvino(path: Path, notes: Mapping[str, Any]) -> None:
    """Write into the graph what it says of itself; the weights stay as they are."""
    openvino = need("openvino", "openvino")
    graph = openvino.Core().read_model(os.fspath(path))
    graph.set_rt_info(notes_text(notes), [NOTES])
    fresh = path.with_name("noted.xml")
    openvino.save_model(graph, os.fspath(fresh), compress_to_fp16=False)
    del graph
    os.replace(fresh.with_suffix(".bin"), path.with_suffix(".bin"))
    os.replace(fresh, path)
