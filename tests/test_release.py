"""A release: one version everywhere, a citation that can be read, a wheel that works where it is put."""

import datetime
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import vitrail

ROOT = Path(__file__).parents[1]
TOOL = ROOT / ".ci/release.py"
RELEASE = runpy.run_path(str(TOOL))


def test_package_changes_and_citation_have_one_version() -> None:
    assert RELEASE["versions"]() == vitrail.__version__


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("src/vitrail/__init__.py", '"0.1.0"', '"0.2.0"', "the package is 0.2.0; the newest entry of CHANGELOG.md"),
        ("CHANGELOG.md", "## 0.1.0 (", "## 0.0.9 (", "the newest entry of CHANGELOG.md is"),
        ("CITATION.cff", 'version: "0.1.0"', 'version: "0.0.9"', "CITATION.cff says"),
        ("CITATION.cff", 'date-released: "', 'date-released: "1', "CITATION.cff says"),
    ],
)
def test_versions_that_differ_are_refused(file: str, old: str, new: str, said: str, tmp_path: Path) -> None:
    for name in ("src/vitrail/__init__.py", "CHANGELOG.md", "CITATION.cff"):
        text = (ROOT / name).read_text().replace(vitrail.__version__, "0.1.0")
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert RELEASE["versions"](tmp_path) == "0.1.0"
    text = (tmp_path / file).read_text()
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new, 1))
    with pytest.raises(RELEASE["Refused"], match=said):
        RELEASE["versions"](tmp_path)


def test_the_citation_can_be_read() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "version", "date-released", "license"} <= citation.keys()
    assert datetime.date.fromisoformat(citation["date-released"])
    assert len(citation["preferred-citation"]["authors"]) == 12  # of the paper


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None or not (ROOT / ".git").exists(), reason="no git")
def test_a_release_is_built_compared_and_used(tmp_path: Path) -> None:
    command = [sys.executable, TOOL, tmp_path / "dist", "--dirty"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    names = {path.name for path in (tmp_path / "dist").iterdir()}
    version = vitrail.__version__
    assert names == {f"vitrail-{version}-py3-none-any.whl", f"vitrail-{version}.tar.gz", "SHA256SUMS"}
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=tmp_path / "dist", check=True)
