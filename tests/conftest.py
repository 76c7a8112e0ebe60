"""Shapes in signatures are checked under pytest: this hook must come before any import of the package."""

from collections.abc import Iterator
from importlib.util import find_spec

import hypothesis
import jaxtyping
import pytest
import torch

if find_spec("beartype"):  # in the project's own environment; a borrowed one may lack it
    jaxtyping.install_import_hook("vitrail", "typecheck.check")

# The same examples every time; no deadline, since a first convolution warms up its library.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.load_profile("repeatable")


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
