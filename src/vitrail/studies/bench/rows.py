"""The rows of the bench, as data: those of a GPU and those of a CPU. A new one is a case more in a list."""

from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.config.bench import BENCH_GROUPS
from vitrail.studies.bench.cases import (
    BASE,
    PRODUCTS,
    decoding,
    forward,
    growth,
    held,
    latency,
    loading,
    ours,
    peer,
    title,
    training,
)
from vitrail.studies.bench.table import Case, Products, Shape, StepMemory, TrainLoop, TrainStep, Way

# The shape of the model in the box, on images of 64 pixels.
SMALL = {"depth": 7, "width": 256, "mlp_width": 1024, "heads": 8, "pooling": "mean", "positions": "sinusoidal-2d"}
PHOTOGRAPHS = ((375, 500, 40), (1500, 2000, 8))  # height, width, how many


def cases_for(kind: str) -> tuple[Case, ...]:
    """Give every case of a kind of device, cuda or cpu, group by group."""
    cases = (
        *(gpu_cases() if kind == "cuda" else cpu_cases()),
        *memory(kind),
        *(decoding(*size) for size in PHOTOGRAPHS),
        loading("ViT-B/16"),
        loading("ViT-L/16", in_all=False),
    )
    return tuple(sorted(cases, key=lambda case: BENCH_GROUPS.index(case.group)))


def gpu_cases() -> Sequence[Case]:
    """Rows of a GPU: all in half precision, all compiled."""
    base, large = Shape(model="ViT-B/16", batch=256), Shape(model="ViT-L/16", batch=256)
    hybrid, bit = Shape(model="R50+ViT-B/16", batch=128), Shape(model="BiT-R50x1", batch=128)
    return (
        Case(
            name="forward-B16",
            title=title(base),
            group="forward",
            unit="images/s",
            base=BASE,
            ways=[
                *(peer(by, base, "bfloat16", "compiled") for by in ("timm", "transformers", "torchvision")),
                ours("Vitrail", base, "bfloat16", ceiling=PRODUCTS),
                ours("Vitrail, float8", base, "float8", ceiling=f"{PRODUCTS}, float8"),
                Way(name=PRODUCTS, work=Products(shape=base, precision="bfloat16")),
                Way(name=f"{PRODUCTS}, float8", work=Products(shape=base, precision="float8")),
            ],
        ),
        forward(large, products=True),
        forward(hybrid),
        forward(bit),
        training(base, products=True),
        training(large, products=True),
        training(hybrid),
        training(bit),
        Case(
            name="training-small",
            title="small ViT, 64 px, batch 512",
            group="training",
            unit="images/s",
            base="Vitrail, whole runs of one process",
            ways=[Way(name="Vitrail, whole runs of one process", work=small_runs())],
            repeats=2,
        ),
        Case(
            name="training-loop-B16",
            title=f"{title(base)}, whole runs",
            group="training",
            unit="images/s",
            base="the step alone",
            ways=[
                Way(name="the step alone", work=TrainStep(shape=base)),
                Way(name="whole runs", work=whole_runs(base)),
            ],
            repeats=2,
            in_all=False,
        ),
        latency(Shape(model="ViT-B/16", batch=1), "bfloat16", graph=True),
        *growth(Shape(model="ViT-B/16", batch=64), "bfloat16", "graph", batches=(1, 4, 16, 64, 256), short=32),
    )


def cpu_cases() -> Sequence[Case]:
    """Rows of a CPU: small batches, eager and by the fastest engine."""
    base, small = Shape(model="ViT-B/16", batch=4), Shape(model="ViT-S/16", batch=8)
    eager = "Vitrail, eager"
    return (
        Case(
            name="forward-B16",
            title=title(base),
            group="forward",
            unit="images/s",
            base=eager,
            ways=[
                ours(eager, base, "float32", how="eager", ceiling=PRODUCTS),
                *(peer(by, base, "float32", "eager") for by in ("timm", "transformers", "torchvision")),
                ours("Vitrail", base, "float32", ceiling=PRODUCTS),
                ours("Vitrail, bfloat16", base, "bfloat16", ceiling=f"{PRODUCTS}, bfloat16"),
                ours("Vitrail, int8", base, "int8", ceiling=f"{PRODUCTS}, int8"),
                Way(name=PRODUCTS, work=Products(shape=base, precision="float32")),
                Way(name=f"{PRODUCTS}, bfloat16", work=Products(shape=base, precision="bfloat16")),
                Way(name=f"{PRODUCTS}, int8", work=Products(shape=base, precision="int8")),
            ],
        ),
        training(small, precision="float32", products=True),
        latency(Shape(model="ViT-Ti/16", batch=1), "float32"),
        latency(Shape(model="ViT-B/16", batch=1), "float32"),
        *growth(Shape(model="ViT-Ti/16", batch=4), "float32", "eager", batches=(1, 4, 16), short=4),
    )


