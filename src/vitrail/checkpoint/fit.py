"""Whether a layout can hold a model: what would be lost, and what can be done about it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from vitrail.checkpoint.adapt import Request, Weights
from vitrail.checkpoint.archives.base import Entry, Headers
from vitrail.checkpoint.layouts.base import Dialect, Layout
from vitrail.checkpoint.layouts.vit_rows import alike
from vitrail.config import (
    BiasPositions,
    BiTConfig,
    HybridStem,
    LearnedPositions,
    ModelConfig,
    PairPositions,
    Resampling,
    RotaryPositions,
    ViTConfig,
    encode,
)
from vitrail.errors import CheckpointError, ConfigError, ShapeError
from vitrail.models.position_kinds import build_positions

Cure = Callable[[ModelConfig, Weights], tuple[ModelConfig, Weights]]


class Misfit(NamedTuple):
    """Something of a model that a layout does not hold, and how to write the model without it, where one can."""

    what: str
    cure: Cure | None
    loses: bool = True  # or the file gives the same logits all the same


def fit(
    config: ModelConfig, weights: Weights, layout: Layout, dialect: Dialect, *, lossy: bool, others: Iterable[Layout]
) -> tuple[ModelConfig, Weights, list[Misfit]]:
    """Give the model as the layout holds it, with what was done for that; a loss is refused unless it may be."""
    found = check_fit(config, layout, dialect, lossy=lossy, others=others)
    for misfit in found:
        assert misfit.cure is not None
        config, weights = misfit.cure(config, weights)
    return config, weights, found


def check_fit(
    config: ModelConfig, layout: Layout, dialect: Dialect, *, lossy: bool, others: Iterable[Layout]
) -> list[Misfit]:
    """Give what would be changed, or lost where it may be; refuse what may not be, and what cannot be written at all.

    A refusal names the layouts that hold the model.
    """
    found = [] if layout.name == "vitrail" else list(misfits(config, layout, dialect))
    if stuck := [misfit.what for misfit in found if misfit.cure is None]:
        raise CheckpointError(
            f"the layout {layout.name} cannot hold this model: {'; '.join(stuck)}. {_holding(config, others)}"
        )
    lost = [misfit.what for misfit in found if misfit.loses]
    if lost and not lossy:
        raise CheckpointError(
            f"the layout {layout.name} would lose something of this model: {'; '.join(lost)}. "
            f"{_holding(config, others)} Or say that it may lose that: lossy=True."
        )
    return found


def _holding(config: ModelConfig, layouts: Iterable[Layout]) -> str:
    """Say which layouts hold all of a model, and which most of it."""
    whole, partly = ["vitrail"], []
    for layout in (each for each in layouts if each.writes):
        found = list(misfits(config, layout, layout.dialect(config))) if layout.name != "vitrail" else None
        if found is not None and all(misfit.cure for misfit in found):
            (partly if any(misfit.loses for misfit in found) else whole).append(layout.name)
    most = f" ({' and '.join(partly)} would with lossy=True)" if partly else ""
    several = "layouts" if len(whole) > 1 else "layout"
    return f"Take the {several} {' or '.join(whole)}, which can{most}."


def misfits(config: ModelConfig, layout: Layout, dialect: Dialect) -> Iterator[Misfit]:
    """List all that a layout does not hold."""
    holds = layout.holds
    if layout.whole(config):
        return
    if family_of(config) not in holds.families:
        yield Misfit(f"it is a {family_of(config)}, and the layout has {', '.join(holds.families)} alone", None)
        return
    if not config.classes and not holds.headless and not dialect.get("headless"):
        yield Misfit("it has no classifier, which every model of the layout has", _as_it_is)
    if config.classes and config.cosine_scale is not None:
        yield Misfit("its classifier is by cosines, which the layout has none of", _without_head)
    if isinstance(config, BiTConfig):
        yield from _constants(config, holds.bit)
        return
    if isinstance(config.stem, HybridStem):
        yield from _constants(config.stem, holds.stem)
    if config.norm != "pre" or config.attention != "full" or config.causal:
        blocks = f"norm={config.norm}, attention={config.attention}, causal={config.causal}"
        yield Misfit(f"its blocks have {blocks}", None)
    if isinstance(config.positions, PairPositions) or getattr(config.positions, "at", "stem") != "stem":
        yield Misfit(f"its positions are {config.positions}, not one table before the first layer", None)
    elif not isinstance(config.positions, LearnedPositions):
        kind = encode(config.positions)["kind"]
        what = f"its positions ({kind}) are written as a table, which other image sizes resample"
        yield Misfit(what, partial(tabulate, resampling=holds.resampling), loses=False)
    if strange := [what for part, what in parts_of(config).items() if part not in holds.parts]:
        yield Misfit(f"it has {', '.join(strange)}", None)
    elif parts_of(config) and not reads_back(config, layout):
        yield Misfit("its parts together would be read as another model's", None)
    if config.pooling not in holds.poolings:
        yield Misfit(f"its pooling is {config.pooling}, and the layout has {', '.join(holds.poolings)} alone", None)
    if not holds.rectangles and config.grid[0] != config.grid[1]:
        yield Misfit(f"its grid is {config.grid[0]}x{config.grid[1]}, and the layout's models take squares", _as_it_is)
    documented = config.activation in holds.documented
    if config.activation not in holds.activations and not (documented and dialect.get("folder")):
        unless = ", unless it is a folder, whose config.json says it" if documented else ""
        what = f"its activation is {config.activation}, and the layout means {holds.activations[0]}{unless}"
        yield Misfit(what, _as_it_is)
    meant = 1e-5 if holds.parts and (config.first_norm or config.inner_norm != "none") else holds.epsilon
    if meant is not None and config.epsilon != meant:
        yield Misfit(f"its epsilon is {config.epsilon:g}, and the layout means {meant:g}", _as_it_is)
    if config.layer_scale is not None and not holds.layer_scale:
        yield Misfit("its layer scale, which is multiplied into the weights", fold_layer_scale)
    if not config.qkv_bias and not holds.bias_free:
        yield Misfit("it has no biases of query, key and value, and zeros are written", _zero_biases)
    if config.pre_logits is not None:
        if holds.hidden == "headless" and config.classes:
            yield Misfit("its classifier, since the layout has no tanh layer before one", _without_head)
        elif holds.hidden == "no" and not dialect.get("hidden"):
            yield Misfit(
                "its pre-training head, the tanh layer and the classifier after it",
                partial(_without_head, pre_logits=None),
            )


def reads_back(config: ViTConfig, layout: Layout) -> bool:
    """Tell whether a file of a model in a layout would be read as the same one, but for what is said of numerics."""
    try:
        dialect = layout.dialect(config)
        rows = layout.rows(config, dialect)
        entries = {name: Entry(shape, torch.float32) for row in rows for name, shape in row.shapes().items()}
        told = {"heads": config.heads, "activation": config.activation, "norm": "pre"}
        hints = Request(fields=told, grid=config.grid, image_size=config.image_size)
        found = layout.infer(Headers(entries, dialect["prefix"]), hints, {})
    except (CheckpointError, ConfigError, ShapeError):
        return False
    assert isinstance(found.config, ViTConfig)
    ours, theirs = (replace(alike(each), epsilon=1e-6, activation="gelu") for each in (config, found.config))
    return ours == theirs and not found.left_out


def parts_of(config: ViTConfig) -> dict[str, str]:
    """Name the parts that the paper's ViT lacks."""
    found = {
        "registers": config.registers and f"{config.registers} registers",
        "first_norm": config.first_norm and "a norm before its blocks",
        "final_norm": config.last_norm != ("none" if config.norm == "post" else "tokens")
        and f"final_norm={config.last_norm}",
        "class_token": config.class_tokens != (config.pooling == "token") and "a class token that is not read alone",
        "mlp": config.mlp != "plain" and "gated MLPs",
        "inner_norm": config.inner_norm != "none" and "norms inside its blocks",
        "qk_norm": config.qk_norm and "norms of queries and keys",
        "attention_width": config.attention_width is not None and "attention of another width",
        "projection": config.projection is not None and "a projection",
        "patch_norms": getattr(config.stem, "norms", False) and "norms around its patches' projection",
        "dense": config.head is not None and "a head of pixels or objects",
        "norm": config.norm == "branch" and "norms before its sums",
        "rotary": isinstance(config.positions, RotaryPositions) and "rotary positions",
        "bias": isinstance(config.positions, BiasPositions) and "biases of offsets",
    }
    return {part: what for part, what in found.items() if what}


