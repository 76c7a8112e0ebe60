"""What there is to run on: the processes that train together, their devices, cores and memory."""

import ctypes
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from vitrail.errors import ConfigError
from vitrail.models import find_device
from vitrail.runtime.meeting import meet
from vitrail.runtime.watch import Watch, watched

Result = TypeVar("Result")
MEMINFO, STATM, CGROUP = Path("/proc/meminfo"), Path("/proc/self/statm"), Path("/sys/fs/cgroup")
TRIM, MAP, ARENAS = -1, -3, -8  # glibc's M_TRIM_THRESHOLD, M_MMAP_THRESHOLD and M_ARENA_MAX
SMALLEST, LARGEST = 1 << 16, 1 << 30
# Groups that were left. gloo's destructor waits for a thread that may wait for Python's lock, which whoever drops the
# last reference holds: a failed run would hang instead of ending.
LEFT: list[Any] = []
PATIENCE = timedelta(hours=2)  # of a rank that waits for another, which may be reading the data's hashes


@dataclass(frozen=True, kw_only=True)
class Group:
    """This process among all: its rank, how many there are, its device."""

    device: torch.device
    rank: int = 0
    world_size: int = 1
    hosts: Any = None  # the group that exchanges what the CPU holds, where the default one is of GPUs
    watch: Watch | None = None  # that looks after the others

    def turn(self) -> AbstractContextManager[None]:
        """Wait for all others, and be counted as one who does."""
        return nullcontext() if self.watch is None else self.watch.waiting()

    def training(self) -> AbstractContextManager[None]:
        """Wait for them less long meanwhile."""
        return nullcontext() if self.watch is None else self.watch.training()

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
        with self.turn():
            dist.all_gather(found, own, group=self.hosts)
        return [part.tolist() for part in found]

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """Add a tensor up over all ranks; the given one stays."""
        if self.world_size > 1:
            tensor = tensor.clone()
            with self.turn():
                dist.all_reduce(tensor)
        return tensor

    def all_gather(self, thing: Any) -> list[Any]:  # noqa: ANN401
        """Give everybody what each has, in the order of the ranks."""
        if self.world_size == 1:
            return [thing]
        found: list[Any] = [None] * self.world_size
        with self.turn():
            dist.all_gather_object(found, thing, group=self.hosts)
        return found

    def broadcast(self, thing: Any) -> Any:  # noqa: ANN401
        """Give everybody what the main process has."""
        if self.world_size == 1:
            return thing
        box = [thing]
        with self.turn():
            dist.broadcast_object_list(box, src=0, group=self.hosts)
        return box[0]

    def on_main(self, do: Callable[[], Result]) -> Result:
        """Let the main process alone do something, and give all what it returns; where it fails, all fail."""
        found: Any = None
        error: Exception | None = None
        if self.is_main:
            try:
                found = do()
            except Exception as raised:
                error = raised
        found, reason = self.broadcast((found, None if error is None else str(error)))
        if error is not None:
            raise error
        if reason is not None:
            raise ConfigError(f"the main process failed: {reason}")
        return found


@contextmanager
def joined(device: str | torch.device | None) -> Iterator[Group]:
    """Join the processes of torchrun where it started this one; leave at the end."""
    place = choose_device(device)
    together = is_together()
    if together and place.type == "cuda":
        place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    if place.type == "cuda" and place.index is not None:
        torch.cuda.set_device(place)  # streams and events are of the current one
    if not together:
        yield Group(device=place)
        return
    begun = not dist.is_initialized()
    if begun:
        store, rank, ranks, word = meet(PATIENCE)
    else:
        store, rank, ranks = None, dist.get_rank(), dist.get_world_size()
        word = Group(device=place, rank=rank, world_size=ranks).broadcast(secrets.token_hex(8))
    try:
        with nullcontext() if ranks == 1 else watched(lambda: Watch(rank, ranks, word)) as watch:
            with nullcontext() if watch is None else watch.waiting():
                if begun:
                    backend = "nccl" if place.type == "cuda" else "gloo"
                    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=PATIENCE)
                hosts = dist.new_group(backend="gloo", timeout=PATIENCE) if place.type == "cuda" else None
            yield Group(device=place, rank=rank, world_size=ranks, hosts=hosts, watch=watch)
    finally:
        if begun and dist.is_initialized():
            LEFT.append(dist.group.WORLD)
            dist.destroy_process_group()


def is_together() -> bool:
    """Tell whether torchrun, or what sets its variables, started this process among others."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_main_process() -> bool:
    """Tell whether this process writes and speaks for all, also before they join."""
    return int(os.environ.get("RANK", "0")) == 0


def choose_device(device: str | torch.device | None) -> torch.device:
    """Read a device; by default the GPU where there is one."""
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


def multiplies_bfloat16(device: torch.device) -> bool:
    """Tell whether a device has products in bfloat16."""
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())  # pyright: ignore[reportPrivateUsage]
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def usual_workers(*, gpu: bool) -> int:
    """Leave the model's own process a core of those beside a GPU; on the CPU the model needs them all."""
    cores = max(usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)
    return min(max(cores - 1, 1), 16) if gpu else 0


def usable_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory(device: torch.device) -> int:
    """Give the bytes that a run may take: of the GPU, or of this machine or what holds this process."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")] if hasattr(os, "sysconf") else [8 << 30]
    if MEMINFO.is_file():
        said = dict(line.split(":") for line in MEMINFO.read_text().splitlines())
        free = [int(said["MemAvailable"].split()[0]) * 1024]
    limit, used, parts = (CGROUP / f"memory.{name}" for name in ("max", "current", "stat"))
    if limit.is_file() and used.is_file() and limit.read_text().strip().isdigit():
        held = dict(line.split() for line in parts.read_text().splitlines()) if parts.is_file() else {}
        cached = int(held.get("inactive_file", 0))  # of files that were read, such as images; given back when needed
        free.append(int(limit.read_text()) - int(used.read_text()) + cached)
    return max(min(free), 1 << 28)


def keep_memory(*, give_back: bool = False) -> bool:
    """Ask glibc not to give freed memory back to the system after every step; tells whether there was one to ask.

    Activations are as large in every step: to get their pages anew takes a tenth of a small model's time. With
    `give_back` it is to do so at once: a heap that is cut up holds nearly all that checkpointing frees.
    """
    try:
        library, least = ctypes.CDLL(None), SMALLEST if give_back else LARGEST
        return bool(library.mallopt(TRIM, least)) and bool(library.mallopt(MAP, least))
    except (OSError, AttributeError, TypeError):  # another library, another system
        return False


def share_memory(arenas: int) -> bool:
    """Ask glibc to let threads share so many stores of freed memory; each keeps what no other can use."""
    try:
        return bool(ctypes.CDLL(None).mallopt(ARENAS, arenas))
    except (OSError, AttributeError, TypeError):  # another library, another system
        return False


def give_memory_back() -> bool:
    """Ask glibc to give all that was freed back to the system; tells whether there was one to ask."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):  # another library, another system
        return False
    return True


def resident_memory() -> int:
    """Give the bytes of this process that are in memory; 0 where the system does not say."""
    if not STATM.is_file():
        return 0
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread meanwhile, where threads take work each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
