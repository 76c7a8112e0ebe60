"""Time and memory of loading ViT-L/16, beside timm: `python benchmarks/loading.py [--model NAME] [--repeats 5]`.

Each load runs in a process of its own, on a warm file cache, both in float32, after its imports. The time is from the
call to a model in memory; the peak is that of resident memory above what the process held after its imports, as a
multiple of the file's size. timm's load is create_model with the file as its checkpoint; its second row is the copy
into a model that was made before, which is only a part of a load.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROWS = {
    "vitrail, timm's safetensors": ("vitrail", "timm.safetensors"),
    "vitrail, own run folder": ("vitrail", "run"),
    "vitrail, authors' npz": ("vitrail", "google.npz"),
    "vitrail, timm's .pth": ("vitrail", "timm.pth"),
    "timm, safetensors": ("timm", "timm.safetensors"),
    "timm, safetensors into a made model": ("timm-copy", "timm.safetensors"),
    "timm, .pth": ("timm", "timm.pth"),
}
NAMES = {"ViT-L/16": "vit_large_patch16_224", "ViT-B/16": "vit_base_patch16_224", "ViT-Ti/16": "vit_tiny_patch16_224"}


def declare_operators() -> object:
    """Declare what the torchvision that timm imports lacks beside a CPU torch; keep the result alive."""
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def resident() -> int:
    """Bytes of resident memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Peak(threading.Thread):
    """Watch resident memory until told to stop."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.over = 0, threading.Event()

    def run(self) -> None:
        """Look every millisecond."""
        while not self.over.wait(0.001):
            self.most = max(self.most, resident())


def measure(library: str, path: str, name: str) -> None:
    """Load once and print the seconds and the bytes above the start."""
    if library == "vitrail":
        import torch

        import vitrail

        _ = vitrail.load, vitrail.create("ViT-Ti/16", classes=1)(torch.zeros(1, 3, 224, 224))
        start = resident()
        watch = Peak()
        watch.start()
        begin = time.perf_counter()
        model = vitrail.load(path)
    else:
        library_kept = declare_operators()
        import timm

        made = timm.create_model(NAMES[name]) if library == "timm-copy" else None
        start = resident()
        watch = Peak()
        watch.start()
        begin = time.perf_counter()
        if made is None:
            model = timm.create_model(NAMES[name], checkpoint_path=path)
        else:
            timm.models.load_checkpoint(made, path)
            model = made
        assert library_kept is not None
    seconds = time.perf_counter() - begin
    watch.over.set()
    watch.join()
    high = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    count = sum(parameter.numel() for parameter in model.parameters())
    print(json.dumps({"seconds": seconds, "peak": max(watch.most, high) - start, "parameters": count}))  # noqa: T201


def write(folder: Path, name: str) -> None:
    """Write the same random weights in every layout."""
    import torch

    import vitrail

    model = vitrail.create(name, activation="gelu")
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            parameter.normal_(0, 0.02, generator=torch.Generator().manual_seed(index))
    vitrail.save(model, folder / "run")
    vitrail.save(model, folder / "timm.safetensors", layout="timm")
    vitrail.save(model, folder / "timm.pth", layout="timm")
    vitrail.save(model, folder / "google.npz", layout="google", lossy=True)


def size_of(path: Path) -> int:
    """Bytes of a file, or of a folder's weights."""
    return os.path.getsize(path / "weights.safetensors" if path.is_dir() else path)


def main() -> None:
    """Write, then load in turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="ViT-L/16", choices=NAMES)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one", nargs=3, metavar=("LIBRARY", "PATH", "MODEL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure(*options.one)
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), options.model)
        found: dict[str, list[dict[str, float]]] = {row: [] for row in ROWS}
        for _ in range(options.repeats + 1):
            for row, (library, file) in ROWS.items():
                command = [sys.executable, __file__, "--one", library, str(Path(folder) / file), options.model]
                run = subprocess.run(command, capture_output=True, text=True, check=False)
                if run.returncode:
                    sys.exit(f"{row}: {run.stderr}")
                found[row].append(json.loads(run.stdout.splitlines()[-1]))
        print(f"{options.model}, {options.repeats} loads each; seconds: median (least to most); peak: most")  # noqa: T201
        for row, (_, file) in ROWS.items():
            runs = found[row][1:]  # the first warms the file cache
            seconds = sorted(run["seconds"] for run in runs)
            peak = max(run["peak"] for run in runs) / size_of(Path(folder) / file)
            middle = statistics.median(seconds)
            print(f"{row:38s} {middle:7.3f} s ({seconds[0]:.3f} to {seconds[-1]:.3f})  {peak:5.2f} x the file")  # noqa: T201


if __name__ == "__main__":
    main()
