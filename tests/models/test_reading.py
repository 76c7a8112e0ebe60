"""Reading a model takes few files: those that its forward pass, or a step of training, enters."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import vitrail
from vitrail.models import give_keys
from vitrail.ops.losses import loss_of

SOURCE = Path(vitrail.__file__).parent


def files_entered(call: Callable[[], object]) -> set[Path]:
    """List the package's files of which a function runs during a call."""
    entered: set[str] = set()
    sys.setprofile(lambda frame, event, argument: entered.add(frame.f_code.co_filename))
    try:
        call()
    finally:
        sys.setprofile(None)
    return {Path(name).relative_to(SOURCE) for name in entered if Path(name).is_relative_to(SOURCE)}


@pytest.mark.usefixtures("untyped")
def test_a_plain_vits_forward_pass_is_read_in_six_files_and_700_lines() -> None:
    model, images = vitrail.create("ViT-B/16").eval(), torch.zeros(1, 3, 224, 224)
    with torch.no_grad():
        files = files_entered(lambda: model(images))
    files |= {Path("models/base.py")}  # what the class says of itself, entered or not
    assert len(files) <= 6, files
    assert sum(len((SOURCE / file).read_text().splitlines()) for file in files) <= 700, files
    assert {str(file) for file in files} >= {"models/vit.py", "models/encoder.py", "ops/attention.py"}


@pytest.mark.usefixtures("untyped")
def test_a_training_step_enters_little_more() -> None:
    model = vitrail.create("ViT-Ti/16", image_size=32, depth=2, classes=3, stochastic_depth=0.1).train()
    images, targets = torch.zeros(4, 3, 32, 32), torch.eye(3)[[0, 1, 2, 0]]

    def step() -> None:
        give_keys(model, torch.arange(4))
        loss_of(model(images), targets, "softmax").mean().backward()

    files = {str(file) for file in files_entered(step)}
    assert {name for name in files if name.startswith("models/")} == {
        f"models/{name}.py" for name in ("vit", "base", "encoder", "positions")
    }
    assert {name for name in files if name.startswith("ops/")} <= {
        f"ops/{name}.py" for name in ("attention", "patches", "random", "losses", "constants")
    }
