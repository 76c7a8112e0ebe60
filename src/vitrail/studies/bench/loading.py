"""Time and memory of loading a file of weights, in a process of its own, after its imports, on a warm file cache."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import vitrail
from vitrail.errors import VitrailError
from vitrail.runtime.machine import give_memory_back, resident_memory
from vitrail.runtime.memory import forget_peak, peak_memory
from vitrail.studies.bench.peers import peer, peer_loader
from vitrail.studies.bench.table import Library, Load, Opened

FILES = {"vitrail": "run", "timm": "timm.safetensors", "google": "google.npz", "hf": "hf"}
SPREAD = 0.02  # of random weights
CPU = torch.device("cpu")


def open_loading(work: Load) -> Opened:
    """Write random weights; every repeat is a process that loads them."""
    if work.by != "vitrail":
        peer(work.by)
    folder = tempfile.TemporaryDirectory(prefix="vitrail-bench-")
    path = write(work, Path(folder.name))
    parts = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    size = sum(part.stat().st_size for part in parts)

    def once() -> dict[str, float]:
        command = [sys.executable, "-m", __name__, work.by, str(path), work.model]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise VitrailError(done.stderr.strip().splitlines()[-1])
        return json.loads(done.stdout.splitlines()[-1])

    return Opened(once=once, about={"file": size}, close=folder.cleanup)


def write(work: Load, folder: Path) -> Path:
    """Write the same random weights in a layout."""
    model = vitrail.create(work.model, activation="gelu", classes=1000)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, SPREAD, generator=generator)
    path = folder / FILES[work.layout]
    vitrail.save(model, path, layout=work.layout, lossy=work.layout == "google")
    return path


def measure(by: Library, path: Path, model: str) -> dict[str, float]:
    """Load once; give the seconds, and the bytes above those that were held after the imports."""
    if by == "vitrail":
        tiny = vitrail.create(
            "ViT-Ti/16", depth=1, classes=1
        )  # imports what a load needs, and leaves little free memory
        tiny(torch.zeros(1, 3, 224, 224))
        del tiny
        load: Callable[[Path], nn.Module] = vitrail.load
    else:
        load = peer_loader(by, model)
    give_memory_back()
    forget_peak(CPU)
    held, begin = resident_memory(), time.perf_counter()
    made = load(path)
    seconds = time.perf_counter() - begin
    peak = peak_memory(CPU)
    assert any(parameter.any() for parameter in made.parameters())
    return {"value": seconds} if peak is None or not held else {"value": seconds, "memory": peak - held}


if __name__ == "__main__":
    library, where, name = sys.argv[1:]
    sys.stdout.write(json.dumps(measure(library, Path(where), name)))  # pyright: ignore[reportArgumentType]
