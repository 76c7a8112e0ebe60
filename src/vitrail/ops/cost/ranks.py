"""What data-parallel training on several devices holds and sends: DDP and FSDP, with each formula stated."""

from dataclasses import dataclass, replace

from vitrail.config import ModelConfig
from vitrail.ops.cost.counts import FULL, Memory, Step, heaviest_part, parameters, peak_memory


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """A training on `world` devices, each with `step.batch` images at once, so many times a step."""

    config: ModelConfig
    step: Step
    world: int
    parts: int = 1  # micro-batches of a step, on each

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients, which are float32; those of the weights are as many."""
        return FULL * parameters(self.config).total

    @property
    def alone(self) -> Memory:
        """What a rank would hold that shares nothing."""
        return peak_memory(self.config, replace(self.step, kind="train"))

    def ddp_memory(self) -> int:
        """Bytes of a rank: all that one alone holds, and the buckets, as large as the gradients, that are sent."""
        return self.alone.total + (self.gradient_bytes if self.world > 1 else 0)

    def ddp_traffic(self) -> float:
        """Bytes that a rank sends in a step: a ring all-reduce, 2 (n-1)/n of the gradients, once a step."""
        return 2 * self._others * self.gradient_bytes

    def fsdp_memory(self) -> int:
        """Bytes of a rank: 1/n of weights, moments and gradients; activations; a block whole, the next, and gradients.

        Blocks are gathered one ahead, and a block's gradients are whole until they are reduced.
        """
        alone = self.alone
        if self.world == 1:
            return alone.total
        shared = alone.weights + alone.moments + self.gradient_bytes
        return -(-shared // self.world) + alone.activations + alone.batch + 3 * FULL * heaviest_part(self.config)

    def fsdp_traffic(self) -> float:
        """Bytes that a rank sends in a step: weights gathered twice, gradients reduced once, 3 (n-1)/n, each part."""
        return 3 * self._others * self.gradient_bytes * self.parts

    @property
    def _others(self) -> float:
        return (self.world - 1) / self.world
