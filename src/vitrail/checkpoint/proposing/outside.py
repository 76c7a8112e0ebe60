"""Which tensor outside of the blocks is what: patch layer, class token, positions, norms, classifier."""

from collections.abc import Mapping
from math import isqrt

from vitrail.checkpoint.archives.base import Shape
from vitrail.checkpoint.layouts.table_shapes import BLOCK
from vitrail.checkpoint.proposing.inside import Found, Misfit
from vitrail.checkpoint.proposing.units import Unit, find_units, numbers
from vitrail.config.name_tables import Choices

PATCH, TABLE = "embedding.projection", "positions.table.0"
PATCH_WORDS = {"patch", "patches", "patcher", "projection", "proj", "embed", "embedding", "stem", "conv", "tokenizer"}
HEAD_WORDS = {"head", "heads", "classifier", "fc", "cls", "classification", "out", "output", "logits", "final", "mlp"}
TOKEN_WORDS = {"cls", "class", "token", "classtoken", "clstoken"}
PLACE_WORDS = {"pos", "position", "positional", "positions", "pe", "posemb", "posembed", "place"}
EARLY_WORDS = {"pre", "patch", "embed", "embedding", "first", "input", "stem", "emb", "patches"}
LATE_WORDS = {"head", "final", "post", "last", "classifier", "out", "f", "end", "encoder"}
MOST_LEFT = 6
MARKS = {"running_mean": "batch norms", "relative_position": "relative positions", "lora_": "LoRA layers"}


def read_outside(found: Found, shapes: Mapping[str, Shape], width: int, *, turned: bool) -> tuple[str, ...]:
    """Find what the tensors outside of the blocks are; give the names of those that are left out."""
    for mark, what in MARKS.items():
        if any(mark in name for name in shapes):
            raise Misfit(f"it has {what}")
    units = find_units(shapes)
    patch = _take_patch(found, units, width, turned=turned)
    rest = [unit for unit in units if unit is not patch]
    rest = _take_token(found, rest, width)
    rest = _take_positions(found, rest, width)
    rest = _take_head(found, rest, width, turned=turned)
    rest = _take_norms(found, rest, patch, width)
    _pooling(found)
    left = [name for unit in rest for name in (unit.weight, unit.bias) if name]
    if len(left) > MOST_LEFT:
        raise Misfit(
            f"it holds {len(left):,} tensors beside a ViT's, such as {left[0]}: another model, or more than one"
        )
    return tuple(left)


def _take_patch(found: Found, units: list[Unit], width: int, *, turned: bool) -> Unit:
    kernels = [unit for unit in units if len(unit.shape) == 4]
    if len(kernels) > 1:
        raise Misfit(f"it has {len(kernels)} convolutions before its blocks or beside them, where a ViT has one")
    if kernels:
        unit = kernels[0]
        if unit.shape[0] != width or unit.shape[2] != unit.shape[3] or (unit.bias and unit.bias_shape != (width,)):
            raise Misfit(
                f"its convolution {unit.weight} is {'x'.join(map(str, unit.shape))}, no layer of square patches"
            )
        found.reading["patch"] = "convolution"
        found.why[f"{PATCH}.weight"] = f"patches of {unit.shape[2]} pixels side by side"
    else:
        flat = [unit for unit in units if len(unit.shape) == 2 and _is_flat(unit, width, turned=turned)]
        likely = [unit for unit in flat if PATCH_WORDS & {*unit.words} and not PLACE_WORDS & {*unit.words}]
        if not flat:
            raise Misfit("it has no layer that reads patches of an image")
        unit = (likely or flat)[0]
        found.reading["patch"] = Choices(
            ("row column channel", "channel row column", "column row channel", "channel column row")
        )
        found.why["patch"] = "the order of a flat patch's values"
    found.names[f"{PATCH}.weight"] = (unit.weight,)
    found.names[f"{PATCH}.bias"] = (unit.bias,) if unit.bias else ()
    return unit


