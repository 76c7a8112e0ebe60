"""All that changes in a run and is saved of it; optimizers with the paper's groups, clipping and average; the guard."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm
from torch.optim import AdamW, Optimizer
from torch.optim.swa_utils import get_ema_multi_avg_fn

from vitrail.config import Card
from vitrail.config.check import whole
from vitrail.config.recipe import SGD, Adam, Muon
from vitrail.data.source import Skip
from vitrail.errors import ConfigError
from vitrail.models import Model
from vitrail.models.build import OBJECTIVE, skeleton
from vitrail.models.lora import MARK, changed_names, merge
from vitrail.runtime.machine import distribute_like, gather_over_ranks, gathered, take_own_rank
from vitrail.train.muon import MuonAdamW, packed_matrices

ADAPTER = "adapter/"  # before the names of low-rank changes in a checkpoint
BLOCK = re.compile(r"blocks\.(\d+)\.")
IN_BLOCKS = re.compile(r"(?:.*\.)?blocks\.\d+\.")  # of the model, or of a decoder
WORDS = ("exp_avg", "exp_avg_sq", "momentum_buffer")  # what torch's optimizers call what they remember


def trainable_names(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Give every parameter by its name in the model, or by objective.NAME where the objective adds it.

    A module that trains a model for an objective has it as `encoder`; any other is the model.
    """
    wraps = isinstance(getattr(module, "encoder", None), nn.Module)
    for name, parameter in module.named_parameters():
        inside = name.removeprefix("encoder.")
        yield OBJECTIVE + name if wraps and inside == name else inside, parameter


def is_kernel(name: str, parameter: Tensor) -> bool:
    """Tell matrices and filters from biases, norms, tokens and positions: weight decay is theirs alone."""
    return (name.endswith("weight") or MARK in name) and parameter.ndim > 1 and not name.startswith("positions")


def is_matrix_of_block(name: str, parameter: Tensor) -> bool:
    """Tell the matrices of the blocks, of the model and of what an objective adds; those of low-rank changes aside."""
    inside = IN_BLOCKS.match(name) is not None and name.endswith("weight") and MARK not in name
    return inside and parameter.ndim == 2


def depth_of(name: str, blocks: int) -> int:
    """Give how far a parameter is from the input: 0 for the embedding, then the blocks, then what comes after."""
    if (match := BLOCK.match(name)) is not None:
        return 1 + int(match[1])
    return 0 if name.startswith(("embedding", "class_token", "registers", "positions", "first_norm")) else blocks + 1


def build_optimizer(model: nn.Module, config: Adam | SGD | Muon, layer_decay: float | None) -> Optimizer:
    """Make the optimiser; each group has its `share` of the rate, and its decay."""
    named = {name: parameter for name, parameter in trainable_names(model) if parameter.requires_grad}
    every = (BLOCK.match(name) for name, _ in trainable_names(model))  # those too that stay as they are
    blocks = 1 + max((int(found[1]) for found in every if found), default=-1)
    if layer_decay is not None and not blocks:
        raise ConfigError(
            "layer_decay is of a Vision Transformer's blocks, and the model has none. Set layer_decay=none."
        )
    muon = isinstance(config, Muon)
    groups: dict[tuple[float, float, bool], list[nn.Parameter]] = {}
    for name, parameter in named.items():
        share = 1.0 if layer_decay is None else layer_decay ** (blocks + 1 - depth_of(name, blocks))
        decay = 0.0
        if is_kernel(name, parameter) or (isinstance(config, Adam) and config.decay_on == "all"):
            decay = config.weight_decay
        matrix = muon and is_matrix_of_block(name, parameter)
        share = share * config.adam_share if muon and not matrix else share
        groups.setdefault((share, decay, matrix), []).append(parameter)
    made = [
        {"params": parameters, "weight_decay": decay, "share": share, "matrices": matrices}
        for (share, decay, matrices), parameters in groups.items()
    ]
    if isinstance(config, Muon):
        matrices = [group for group in made if group["matrices"]]
        if not matrices:
            raise ConfigError(
                "optimizer=muon is of the matrices inside a Vision Transformer's blocks, and none of them is trained "
                "here. Set optimizer=adam."
            )
        return MuonAdamW(matrices, [group for group in made if not group["matrices"]], packed_matrices(model), config)
    if isinstance(config, Adam):
        return AdamW(made, lr=config.learning_rate, betas=config.betas, eps=config.epsilon, fused=True)
    fused = not any(isinstance(parameter, DTensor) for parameter in named.values())  # torch has no such SGD for these
    return torch.optim.SGD(made, lr=config.learning_rate, momentum=config.momentum, fused=fused)


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Give every group its share of a rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["share"]


