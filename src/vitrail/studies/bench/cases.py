"""The kinds of rows: each makes a case of a shape."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from vitrail.studies.bench.table import (
    Case,
    Decode,
    Forward,
    How,
    Library,
    Load,
    Precision,
    Products,
    Shape,
    StepMemory,
    TrainStep,
    Way,
)

BASE = "timm"
PRODUCTS = "products alone"


def title(shape: Shape) -> str:
    """Say what goes through what."""
    return f"{shape.model}, {shape.image_size} px, batch {shape.batch}"


def name_of(group: str, shape: Shape) -> str:
    """Name the row of a model."""
    return f"{group}-{slug(shape.model.replace('ViT-', ''))}"


def ours(name: str, shape: Shape, precision: Precision, *, how: How = "fast", ceiling: str | None = None) -> Way:
    """Vitrail's way through a forward pass."""
    return Way(name=name, work=Forward(shape=shape, precision=precision, how=how), ceiling=ceiling)


def peer(by: Library, shape: Shape, precision: Precision, how: How) -> Way:
    """Another library's way through a forward pass."""
    return Way(name=by, work=Forward(shape=shape, precision=precision, by=by, how=how))


def forward(shape: Shape, *, products: bool = False) -> Case:
    """Compiled forward passes in half precision beside timm's."""
    bound = [Way(name=PRODUCTS, work=Products(shape=shape, precision="bfloat16"))] if products else []
    fast = ours("Vitrail", shape, "bfloat16", ceiling=PRODUCTS if products else None)
    return Case(
        name=name_of("forward", shape),
        title=title(shape),
        group="forward",
        unit="images/s",
        base=BASE,
        ways=[peer("timm", shape, "bfloat16", "compiled"), fast, *bound],
    )


def training(shape: Shape, *, precision: Precision = "bfloat16", products: bool = False) -> Case:
    """The training loop's step beside a plain step of timm's model."""
    bound = [Way(name=PRODUCTS, work=Products(shape=shape, precision=precision, training=True))] if products else []
    return Case(
        name=name_of("training", shape),
        title=title(shape),
        group="training",
        unit="images/s",
        base=BASE,
        ways=[
            Way(name=BASE, work=TrainStep(shape=shape, by="timm")),
            Way(name="Vitrail", work=TrainStep(shape=shape), ceiling=PRODUCTS if products else None),
            *bound,
        ],
    )


def latency(shape: Shape, precision: Precision, *, graph: bool = False) -> Case:
    """One image at a time, and how long the answer takes."""
    how: How = "compiled graph" if graph else "eager"
    shown = ", graph" if graph else ""
    ways = [
        Way(name=f"timm{shown}", work=Forward(shape=shape, precision=precision, by="timm", how=how)),
        Way(name=f"Vitrail{shown}", work=Forward(shape=shape, precision=precision), ceiling=PRODUCTS),
        Way(name="Vitrail, eager", work=Forward(shape=shape, precision=precision, how="eager"), process="eager"),
        Way(name=PRODUCTS, work=Products(shape=shape, precision=precision), process="eager"),
    ]
    if graph:
        other = Forward(shape=shape, precision=precision, by="timm", how="eager")
        ways.append(Way(name="timm, eager", work=other, process="eager"))
    return Case(
        name=name_of("latency", shape),
        title=title(shape),
        group="latency",
        unit="ms",
        base=f"timm{shown}",
        ways=ways,
    )


def growth(shape: Shape, precision: Precision, how: How, *, batches: Sequence[int], short: int) -> Sequence[Case]:
    """How the cost of an image grows with the batch, the side and the depth; plain models, nothing compiled."""
    many = {f"{batch}": Shape(model=shape.model, batch=batch) for batch in batches}
    sides = {f"{side}": Shape(model=shape.model, batch=short, image_size=side) for side in (112, 224, 384, 512)}
    depths = {f"{depth}": Shape(model=shape.model, batch=short, fields={"depth": depth}) for depth in (3, 6, 12, 24)}
    return (
        _grows("batch", f"{shape.model}, 224 px, by batch", "images in a batch", many, precision, how),
        _grows("side", f"{shape.model}, batch {short}, by side", "side of the images, pixels", sides, precision, how),
        _grows("depth", f"{shape.model}, 224 px, batch {short}, by depth", "blocks", depths, precision, how),
    )