def _is_flat(unit: Unit, width: int, *, turned: bool) -> bool:
    out, inward = unit.shape[::-1] if turned else unit.shape
    squares = [inward // channels for channels in (3, 1) if inward % channels == 0]
    side = any(count > 1 and isqrt(count) ** 2 == count for count in squares)
    return out == width and side and (not unit.bias or unit.bias_shape == (width,))


def _take_token(found: Found, rest: list[Unit], width: int) -> list[Unit]:
    single = [unit for unit in rest if unit.shape and unit.shape[-1] == width and not unit.bias]
    single = [unit for unit in single if all(side == 1 for side in unit.shape[:-1]) and len(unit.shape) <= 4]
    named = [unit for unit in single if TOKEN_WORDS & {*unit.words}]
    named = named or [unit for unit in single if len(unit.shape) > 1]
    if len(named) > 1:
        raise Misfit(f"it has more than one token before its patches: {named[0].weight}, {named[1].weight}")
    if not named:
        return rest
    found.names["class_token"] = (named[0].weight,)
    found.reading["class_token_axes"] = len(named[0].shape)
    return [unit for unit in rest if unit is not named[0]]


def _take_positions(found: Found, rest: list[Unit], width: int) -> list[Unit]:
    tables = [unit for unit in rest if len(unit.shape) in (2, 3) and unit.shape[-1] == width and not unit.bias]
    tables = [unit for unit in tables if (unit.shape[-2] > 1 and unit.shape[0] == 1) or len(unit.shape) == 2]
    named = [unit for unit in tables if PLACE_WORDS & {*unit.words}]
    named = named or [unit for unit in tables if len(unit.shape) == 3]
    if len(named) > 1:
        raise Misfit(f"it has more than one table of positions: {named[0].weight}, {named[1].weight}")
    if not named:
        if strange := next((unit for unit in rest if PLACE_WORDS & {*unit.words}), None):
            shape = "x".join(map(str, strange.shape))
            raise Misfit(f"its positions {strange.weight} are {shape}, no table of tokens by {width} features")
        found.model["positions"] = Choices(("sinusoidal", "sinusoidal-2d", "sinusoidal-2d-simple", "none"))
        found.model["image_size"] = Choices(())
        found.why["positions"] = "the file has no table"
        return rest
    table = named[0]
    count, token = table.shape[-2], "class_token" in found.names
    found.names[TABLE] = (table.weight,)
    found.reading["positions_axes"] = len(table.shape)
    if token and _square(count - 1):
        found.reading["class_entry"] = Choices(("first", "last"))
        found.why["class_entry"] = (
            f"{count} entries are {isqrt(count - 1)}x{isqrt(count - 1)} patches and the class token"
        )
    elif token and _square(count):
        found.reading["class_entry"] = "none"
        found.why["class_entry"] = f"{count} entries are {isqrt(count)}x{isqrt(count)} patches alone"
    elif token:
        found.reading["class_entry"] = Choices(("first", "last", "none"))
        found.model["image_size"] = Choices(())
        found.why["image_size"] = f"{count} positions are no square"
    elif not _square(count):
        found.model["image_size"] = Choices(())
        found.why["image_size"] = f"{count} positions are no square"
    return [unit for unit in rest if unit is not table]


def _square(count: int) -> bool:
    return count > 0 and isqrt(count) ** 2 == count


def _take_head(found: Found, rest: list[Unit], width: int, *, turned: bool) -> list[Unit]:
    matrices = [unit for unit in rest if len(unit.shape) == 2]
    inward = {unit: unit.shape[0] if turned else unit.shape[1] for unit in matrices}
    heads = [unit for unit in matrices if inward[unit] == width]
    if len(heads) == 1 and len(matrices) == 1:
        unit = heads[0]
        found.names["head.weight"] = (unit.weight,)
        found.names["head.bias"] = (unit.bias,) if unit.bias else ()
        return [each for each in rest if each is not unit]
    if len(heads) >= 1 and len(matrices) == 2:  # the tanh layer of a pre-training head
        first = heads[0]
        second = next(unit for unit in matrices if unit is not first)
        out = first.shape[1] if turned else first.shape[0]
        if inward[second] == out:
            for ours, unit in (("hidden", first), ("head", second)):
                found.names[f"{ours}.weight"] = (unit.weight,)
                found.names[f"{ours}.bias"] = (unit.bias,) if unit.bias else ()
            found.reading["hidden"] = Choices(("tanh",))
            found.why["hidden"] = "the activation between the head's two layers; only this one is known here"
            return [each for each in rest if each not in (first, second)]
    if matrices and len(matrices) <= 3:
        found.why["left_out"] = "what answers is more than one linear layer: the model gives its representation"
    return rest


def _take_norms(found: Found, rest: list[Unit], patch: Unit, width: int) -> list[Unit]:
    norms = [unit for unit in rest if unit.shape == (width,) and unit.is_norm]
    values = patch.shape[1] if len(patch.shape) == 2 else 0
    around = [unit for unit in rest if unit.shape == (values,) and unit.is_norm and unit.near(patch) > 0]
    early = [unit for unit in norms if EARLY_WORDS & {*unit.words} and not LATE_WORDS & {*unit.words}]
    used: list[Unit] = []
    inner = [unit for unit in norms if unit.near(patch) > 0 and patch.near(unit) == len(patch.module.split(".")) - 1]
    if len(around) >= 1 and values and (values != width or len(around) > 1) and inner:
        first, second = around[0], next((unit for unit in inner if unit is not around[0]), None)
        if second is not None:
            _norm(found, "embedding.values_norm", first)
            _norm(found, "embedding.embedding_norm", second)
            used += [first, second]
    late = [unit for unit in norms if unit not in used and unit not in early]
    early = [unit for unit in early if unit not in used]
    if not late and len(early) == 2:
        early, late = early[:1], early[1:]
    if not late and len(norms) - len(used) == 1 and not (PATCH_WORDS & {*early[0].words} if early else True):
        early, late = [], early
    if len(early) > 1 or len(late) > 2:
        raise Misfit(f"it has {len(early) + len(late)} norms beside its blocks, where a ViT has one or two")
    if len(late) == 2:
        if early:
            raise Misfit("it has three norms beside its blocks, where a ViT has one or two")
        first, second = sorted(
            late, key=lambda unit: (bool(LATE_WORDS & {*unit.words}), numbers(unit.words), unit.order)
        )
        early, late = [first], [second]
    if early:
        if early[0].near(patch) and any(word in early[0].words for word in ("patch", "patches")):
            raise Misfit(f"it norms its patches before positions are added ({early[0].weight}), which no ViT here does")
        _norm(found, "first_norm", early[0])
        found.why["first_norm.weight"] = "before the blocks, by its name or order"
    if late:
        _norm(found, "norm", late[0])
    elif found.names.get(f"{BLOCK}mlp_norm.weight") == ():
        found.names |= {"norm.weight": (), "norm.bias": ()}
        found.why["norm.weight"] = "norms without parameters: whether one comes last, no tensor says"
    return [unit for unit in rest if unit not in (*used, *early, *late)]


def _norm(found: Found, ours: str, unit: Unit) -> None:
    found.names[f"{ours}.weight"] = (unit.weight,)
    found.names[f"{ours}.bias"] = (unit.bias,) if unit.bias else ()


def _pooling(found: Found) -> None:
    token = "class_token" in found.names
    found.model["pooling"] = Choices(("token", "mean", "max", "mean-all")) if token else Choices(("mean", "max"))
    if "norm.weight" in found.names:
        silent = () if found.names["norm.weight"] else ("none",)
        found.model["final_norm"] = Choices(("tokens", "pooled", *silent))
        found.why["final_norm"] = "before the tokens are pooled, or after"
