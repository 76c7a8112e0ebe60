"""Runs an exported file with nothing of Vitrail: FILE INPUT.npz OUTPUT.npz; the first output of each input."""

import importlib
import sys
import zipfile

import numpy as np

path, given, wanted = sys.argv[1:]
inputs = np.load(given)
if path.endswith(".onnx"):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (entry,), first = session.get_inputs(), session.get_outputs()[0].name
    found = {name: session.run([first], {entry.name: inputs[name]})[0] for name in inputs}
elif path.endswith(".xml"):
    import openvino

    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = {name: np.array(compiled([inputs[name]])[0]) for name in inputs}
elif path.endswith(".pte"):
    import torch

    runtime = importlib.import_module("executorch.runtime").Runtime  # by name: few machines that check types have it
    method = runtime.get().load_program(path).load_method("forward")
    found = {name: method.execute([torch.from_numpy(inputs[name])])[0].numpy() for name in inputs}
else:
    import torch

    with zipfile.ZipFile(path) as packed:
        compiled = any("/data/aotinductor/" in name for name in packed.namelist())
    machine_code = torch._inductor.aoti_load_package  # pyright: ignore[reportPrivateUsage]
    program = machine_code(path) if compiled else torch.export.load(path).module()
    found = {name: program(torch.from_numpy(inputs[name]))[0].detach().numpy() for name in inputs}
assert "vitrail" not in sys.modules
np.savez(wanted, **found)
