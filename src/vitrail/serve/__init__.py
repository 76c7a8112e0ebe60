"""Models by HTTP: `create_app` gives an ASGI application, `run` serves it as `vitrail serve` does."""

from vitrail.serve.app import create_app
from vitrail.serve.server import run

__all__ = ["create_app", "run"]
