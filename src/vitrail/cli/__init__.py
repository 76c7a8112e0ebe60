"""The command line: thin functions, rendering for people, and the only place that exits."""

from vitrail.cli.app import main

__all__ = ["main"]
