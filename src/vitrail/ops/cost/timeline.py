"""A training step on many GPUs, simulated: what each layer computes and sends, in the order of DDP and of FSDP.

Two queues, as on a GPU: what computes, and what the network carries. Each takes its work in order; work begins when its
queue is free and what it needs is done.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

GATHERED = 2  # layers of FSDP that are whole at once: the one at work, and the next


@dataclass(frozen=True, kw_only=True)
class Network:
    """Machines with so many GPUs each; bandwidths are bytes a second that a GPU sends, latencies seconds of a hop."""

    nodes: int
    each: int
    between: float = 50e9  # 400 Gb/s for each GPU
    within: float = 450e9
    hop_between: float = 5e-6
    hop_within: float = 1e-6

    @property
    def world(self) -> int:
        """GPUs in all."""
        return self.nodes * self.each

    def ring(self, size: float) -> float:
        """Seconds in which a ring gathers so many bytes on all, or reduces and scatters them."""
        if self.world == 1:
            return 0.0
        bandwidth = self.between if self.nodes > 1 else self.within
        hops = self.nodes * (self.each - 1) * self.hop_within + (self.nodes - 1) * self.hop_between
        return (self.world - 1) / self.world * size / bandwidth + hops


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What is computed and sent as one: seconds of its forward and backward passes, and bytes of its weights."""

    forward: float
    backward: float
    size: float


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """When a step is over, and what of it was computed and sent."""

    seconds: float
    computed: float
    sent: float

    @property
    def waited(self) -> float:
        """Seconds in which nothing is computed."""
        return self.seconds - self.computed


class _Queue:
    """Work in order, one after the other."""

    def __init__(self) -> None:
        self.free = self.busy = 0.0

    def add(self, seconds: float, *needs: float) -> float:
        """Do something once all that it needs is done; gives when it is over."""
        self.free = max(self.free, *needs, 0.0) + seconds
        self.busy += seconds
        return self.free


def simulate(kind: Literal["ddp", "fsdp"], layers: Sequence[Layer], network: Network, *, update: float) -> Timeline:
    """Go through a step: forward, backward, and the update of what a GPU holds."""
    work, link = _Queue(), _Queue()
    sent = [0.0]
    if kind == "ddp":
        for layer in layers:
            work.add(layer.forward)
        for layer in reversed(layers):
            sent.append(link.add(2 * network.ring(layer.size), work.add(layer.backward)))
        work.add(update, max(sent))
        return Timeline(seconds=work.free, computed=work.busy, sent=link.busy)
    share = update / network.world
    order = [(layer, layer.forward, False) for layer in layers]
    order += [(layer, layer.backward, True) for layer in reversed(layers)]
    done: list[float] = []
    whole = [link.add(network.ring(order[0][0].size))]
    for number, (layer, seconds, backward) in enumerate(order):
        if number + 1 < len(order):  # the next is gathered once one before this has been given up
            freed = done[number + 1 - GATHERED] if number + 1 >= GATHERED and number + 1 - GATHERED < len(done) else 0.0
            whole.append(link.add(network.ring(order[number + 1][0].size), freed))
        done.append(work.add(seconds, whole[number]))
        if backward:
            sent.append(link.add(network.ring(layer.size), done[-1]))
    work.add(share, max(sent))
    return Timeline(seconds=work.free, computed=work.busy, sent=link.busy)
