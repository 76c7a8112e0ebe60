"""Write docs/performance.md from the benches beside this file: `python results/performance.py`. A test compares them.

`vitrail bench all --out results/bench/NAME` measures one more machine; its plots are drawn again here.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitrail.studies.bench.report import FORMAT, markdown, plots

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
FIGURES = HERE.parent / "docs" / "performance"
HEAD = """How fast Vitrail is, beside timm, transformers and torchvision, and how far from what the machine allows.
Every table is the output of `vitrail bench all` on the machine that its heading names; this page is written
from the kept documents under `results/bench` by `python results/performance.py`, and a test compares the two.

```text
vitrail bench                                    # the rows that there are for this machine
vitrail bench all --out bench                    # all of it: minutes; bench/performance.md, bench.json and plots
vitrail bench forward --rows B16                 # a group, or the rows whose names have a word
vitrail bench training --json                    # one document; also vitrail.bench("training") in Python
```

## How it is measured
- The ways of a row are measured in turns, so that all see the same machine, each alone on the device: a median of the
  turns, the lowest and the highest. A ratio is the median of the ratios of the same turn, so that above 1 is faster;
  the first line of a row, *base*, is what the others are compared with. Machines that do other work besides have wide
  ranges, and then the ratio says more than the numbers.
- *Products alone* is the ceiling: the four products of matrices of every block at that batch (in training with their
  two gradients each), with random numbers and every layer's own weights, in the same run; on a CPU oneDNN's, with
  weights laid out before. *Of its ceiling* is the share of that speed which is reached. It counts every token of the
  last block, of which a fast pass computes the class token alone.
- Vitrail's forward passes are those of `vitrail.optimize`, with the engine in brackets; its training step is the
  training loop's own, which also measures the norm of the gradients and looks for numbers that are not finite.
  *Eager* is the plain model.
- Others are used as they come, without weights of theirs: on a GPU in bfloat16 (training under autocast),
  `torch.compile`, channels last, fused AdamW; on a CPU eager. Their training step is forward, cross-entropy, backward
  and update, and nothing else.
- Images are random, weights too, and none is zero, as products of zeros are faster; what gives a number that is not
  finite is not counted. Memory is the most that tensors hold in a step, more than before the model was made.
- Decoding is CPU time on one core. A file is loaded in a process of its own, from a warm file cache, after its
  imports; its memory is resident memory above what was held before.
- What is not installed or fails is named, with its reason, and takes nothing else with it.

The rows are data: a new one is a case more in `src/vitrail/studies/bench/rows.py`.
"""
NOTES = {"cpu": "Other programs used the same cores meanwhile: the ranges are wide, and ratios say more than numbers."}
ORDER = {"cuda": 0, "cpu": 1}


def kept() -> list[tuple[str, dict[str, Any]]]:
    """Give the benches by name, those of GPUs first."""
    found = [(path.parent.name, json.loads(path.read_text())) for path in sorted((HERE / "bench").glob("*/bench.json"))]
    assert all(document["format"] == FORMAT for _, document in found)
    return sorted(found, key=lambda each: ORDER[each[1]["machine"]["kind"]])


def page() -> str:
    """Give the page."""
    parts = [f"# Performance\n\n{HEAD}"]
    for name, document in kept():
        machine = document["machine"]
        shown = machine["device"] if machine["kind"] != "cpu" else f"{machine['cores']} cores of {machine['processor']}"
        note = f"{NOTES[name]}\n\n" if name in NOTES else ""
        parts.append(f"## {shown}\n\n{note}{markdown(document, f'performance/{name}-')}")
    return "\n".join(parts)


def pictures() -> Iterator[tuple[str, bytes]]:
    """Draw every plot."""
    for name, document in kept():
        for plot, png in plots(document["rows"], "light").items():
            yield f"{name}-{plot}.png", png


if __name__ == "__main__":
    PAGE.write_text(page())
    FIGURES.mkdir(exist_ok=True)
    for file in FIGURES.iterdir():
        file.unlink()
    for file, png in pictures():
        (FIGURES / file).write_bytes(png)
