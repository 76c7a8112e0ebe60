"""How results and errors look to people."""

from rich.console import Console
from rich.text import Text


def show_error(message: str) -> None:
    """Print an error on standard error: one line for a program, coloured for a terminal."""
    Console(stderr=True, soft_wrap=True).print(Text.assemble(("error: ", "bold red"), message))