def gradients(optimizer: Optimizer) -> list[Tensor]:
    """List the gradients that there are."""
    return [item.grad for group in optimizer.param_groups for item in group["params"] if item.grad is not None]


@torch.no_grad()
def clip(grads: list[Tensor], most: float | None) -> Tensor:
    """Scale gradients together so that their norm is at most this; give the norm that they had."""
    norm = get_total_norm(grads)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    if most is not None:
        torch._foreach_mul_(grads, most / norm.clamp(min=most))  # pyright: ignore[reportPrivateImportUsage]
    return norm


class ModelEMA:
    """A running average of a model's weights (Polyak)."""

    def __init__(self, model: nn.Module) -> None:
        named = trainable_names(model)
        self.weights = {name: parameter.detach().clone() for name, parameter in named if parameter.requires_grad}

    @torch.no_grad()
    def update(self, model: nn.Module, decay: float) -> None:
        """Keep this much of the average, and take the rest from the weights."""
        get_ema_multi_avg_fn(decay)(list(self.weights.values()), _weights(model), 0)

    @contextmanager
    def inside(self, model: nn.Module) -> Iterator[None]:
        """Put the average into the model for a while."""
        self._exchange(model)
        try:
            yield
        finally:
            self._exchange(model)

    @torch.no_grad()
    def _exchange(self, model: nn.Module) -> None:
        for ours, theirs in zip(self.weights.values(), _weights(model), strict=True):
            kept = theirs.clone()
            theirs.copy_(ours)
            ours.copy_(kept)


def _weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach() for parameter in model.parameters() if parameter.requires_grad]


