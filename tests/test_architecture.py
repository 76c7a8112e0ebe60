"""The layers of docs/design.md, enforced: what may import what, and what stays without torch."""

import ast
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import vitrail

SOURCE = Path(__file__).parents[1] / "src" / "vitrail"
# Lowest first; rooms on one floor never import each other.
FLOORS: tuple[frozenset[str], ...] = tuple(
    frozenset(floor.split())
    for floor in (
        "errors",
        "files figures",
        "config",
        "ops",
        "data",
        "models",
        "checkpoint",
        "runtime",
        "train",
        "inspection",
        "evaluation",
        "verbs",
        "serve studies exports ray",
        "cli",
    )
)
HEIGHT = {room: height for height, floor in enumerate(FLOORS) for room in floor}
# One third-party library, one door: the modules (or whole rooms) that alone may import it.
DOORS = {
    "PIL": ("data.decode", "data.modes", "data.stacks", "data.mask_files", "data.overlays"),
    "pydicom": ("data.dicom",),
    "tifffile": ("data.stacks",),
    "pyarrow": ("files",),
    "matplotlib": ("figures",),
    "safetensors": ("checkpoint",),
    "huggingface_hub": ("files",),
    "fsspec": ("files.stores",),
    "ray": ("ray",),
    "typer": ("cli",),
    "rich": ("cli", "runtime.reporter"),
    "fastapi": ("serve",),
    "starlette": ("serve",),
    "pydantic": ("serve",),
    "uvicorn": ("serve",),
    "python_multipart": ("serve",),
    "prometheus_client": ("serve",),
    "onnx": ("exports",),
    "onnxruntime": ("exports", "runtime.engines"),
    "openvino": ("exports", "runtime.engines"),
    "timm": ("studies.bench.peers",),
    "transformers": ("studies.bench.peers",),
    "torchvision": ("studies.bench.peers",),
    "wandb": ("runtime.tracking_process",),
    "mlflow": ("runtime.tracking_process",),
    "executorch": ("exports", "runtime.engines"),
}
FILES = sorted(SOURCE.rglob("*.py"))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (public_home(f"{node.module}.{name.name}") for name in node.names)


def public_home(name: str) -> str:
    """Where a name that the package itself offers really lives."""
    package, _, attribute = name.rpartition(".")
    return f"{vitrail._HOMES[attribute]}.{attribute}" if package == "vitrail" and attribute in vitrail._HOMES else name


def breaches(path: Path) -> Iterator[str]:
    module = module_of(path)
    room = module.split(".")[0]
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "vitrail" and len(parts) > 1 and parts[1] in HEIGHT and parts[1] != room:
            if HEIGHT[parts[1]] >= HEIGHT[room]:
                yield f"{module} imports {name}: {parts[1]} is not below {room}"
        elif parts[0] == "torch" and room in ("errors", "files", "config"):
            yield f"{module} imports torch"
        elif parts[0] in DOORS and not any(f"{module}.".startswith(f"{door}.") for door in DOORS[parts[0]]):
            yield f"{module} imports {parts[0]}, whose door is {DOORS[parts[0]]}"


def test_every_room_has_a_floor() -> None:
    rooms = {module_of(path).split(".")[0] for path in FILES} - {"__init__", "__main__"}
    assert rooms <= HEIGHT.keys()


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.parent != SOURCE or path.stem == "errors"], ids=module_of
)
def test_imports_only_point_down(path: Path) -> None:
    assert list(breaches(path)) == []


# What a command may reach beside its own room: public functions, words of configurations and errors, the reporter.
COMMANDS_REACH = ("cli", "verbs", "serve", "config", "errors", "runtime.reporter", "__version__")


@pytest.mark.parametrize("path", [path for path in FILES if path.parent.name == "cli"], ids=module_of)
def test_commands_reach_only_public_functions(path: Path) -> None:
    public = {f"{home}.{name}" for name, home in vitrail._HOMES.items()}
    names = [name.removeprefix("vitrail.") for name in {*imports_of(path)} - public if name.startswith("vitrail.")]
    assert [name for name in names if not f"{name}.".startswith(tuple(f"{room}." for room in COMMANDS_REACH))] == []


def test_a_breach_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = tmp_path / "config"
    room.mkdir()
    bad = room / "bad.py"
    bad.write_text("import torch\nfrom vitrail.models import ViT\nimport PIL.Image\nfrom vitrail import errors, load\n")
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    assert len(list(breaches(bad))) == 4


def test_files_stay_short() -> None:
    assert {path.name: size for path in FILES if (size := len(path.read_text().splitlines())) > 350} == {}


def loaded_after(code: str) -> set[str]:
    shown = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in shown.stdout.split()}


def test_configurations_and_help_need_no_torch() -> None:
    assert "torch" not in loaded_after("import vitrail, vitrail.config; vitrail.config.parse('R50+ViT-B/16')")
    assert "torch" not in loaded_after("from vitrail.cli import main; main(['--help'])")


WRONG = (
    "finetune nowhere",
    "finetune sample --model ViT-Q/3",
    "finetune sample --model nofile.npz",
    "finetune sample --recipe scrach",
    "finetune sample --set rat=1",
    "finetune sample --batch 0",
    "finetune sample --minutes -1",
    "finetune sample --minutes 2 --steps 3",
    "finetune sample --mean 128",
    "pretrain sample --model.dept 3",
    "transfer nowhere --model vitrail-ti8",
    "evaluate nothere sample",
    "evaluate vitrail-ti8 nowhere",
    "evaluate vitrail-ti8 sample --against nothere",
    "predict vitrail-ti8 nothere.jpg",
    "predict nothere photo.jpg",
    "predict vitrail-ti8 photo.jpg --frob",
    "fewshot ViT-B/16 sample",
    "describe nothere.npz",
    "convert nothere.npz out --layout hf",
    "convert vitrail-ti8 out --layout tim",
    "evaluate vitrail-ti8 sample --preprocessing imagenett",
    "plan ViT-Q/3",
    "data check nowhere",
    "nocommand",
    "serve nothere",
    "export nothere",
    "export vitrail-ti8 --to tensorrt",
    "export vitrail-ti8 --loss 1",
    "serve vitrail-ti8 --deadline 0",
    "serve vitrail-ti8 --tls-key nothere",
)


def test_wrong_usage_is_answered_without_torch(tmp_path: Path) -> None:
    code = f"import os; os.chdir({str(tmp_path)!r})\nfrom vitrail.cli import main"
    loaded = loaded_after(f"{code}\nfor line in {WRONG!r}: assert main(line.split()) > 0, line")
    assert "torch" not in loaded
    assert list(tmp_path.iterdir()) == []


def test_importing_the_package_opens_no_door() -> None:
    loaded = loaded_after("import vitrail; vitrail.create, vitrail.load")
    assert loaded & (DOORS.keys() | {"torchvision", "timm", "transformers"}) == set()


@pytest.mark.parametrize("name", ["house", "model"])
def test_pictures_of_the_documents_are_drawn_from_the_code(name: str) -> None:
    docs = Path(__file__).parents[1] / "docs"
    drawn = runpy.run_path(str(docs / f"tools/{name}.py"))["drawn"]()
    assert drawn == (docs / f"{name}.svg").read_text(), f"run: python docs/tools/{name}.py"
