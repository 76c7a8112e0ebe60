"""Vitrail: the whole system of "An Image is Worth 16x16 Words" (ICLR 2021, arXiv 2010.11929).

The letters for axes, in every signature and shape comment:

    B  batch              T  tokens (patches, and the class token)
    C  channels           D  width of a token
    H  W  pixels          L  depth
    P  patch side         h  heads
    N  patches            d  features per head
    K  classes            rows cols  the grid of patches, N = rows * cols
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail import evaluation as evaluation, inspection as inspection
    from vitrail.checkpoint import convert as convert, load as load, save as save
    from vitrail.config import names as names
    from vitrail.errors import (
        CheckpointError as CheckpointError,
        ConfigError as ConfigError,
        DataError as DataError,
        ShapeError as ShapeError,
        VitrailError as VitrailError,
    )
    from vitrail.exports.run import export as export
    from vitrail.models import create as create
    from vitrail.studies.bench.run import bench as bench, list_bench as list_bench
    from vitrail.studies.run import list_studies as list_studies, study as study, study_costs as study_costs
    from vitrail.verbs.calibrate import calibrate as calibrate
    from vitrail.verbs.data import check_data as check_data, pack_data as pack_data
    from vitrail.verbs.demo import demo as demo
    from vitrail.verbs.describe import describe as describe
    from vitrail.verbs.evaluate import evaluate as evaluate
    from vitrail.verbs.features import fewshot as fewshot, verify as verify
    from vitrail.verbs.inspect import inspect as inspect
    from vitrail.verbs.listing import list_models as list_models, list_recipes as list_recipes
    from vitrail.verbs.optimize import optimize as optimize
    from vitrail.verbs.plan import plan as plan
    from vitrail.verbs.predict import embed as embed, predict as predict
    from vitrail.verbs.selftrain import selftrain as selftrain
    from vitrail.verbs.soup import soup as soup
    from vitrail.verbs.training import Run as Run, finetune as finetune, pretrain as pretrain
    from vitrail.verbs.transfer import transfer as transfer, vtab as vtab

__version__ = "0.1.0"

# Where each public name lives. Imported on first use, so that configurations need no torch and `--help` is instant.
_NAMES = {
    "vitrail.checkpoint": "convert load save",
    "vitrail.config": "names",
    "vitrail.errors": "CheckpointError ConfigError DataError ShapeError VitrailError",
    "vitrail.exports.run": "export",
    "vitrail.models": "create",
    "vitrail.studies.bench.run": "bench list_bench",
    "vitrail.studies.run": "list_studies study study_costs",
    "vitrail.verbs.calibrate": "calibrate",
    "vitrail.verbs.data": "check_data pack_data",
    "vitrail.verbs.demo": "demo",
    "vitrail.verbs.describe": "describe",
    "vitrail.verbs.evaluate": "evaluate",
    "vitrail.verbs.features": "fewshot verify",
    "vitrail.verbs.inspect": "inspect",
    "vitrail.verbs.listing": "list_models list_recipes",
    "vitrail.verbs.optimize": "optimize",
    "vitrail.verbs.plan": "plan",
    "vitrail.verbs.selftrain": "selftrain",
    "vitrail.verbs.soup": "soup",
    "vitrail.verbs.predict": "embed predict",
    "vitrail.verbs.training": "Run finetune pretrain",
    "vitrail.verbs.transfer": "transfer vtab",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
# Other libraries' words for these.
_WORDS = {"create_model": "create", "from_pretrained": "load", "load_model": "load"}
_WORDS |= {"compile": "optimize", "quantize": "optimize", "accelerate": "optimize"}
_WORDS |= {"fine_tune": "finetune", "fit": "finetune", "classify": "predict", "save_model": "save", "test": "evaluate"}
# Parts whose functions are called by their own names: vitrail.evaluation.fewshot.
_PARTS = ("evaluation", "inspection")
__all__ = [*_HOMES, *_PARTS]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    """Import a public name on its first use (PEP 562)."""
    if name in _PARTS:
        return import_module(f"vitrail.{name}")
    if name not in _HOMES:
        hint = f". Did you mean vitrail.{_WORDS[name]}?" if name in _WORDS else ""
        raise AttributeError(f"module 'vitrail' has no attribute {name!r}{hint}", name=name, obj=sys.modules[__name__])
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted([*__all__, "__version__"])
