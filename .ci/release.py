"""Build a release and try it: `python .ci/release.py dist`, which `make release` runs. No network is needed.

Wheel and sdist are built, compared with what git has and with each other, and the wheel is installed apart and used.
"""

import argparse
import email
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What the wheel must have besides code: the model and the images in the box, pages, the mark of types.
NEEDED = (
    "box/vitrail-ti8/weights.safetensors",
    "data/sample/fashion.npz",
    "py.typed",
    "serve/page",
    "inspection/template",
)
USED = """
import sys, vitrail
assert vitrail.__file__.startswith(sys.argv[1]), vitrail.__file__
assert vitrail.__version__ == sys.argv[2], vitrail.__version__
photo = vitrail.predict("vitrail-ti8", sys.argv[3])[0]
assert photo.label and 0 < photo.probability <= 1
print(f"{photo.label} {photo.probability:.3f}")
"""


class Refused(Exception):  # noqa: N818, as it is no error of the program
    """A release that must not be: the message says why."""


def versions(root: Path = ROOT) -> str:
    """Give the version that the package, the newest entry of the changes and the citation share, with its date."""
    (package,) = re.findall(r'^__version__ = "([^"]+)"', (root / "src/vitrail/__init__.py").read_text(), flags=re.M)
    entries = re.findall(r"^## (\S+) \((\d{4}-\d\d-\d\d)\)$", (root / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    citation = (root / "CITATION.cff").read_text()
    cited = tuple(
        re.findall(rf'^{field}: "([^"]+)"$', citation, flags=re.M)[0] for field in ("version", "date-released")
    )
    if not entries or entries[0][0] != package:
        raise Refused(f"the package is {package}; the newest entry of CHANGELOG.md is {entries[:1]}. Write one for it.")
    if cited != entries[0]:
        raise Refused(f"CITATION.cff says {cited}; CHANGELOG.md {entries[0]}. Set version and date-released.")
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", package):
        raise Refused(f"{package!r} is no version: expected MAJOR.MINOR.PATCH, with a1, b1 or rc1 behind it or not.")
    return package


def git(*words: str) -> str:
    """Ask git."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def build(source: Path, target: Path, *, stamp: str) -> tuple[Path, Path]:
    """Build wheel and sdist of a tree; the same tree gives the same bytes."""
    target.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": stamp}
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(target)]
    run = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    if run.returncode:
        raise Refused(f"the build failed:\n{run.stdout}{run.stderr}")
    (wheel,), (sdist,) = target.glob("*.whl"), target.glob("*.tar.gz")
    return wheel, sdist


def digest(path: Path) -> str:
    """Give a file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_wheel(wheel: Path, tracked: Iterable[str], version: str) -> None:
    """See that the wheel has what git has of the package, and nothing else; and what it says of itself."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        about = f"vitrail-{version}.dist-info/"
        said = email.message_from_bytes(archive.read(f"{about}METADATA"))
        commands = archive.read(f"{about}entry_points.txt").decode()
    own = {name for name in names if not name.startswith(about)}
    wanted = {name.removeprefix("src/") for name in tracked if name.startswith("src/vitrail/")}
    if own != wanted:
        raise Refused(f"the wheel lacks {sorted(wanted - own)[:5]}, and has {sorted(own - wanted)[:5]} beside.")
    if missing := [name for name in NEEDED if not any(each.startswith(f"vitrail/{name}") for each in own)]:
        raise Refused(f"the wheel has no {', '.join(missing)}.")
    if said["Version"] != version or said["Name"] != "vitrail" or "vitrail = vitrail.cli:main" not in commands:
        raise Refused(f"the wheel says it is {said['Name']} {said['Version']}, with the commands {commands!r}.")
    if f"{about}licenses/LICENSE" not in names:
        raise Refused("the wheel has no license.")


def check_sdist(sdist: Path, tracked: Iterable[str], version: str) -> None:
    """See that the sdist has all that git has, but for its own files and hidden ones."""
    with tarfile.open(sdist) as archive:
        names = {name.removeprefix(f"vitrail-{version}/") for name in archive.getnames()}
    if missing := sorted(name for name in tracked if name not in names and not name.startswith(".git")):
        raise Refused(
            f"the sdist lacks {', '.join(missing[:5])}. Name it in pyproject.toml, tool.hatch.build.targets.sdist."
        )


def try_wheel(wheel: Path, version: str) -> str:
    """Install the wheel in a folder of its own, beside the packages that it needs, and use it from elsewhere."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder).resolve()
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            "--target",
            home,
            wheel,
        ]
        subprocess.run(command, check=True)
        environment = {**os.environ, "PYTHONPATH": str(home), "VITRAIL_OFFLINE": "1"}
        words = [sys.executable, "-c", USED, str(home), version, str(ROOT / "docs/inspect.jpg")]
        run = subprocess.run(words, cwd=home, env=environment, capture_output=True, text=True, check=False)
        said = subprocess.run(
            [sys.executable, "-m", "vitrail", "--version"],
            cwd=home,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    if run.returncode or said.returncode or version not in said.stdout:
        raise Refused(f"the installed wheel does not work:\n{run.stdout}{run.stderr}{said.stdout}{said.stderr}")
    return run.stdout.strip()


def release(target: Path, *, dirty: bool) -> None:
    """Build, check, try; the files appear in `target` when all is well."""
    version = versions()
    if not dirty and (changed := git("status", "--porcelain").strip()):
        raise Refused(f"the tree has changes that no commit has:\n{changed}\nCommit them, or say --dirty to try.")
    tracked = git("ls-files").splitlines()
    stamp = git("log", "-1", "--format=%ct").strip()
    with tempfile.TemporaryDirectory() as folder:
        wheel, sdist = build(ROOT, Path(folder) / "first", stamp=stamp)
        check_wheel(wheel, tracked, version)
        check_sdist(sdist, tracked, version)
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        again, _ = build(Path(folder) / f"vitrail-{version}", Path(folder) / "second", stamp=stamp)
        if digest(again) != digest(wheel):
            raise Refused("the wheel that the sdist makes is another one. Is a file missing from the sdist?")
        answer = try_wheel(wheel, version)
        target.mkdir(parents=True, exist_ok=True)
        for old in (*target.glob("vitrail-*"), target / "SHA256SUMS"):
            old.unlink(missing_ok=True)
        made = [Path(shutil.copy2(each, target)) for each in (wheel, sdist)]
    (target / "SHA256SUMS").write_text("".join(f"{digest(path)}  {path.name}\n" for path in made))
    sizes = ", ".join(f"{path.name} ({path.stat().st_size / 1e6:.1f} MB)" for path in made)
    sys.stdout.write(f"{sizes} in {target}\nthe wheel, installed apart, says of docs/inspect.jpg: {answer}\n")
    sys.stdout.write(f"next: git tag v{version} && git push --tags; upload with SHA256SUMS beside\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, help="the folder for wheel, sdist and SHA256SUMS")
    parser.add_argument("--dirty", action="store_true", help="also with changes that are not committed, to try")
    asked = parser.parse_args()
    try:
        release(asked.target, dirty=asked.dirty)
    except Refused as refused:
        sys.exit(str(refused))
