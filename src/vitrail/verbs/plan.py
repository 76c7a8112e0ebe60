"""`vitrail.plan`: what a model and a run would cost, counted; timed only where a probe is asked for."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, overload

from vitrail.config import ViTConfig, as_size, whole
from vitrail.config.check import positive
from vitrail.config.devices import NODE_LINK, DeviceRow, device_row
from vitrail.errors import ConfigError
from vitrail.ops.cost import counts
from vitrail.ops.cost.counts import EXA
from vitrail.ops.cost.plan import CostPlan
from vitrail.ops.cost.ranks import Ranks
from vitrail.ops.cost.shape import shape_for
from vitrail.runtime.reporter import text_table
from vitrail.verbs.fits import Fits, list_fits
from vitrail.verbs.planning import AnyModel, read_asked

QUADRATIC = 0.5  # share of the work that is token against token, from which it is worth a warning
GPUS = 8  # of a node, where it is not said
MOST_RANKS = 100_000


class Plan(CostPlan):
    """The counts of a model, of a step, and of a run; it prints as a table."""

    def __str__(self) -> str:
        return side_by_side([self])


@overload
def plan(model: AnyModel | None = None, *, fit: str | float, **options: Any) -> Fits: ...  # noqa: ANN401
@overload
def plan(model: AnyModel | None = None, *, fit: None = None, **options: Any) -> Plan: ...  # noqa: ANN401
def plan(
    model: AnyModel | None = None,
    *,
    recipe: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    batch_size: int | None = None,
    images: float | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    device: str | None = None,
    on: str | None = None,
    utilization: float | None = None,
    probe: bool = False,
    price: float | None = None,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    bandwidth: float | None = None,
    shape: float | None = None,
    fit: str | float | None = None,
    **fields: object,
) -> Plan | Fits:
    """Count parameters, operations and memory of a model, and what a run would cost; nothing is run but a probe.

    `model` is a name such as ViT-B/16 or vitrail-ti8, weights on disk, a run, a configuration, or a model in memory;
    `fields` change its configuration. The memory is that of a training step of `batch_size` images (64) in `precision`
    (bfloat16) with `optimizer` (adam) on `device` (cuda or cpu). With `images`, those of the data, and `epochs`, or
    with `steps`, the run is counted too, in the exaFLOPs of Table 6 and the TPUv3-core-days of Table 2; a `recipe`
    says what is left open of all this. `on="H200"` adds what fits that device, the micro-batch, time and energy from a
    table, at a `utilization` of its peak; `probe=True` takes a few steps here, of seconds, and times them. `price` is
    of one device for an hour. `nodes` and `gpus_per_node` add memory and traffic of DDP and FSDP, at a `bandwidth` in
    GB/s. `shape=1e21` proposes a model for so many FLOPs instead of taking one (SoViT's rule). `fit="24GB"` gives,
    instead of a plan, which models fit into a memory: all of the zoo, or the one that is given.
    """
    if fit is not None:
        others = {"recipe": recipe, "images": images, "epochs": epochs, "steps": steps, "precision": precision}
        others |= {"on": on, "probe": probe or None, "price": price, "nodes": nodes, "shape": shape}
        if said := [name for name, value in others.items() if value is not None]:
            raise ConfigError(
                f"fit lists what fits a memory, without {' and '.join(said)}. Leave out one or the other."
            )
        size = {} if image_size is None else {"image_size": as_size(image_size)}
        return list_fits(fit, model, batch_size, optimizer or "adam", device or "cuda", {**fields, **size})
    title = None
    if shape is not None:
        if model is not None or recipe is not None or images is not None or epochs is not None or steps is not None:
            raise ConfigError("shape proposes the model and how long to train it. Leave out model, recipe and length.")
        model, images, fields = _proposed(positive("shape", shape), image_size, fields)
        epochs, title = 1, f"for {shape:g} FLOPs"
    if model is None:
        raise ConfigError("which model? Give a name such as ViT-B/16, shape=1e21, or fit=24GB.")
    row = None if on is None else device_row(on)
    world, link = _world(nodes, gpus_per_node, bandwidth, row)
    _check_place(row, probe=probe, price=price, utilization=utilization)
    if precision is None and row is not None and row.bfloat16 is None:
        precision = "float32"  # as training chooses there
    asked = read_asked(
        model,
        recipe=recipe,
        image_size=image_size,
        batch_size=batch_size,
        images=images,
        epochs=epochs,
        steps=steps,
        precision=precision,
        optimizer=optimizer,
        device=device or (_here() if probe else "cuda"),
        fields=fields,
    )
    place = None
    if row is not None:
        place = asked.from_table(row, utilization)
    elif probe:
        asked, place = asked.probed()
    if place is not None:
        place = replace(place, count=world, price=price)
    ranks = None
    if nodes is not None or gpus_per_node is not None:
        share = -(-asked.step.batch // world)
        micro, parts = (share, 1) if place is None else (place.micro, place.parts)
        ranks = Ranks(config=asked.config, step=replace(asked.step, batch=micro), world=world, parts=parts)
    epochs = asked.training.epochs if asked.has_length else None
    return Plan(
        name=title or asked.title,
        config=asked.config,
        step=asked.step,
        images=asked.images,
        epochs=epochs,
        given_steps=asked.training.steps if asked.has_length and epochs is None else None,
        recipe=recipe,
        networks=asked.networks,
        place=place,
        ranks=ranks,
        bandwidth=link,
        budget=shape,
    )


def side_by_side(plans: Sequence[Plan]) -> str:
    """Write plans of the same step as one table, a column each, and what is unusual about them."""
    step, columns = plans[0].step, [each.lines() for each in plans]
    keys = list(dict.fromkeys(key for column in columns for key in column))
    rows = [
        [f"  {label}" if label else section, *(column.get((section, label), "") for column in columns)]
        for section, label in keys
    ]
    title = (
        f"Counted, not run: an image, and a step of {step.batch} in {step.precision} with {step.optimizer} "
        f"on {step.device}"
    )
    heads = ["", *(each.name for each in plans)]
    table = text_table(title, heads, [row for row in rows if any(row[1:])])
    return "\n".join([*table, *(note for each in plans for note in _notes(each))])


def _notes(plan: Plan) -> list[str]:
    """Say what is unusual about a plan, and where its time comes from."""
    notes = []
    if plan.pair_share > QUADRATIC:
        share, tokens = f"{plan.pair_share:.0%}", f"{plan.tokens:,}"
        notes.append(
            f"{plan.name}: {share} of the work is token against token, {tokens} by {tokens}.\n"
            "A patch twice as large has a sixteenth of it."
        )
    if plan.budget is not None and isinstance(plan.config, ViTConfig):
        config = plan.config
        notes.append(
            "Proposed by SoViT's rule (arXiv 2305.13035):\n"
            f"depth={config.depth} width={config.width} mlp_width={config.mlp_width} heads={config.heads}, "
            f"trained on {plan.seen:,.0f} images:\n"
            f"{plan.exaflops or 0:,.6g} of {plan.budget / EXA:,.6g} exaFLOPs."
        )
    if plan.place is not None and plan.place.pace is not None:
        notes.append(f"Time, of steps without evaluations,\n{plan.place.pace.source}.")
        if not plan.place.largest_training:
            notes.append(
                f"{plan.name}: not even one image at a time fits. Set checkpointing=True, or take more memory."
            )
    if plan.ranks is not None:
        notes.append(
            "Sent in a step, of n ranks: DDP 2(n-1)/n of the gradients, a ring all-reduce;\n"
            "FSDP 3(n-1)/n a micro-batch: weights gathered twice, gradients reduced.\n"
            "Times are as if nothing overlapped"
            + ("." if plan.place is None else "; that of the devices is without what is sent.")
        )
    return notes


def _proposed(
    compute: float, image_size: int | tuple[int, int] | None, fields: dict[str, object]
) -> tuple[ViTConfig, float, dict[str, object]]:
    """Propose a shape, and the images that use the compute up; give what is left of the fields too."""
    patch = whole("patch", fields.get("patch", 14))
    config = shape_for(compute, patch, as_size(image_size or 224))
    each = counts.exaflops(config, images=1) * EXA
    return config, max(round(compute / each), 1), {name: value for name, value in fields.items() if name != "patch"}


def _world(nodes: int | None, gpus: int | None, bandwidth: float | None, row: DeviceRow | None) -> tuple[int, float]:
    """Count the ranks, and give the GB/s that each of them sends; refuses a bandwidth without any."""
    if nodes is None and gpus is None:
        if bandwidth is not None:
            raise ConfigError("bandwidth is between devices. Say how many there are: nodes=2 gpus_per_node=8.")
        return 1, 0.0
    count = whole("nodes", 1 if nodes is None else nodes, most=MOST_RANKS)
    each = whole("gpus_per_node", GPUS if gpus is None else gpus, most=MOST_RANKS)
    usual = NODE_LINK if count > 1 or row is None else row.link
    return count * each, usual if bandwidth is None else positive("bandwidth", bandwidth)


def _check_place(row: DeviceRow | None, *, probe: bool, price: float | None, utilization: float | None) -> None:
    if probe and row is not None:
        raise ConfigError("a probe times the device that is here, and on names one of a table. Give one of them.")
    if price is not None and positive("price", price) and row is None and not probe:
        raise ConfigError("a price needs a time. Say which device, such as on=H200, or probe=True.")
    if utilization is not None and positive("utilization", utilization) > 1:
        raise ConfigError(f"utilization is a share of the peak, at most 1; got {utilization:g}.")
    if utilization is not None and row is None:
        raise ConfigError("utilization is a share of a device's peak. Say which, such as on=H200.")


def _here() -> str:
    """Give the kind of the device that training takes by itself."""
    from vitrail.runtime.machine import choose_device

    return choose_device(None).type
