"""Notebooks without a kernel: `python docs/tools/notebook.py docs/look-inside.ipynb` runs one and keeps what it shows.

Cells run from top to bottom in one namespace. A cell shows what it prints, the value of its last line, and its figures;
a test runs the notebook again and compares what was printed.
"""

import ast
import base64
import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """List the cells of code."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def shown(value: object) -> list[dict[str, Any]]:
    """Give the output of a cell's last value: a picture where it is one, else its text."""
    if value is None:
        return []
    data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
    if picture := getattr(value, "_repr_png_", lambda: None)():
        data = {"image/png": base64.b64encode(picture).decode(), "text/plain": [f"<{type(value).__name__}>"]}
    return [{"output_type": "execute_result", "execution_count": None, "metadata": {}, "data": data}]


def figures() -> list[dict[str, Any]]:
    """Give the figures that are open, and close them."""
    import matplotlib.pyplot as plt

    found = []
    for number in plt.get_fignums():
        file = io.BytesIO()
        plt.figure(number).savefig(file, format="png", dpi=80, bbox_inches="tight", metadata={"Software": None})
        data = {"image/png": base64.b64encode(file.getvalue()).decode(), "text/plain": ["<Figure>"]}
        found.append({"output_type": "display_data", "metadata": {}, "data": data})
    plt.close("all")
    return found


def run(notebook: dict[str, Any]) -> None:
    """Run every cell, and put into each what it shows."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["figure.max_open_warning"] = 0
    names: dict[str, Any] = {"__name__": "__main__"}
    for count, cell in enumerate(code_cells(notebook), 1):
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        said, value = io.StringIO(), None
        with contextlib.redirect_stdout(said):
            exec(compile(tree, f"<cell {count}>", "exec"), names)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), f"<cell {count}>", "eval"), names)
        drawn = figures()
        printed = said.getvalue().splitlines(keepends=True)
        stream = [{"output_type": "stream", "name": "stdout", "text": printed}] if printed else []
        results = [] if drawn else shown(value)
        cell["execution_count"] = count
        cell["outputs"] = [*stream, *({**each, "execution_count": count} for each in results), *drawn]


def printed(notebook: dict[str, Any]) -> list[str]:
    """List what the cells printed, and the values that they ended with."""
    texts = []
    for cell in code_cells(notebook):
        for output in cell["outputs"]:
            texts.append("".join(output["text"] if "text" in output else output["data"]["text/plain"]))
    return texts


def as_markdown(notebook: dict[str, Any], stem: str) -> tuple[str, dict[str, bytes]]:
    """Give a notebook as a page, and the pictures that it shows by their names."""
    parts, pictures = [], {}
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            if "image/png" in output.get("data", {}):
                name = f"{stem}-{len(pictures)}.png"
                pictures[name] = base64.b64decode(output["data"]["image/png"])
                parts.append(f"![What the cell above draws]({name})")
            else:
                said = "".join(output["text"] if "text" in output else output["data"]["text/plain"])
                parts.append(f"```text\n{said.rstrip()}\n```")
    return "\n\n".join(parts) + "\n", pictures


def main(path: Path) -> None:
    """Run a notebook in its folder and write it with what it shows."""
    notebook = json.loads(path.read_text())
    os.chdir(path.parent)
    run(notebook)
    Path(path.name).write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