def small_runs() -> TrainLoop:
    """Runs of a small model, augmented on the device."""
    fields = {"crop_area": (0.35, 1.0), "ema": None, "stochastic_depth": 0.0, "augment_on": "device", "workers": 1}
    shape = Shape(model="ViT-Ti/8", batch=512, image_size=64, fields=SMALL)
    return TrainLoop(shape=shape, steps=300, images=20_000, training=fields)


def whole_runs(shape: Shape) -> TrainLoop:
    """Runs with strong augmentation in workers."""
    fields: Mapping[str, Any] = {"randaugment.layers": 2, "randaugment.magnitude": 15, "mixup": 0.2, "clip_norm": 1.0}
    return TrainLoop(shape=shape, steps=100, images=4096, training=fields)


def memory(kind: str) -> Sequence[Case]:
    """Steps whose memory is predicted and measured: few in `all`, and all by their group."""
    if kind == "cpu":
        few = (train("ViT-S/16", 8), infer("ViT-B/16", 16))
        many = (
            train("ViT-B/32", 16),
            train("ViT-S/16", 16, sgd=True, checkpointing=True),
            train("ViT-Ti/16", 16, half=True),
            train("R26+ViT-S/32", 8, image_size=192),
            train("BiT-R50x1", 8, sgd=True),
            infer("BiT-R50x1", 16),
        )
    else:
        few = (
            train("ViT-B/16", 128, half=True),
            train("ViT-L/16", 128, half=True, checkpointing=True),
            infer("ViT-L/16", 512, half=True),
        )
        many = (
            train("ViT-B/16", 128),
            train("ViT-H/14", 32, half=True),
            train("ViT-S/16", 512, half=True, sgd=True, dropout=0.1),
            train("ViT-B/16", 64, half=True, image_size=384),
            train("R50+ViT-B/16", 128, half=True),
            train("R50+ViT-L/16", 64, half=True, checkpointing=True),
            train("BiT-R50x1", 128, half=True, sgd=True),
            train("BiT-R101x3", 32, sgd=True),
            train("Axial-ViT-B/16", 128, half=True),
            train("ViT-B/16", 64, half=True, positions="relative"),
            train("ViT-B/16", 64, half=True, norm="post", activation="relu", positions="sinusoidal"),
            train("ViT-Ti/16", 1024, half=True),
            train("ViT-B/32", 512, sgd=True),
            train("ViT-S/8", 64, half=True),
            train("R26+ViT-S/32", 256),
            infer("BiT-R50x1", 512),
            infer("BiT-R152x2", 256, half=True),
            infer("R50+ViT-B/16", 256, half=True),
            infer("ViT-H/14", 128, half=True),
            infer("ViT-B/16", 256, positions="relative"),
        )
    return [held(work, in_all=work in few) for work in (*few, *many)]


def train(
    model: str, batch: int, *, image_size: int = 224, half: bool = False, sgd: bool = False, **fields: object
) -> StepMemory:
    """A training step."""
    shape = Shape(model=model, batch=batch, image_size=image_size, fields=fields)
    return StepMemory(
        shape=shape, kind="train", precision="bfloat16" if half else "float32", optimizer="sgd" if sgd else "adam"
    )


def infer(model: str, batch: int, *, half: bool = False, **fields: object) -> StepMemory:
    """A forward pass."""
    shape = Shape(model=model, batch=batch, fields=fields)
    return StepMemory(shape=shape, kind="infer", precision="bfloat16" if half else "float32")