def family_of(config: ModelConfig) -> str:
    """Tell ViT, hybrid and BiT apart."""
    if isinstance(config, BiTConfig):
        return "bit"
    return "hybrid" if isinstance(config.stem, HybridStem) else "vit"


def tabulate(config: ModelConfig, weights: Weights, *, resampling: Resampling) -> tuple[ModelConfig, Weights]:
    """Write the positions that are added before the first layer, of whatever kind, as the table that they come to.

    The table has single precision at least, as the model computes it.
    """
    assert isinstance(config, ViTConfig)
    mine = {name: tensor for name, tensor in weights.items() if name.startswith("positions.")}
    like = weights["norm.bias"]
    like = like.to(torch.promote_types(like.dtype, torch.float32))
    positions = build_positions(config).to(like)
    positions.load_state_dict({name.removeprefix("positions."): tensor for name, tensor in mine.items()})
    with torch.no_grad():
        table = positions.add(like.new_zeros(1, config.tokens, config.width), 0, config.grid)[0]
    kept = {name: tensor for name, tensor in weights.items() if name not in mine}
    changed = replace(config, positions=LearnedPositions(resampling=resampling))
    return changed, kept | {"positions.table.0": table.clone()}


def fold_layer_scale(config: ModelConfig, weights: Weights) -> tuple[ModelConfig, Weights]:
    """Multiply every residual branch's factors into its last layer: the same function without them."""
    assert isinstance(config, ViTConfig)
    folded = {name: tensor for name, tensor in weights.items() if not name.endswith("_scale.weight")}
    for scale, layer in (("attention_scale", "attention.out"), ("mlp_scale", "mlp.contract")):
        for index in range(config.layers):
            factor = weights[f"blocks.{index}.{scale}.weight"]
            for part in ("weight", "bias"):
                name = f"blocks.{index}.{layer}.{part}"
                folded[name] = weights[name] * (factor[:, None] if part == "weight" else factor)
    return replace(config, layer_scale=None), folded


