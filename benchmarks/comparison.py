"""The table of the README: the authors' weights in five libraries, measured.

`python benchmarks/comparison.py --out results/comparison.json`; with `--jax FOLDER` for folders that hold JAX, Flax and
clones of google-research/vision_transformer and google-research/big_vision, which are left out without. Each column is
a process of its own. `python results/comparison.py` then writes the table into the READMEs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import reduce
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
# From the names of today's code to those of the released files.
RELEASED = {"LayerNorm_1": "LayerNorm_2", "MlpBlock_0": "MlpBlock_3", "Attention_0": "Attention_1"}
CASE = "vit_ti16_224"  # whose answers are those of the authors' own code
LARGER = 384  # pixels of the images that positions are resampled for
LIBRARIES = ("vitrail", "timm", "transformers", "big_vision", "vit_jax")
Column = dict[str, Any]


def lines_of(package: str, run: Callable[[], object]) -> int:
    """Count the lines of a package's own files that a call passes through."""
    found: set[tuple[str, int]] = set()
    home = str(Path(import_module(package).__file__ or "").parent)

    def watch(frame: Any, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(home):
            return None
        if event == "line":
            found.add((frame.f_code.co_filename, frame.f_lineno))
        return watch

    sys.settrace(watch)
    try:
        run()
    finally:
        sys.settrace(None)
    return len(found)


def largest(one: Any, other: Any) -> float:
    """Give the largest difference of two arrays."""
    return float(np.abs(np.asarray(one, np.float64) - np.asarray(other, np.float64)).max())


def resampled(table: np.ndarray, side: int) -> np.ndarray:
    """Resample positions as the authors' code does, with its own library: T D, the class token first."""
    import scipy.ndimage

    old = int((len(table) - 1) ** 0.5)
    grid = table[1:].reshape(old, old, -1)
    larger: Any = scipy.ndimage.zoom(grid, (side / old, side / old, 1), order=1)
    return np.concatenate([table[:1], larger.reshape(side * side, -1)])


def vitrail_column(file: Path, images: np.ndarray, answers: Any, table: np.ndarray) -> Column:
    """Measure Vitrail."""
    import torch

    import vitrail

    pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
    model, larger = vitrail.load(file).eval(), vitrail.load(file, image_size=LARGER)
    positions = larger.state_dict()["positions.table.0"]
    with torch.no_grad():
        return {
            "logits": largest(model(pixels), answers),
            "positions": largest(positions, resampled(table, LARGER // 16)),
            "lines": lines_of("vitrail", lambda: model(pixels)),
            "version": metadata.version("vitrail"),
        }


def timm_column(file: Path, images: np.ndarray, answers: Any, table: np.ndarray) -> Column:
    """Measure timm."""
    import torch

    from vitrail.studies.bench.peers import mend_torchvision

    mend_torchvision()
    timm = import_module("timm")
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=len(answers[0]), checkpoint_path=str(file)).eval()
    larger = timm.create_model(
        "vit_tiny_patch16_224", num_classes=len(answers[0]), img_size=LARGER, checkpoint_path=str(file)
    )
    with torch.no_grad():
        return {
            "logits": largest(model(pixels), answers),
            "positions": largest(larger.pos_embed[0], resampled(table, LARGER // 16)),
            "lines": lines_of("timm", lambda: model(pixels)),
            "version": timm.__version__,
        }


def transformers_column(file: Path, images: np.ndarray, answers: Any, table: np.ndarray) -> Column:
    """Measure transformers, which is given a folder of its own kind: it does not open the authors' file."""
    import torch

    import vitrail
    from vitrail.studies.bench.peers import mend_torchvision

    mend_torchvision()
    transformers = import_module("transformers")
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
    try:
        transformers.ViTForImageClassification.from_pretrained(str(file))
        opens = True
    except Exception:  # whatever it says: it does not
        opens = False
    folder = file.with_name("for-transformers")
    vitrail.convert(file, folder, layout="hf")
    model = transformers.ViTForImageClassification.from_pretrained(folder).eval()
    embeddings = model.vit.embeddings
    with torch.no_grad():
        tokens = torch.zeros(1, (LARGER // 16) ** 2 + 1, table.shape[1])
        larger = embeddings.interpolate_pos_encoding(tokens, LARGER, LARGER)[0]
        return {
            "opens": opens,
            "logits": largest(model(pixels).logits, answers),
            "positions": largest(larger, resampled(table, LARGER // 16)),
            "lines": lines_of("transformers", lambda: model(pixels)),
            "version": transformers.__version__,
        }


def nested(file: Path) -> dict[str, Any]:
    """Read an archive of names with strokes as dictionaries in dictionaries."""
    tree: dict[str, Any] = {}
    with np.load(file) as arrays:
        for name in arrays.files:
            *path, last = name.split("/")
            reduce(lambda inside, step: inside.setdefault(step, {}), path, tree)[last] = arrays[name]
    return tree


def big_vision_column(file: Path, images: np.ndarray, answers: Any, table: np.ndarray) -> Column:
    """Measure big_vision."""
    vit = import_module("big_vision.models.vit")
    weights = vit.fix_old_checkpoints(nested(file))
    model = vit.Model(len(answers[0]), variant="Ti/16", pool_type="tok")
    side = LARGER // 16
    larger = vit.resample_posemb(np.asarray(weights["pos_embedding"]), np.empty((1, side * side, table.shape[1])))
    return {
        "logits": largest(model.apply({"params": weights}, images)[0], answers),
        "positions": largest(larger[0], resampled(table, side)[1:]),
        "lines": lines_of("big_vision.models", lambda: model.apply({"params": weights}, images)),
        "version": "",
    }


def vit_jax_column(file: Path, images: np.ndarray, answers: Any, table: np.ndarray) -> Column:
    """Measure the authors' code as it is today: the answers were given by it, on another machine."""
    models = import_module("vit_jax.models_vit")
    patches = type("Patches", (), {"size": (16, 16)})()
    encoder = {"num_layers": 12, "mlp_dim": 768, "num_heads": 3, "dropout_rate": 0.0, "attention_dropout_rate": 0.0}
    model = models.VisionTransformer(
        num_classes=len(answers[0]), patches=patches, transformer=encoder, hidden_size=192, classifier="token"
    )
    weights = import_module("flax.training.checkpoints").convert_pre_linen(nested(file))
    return {
        "logits": largest(model.apply({"params": weights}, images, train=False), answers),
        "positions": 0.0,  # the function that all are compared with is its own
        "lines": lines_of("vit_jax", lambda: model.apply({"params": weights}, images, train=False)),
        "version": "",
    }


def column(library: str) -> Column:
    """Measure one library in this process."""
    sys.path.insert(0, str(ROOT / "tests"))
    cases = import_module("reference.cases")
    case = cases.read(CASE)
    weights: Mapping[str, np.ndarray] = cases.weights_of(CASE)
    (table,) = weights["Transformer/posembed_input/pos_embedding"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ViT-Ti_16.npz"
        names = {name: reduce(lambda text, pair: text.replace(*pair), RELEASED.items(), name) for name in weights}
        np.savez(file, **{names[name]: array for name, array in weights.items()})  # pyright: ignore[reportArgumentType]
        measure: Callable[..., Column] = globals()[f"{library}_column"]
        return measure(file, cases.draw_images(case), case["answers"]["logits"], table)


def main() -> None:
    """Measure every library that there is, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jax", action="append", default=[], help="a folder for sys.path, for JAX and the clones")
    parser.add_argument("--only", choices=LIBRARIES, help="print one column")
    asked = parser.parse_args()
    if asked.only:
        sys.path[:0] = asked.jax
        sys.stdout.write(f"\n{json.dumps(column(asked.only))}")
        return
    columns = {}
    for library in LIBRARIES:
        words = [sys.executable, __file__, "--only", library]
        words += [word for folder in asked.jax for word in ("--jax", folder)] if library in LIBRARIES[3:] else []
        run = subprocess.run(words, capture_output=True, text=True, check=False)
        if run.returncode:
            sys.stderr.write(f"{library} is left out: {run.stderr.strip().splitlines()[-1]}\n")
        else:
            columns[library] = json.loads(run.stdout.splitlines()[-1])
    document = {"format": "vitrail comparison 1", "case": CASE, "larger": LARGER, "columns": columns}
    text = json.dumps(document, indent=1) + "\n"
    if asked.out:
        asked.out.write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
