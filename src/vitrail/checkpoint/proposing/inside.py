"""Which tensor of a block is what: its MLP, attention and norms, by shapes first and by words and order then."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, permutations

from vitrail.checkpoint.archives.base import Shape
from vitrail.checkpoint.layouts.table_shapes import BLOCK
from vitrail.checkpoint.proposing.repeats import find_heads
from vitrail.checkpoint.proposing.units import NORMS, Unit, find_units, numbers
from vitrail.config.name_tables import Choices

ATTENTION = {"attn", "attention", "mha", "msa", "mhsa", "sa", "self", "heads", "multihead", "mixer"}
MLP = {"mlp", "ff", "ffn", "feed", "feedforward", "forward", "fc", "ffw", "net", "dense", "linear", "lin"}
WORDS: dict[str, set[str]] = {
    "query": {"q", "query", "queries", "wq", "qs", "querys"},
    "key": {"k", "key", "keys", "wk", "ks"},
    "value": {"v", "value", "values", "wv", "vs", "val", "vals"},
    "qkv": {"qkv", "kqv", "in", "wqkv", "vqk", "qvk", "kvq", "vkq", "packed"},
    "key_value": {"kv", "vk", "wkv"},
    "out": {"out", "o", "wo", "output", "proj", "unify", "unifyheads", "dense", "final", "projection", "combine", "fc"},
    "expand": {"fc1", "linear1", "expand", "up", "intermediate", "hidden", "first", "lin1", "w1", "d1", "dense1"},
    "contract": {"fc2", "linear2", "contract", "down", "second", "output", "lin2", "w2", "d2", "dense2"},
}
ROLES = {
    6: [("query", "key", "value", "out", "expand", "contract")],
    5: [("query", "key_value", "out", "expand", "contract"), ("query", "key", "value", "expand", "contract")],
    4: [("qkv", "out", "expand", "contract"), ("query", "key_value", "expand", "contract")],
    3: [("qkv", "expand", "contract")],
}
LETTERS = {"q": "query", "k": "key", "v": "value"}
PARTS = {"query", "key", "value", "qkv", "key_value"}
CLEAR = 0.25  # a difference of scores that is more than the file's order


class Misfit(Exception):  # noqa: N818
    """Why these tensors are no block, or no ViT, that the configuration can hold."""


@dataclass
class Found:
    """What is known of a file: tensors by our names, what else is said, and why."""

    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    model: dict[str, object] = field(default_factory=dict)
    reading: dict[str, object] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)


def likely_widths(tensors: Mapping[str, Shape]) -> list[int]:
    """List what may be the width, the likely first: the length of most vectors, of norms above all."""
    votes: Counter[int] = Counter()
    for unit in find_units(tensors):
        if len(unit.shape) == 1:
            votes[unit.shape[0]] += 6 if unit.is_norm else 2
        for side in unit.shape if len(unit.shape) == 2 else ():
            votes[side] += 1
    return [width for width, _ in votes.most_common(4) if width > 1]


def read_block(tensors: Mapping[str, Shape], width: int) -> Found:
    """Find what every tensor of a block is, where its vectors have this width."""
    tensors, heads = find_heads(tensors, width)
    units = find_units(tensors)
    _refuse_strangers(units)
    matrices = [unit for unit in units if len(unit.shape) == 2]
    turned = is_turned(matrices)
    if len(matrices) == 7:
        raise Misfit("its blocks have seven matrices, as those with a gated MLP")
    if len(matrices) not in ROLES:
        raise Misfit(f"its blocks have {len(matrices)} matrices; attention and an MLP have three to six")
    best = _best(matrices, width, heads, turned=turned)
    if best is None:
        shapes = ", ".join("x".join(map(str, unit.shape)) for unit in matrices)
        raise Misfit(f"the matrices of its blocks ({shapes}) are no attention and MLP of width {width}")
    found = Found()
    _write_attention(found, best, width, heads, turned=turned)
    for role in ("expand", "contract"):
        _linear(found, f"{BLOCK}mlp.{role}", best[role])
    _write_norms(found, [unit for unit in units if len(unit.shape) == 1], best, width)
    if turned:
        found.reading["linear"] = "in out"
        found.why["linear"] = "biases have the length of the second axis"
    return found


def _refuse_strangers(units: Sequence[Unit]) -> None:
    for unit in units:
        if {"running", "tracked"} & {*unit.words}:
            raise Misfit("its blocks have batch norms")
        if len(unit.shape) > 2:
            raise Misfit(f"its blocks hold {unit.weight}, {'x'.join(map(str, unit.shape))}: no part of a ViT's block")
        if 0 in unit.shape or unit.shape in ((), (1,)):
            raise Misfit(f"its blocks hold {unit.weight}, one number, such as a learned temperature or gate")


def is_turned(matrices: Sequence[Unit]) -> bool:
    """Tell whether linear layers are multiplied from the other side: their biases, or the word kernel, say it."""
    votes = [unit.bias_shape == unit.shape[:1] for unit in matrices if unit.bias and unit.shape[0] != unit.shape[1]]
    other = [unit.bias_shape == unit.shape[1:] for unit in matrices if unit.bias and unit.shape[0] != unit.shape[1]]
    if any(votes) or any(other):
        if any(votes) and any(other):
            raise Misfit("some of its linear layers are turned, and others are not")
        return any(other)
    if any("kernel" in unit.words for unit in matrices):
        return True
    packed = next((unit for unit in matrices if "qkv" in unit.words), None)
    return packed is not None and packed.shape[1] == 3 * packed.shape[0]


def _best(matrices: list[Unit], width: int, heads: int, *, turned: bool) -> dict[str, Unit] | None:
    """Give the roles that shapes allow and that words and order say."""
    ranked: list[tuple[float, dict[str, Unit]]] = []
    for roles in ROLES[len(matrices)]:
        for order in permutations(matrices):
            given = dict(zip(roles, order, strict=True))
            if _fits(given, width, heads, turned=turned):
                ranked.append((_score(given), given))
    return max(ranked, key=lambda each: each[0])[1] if ranked else None


def _sides(unit: Unit, heads: int, *, turned: bool) -> tuple[int, int]:
    """Count the outputs and inputs of a linear layer, of all heads together."""
    out, inward = unit.shape[::-1] if turned else unit.shape
    return (out * heads if "{head" in unit.weight else out), inward


def _fits(given: Mapping[str, Unit], width: int, heads: int, *, turned: bool) -> bool:
    sides = {role: _sides(unit, heads, turned=turned) for role, unit in given.items()}
    own = {role for role, unit in given.items() if "{head" in unit.weight}
    if not own <= PARTS or (own and own != PARTS & given.keys()):
        return False
    wide = sides["expand"][0]
    if sides["expand"] != (wide, width) or sides["contract"] != (width, wide):
        return False
    mixed = sides["out"][1] if "out" in given else width
    wanted = {"qkv": 3 * mixed, "key_value": 2 * mixed}
    inward = {width, width // heads} if own else {width}
    right = all(sides[role][0] == wanted.get(role, mixed) for role in PARTS & given.keys())
    right = right and len({sides[role][1] for role in PARTS & given.keys()}) == 1
    return (
        right
        and all(sides[role][1] in inward for role in PARTS & given.keys())
        and sides.get("out", (width,))[0] == width
    )


def _score(given: Mapping[str, Unit]) -> float:
    total = 0.0
    for role, unit in given.items():
        words = {*unit.words, *_joined(unit.words)}
        total += 2.0 * bool(WORDS[role] & words)
        # A word of the others counts against it, where it has none of its own.
        total -= 1.0 * any(WORDS[other] & words for other in PARTS - {role}) * (role not in PARTS)
        total += 1.0 * bool((MLP if role in ("expand", "contract") else ATTENTION) & words)
        total -= 1.0 * bool(role in ("expand", "contract") and ATTENTION & words)
    mixing = [unit for role, unit in given.items() if role not in ("expand", "contract")]
    total += 0.5 * given["expand"].near(given["contract"])
    total += 0.5 * sum(mixing[0].near(unit) for unit in mixing[1:]) / max(len(mixing) - 1, 1)
    places = [unit.order for unit in given.values()]
    return total + 0.02 * sum(one < two for one, two in pairwise(places))


def _joined(words: Sequence[str]) -> Iterator[str]:
    """Put a word and the number after it together: fc 1 is fc1."""
    for one, two in pairwise(words):
        if two.isdecimal():
            yield one + two


def _linear(found: Found, ours: str, unit: Unit) -> None:
    found.names[f"{ours}.weight"] = (unit.weight,)
    found.names[f"{ours}.bias"] = (unit.bias,) if unit.bias else ()
    if not unit.bias:
        found.why[f"{ours}.bias"] = "the file has none: zeros"


def _write_attention(found: Found, best: Mapping[str, Unit], width: int, heads: int, *, turned: bool) -> None:
    ours = f"{BLOCK}attention"
    parts = [best[role] for role in ("query", "key", "value", "qkv", "key_value") if role in best]
    found.names[f"{ours}.qkv.weight"] = tuple(unit.weight for unit in parts)
    if any(unit.bias for unit in parts):
        found.names[f"{ours}.qkv.bias"] = tuple(unit.bias for unit in parts)
    mixed = _sides(parts[0], heads, turned=turned)[0] // (3 if "qkv" in best else 1)
    if "out" in best:
        _linear(found, f"{ours}.out", best["out"])
    else:
        found.names |= {f"{ours}.out.weight": (), f"{ours}.out.bias": ()}
        found.why[f"{ours}.out.weight"] = "attention has no output layer: it changes nothing"
    library = any("in_proj" in unit.weight for unit in parts)  # torch's own attention
    _write_heads(found, mixed, heads, own=any("{head" in unit.weight for unit in parts))
    inward = {_sides(unit, heads, turned=turned)[1] for unit in parts}
    if inward == {width // heads} and heads > 1:
        found.reading["head_input"] = "slice"
        found.why["head_input"] = "each head reads its own features"
    words = {word for unit in parts for word in unit.words}
    if "qkv" in best and not library:
        layouts = ("part head feature", "head part feature", "head feature part")
        if heads > 1:
            layouts = ("head part feature", "head feature part")
        found.reading["qkv"] = Choices(layouts)
        found.why["qkv"] = "the order of the packed rows"
    named = next((word for word in words if sorted(word) == ["k", "q", "v"]), None)
    if named is not None:
        found.reading["order"] = " ".join(LETTERS[letter] for letter in named)
        found.why["order"] = f"called {named}"
    elif not library and not all(
        WORDS[role] & {*best[role].words} for role in ("query", "key", "value") if role in best
    ):
        orders = [("query", "key", "value"), ("key", "query", "value"), ("value", "key", "query")]
        orders += [("query", "value", "key"), ("key", "value", "query"), ("value", "query", "key")]
        found.reading["order"] = Choices(tuple(map(" ".join, orders)))
        found.why["order"] = "nothing tells query, key and value apart"
    elif "qkv" in best and not library:
        found.reading["order"] = Choices(("query key value", "key query value", "value key query", "query value key"))
    found.reading["scale"] = "head" if library else Choices(("head", "width", "none", "after width", "after head"))
    if not library:
        found.why["scale"] = "products are divided by the root of a head's width, of all features, or by nothing"


def _write_heads(found: Found, mixed: int, heads: int, *, own: bool) -> None:
    if own:
        found.model["heads"], found.why["heads"] = heads, "each has tensors of its own"
        return
    divisors = [number for number in range(1, min(mixed, 256) + 1) if mixed % number == 0 and mixed // number > 1]
    likely = [mixed // side for side in (64, 32) if mixed % side == 0 and mixed // side > 1]
    likely += [number for number in (8, 4, 12, 6, 16, 3, 2, 1) if number in divisors]
    every = list(dict.fromkeys([*likely, *sorted(divisors, key=lambda number: abs(number - 8))]))
    found.model["heads"] = Choices(tuple(every[:24]))
    found.why["heads"] = f"they share {mixed} features"


def _write_norms(found: Found, vectors: list[Unit], best: Mapping[str, Unit], width: int) -> None:
    wide = [unit for unit in vectors if unit.shape == (width,)]
    pairs = [unit for unit in wide if unit.bias]
    singles = [unit for unit in wide if not unit.bias]
    norms = pairs or [unit for unit in singles if (NORMS - {"gamma", "beta"}) & {*unit.words}] or singles
    others = [unit for unit in vectors if unit not in norms]
    scales = [unit for unit in others if unit.shape == (width,) and not unit.bias]
    small = [unit for unit in others if unit not in scales]
    if len(norms) > 2 and not pairs:
        raise Misfit(f"its blocks have {len(norms)} vectors of {width} that may be norms: {norms[0].weight}, ...")
    if len(norms) > 2:
        raise Misfit(f"its blocks have {len(norms)} norms of {width}; a ViT's have two")
    names = ("attention_norm", "mlp_norm")
    _pair(found, names, norms, best, clear="norms")
    for unit, name in zip(norms if len(norms) == 1 else (), names, strict=False):
        found.why[f"{BLOCK}{name}.weight"] = "the block has one norm: both are it"
        assert unit is norms[0]
    if scales:
        if len(scales) != 2:
            raise Misfit(f"its blocks hold {scales[0].weight}, a vector that no part of a ViT's block is")
        _pair(found, ("attention_scale", "mlp_scale"), scales, best, clear="")
    if small:
        _write_head_norms(found, small, best)


def _pair(found: Found, names: tuple[str, str], units: list[Unit], best: Mapping[str, Unit], *, clear: str) -> None:
    """Say which of two vectors is attention's and which is the MLP's."""
    if len(units) == 2:
        straight, crossed = (_pair_score(pair, best) for pair in (units, units[::-1]))
        units = units if straight >= crossed else units[::-1]
        if clear and abs(straight - crossed) < CLEAR:
            found.reading[clear] = Choices(("as named", "swapped"))
            found.why[clear] = "names do not say which of the two norms is attention's"
    for place, name in enumerate(names):
        unit = units[min(place, len(units) - 1)] if units else None
        found.names[f"{BLOCK}{name}.weight"] = (unit.weight,) if unit else ()
        if not name.endswith("_scale"):
            found.names[f"{BLOCK}{name}.bias"] = (unit.bias,) if unit and unit.bias else ()
    if not units:
        found.why[f"{BLOCK}{names[0]}.weight"] = "norms without parameters: ones and zeros"


def _pair_score(units: Sequence[Unit], best: Mapping[str, Unit]) -> float:
    first, second = units
    mixing = [unit for role, unit in best.items() if role not in ("expand", "contract")]
    thinking = [best["expand"], best["contract"]]

    def near(unit: Unit, others: Sequence[Unit]) -> float:
        return max(unit.near(other) for other in others)

    score = near(first, mixing) - near(first, thinking) + near(second, thinking) - near(second, mixing)
    score += bool(ATTENTION & {*first.words}) - bool(ATTENTION & {*second.words})
    score += bool(MLP & {*second.words}) - bool(MLP & {*first.words})
    one, two = numbers(first.words), numbers(second.words)
    # A norm without a number comes before one that has it: norm, norm2.
    score += (one < two) - (two < one)
    early = {"before", "input", "first", "pre", "in"}
    score += bool(early & {*first.words}) - bool(early & {*second.words})
    return score + 0.05 * (first.order < second.order)


def _write_head_norms(found: Found, small: list[Unit], best: Mapping[str, Unit]) -> None:
    """Take norms of queries and keys, which say how wide a head is."""
    sizes = {unit.shape for unit in small}
    by_role = {role: [unit for unit in small if WORDS[role] & {*unit.words}] for role in ("query", "key")}
    if len(small) != 2 or len(sizes) != 1 or any(len(units) != 1 for units in by_role.values()):
        raise Misfit(
            f"its blocks hold {small[0].weight}, {'x'.join(map(str, small[0].shape))}: no part of a ViT's block"
        )
    for role, units in by_role.items():
        unit = units[0]
        found.names[f"{BLOCK}attention.{role}_norm.weight"] = (unit.weight,)
        found.names[f"{BLOCK}attention.{role}_norm.bias"] = (unit.bias,) if unit.bias else ()
    head = small[0].shape[0]
    heads = found.model["heads"]
    if isinstance(heads, Choices):
        # Of the choices, all share the same features; the last is one head of all of them, or close to it.
        mixed = next((best[role].shape[0] for role in ("query", "out") if role in best), head)
        found.model["heads"], found.why["heads"] = mixed // head, f"norms of queries and keys have {head} features"