def moments(optimizer: Optimizer, named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Give what the optimiser remembers, by its word and the parameter's name; step counts aside."""
    found = {}
    for name, parameter in named:
        for word, value in optimizer.state.get(parameter, {}).items():
            if word != "step" and isinstance(value, Tensor):
                found[f"{word}/{name}"] = value
    return found


# What a document of a run raises that is not as it was written.
DAMAGE = (KeyError, TypeError, ValueError, AttributeError, OverflowError)


class Best(NamedTuple):
    """The best evaluation so far."""

    step: int
    value: float
    loss: float | None = None  # which tells apart what is equally good; None in runs of before


def _best(*, step: object, value: float, loss: float | None = None) -> Best:
    return Best(whole("step", step, least=0), float(value), None if loss is None else float(loss))


@dataclass
class State:
    """The model, the optimiser's memory, the average of the weights, and where the run is."""

    model: Model
    module: nn.Module  # what is trained: the model, or the model and what an objective has of its own
    optimizer: Optimizer
    average: ModelEMA | None
    tally: Tensor  # sums of loss, correct answers and images since the last line of the log; on the device
    step: int = 0
    best: Best | None = None
    stale: int = 0  # evaluations since the best
    stopped: bool = False  # somebody asked to end here
    metrics: dict[str, float] = field(default_factory=dict)  # of the last evaluation
    bad: list[Skip] = field(default_factory=list)  # images that could not be decoded
    epoch: int = 0  # of the last batch; with the rate of its update, and the norm of its gradients: for the log
    rate: float = 0.0
    norm: Tensor | float = 0.0

    @contextmanager
    def to_evaluate(self) -> Iterator[None]:
        """Have the weights that count in the model for a while: their average where there is one."""
        self.module.eval()
        with nullcontext() if self.average is None else self.average.inside(self.module):
            yield

    @torch.no_grad()
    def whole_model(self) -> Model:
        """Give the model with all of its weights here: a copy where they are shared out; a collective of all ranks."""
        held = [*self.model.parameters(), *self.model.buffers()]
        if not any(isinstance(tensor, DTensor) for tensor in held):
            return self.model
        model = skeleton(self.model.config).to_empty(device=self.tally.device)
        for own, tensor in zip([*model.parameters(), *model.buffers()], held, strict=True):
            own.copy_(gathered(tensor))
        model.card = self.model.card
        return model

    def card(self, metrics: Mapping[str, float] | None = None) -> Card:
        """Give what belongs to the weights: class names, preprocessing, where they come from, how good they are."""
        return replace(self.model.card, metrics=dict(self.metrics if metrics is None else metrics))

    def document(self) -> dict[str, Any]:
        """Give what is no tensor as a JSON object."""
        return {
            "step": self.step,
            "best": None if self.best is None else self.best._asdict(),
            "stale": self.stale,
            "metrics": dict(self.metrics),
            "bad": [skip._asdict() for skip in self.bad],
        }

    def tensors(self, *, keeps: bool = True) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """Give the weights to evaluate with, the objective's own, and all else, on the CPU; a collective of all ranks.

        A rank that does not keep them takes part and gets nothing.
        """

        def whole(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
            every = ((name, gathered(tensor.detach())) for name, tensor in tensors)
            return {name: tensor.cpu() if keeps else tensor.new_empty(0) for name, tensor in every}

        named = list(trainable_names(self.module))
        raw = whole(named)
        others = whole(moments(self.optimizer, named).items())
        others["tally"] = gather_over_ranks(self.tally).cpu()
        counting = raw
        if self.average is not None:
            averaged = whole(self.average.weights.items())
            others |= {f"weights/{name}": raw[name] for name in averaged}
            counting = {**raw, **averaged}
        others |= {f"{ADAPTER}{name}": value for name, value in counting.items() if MARK in name}
        weights = {name: value for name, value in counting.items() if not name.startswith(OBJECTIVE)}
        weights = merge(self.model, weights) if keeps else weights
        return weights, {name: value for name, value in counting.items() if name.startswith(OBJECTIVE)}, others

    def take_document(self, document: Mapping[str, Any]) -> None:
        """Become what `document` gave."""
        self.best = None if document["best"] is None else _best(**document["best"])
        self.metrics = {name: float(value) for name, value in document["metrics"].items()}
        self.bad = [Skip(**skip) for skip in document["bad"]]
        self.step, self.stale = (whole(name, document[name], least=0) for name in ("step", "stale"))

    @torch.no_grad()
    def restore(self, document: Mapping[str, Any], weights: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> None:
        """Become what was saved; a state of another run raises one of `DAMAGE`."""
        pairs = [(self.tally, take_own_rank(others["tally"]))]
        memories: list[tuple[Tensor, dict[str, Tensor]]] = []
        changed = changed_names(self.model)
        for name, parameter in trainable_names(self.module):
            if name in changed:  # what was saved has the change in it
                continue
            own, lora = name.startswith(OBJECTIVE), MARK in name
            counting = others[f"{ADAPTER}{name}" if lora else name] if own or lora else weights[name]
            averaged = self.average is not None and name in self.average.weights
            pairs.append((parameter, others[f"weights/{name}"] if averaged else counting))
            if self.average is not None and averaged:
                pairs.append((self.average.weights[name], counting))
            found = {word: others[f"{word}/{name}"] for word in WORDS if f"{word}/{name}" in others}
            memories.append((parameter, found))
        everything = [*pairs, *((parameter, value) for parameter, found in memories for value in found.values())]
        for target, value in everything:  # all of them before any is changed
            if target.shape != value.shape:
                raise ValueError(f"a tensor of {tuple(value.shape)} where {tuple(target.shape)} is expected")
        self.take_document(document)
        for target, value in pairs:
            target.copy_(distribute_like(value, target))
        for parameter, found in memories:
            memory = {word: distribute_like(value, parameter).clone() for word, value in found.items()}
            if "exp_avg" in memory:
                memory["step"] = torch.tensor(float(self.step), dtype=torch.float32, device=parameter.device)
            if memory:
                self.optimizer.state[parameter] = memory


def unmerged(state: State, weights: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give the weights of an adapted model with its changes beside them, as `tensors` gives both."""
    own = dict(trainable_names(state.module))
    kept = {
        name: own[name].detach() if name in changed_names(state.model) else value for name, value in weights.items()
    }
    changes = {name.removeprefix(ADAPTER): value for name, value in others.items() if name.startswith(ADAPTER)}
    return {**kept, **changes}