def fold_into(config: ModelConfig, weights: Weights, dialect: Dialect) -> Weights:
    """Put what a dialect has no place for where it has one: the same function.

    Positions of the tokens before the patches go into these, biases of the patches into their positions.
    """
    table = weights.get("positions.table.0")
    if not isinstance(config, ViTConfig) or table is None:
        return weights
    missing = dialect.get("missing") or {}
    placed = 0 if dialect.get("folded") else missing.get("placed")
    placed = config.leading if placed is None else placed
    folded, table = dict(weights), table.clone()
    if "embedding.projection" in missing.get("biases", ()):
        table[config.leading :] += folded["embedding.projection.bias"]
        folded["embedding.projection.bias"] = torch.zeros_like(folded["embedding.projection.bias"])
    first = config.class_tokens
    if placed < first:
        folded["class_token"] = folded["class_token"] + table[0]
    if config.registers and placed < config.leading:
        held = folded["registers"].clone()
        start = max(placed, first)
        held[start - first :] += table[start : config.leading]
        folded["registers"] = held
    table[placed : config.leading] = 0
    return folded | {"positions.table.0": table}


def _as_it_is(config: ModelConfig, weights: Weights) -> tuple[ModelConfig, Weights]:
    return config, weights


def _zero_biases(config: ModelConfig, weights: Weights) -> tuple[ModelConfig, Weights]:
    assert isinstance(config, ViTConfig)
    names = [f"blocks.{index}.attention.qkv" for index in range(config.layers)]
    zeros = {f"{name}.bias": weights[f"{name}.weight"].new_zeros(3 * config.width) for name in names}
    return replace(config, qkv_bias=True), weights | zeros


def _without_head(config: ModelConfig, weights: Weights, **fields: None) -> tuple[ModelConfig, Weights]:
    gone = ("head.", "hidden.") if "pre_logits" in fields else "head."
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith(gone)}
    return replace(config, classes=None, cosine_scale=None, **fields), kept


def _constants(part: object, held: Any) -> Iterator[Misfit]:  # noqa: ANN401
    for name, value in held.items():
        own = getattr(part, name)
        if own != value:
            yield Misfit(f"its {name} is {own}, and the layout means {value}", _as_it_is)
