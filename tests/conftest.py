"""Shapes in signatures are checked under pytest: this hook must come before any import of the package."""

from collections.abc import Iterator

import jaxtyping
import pytest

jaxtyping.install_import_hook("vitrail", "typecheck.check")


@pytest.fixture
def untyped() -> Iterator[None]:
    """Switch the shape checks off: torch.compile and torch.export cannot trace them, and refusals come before them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
