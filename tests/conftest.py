"""Shapes in signatures are checked under pytest: this hook must come before any import of the package."""

import gc
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import jaxtyping
import pytest
import torch

if find_spec("beartype"):  # in the project's own environment; a borrowed one may lack it
    # Of the modules that have shapes: the check takes longer than most functions do.
    SOURCE = Path(find_spec("vitrail").submodule_search_locations[0])  # pyright: ignore
    SHAPES = [path for path in SOURCE.rglob("*.py") if "from jaxtyping" in path.read_text(encoding="utf-8")]
    NAMES = [".".join(path.relative_to(SOURCE.parent).with_suffix("").parts) for path in SHAPES]
    jaxtyping.install_import_hook(NAMES, "typecheck.check")

try:
    import torchvision  # noqa: F401
except (ImportError, RuntimeError):
    # The wheel that timm brings cannot load its operators beside a CPU torch, and then timm and transformers cannot be
    # imported either; with these two declared (and kept alive) it can.
    OPERATORS = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        OPERATORS.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    for module in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[module]

gc.disable()  # until all is imported

# The same examples every time; no deadline, since a first convolution warms up its library.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.load_profile("repeatable")


def pytest_collection_finish() -> None:
    """Spare the garbage collector what is imported, which stays: looking through it takes a quarter of a second."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(700, 10, 100)  # all the rest is looked through a tenth as often


@pytest.fixture(autouse=True, scope="session")
def unsynced() -> Iterator[None]:
    """Spare the disk: no test loses its power. Those that ask whether files are synced replace this again."""
    synced, os.fsync = os.fsync, lambda file: None
    yield
    os.fsync = synced


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Give every test the same random numbers, whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture
def untyped() -> Iterator[None]:
    """Switch the shape checks off: torch.compile and torch.export cannot trace them, and refusals come before them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