def _grows(by: str, said: str, x_label: str, shapes: Mapping[str, Shape], precision: Precision, how: How) -> Case:
    libraries: tuple[tuple[str, Library], ...] = (("Vitrail", "vitrail"), ("timm", "timm"))
    ways = [
        Way(
            name=f"{name}, {place}",
            work=Forward(shape=shape, precision=precision, by=library, how=how),
            series=name,
            at=float(place),
            process="all",
        )
        for place, shape in shapes.items()
        for name, library in libraries
    ]
    return Case(
        name=f"growth-{by}",
        title=f"{said}, plain",
        group="forward",
        unit="ms an image",
        base=ways[0].name,
        ways=ways,
        repeats=3,
        seconds=0.15,
        x_label=x_label,
        log_x=by != "depth",
    )


def held(work: StepMemory, *, in_all: bool) -> Case:
    """A step whose memory is predicted and measured."""
    shape = work.shape
    said = [f"{shape.model} {work.kind}", f"batch {shape.batch}"]
    said += [] if shape.image_size == 224 else [f"{shape.image_size} px"]
    said += [work.precision] if work.precision != "float32" else []
    said += ["sgd"] if work.optimizer == "sgd" else []
    said += [name if value is True else f"{name} {value}" for name, value in shape.fields.items()]
    shown = ", ".join(said)
    return Case(
        name=f"memory-{slug(shown)}",
        title=shown,
        group="memory",
        unit="MiB",
        base="measured",
        ways=[
            Way(name="measured", work=work, process="all"),
            Way(name="predicted", work=replace(work, predicted=True), process="all"),
        ],
        repeats=1,
        in_all=in_all,
    )


def slug(text: str) -> str:
    """Give a text as a name that one can type."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text.replace("/", "")).strip("-")


def decoding(height: int, width: int, count: int) -> Case:
    """Photographs of a size, by Pillow alone and by Vitrail with both decoders."""
    names = {"Pillow": "Pillow, bicubic", "vitrail": "Vitrail", "simplejpeg": "Vitrail with simplejpeg"}
    ways = [
        Way(name=name, work=Decode(height=height, width=width, count=count, by=by), process="all")  # pyright: ignore[reportArgumentType]
        for by, name in names.items()
    ]
    return Case(
        name=f"data-{width}x{height}",
        title=f"photographs of {width}x{height}, cropped to 224",
        group="data",
        unit="ms an image",
        base=names["Pillow"],
        ways=ways,
    )


def loading(model: str, *, in_all: bool = True) -> Case:
    """A file of a model, by timm and by Vitrail, and in Vitrail's other layouts."""
    ways = [
        Way(name="timm", work=Load(model=model, layout="timm", by="timm"), process="all"),
        Way(name="Vitrail, the same file", work=Load(model=model, layout="timm"), process="all"),
        Way(name="Vitrail, its own folder", work=Load(model=model, layout="vitrail"), process="all"),
        Way(name="Vitrail, the authors' npz", work=Load(model=model, layout="google"), process="all"),
    ]
    if not in_all:
        ways.append(Way(name="transformers", work=Load(model=model, layout="hf", by="transformers"), process="all"))
        ways.append(Way(name="Vitrail, its folder", work=Load(model=model, layout="hf"), process="all"))
    return Case(
        name=f"loading-{slug(model)}",
        title=f"{model}, float32",
        group="loading",
        unit="s",
        base="timm",
        ways=ways,
        repeats=3,
        in_all=in_all,
    )
