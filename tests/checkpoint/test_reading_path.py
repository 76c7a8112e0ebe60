"""How far one must read to know how the model in the box is opened, and how often its file is opened for it."""

import subprocess
import sys
from pathlib import Path
from types import FrameType

import pytest

import vitrail
from vitrail.checkpoint import open_checkpoint
from vitrail.checkpoint.run_folder import BOX
from vitrail.errors import CheckpointError
from vitrail.files.hashes import sha256_of

HOUSE = str(Path(vitrail.__file__).parent / "checkpoint")
WATCH = """
import sys
import vitrail
from vitrail.checkpoint import open_checkpoint

seen = []
sys.addaudithook(lambda event, args: seen.append(str(args[0])) if event == "open" else None)
with open_checkpoint("vitrail-ti8") as checkpoint:
    assert checkpoint.config.classes == 200
    assert checkpoint.configure(num_classes=3).classes == 3
    assert len(checkpoint.sha256) == 64
    assert checkpoint.model(classes=3, image_size=64).config.image_size == (64, 64)
print(sum(name.endswith("weights.safetensors") for name in seen))
"""


def test_the_model_in_the_box_is_opened_by_six_files() -> None:
    vitrail.load("vitrail-ti8", classes=3)  # so that every module is imported
    entered: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(HOUSE):
            entered.add(frame.f_code.co_filename.removeprefix(HOUSE)[1:])

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        vitrail.load("vitrail-ti8", classes=3)
    finally:
        sys.setprofile(before)
    names = {"adapt", "archives/base", "load", "new_head", "rows", "run_folder"}
    assert entered == {f"{name}.py" for name in names}


def test_config_checksum_and_model_open_the_weights_once_and_hash_them_once() -> None:
    done = subprocess.run([sys.executable, "-c", WATCH], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 1


def test_an_open_checkpoint_gives_what_load_gives() -> None:
    with open_checkpoint("vitrail-ti8") as checkpoint:
        once, again = checkpoint.model(classes=5), checkpoint.model()
        assert checkpoint.sha256 == sha256_of(BOX / "vitrail-ti8" / "weights.safetensors")
    for model, other in ((once, vitrail.load("vitrail-ti8", classes=5)), (again, vitrail.load("vitrail-ti8"))):
        assert model.config == other.config
        assert model.card == other.card
        assert all(tensor.equal(other.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_a_closed_checkpoint_still_says_what_it_is_and_reads_no_weights() -> None:
    with open_checkpoint("vitrail-ti8") as checkpoint:
        pass
    assert checkpoint.config.classes == 200
    with pytest.raises(CheckpointError, match="is closed: its weights can be read no more"):
        checkpoint.model()
