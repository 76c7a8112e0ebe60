"""docs/look-inside.ipynb runs from top to bottom, and prints what is kept in it."""

import copy
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
TOOL = ROOT / "docs/tools/notebook.py"
NOTEBOOK = json.loads((ROOT / "docs/look-inside.ipynb").read_text())


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebook_tool", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_notebook_runs_and_prints_what_is_kept(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "docs")
    again = copy.deepcopy(NOTEBOOK)
    tool.run(again)
    assert tool.printed(again) == tool.printed(NOTEBOOK)
    assert (
        sum("image/png" in output.get("data", {}) for cell in tool.code_cells(again) for output in cell["outputs"]) > 4
    )


def test_a_notebook_is_one_that_jupyter_opens() -> None:
    assert (NOTEBOOK["nbformat"], NOTEBOOK["metadata"]["kernelspec"]["name"]) == (4, "python3")
    for number, cell in enumerate((cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"), 1):
        assert cell["execution_count"] == number
        assert {output["output_type"] for output in cell["outputs"]} <= {"stream", "execute_result", "display_data"}


def test_a_cell_keeps_what_it_prints_its_last_value_and_its_figures(tool: ModuleType) -> None:
    source = ["print('one')\n", "2 + 3"]
    figure = "import matplotlib.pyplot as plt\nplt.plot([1, 2])"
    cells = [{"cell_type": "code", "source": source}, {"cell_type": "code", "source": [figure]}]
    notebook = {"cells": [{"cell_type": "markdown", "source": ["# Title"]}, *cells]}
    tool.run(notebook)
    assert tool.printed(notebook) == ["one\n", "5", "<Figure>"]
    text, pictures = tool.as_markdown(copy.deepcopy(notebook), "page")
    assert text.startswith("# Title\n\n```python\nprint('one')\n2 + 3\n```\n\n```text\none\n```\n\n```text\n5\n```")
    assert text.rstrip().endswith("(page-0.png)")
    assert pictures["page-0.png"].startswith(b"\x89PNG")
