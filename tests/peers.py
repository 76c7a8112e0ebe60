"""Models of other libraries with random weights, every one of them different from its first value."""

import os
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vitrail.checkpoint.adapt import Request
from vitrail.checkpoint.archives.base import Archive, Entry
from vitrail.checkpoint.load import recognize
from vitrail.checkpoint.run_folder import Location
from vitrail.config import ModelConfig


def stirred(model: nn.Module) -> nn.Module:
    """Add noise to every weight, so that each of them counts; norms and biases more."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise * (0.02 if parameter.ndim > 1 else 0.1))
    return model.eval()


def timm_model(name: str, **options: Any) -> nn.Module:
    import timm

    return stirred(timm.create_model(name, **options))


def torchvision_model(**options: Any) -> nn.Module:
    from torchvision.models.vision_transformer import VisionTransformer

    return stirred(VisionTransformer(**options))


def hf_model(kind: str, **options: Any) -> nn.Module:
    import transformers

    config = transformers.ViTMAEConfig if "MAE" in kind else transformers.ViTConfig
    return stirred(getattr(transformers, kind)(config(**options)))


def saved(model: nn.Module, path: Path) -> Path:
    """Write a state dict as its library would: safetensors, .pth, or a folder of transformers."""
    if path.suffix == ".safetensors":
        save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, path)
    elif path.suffix == ".pth":
        torch.save(model.state_dict(), path)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.save_pretrained(path)  # pyright: ignore[reportCallIssue]
    return path


def images(height: int, width: int, channels: int = 3, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.rand(batch, channels, height, width, generator=generator) * 2 - 1


class Shapes(Archive):
    """A file without contents."""

    kind = "shapes"

    def read(self, name: str) -> Tensor:
        raise NotImplementedError

    def close(self) -> None:
        pass


def entries_of(model: Any) -> dict[str, Entry]:
    """Names and shapes of a model, or of timm's model of this name."""
    import timm

    if isinstance(model, str):
        with torch.device("meta"):
            model = timm.create_model(model)
    return {key: Entry(tuple(value.shape), value.dtype) for key, value in model.state_dict().items()}


def recognized(name: str, entries: dict[str, Entry], grid: Any = None, **fields: Any) -> ModelConfig:
    location = Location(source=name, weights=Path(name), documents={})
    with open(os.devnull, "rb") as file:
        opened = recognize(location, Shapes(Path(name), file, entries), Request(grid=grid, fields=fields))
    assert opened.check()
    return opened.found.config
