"""A layout that is a table of names: a file of anybody's, read and written by the rows that the table says."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from vitrail.checkpoint.adapt import Request
from vitrail.checkpoint.archives.base import Headers, Shape
from vitrail.checkpoint.layouts.base import Dialect, Found, Holds, Layout, Row
from vitrail.checkpoint.layouts.codecs import FLAT, PATCHES, SAME
from vitrail.checkpoint.layouts.named import NAME
from vitrail.checkpoint.layouts.table_codecs import (
    constant,
    copying,
    flat_patches,
    packed,
    pieces,
    places,
    swapped_patches,
)
from vitrail.checkpoint.layouts.table_shapes import BLOCK, PATCH, Look, find_patch, find_size
from vitrail.checkpoint.layouts.vit_rows import TURNED, TWO
from vitrail.config import (
    LearnedPositions,
    ModelConfig,
    NoPositions,
    PatchStem,
    Sinusoidal2DPositions,
    SinusoidalPositions,
    ViTConfig,
)
from vitrail.config.name_tables import SAID, UNCHECKED, NamesTable, expand
from vitrail.config.words import suggest
from vitrail.errors import CheckpointError, some_of
from vitrail.models import skeleton

SETTLE = "Say it in the table, or let vitrail describe FILE --names TABLE --check INPUT.npy OUTPUT.npy try them"
FIELDS = (*SAID, "final_norm")  # of the model, that a writer compares
POSITIONS = {
    "none": NoPositions(),
    "sinusoidal": SinusoidalPositions(),
    "sinusoidal-2d": Sinusoidal2DPositions(),
    "sinusoidal-2d-simple": Sinusoidal2DPositions(code="simple"),
}


def make_layout(table: NamesTable) -> Layout:
    """Give the layout that a table is."""
    return Layout(
        name=NAME,
        title="a table of names",
        recognize=lambda entries: "",
        infer=lambda headers, hints, documents: infer(table, headers, hints),
        rows=lambda config, dialect: rows(NamesTable.from_document(dialect["names"]), config),
        dialect=lambda config: _dialect(table),
        holds=Holds(epsilon=None),
        whole=lambda config: _fits(table, config),
    )


def _dialect(table: NamesTable) -> Dialect:
    """Give the table itself, and what is folded where it has no place: positions of the tokens before the patches."""
    entry = table.get("class_entry") == "none" and "positions.table.0" in table.names
    return {"names": table.document(), "missing": {"biases": (), "placed": 0 if entry else None}}


def _fits(table: NamesTable, config: ModelConfig) -> bool:
    """Refuse what the table means otherwise; its layout holds any other model whose parameters it names."""
    if table.open:
        raise CheckpointError(_still_open(table))
    for _ in rows(table, config):
        pass
    return True


def _still_open(table: NamesTable) -> str:
    points = [f"{name} ({', '.join(map(str, choices)) or 'not said'})" for name, choices in table.open.items()]
    return f"the table of names leaves open: {'; '.join(points)}. {SETTLE}."


def infer(table: NamesTable, headers: Headers, hints: Request) -> Found:
    """Read the configuration off the table and the shapes of the tensors that it names."""
    said = {name: hints.fields[name] for name in SAID if name in table.open and name in hints.fields}
    if "heads" in hints.fields and "heads" not in table.open and hints.fields["heads"] != table.get("heads"):
        raise CheckpointError(f"heads={hints.fields['heads']!r}; the table of names says {table.get('heads')!r}.")
    table = table.settled(said)
    if hints.image_size is not None and "image_size" in table.open:
        table = table.settled({"image_size": hints.image_size})
    if table.open:
        raise CheckpointError(_still_open(table))
    config = configure(table, headers.everything, hints)
    wanted = {name for row in rows(table, config) for name in row.theirs}
    left_out = _left_out(table, headers.everything, wanted)
    if strange := sorted(headers.everything.keys() - wanted - {*left_out}):
        raise CheckpointError(
            f"the table of names says nothing of {len(strange)} tensors: {some_of(strange, 6)}. Name them, or list "
            "them under left_out."
        )
    return Found(config=config, dialect=_dialect(table), inferred=(_trust(table),), left_out=left_out)


def _trust(table: NamesTable) -> str:
    """Say on what ground the table is believed."""
    if table.checked:
        said = ", ".join(f"{name} {value}" for name, value in table.checked.items())
        return f"names as the table says, checked against outputs: {said}"
    return (
        f"names as the table says, {UNCHECKED}: compare outputs, vitrail describe FILE --names TABLE "
        "--check INPUT.npy OUTPUT.npy"
    )


def _left_out(table: NamesTable, shapes: Mapping[str, Shape], wanted: set[str]) -> tuple[str, ...]:
    """List the tensors that are left out; one of them may end with a star."""
    exact = {name for name in table.left_out if not name.endswith("*")}
    starts = tuple(name[:-1] for name in table.left_out if name.endswith("*"))
    if both := sorted(exact & wanted):
        raise CheckpointError(f"the table of names both reads and leaves out {some_of(both, 4)}.")
    return tuple(
        sorted(name for name in shapes.keys() - wanted if name in exact or (starts and name.startswith(starts)))
    )


def configure(table: NamesTable, shapes: Mapping[str, Shape], hints: Request) -> ViTConfig:
    """Make the configuration of the model that a table finds in these shapes."""
    look = Look(table, shapes)
    turned = table.get("linear") == "in out"
    contract = look.matrix(f"{BLOCK}mlp.contract.weight")
    width, wide = contract[::-1] if turned else contract
    has_token, has_table = "class_token" in table.names, "positions.table.0" in table.names
    heads = table.get("heads") or look.heads()
    out = look.matrix(f"{BLOCK}attention.out.weight", missing=(width, width))
    mixed = out[0] if turned else out[1]
    patch, channels = find_patch(table, look, width)
    stem = PatchStem(patch=patch, norms="embedding.values_norm.weight" in table.names)
    final_norm = table.get("final_norm") or "tokens"
    if "norm.weight" not in table.names:
        final_norm = "none"
    head, hidden = (look.rows(name, turned=turned) for name in ("head.weight", "hidden.weight"))
    registers = look.find("registers")
    positions = LearnedPositions(resampling=table.get("resampling")) if has_table else POSITIONS[_fixed(table)]
    leading = has_token + (registers[-2] if registers else 0)
    return ViTConfig(
        stem=stem,
        depth=look.depth(f"{BLOCK}mlp.contract.weight"),
        width=width,
        mlp_width=wide,
        heads=heads,
        attention_width=None if mixed == width else mixed,
        classes=head,
        image_size=find_size(table, look, hints, stem, leading),
        channels=channels,
        positions=positions,
        norm=table.get("norm"),
        activation=table.get("activation"),
        epsilon=table.get("epsilon"),
        qkv_bias=f"{BLOCK}attention.qkv.bias" in table.names,
        layer_scale=1.0 if f"{BLOCK}attention_scale.weight" in table.names else None,
        class_token=has_token,
        registers=registers[-2] if registers else 0,
        first_norm="first_norm.weight" in table.names,
        final_norm=final_norm,
        mlp=table.get("mlp"),
        qk_norm=f"{BLOCK}attention.query_norm.weight" in table.names,
        pooling=table.get("pooling") or ("token" if has_token else "mean"),
        pre_logits=hidden,
    )


def _fixed(table: NamesTable) -> str:
    kind = table.get("positions")
    return "none" if kind == "learned" else kind


def rows(table: NamesTable, config: ModelConfig) -> Iterator[Row]:
    """Give the row of every parameter of a model, in the table's names and axes."""
    if not isinstance(config, ViTConfig) or not isinstance(config.stem, PatchStem):
        raise CheckpointError("a table of names holds a plain ViT. Take layout=vitrail.")
    _check_said(table, config)
    used: set[str] = set()
    held: set[str] = set()
    for ours, shape in our_shapes(config).items():
        found = re.match(r"blocks\.(\d+)\.", ours)
        key = BLOCK + ours[found.end() :] if found else ours.replace("pooled_norm.", "norm.")
        layer = int(found[1]) if found else 0
        used.add(key)
        row = _row(table, config, ours, _swapped(table, key), layer, shape)
        yield copying(row) if held & {*row.theirs} else row
        held |= {*row.theirs}
    if extra := sorted(name for name in table.names.keys() - used if table.names[name]):
        raise CheckpointError(
            f"the model has no place for what the table names: {some_of(extra, 4)}.{suggest(extra[0], [*used])}"
        )


