"""The set-up: the pinned torch, what an import loads, the public names."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import vitrail

ROOT = Path(__file__).parents[1]


OWN = pytest.mark.skipif(Path(sys.prefix) != ROOT / ".venv", reason="only the project's own environment is pinned")


@OWN
def test_the_environment_has_the_pinned_torch() -> None:
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE))
    assert torch.__version__.split("+")[0] == pins["torch"] == "2.13.0"


def test_a_model_costs_little_to_import_beside_torch() -> None:
    code = "import sys, torch; before = set(sys.modules); import vitrail; vitrail.create; vitrail.load; vitrail.names"
    code += "; print(*(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = run.stdout.split()
    packages = {name.split(".")[0] for name in loaded} - sys.stdlib_module_names
    assert packages <= {"vitrail", "jaxtyping", "numpy"}
    assert len(loaded) <= 100  # what they are is up to them; how many is what a start costs


def test_every_public_name_is_there() -> None:
    for name in vitrail.__all__:
        assert getattr(vitrail, name) is not None
    assert {*vitrail.__all__, "__version__"} == set(dir(vitrail))
    with pytest.raises(AttributeError, match="no attribute 'crate'"):
        _ = vitrail.crate  # pyright: ignore[reportAttributeAccessIssue]
