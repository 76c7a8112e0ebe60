"""All that changes in a run, and all that is saved of it."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from vitrail.data.loader import Skip
from vitrail.errors import CheckpointError
from vitrail.models import Model
from vitrail.models.build import skeleton
from vitrail.runtime.group import distribute_like, gather_over_ranks, gathered, take_own_rank
from vitrail.train.optimizer import ModelEMA, is_objective_parameter, moments, trainable_names


class Best(NamedTuple):
    """The best evaluation so far."""

    step: int
    value: float


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
            counting = whole(self.average.weights.items())
            others |= {f"weights/{name}": value for name, value in raw.items()}
        weights = {name: value for name, value in counting.items() if not is_objective_parameter(name)}
        return weights, {name: value for name, value in counting.items() if is_objective_parameter(name)}, others

    @torch.no_grad()
    def restore(self, document: Mapping[str, Any], weights: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> None:
        """Become what was saved."""
        try:
            self._restore(document, weights, others)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the training state is not that of this run: {error!r}. Give another --out."
            ) from None

    def _restore(
        self, document: Mapping[str, Any], weights: Mapping[str, Tensor], others: Mapping[str, Tensor]
    ) -> None:
        pairs = [(self.tally, take_own_rank(others["tally"]))]
        memories: list[tuple[Tensor, dict[str, Tensor]]] = []
        for name, parameter in trainable_names(self.module):
            counting = others[name] if is_objective_parameter(name) else weights[name]
            pairs.append((parameter, counting if self.average is None else others[f"weights/{name}"]))
            if self.average is not None:
                pairs.append((self.average.weights[name], counting))
            found = {word: others[f"{word}/{name}"] for word in WORDS if f"{word}/{name}" in others}
            memories.append((parameter, found))
        everything = [*pairs, *((parameter, value) for parameter, found in memories for value in found.values())]
        for target, value in everything:  # all of them before any is changed
            if target.shape != value.shape:
                raise ValueError(f"a tensor of {tuple(value.shape)} where {tuple(target.shape)} is expected")
        self.best = None if document["best"] is None else Best(**document["best"])
        self.metrics = dict(document["metrics"])
        self.bad = [Skip(**skip) for skip in document["bad"]]
        self.step, self.stale = document["step"], document["stale"]
        for target, value in pairs:
            target.copy_(distribute_like(value, target))
        for parameter, found in memories:
            memory = {word: distribute_like(value, parameter).clone() for word, value in found.items()}
            if "exp_avg" in memory:
                memory["step"] = torch.tensor(float(self.step), dtype=torch.float32, device=parameter.device)
            if memory:
                self.optimizer.state[parameter] = memory


WORDS = ("exp_avg", "exp_avg_sq", "momentum_buffer")  # what torch's optimisers call what they remember
