"""Files of strangers' models, and what their authors would say of them."""

from pathlib import Path

import strangers_more as more
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vitrail.checkpoint.archives.base import open_archive
from vitrail.checkpoint.description import Proposal
from vitrail.checkpoint.proposing.propose import propose
from vitrail.config.name_tables import Choices, NamesTable

IMAGES = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(3))


def made(name: str) -> nn.Module:
    """Make a stranger's model, all of whose parameters are random."""
    torch.manual_seed(5)
    model = {**more.HELD, **more.WRONG, **more.NONE}[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return model


def written(model: nn.Module, path: Path) -> Path:
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)
    return path


def proposed(path: Path) -> Proposal:
    with open_archive(path) as archive:
        return propose(archive.entries)


def table_of(path: Path) -> NamesTable:
    found = proposed(path)
    assert found.table is not None, found.reason
    return found.table


def told(name: str, table: NamesTable) -> NamesTable:
    """Settle what is open as the model's author would."""
    known = {**more.USUAL, **more.KNOWN.get(name, {})}
    return table.settled({point: known[point] for point in table.open})


def few(name: str, table: NamesTable) -> NamesTable:
    """Leave two choices of each open point, the right one last, so that a search is short."""
    known = {**more.USUAL, **more.KNOWN.get(name, {})}
    narrow: dict[str, object] = {}
    for point, choices in table.open.items():
        others = [choice for choice in choices if choice != known[point]]
        wanted = point in ("heads", "pooling", "norm", "scale", "activation", "patch") and bool(others)
        narrow[point] = Choices((others[0], known[point])) if wanted else known[point]
    return table.settled(narrow)


@torch.inference_mode()
def output(model: nn.Module) -> Tensor:
    return model(IMAGES)


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
