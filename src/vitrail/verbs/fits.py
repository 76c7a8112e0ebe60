"""Which models fit into a memory, for training and for inference, and how a batch then goes through."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import get_args

from vitrail.config import ModelConfig, ViTConfig, names, override, whole
from vitrail.config.check import one_of
from vitrail.config.devices import GIB, read_memory
from vitrail.config.recipe import Training
from vitrail.ops.cost.counts import Optimizer, parameters
from vitrail.ops.cost.fit import SHARE, equal_parts, largest_batch
from vitrail.runtime.reporter import text_table
from vitrail.runtime.step_memory import OPTIMIZERS, step_of
from vitrail.verbs.planning import AnyModel, check_optimizer, title_and_config

BATCH = 256  # images of a step, where it is not said


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The largest batches of one model, 0 where not even one image fits; `checkpointing` runs blocks twice."""

    model: str
    parameters: int
    bfloat16: int
    float32: int
    checkpointing: int  # in bfloat16
    inference: int  # in bfloat16
    micro_batch: int  # of the batch that is asked for, in bfloat16; with checkpointing where it does not fit without
    accumulation: int


@dataclass(frozen=True, kw_only=True)
class Fits:
    """What fits into a memory; it prints as a table."""

    memory: int
    batch: int
    optimizer: str
    device: str
    rows: tuple[Fit, ...]

    def document(self) -> dict[str, object]:
        """Give the table as plain values, for JSON."""
        named = {"memory": self.memory, "memory_share": SHARE, "batch": self.batch, "optimizer": self.optimizer}
        return {**named, "device": self.device, "models": [asdict(row) for row in self.rows]}

    def __str__(self) -> str:
        heads = ["model", "params", "bfloat16", "float32", "checkpointing", "inference", f"batch {self.batch:,}"]
        rows = [
            [
                row.model,
                f"{row.parameters / 1e6:,.1f}M",
                *(
                    f"{size:,}" if size else "0"
                    for size in (row.bfloat16, row.float32, row.checkpointing, row.inference)
                ),
                "0" if not row.micro_batch else f"{row.micro_batch:,} x {row.accumulation:,}",
            ]
            for row in self.rows
        ]
        title = f"The largest batches that fit into {self.memory / GIB:,.4g} GiB: training, and inference in bfloat16"
        words = (
            f"Predicted, in {SHARE:.0%} of it, for steps with {self.optimizer} on {self.device}; 0: not one image.\n"
            "The last column is the micro-batch and how often it goes through in bfloat16;\n"
            "with checkpointing, which is in bfloat16 too, where it does not fit without."
        )
        return "\n".join([*text_table(title, heads, rows), words])


def list_fits(
    memory: object,
    model: AnyModel | None,
    batch: int | None,
    optimizer: str,
    device: str,
    changes: Mapping[str, object],
) -> Fits:
    """List what fits: every model of the zoo, or the one that is given, with these fields changed."""
    room = read_memory("fit", memory)
    size = BATCH if batch is None else whole("batch_size", batch)
    one_of("optimizer", optimizer, get_args(Optimizer))
    found = [title_and_config(name, changes) for name in (names() if model is None else (model,))]
    if optimizer == "muon":
        found = [(name, config) for name, config in found if model is not None or isinstance(config, ViTConfig)]
        check_optimizer(optimizer, found[0][1])
    rows = tuple(_fit(name, config, room, size, optimizer, device) for name, config in found)
    return Fits(memory=room, batch=size, optimizer=optimizer, device=device, rows=rows)


def _fit(name: str, config: ModelConfig, memory: int, batch: int, optimizer: str, device: str) -> Fit:
    kind = next(kind for word, kind in OPTIMIZERS.items() if word == optimizer)
    half = step_of(config, Training(optimizer=kind(), steps=1), 1, device, "bfloat16")
    again, room = override(config, {"checkpointing": True}), SHARE * memory
    training = largest_batch(config, half, room)
    checkpointing = largest_batch(again, half, room)
    most = training or checkpointing
    micro = equal_parts(batch, min(most, batch)) if most else 0
    return Fit(
        model=name,
        parameters=parameters(config).total,
        bfloat16=training,
        float32=largest_batch(config, replace(half, precision="float32"), room),
        checkpointing=checkpointing,
        inference=largest_batch(config, replace(half, kind="infer"), room),
        micro_batch=micro,
        accumulation=-(-batch // micro) if micro else 0,
    )
