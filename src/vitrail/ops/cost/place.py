"""A run on certain devices: what fits, in which parts a batch goes through, how long it takes, and what that costs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from vitrail.config.devices import GIB, UTILIZATION, DeviceRow
from vitrail.ops.cost.fit import SHARE, equal_parts, largest

HOUR = 3600.0
# Bytes that an update reads and writes for every weight: weights, gradients and moments, float32; of Muon's five
# Newton-Schulz steps the matrices in bfloat16 too.
UPDATED = {"adam": 28, "sgd": 20, "muon": 94}
UNITS = ((86_400.0, "days"), (HOUR, "hours"), (60.0, "minutes"), (1.0, "seconds"))


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How long a step of a number of images takes on one device, and how that is known."""

    images_per_second: float
    overhead: float = 0.0  # seconds of a step that do not depend on the images
    source: str
    flops: float  # of one image
    peak: float | None = None  # FLOP/s of the device, where it is known

    def seconds(self, images: float) -> float:
        """Give the seconds of a step."""
        return images / self.images_per_second + self.overhead

    @property
    def utilization(self) -> float | None:
        """The share of the peak that it means."""
        return None if self.peak is None else self.flops * self.images_per_second / self.peak


def table_pace(
    row: DeviceRow, precision: str, flops: float, *, weights: int, optimizer: str, utilization: float | None
) -> Pace:
    """Reckon a pace from the table: operations at a share of the peak, and an update at the memory's bandwidth."""
    share = UTILIZATION if utilization is None else utilization
    said = "as ViT-B/16 on an H200, measured" if utilization is None else "as given"
    return Pace(
        images_per_second=row.peak(precision) * share / flops,
        overhead=UPDATED[optimizer] * weights / (row.bandwidth * 1e9),
        source=f"from the table: {share:.0%} of {row.peak(precision) / 1e12:,.0f} TFLOP/s, {said}",
        flops=flops,
        peak=row.peak(precision),
    )


@dataclass(frozen=True, kw_only=True)
class Place:
    """Devices of one kind, and a run on them; sizes are bytes of one device, and of a step of so many images on it."""

    name: str
    memory: int
    batch: int  # of all devices together
    training: Callable[[int], int]
    inference: Callable[[int], int]
    micro_batch: int | None = None  # None: as many images at once as fit
    count: int = 1
    steps: int | None = None
    pace: Pace | None = None
    watts: float | None = None
    price: float | None = None  # of a device for an hour
    measured: int | None = None  # the peak of a step, where one was run

    @property
    def room(self) -> float:
        """Bytes that a step may take."""
        return SHARE * self.memory

    @cached_property
    def largest_training(self) -> int:
        """The most images of a training step; 0 where none fits."""
        return largest(lambda batch: self.training(batch) <= self.room)

    @cached_property
    def largest_inference(self) -> int:
        """The most images of a forward pass; 0 where none fits."""
        return largest(lambda batch: self.inference(batch) <= self.room)

    @property
    def share(self) -> int:
        """Images of a step on one device."""
        return -(-self.batch // self.count)

    @property
    def micro(self) -> int:
        """Images at once, as training chooses them; one where not even one fits."""
        if self.micro_batch is not None:
            return min(self.micro_batch, self.share)
        return equal_parts(self.share, min(self.largest_training, self.share))

    @property
    def parts(self) -> int:
        """Times that images go through in a step."""
        return -(-self.share // self.micro)

    @property
    def step_seconds(self) -> float | None:
        """Seconds of a step; those in which devices wait for each other are not counted."""
        return None if self.pace is None else self.pace.seconds(self.share)

    @property
    def seconds(self) -> float | None:
        """Seconds of the run's steps, without evaluations."""
        return None if self.step_seconds is None or self.steps is None else self.steps * self.step_seconds

    @property
    def kilowatt_hours(self) -> float | None:
        """Energy of the run at the devices' largest power."""
        return None if self.seconds is None or self.watts is None else self.watts * self.count * self.seconds / 3.6e6

    @property
    def cost(self) -> float | None:
        """What the run costs at the price."""
        return None if self.seconds is None or self.price is None else self.price * self.count * self.seconds / HOUR

    def document(self) -> dict[str, object]:
        """Give all of it as plain values, for JSON."""
        pace = self.pace
        return {
            "device": self.name,
            "devices": self.count,
            "memory": self.memory,
            "memory_share": SHARE,
            "largest_training_batch": self.largest_training,
            "largest_inference_batch": self.largest_inference,
            "batch": self.batch,
            "micro_batch": self.micro,
            "accumulation": self.parts,
            "peak_memory": self.training(self.micro),
            "peak_memory_measured": self.measured,
            "pace": None if pace is None else pace.source,
            "utilization": None if pace is None else pace.utilization,
            "images_per_second": None if pace is None else self.batch / pace.seconds(self.share),
            "step_seconds": self.step_seconds,
            "seconds": self.seconds,
            "kilowatt_hours": self.kilowatt_hours,
            "cost": self.cost,
        }

    def lines(self) -> dict[str, str]:
        """Give all of it as words for people, by label; what is not known is empty."""
        rate = None if self.pace is None else self.batch / self.pace.seconds(self.share)
        share = None if self.pace is None else self.pace.utilization
        small = "" if self.largest_training else " (too large)"
        measured = "" if self.measured is None else f"{self.measured / GIB:,.2f} GiB"
        return {
            "": f"{self.count} x {self.memory / GIB:,.0f} GiB",
            "largest batch, training": f"{self.largest_training:,}",
            "largest batch, inference": f"{self.largest_inference:,}",
            "batch": f"{self.batch:,}",
            "micro-batch x times": f"{self.micro:,} x {self.parts:,}{small}",
            "its peak memory": f"{self.training(self.micro) / GIB:,.2f} GiB",
            "as measured": measured,
            "share of the peak": "" if share is None else f"{share:.0%}",
            "images a second": "" if rate is None else f"{rate:,.0f}" if rate >= 100 else f"{rate:,.3g}",
            "a step": "" if self.step_seconds is None else duration(self.step_seconds),
            "time": "" if self.seconds is None else duration(self.seconds),
            "energy": ""
            if self.kilowatt_hours is None
            else f"{self.kilowatt_hours:,.{0 if self.kilowatt_hours >= 100 else 2}f} kWh",
            "cost": "" if self.cost is None else f"{self.cost:,.2f}",
        }


def duration(seconds: float) -> str:
    """Write a time for people, in the largest unit that it has two of."""
    unit, word = next(((unit, word) for unit, word in UNITS if seconds >= 2 * unit), UNITS[-1])
    return f"{seconds / unit:,.1f} {word}" if unit > 1 or seconds >= 2 else f"{seconds:.3g} seconds"
