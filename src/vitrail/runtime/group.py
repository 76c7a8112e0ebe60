"""The processes that train together: one, or those that torchrun started."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from vitrail.errors import ConfigError

PATIENCE = timedelta(hours=2)  # of a rank that waits for another, which may be reading the data's hashes


@dataclass(frozen=True, kw_only=True)
class Group:
    """This process among all: its rank, how many there are, its device."""

    device: torch.device
    rank: int = 0
    world_size: int = 1
    hosts: Any = None  # the group that exchanges what the CPU holds, where the default one is of GPUs

    @property
    def is_main(self) -> bool:
        """Whether this process writes and speaks for all."""
        return self.rank == 0

    def all_gather_numbers(self, *numbers: float) -> list[list[float]]:
        """Give everybody the numbers of each rank; no GPU is waited for."""
        if self.world_size == 1:
            return [list(numbers)]
        own = torch.tensor(numbers, dtype=torch.float64)
        found = [torch.empty_like(own) for _ in range(self.world_size)]
        dist.all_gather(found, own, group=self.hosts)
        return [part.tolist() for part in found]

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """Add a tensor up over all ranks; the given one stays."""
        if self.world_size > 1:
            tensor = tensor.clone()
            dist.all_reduce(tensor)
        return tensor

    def all_gather(self, thing: Any) -> list[Any]:  # noqa: ANN401
        """Give everybody what each has, in the order of the ranks."""
        if self.world_size == 1:
            return [thing]
        found: list[Any] = [None] * self.world_size
        dist.all_gather_object(found, thing, group=self.hosts)
        return found

    def broadcast(self, thing: Any) -> Any:  # noqa: ANN401
        """Give everybody what the main process has."""
        if self.world_size == 1:
            return thing
        box = [thing]
        dist.broadcast_object_list(box, src=0, group=self.hosts)
        return box[0]

    @contextmanager
    def main_process_only(self) -> Iterator[bool]:
        """Let the main process alone do something; where it fails, all fail, with its reason."""
        error: Exception | None = None
        try:
            yield self.is_main
        except Exception as raised:
            error = raised
        reason = self.broadcast(None if error is None else str(error))
        if error is not None:
            raise error
        if reason is not None:
            raise ConfigError(f"the main process failed: {reason}")


@contextmanager
def joined(device: str | torch.device | None) -> Iterator[Group]:
    """Join the processes of torchrun where it started this one; leave at the end."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        place = choose_device(device)
        if place.type == "cuda" and place.index is not None:
            torch.cuda.set_device(place)  # streams and events are of the current one
        yield Group(device=place)
        return
    local = int(os.environ.get("LOCAL_RANK", 0))
    place = choose_device(device)
    if place.type == "cuda":
        place = torch.device("cuda", local)
        torch.cuda.set_device(place)
    begun = not dist.is_initialized()
    if begun:
        dist.init_process_group("nccl" if place.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        hosts = dist.new_group(backend="gloo", timeout=PATIENCE) if place.type == "cuda" else None
        yield Group(device=place, rank=dist.get_rank(), world_size=dist.get_world_size(), hosts=hosts)
    finally:
        if begun:
            dist.destroy_process_group()


def is_main_process() -> bool:
    """Tell whether this process writes and speaks for all, also before they join."""
    return int(os.environ.get("RANK", "0")) == 0


def choose_device(device: str | torch.device | None) -> torch.device:
    """Read a device; by default the GPU where there is one."""
    from vitrail.models import find_device

    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return find_device(device)


def shard(model: nn.Module, parts: Sequence[nn.Module]) -> None:
    """Share the weights of a model out over the ranks, part by part (FSDP2)."""
    from torch.distributed.fsdp import fully_shard

    for part in parts:
        fully_shard(part)
    fully_shard(model, reshard_after_forward=True)  # else an evaluation, which has no backward pass, leaves it whole


def gather_over_ranks(tensor: Tensor) -> Tensor:
    """Give every rank's tensor, one below the other; a collective."""
    if not dist.is_initialized():
        return tensor[None]
    found = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(found, tensor)
    return torch.stack(found)


def take_own_rank(tensors: Tensor) -> Tensor:
    """Give this rank's of tensors that add up; where they are those of another number of ranks, the first has all."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    if len(tensors) == ranks:
        return tensors[rank]
    return tensors.sum(dim=0) * float(rank == 0)


def gathered(tensor: Tensor) -> Tensor:
    """Give all of a tensor that may be shared out; a collective."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def distribute_like(whole: Tensor, like: Tensor) -> Tensor:
    """Share a tensor out as another one is, on its device."""
    whole = whole.to(device=like.device, dtype=like.dtype)
    if isinstance(like, DTensor):
        return distribute_tensor(whole, like.device_mesh, like.placements)
    return whole
