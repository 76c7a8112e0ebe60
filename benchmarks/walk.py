"""Count the source files that a fine-tuning run enters before its loop and in one batch, and opens of its weights.

python benchmarks/walk.py PHOTOS [MODEL]
"""

import importlib
import pkgutil
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import vitrail

SOURCE = str(Path(vitrail.__file__).parent) + "/"
STEPS = 12


def main(photos: str, model: str) -> None:
    """Trace one run and print what it entered."""
    for module in pkgutil.walk_packages(vitrail.__path__, "vitrail."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    entered: dict[str, set[str]] = defaultdict(set)
    opened: Counter[str] = Counter()
    phase, steps = "before the loop", 0

    def enter(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal phase, steps
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if event != "call" or not file.startswith(SOURCE) or name == "<module>":
            return
        short = file.removeprefix(SOURCE)
        if short == "train/loop.py" and name == "train":
            phase = "first steps"
        if short == "train/loop.py" and name == "train_step":
            steps += 1
            phase = {2: "one batch", 3: "the rest"}.get(steps, phase)
        entered[phase].add(short)

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).endswith("weights.safetensors") and phase == "before the loop":
            opened[str(arguments[0])] += 1

    sys.addaudithook(hear)
    never = [f"{name}={STEPS}" for name in ("evaluate_every", "save_every", "log_every")]
    with tempfile.TemporaryDirectory() as folder:
        threading.setprofile(enter)
        sys.setprofile(enter)
        arguments = ["finetune", photos, "--model", model, "--out", f"{folder}/run", "--steps", str(STEPS)]
        flags = [part for text in never for part in ("--set", text)]
        importlib.import_module("vitrail.cli").main([*arguments, *flags, "--workers", "0", "--quiet", "--json"])
        sys.setprofile(None)
    for name in ("before the loop", "one batch"):
        print(f"{name}: {len(entered[name])} files: {', '.join(sorted(entered[name]))}")  # noqa: T201
    print(f"weights opened: {dict(opened)}")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "vitrail-ti8")
