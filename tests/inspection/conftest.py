"""What tests of pictures share."""

import pytest


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw coarsely, which is faster."""
    monkeypatch.setattr("vitrail.figures.DPI", 24)
    monkeypatch.setattr("vitrail.figures.LAYOUT", None)
