"""Names of what a run trains: those of the model as they are, those of an objective's own parts apart."""

from collections.abc import Iterator

from torch import nn

ENCODER, OWN = "encoder.", "objective."


def own_names(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Give every parameter by its name in the model, and by objective.NAME where it is none of the model's.

    A module that trains a model for an objective has it as `encoder`; any other is the model.
    """
    wraps = isinstance(getattr(module, ENCODER[:-1], None), nn.Module)
    for name, parameter in module.named_parameters():
        if not wraps:
            yield name, parameter
        elif name.startswith(ENCODER):
            yield name.removeprefix(ENCODER), parameter
        else:
            yield OWN + name, parameter


def is_own(name: str) -> bool:
    """Tell the parameters of an objective from those of the model."""
    return name.startswith(OWN)
