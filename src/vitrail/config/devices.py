"""Devices that a run can be planned for, as data: peaks and memory as their vendors state them, for one device.

NVIDIA's are of the datasheets of each, dense (a sheet's figure "with sparsity" is twice that) and with float32
accumulation; the GeForce ones of the Ampere GA102 and Ada whitepapers. A TPUv3 is one of a chip's two cores, as the
paper counts them: half of what cloud.google.com/tpu/docs/v3 states, of power the largest that was measured. `link` is
what a device sends to others of its node: half of NVLink's sum of both directions, or 16 lanes of PCIe.
"""

import re
from dataclasses import dataclass

from vitrail.config.check import positive
from vitrail.config.words import suggest
from vitrail.errors import ConfigError

GIB = 1 << 30
# The share of its peak that training reaches: ViT-B/16 at 224 pixels, batch 256, bfloat16, compiled, takes 3,549 images
# a second on an H200 (LOG.md), each 105.4 GFLOPs: 374 of 989 TFLOP/s. Of float32, of convolutions and of other devices
# nothing was measured: taken to be alike, and to be replaced by utilization=... or a probe.
UTILIZATION = 0.38
NODE_LINK = 50.0  # GB/s that a device sends to other nodes: one port of 400 Gb/s each, as in NVIDIA's HGX nodes


@dataclass(frozen=True, kw_only=True)
class DeviceRow:
    """One device."""

    name: str
    bfloat16: float | None  # peak TFLOP/s; None where the hardware has none, and training takes float32
    float32: float | None  # without TF32, which training does not use; None where none is stated
    memory: int  # GiB
    bandwidth: float  # GB/s, of its memory
    watts: float  # at most, of the board
    link: float = NODE_LINK  # GB/s, one way

    def peak(self, precision: str) -> float:
        """Give the peak FLOP/s in a precision; refuses one that the hardware does not have."""
        found = self.float32 if precision == "float32" else self.bfloat16
        if found is None:
            other = "bfloat16" if precision == "float32" else "float32"
            raise ConfigError(
                f"the table has no {precision} of a {self.name}. Set precision={other}, as training does."
            )
        return found * 1e12


_ROWS: tuple[tuple[str, float | None, float | None, int, float, float, float], ...] = (
    ("B200", 2250, 75, 180, 8000, 1000, 900),
    ("H200", 989, 67, 141, 4800, 700, 450),
    ("H100", 989, 67, 80, 3350, 700, 450),
    ("H100-PCIe", 756, 51, 80, 2000, 350, 64),
    ("A100-80GB", 312, 19.5, 80, 2039, 400, 300),
    ("A100", 312, 19.5, 40, 1555, 400, 300),
    ("L40S", 362, 91.6, 48, 864, 350, 32),
    ("L4", 121, 30.3, 24, 300, 72, 32),
    ("A10", 125, 31.2, 24, 600, 150, 32),
    ("V100", None, 15.7, 32, 900, 300, 150),
    ("T4", None, 8.1, 16, 320, 70, 16),
    ("RTX-4090", 165.2, 82.6, 24, 1008, 450, 32),
    ("RTX-3090", 71, 35.6, 24, 936, 350, 32),
    ("TPUv3", 61.5, None, 16, 450, 131, NODE_LINK),
)
_FIELDS = ("name", "bfloat16", "float32", "memory", "bandwidth", "watts", "link")
DEVICES = {row[0]: DeviceRow(**dict(zip(_FIELDS, row, strict=True))) for row in _ROWS}  # pyright: ignore[reportArgumentType]


def device_row(name: object) -> DeviceRow:
    """Find a device by its name, letter case aside."""
    folded = {known.lower(): row for known, row in DEVICES.items()}
    found = folded.get(re.sub(r"[ _]", "-", str(name)).lower())
    if found is None:
        raise ConfigError(f"there is no device {name!r} in the table.{suggest(str(name), DEVICES)}")
    return found


def find_row(said: str) -> DeviceRow | None:
    """Find the device that a driver names, such as NVIDIA H200 or Tesla T4; None where the table has none."""
    words = re.split(r"[ _-]+", said.lower())
    known = (row for name, row in DEVICES.items() if set(name.lower().split("-")) <= set(words))
    return max(known, key=lambda row: len(row.name), default=None)


def read_memory(name: str, value: object) -> int:
    """Read `24GB`, `16 GiB`, `512MB` or a number of GiB as bytes; a GB is 2^30 of them, as of a GPU's memory."""
    match = re.fullmatch(r"\s*([\d.]+(?:e\d+)?)\s*([kmgt]?)i?b?\s*", str(value).lower())
    try:
        size = positive(name, float(match[1])) if match else 0.0
    except ValueError:
        size = 0.0
    if match is None or not size:
        raise ConfigError(f"{name} must be a size of memory such as 24GB; got {value!r}.")
    return int(size * 1024 ** ("kmgt".index(match[2] or "g") + 1))