@lru_cache(maxsize=512)
def our_shapes(config: ViTConfig) -> dict[str, Shape]:
    """Give the shape of every parameter of a model."""
    return {name: tuple(each.shape) for name, each in skeleton(config).state_dict().items()}


def _swapped(table: NamesTable, key: str) -> str:
    """Give the other norm of a block where the table's two are the other way round."""
    if table.get("norms") != "swapped":
        return key
    names = {"attention_norm": "mlp_norm", "mlp_norm": "attention_norm"}
    part = key.removeprefix(BLOCK).split(".")[0]
    return key.replace(part, names[part]) if part in names else key


def _check_said(table: NamesTable, config: ViTConfig) -> None:
    """Refuse a model whose numerics are not those that the table says, since no tensor would say so."""
    for name in FIELDS:
        said, has = table.get(name), config.last_norm if name == "final_norm" else getattr(config, name)
        if said is None or (name == "final_norm" and "norm.weight" not in table.names):
            continue
        if name == "final_norm" and config.pooling == "token" and has != "none":
            continue  # of one token, both are the same
        if said != has:
            raise CheckpointError(
                f"the table of names says {name} = {said!r}; the model has {has!r}. Change the table."
            )


def _row(table: NamesTable, config: ViTConfig, ours: str, key: str, layer: int, shape: Shape) -> Row:
    """Give one row."""
    if key not in table.names:
        raise CheckpointError(
            f"the table of names says nothing of {key}: name its tensor, or give [] where it has none."
        )
    templates = table.names[key]
    turned = table.get("linear") == "in out"
    if "attention.qkv." in ours:
        sizes = pieces(table, config, templates)
        names, used = [], []
        for template, head, size in sizes:
            name = expand(template, layer, head) if template else ""
            names.append(name)
            used.append(size)
        theirs, codec = packed(table, config, names, used, weight=ours.endswith("weight"), turned=turned)
        return Row(ours, tuple(name for name in names if name), theirs[0], codec, others=tuple(theirs[1:]))
    names = tuple(expand(template, layer) for template in templates)
    if not names:
        return Row(ours, (), shape, constant(ours, shape))
    if len(names) == 2 and ".mlp.expand." in ours and config.mlp == "gated":
        half = (shape[0] // 2, *shape[1:])
        return Row(ours, names, half, TWO)
    if len(names) != 1:
        raise CheckpointError(f"{key} is one tensor; the table of names has {len(names)}.")
    if ours == PATCH and table.get("patch") == "convolution":
        return Row(ours, names, (config.width, config.channels, config.stem.patch, config.stem.patch), PATCHES)
    if ours == PATCH:
        codec = flat_patches(table.get("patch"), config.stem.patch, config.channels, turned=turned)
        return Row(ours, names, shape[::-1] if turned else shape, codec)
    if ours.startswith("embedding.values_norm.") and table.get("patch") != "convolution":
        return Row(ours, names, shape, swapped_patches(table.get("patch"), config.stem.patch, config.channels))
    if ours == "class_token":
        return Row(ours, names, (*[1] * (table.get("class_token_axes") - 1), config.width), FLAT)
    if ours == "registers":
        return Row(ours, names, (1, *shape), FLAT._replace(read=lambda theirs: theirs[0]))
    if ours == "positions.table.0":
        entry, axes = table.get("class_entry"), table.get("positions_axes")
        count = config.tokens - (config.leading if entry == "none" else 0)
        codec = places(entry, config.leading)
        return Row(ours, names, (*[1] * (axes - 2), count, config.width), codec)
    if len(shape) == 2 and turned:
        return Row(ours, names, shape[::-1], TURNED)
    return Row(ours, names, shape, SAME)
