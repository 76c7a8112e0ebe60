"""What timm's ViTs have beside the paper's parts, also in the names of DINOv2's authors: read off names and shapes."""

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from typing import Any

from vitrail.checkpoint.adapt import Request
from vitrail.checkpoint.archives.base import Headers
from vitrail.checkpoint.layouts.base import read_note
from vitrail.checkpoint.layouts.inference import is_square, noted_grid
from vitrail.checkpoint.layouts.vit_rows import Missing, PoolNames, TorchNames
from vitrail.config import Grid, Stem, ViTConfig
from vitrail.errors import CheckpointError

POOL = PoolNames(
    probe="attn_pool.latent",
    query="attn_pool.q.",
    key_value="attn_pool.kv.",
    out="attn_pool.proj",
    norm="attn_pool.norm",
    expand="attn_pool.mlp.fc1",
    contract="attn_pool.mlp.fc2",
)
REGISTERS = ("reg_token", "register_tokens", "dist_token")
# The first layer of a gated MLP, in timm's names and in DINOv2's, and the last.
GATES: dict[str, dict[str, str]] = {
    "mlp.w12": {"expand": "mlp.w12", "contract": "mlp.w3"},
    "mlp.fc1_g": {"gate": "mlp.fc1_g", "expand": "mlp.fc1_x"},
}
FIRST_NORM = (
    "timm's ViTs with a norm before their blocks have one of two activations, and the file does not say which. Say "
    "activation=quick-gelu (OpenAI's, MetaCLIP's and DFN's CLIP) or activation=gelu (LAION's, and all others)."
)
RESIDUAL = (
    "the norms of the file's blocks may come before attention and MLP, or after them and before the sum "
    "(vit_base_patch16_rpn_224). Say norm=pre if they come before, norm=branch if they come after."
)
PERCEPTION = (
    "the file's parts are those of the Perception Encoder (vit_pe_*), whose rotary positions no tensor shows, and "
    "which no model here has."
)
POOLED = (
    "timm's ViTs with attention pooling have one of two activations, and no published one has this shape. "
    "Say activation=gelu-tanh (SigLIP's own) or activation=gelu."
)
# Of timm's SigLIPs with GELU in its tanh form: patch side, width, and rows of patches (None: any).
ROTARY = ("eva02", "eva_giant", "_pe_", "dinov3", "_rope_", "lingbot")  # in names of models with the others' tensors
# Before what follows in the names of timm's SigLIPs with GELU in its tanh form; all others' is exact.
NAMED_TANH = ("vit_base_patch32", "vit_so400m_patch16", "vit_giantopt_patch16")
NAMED_TANH_SIZES = ("vit_large_patch16_siglip_512", "vit_large_patch16_siglip_gap_512")
TANH = ((32, 768, None), (16, 1024, 32), (16, 1152, None), (16, 1536, None))
EXACT = ((16, 768, None), (16, 1024, None), (14, 1152, None), (16, 896, None))


def parts_of(headers: Headers, norm: object, architecture: str = "") -> dict[str, Any]:
    """Give the fields of the parts that a file has."""
    held = headers.shapes.keys()
    if "blocks.0.norm1.weight" in held and "blocks.0.norm1.bias" not in held:
        raise CheckpointError("the file's norms have no biases, as RMSNorm has none, which no model here has.")
    norm = norm or ("branch" if "_rpn_" in architecture else "pre" if architecture else None)
    if norm is None and not {"cls_token", "norm.weight", "blocks.0.attn.qkv.bias", "blocks.0.ls1.gamma"} & held:
        raise CheckpointError(RESIDUAL)
    if "norm_pre.weight" in held and (
        {"cls_token", "attn_pool.latent"} <= held or not {"norm.weight", "fc_norm.weight"} & held
    ):
        raise CheckpointError(PERCEPTION)
    registers = next((name for name in REGISTERS if name in headers), None)
    count = headers.shape(registers, 3)[1] if registers else 0
    fields: dict[str, Any] = {"registers": count, "first_norm": "norm_pre.weight" in headers, "norm": norm or "pre"}
    if "norm.weight" not in headers:
        fields["final_norm"] = "pooled" if "fc_norm.weight" in headers else "none"
    fields["qk_norm"] = "blocks.0.attn.q_norm.weight" in headers
    attention, mlp = (f"blocks.0.{part}.norm.weight" in headers for part in ("attn", "mlp"))
    if attention and not mlp:
        raise CheckpointError("the file's model has norms in its attention and none in its MLPs, which no model has.")
    fields["inner_norm"] = "both" if attention else "mlp" if mlp else "none"
    if "attn_pool.latent" in headers:
        fields["pooling"] = "attention"
        small = headers.shape("attn_pool.latent", 3)[2] == 96 and "blocks.8.norm1.weight" in headers
        if architecture == "test_vit3" or (count and small):
            raise CheckpointError("timm's test_vit3 pools its register with the patches, which no model here does.")
    elif registers == "dist_token":
        fields["pooling"] = "distilled"
    return fields


def names_of(names: TorchNames, dialect: Mapping[str, Any]) -> TorchNames:
    """Give the names of a file's parts."""
    registers = dialect.get("registers") or REGISTERS[0]
    gate = GATES.get(dialect.get("gate") or "", {})
    return replace(
        names,
        registers=registers,
        first_norm="norm_pre",
        pooled_norm="fc_norm",
        qk_norms=("attn.q_norm", "attn.k_norm"),
        inner_norms=("attn.norm", "mlp.norm"),
        second_head="head_dist",
        pool=POOL,
        **gate,
    )


def gate_of(headers: Headers) -> tuple[str | None, int]:
    """Find the name of a gated MLP's first layer, where it is gated and not timm's own, and the MLP's width."""
    for name, gate in GATES.items():
        if f"blocks.0.{name}.weight" in headers:
            last = gate.get("contract", "mlp.fc2")
            return name, headers.shape(f"blocks.0.{last}.weight", 2)[1]
    return None, headers.shape("blocks.0.mlp.fc2.weight", 2)[1]


def is_gated(headers: Headers, gate: str | None, wide: int) -> bool:
    """Tell whether the MLPs are gated: their first layer writes twice what the last one reads."""
    return gate is not None or headers.shape("blocks.0.mlp.fc1.weight", 2)[0] == 2 * wide


def missing_of(headers: Headers, *, placed: int, leading: int) -> dict[str, Any]:
    """Say which biases a file lacks, and how many of the tokens before the patches have a position."""
    known = {"embedding.projection": "patch_embed.proj", "attention.out": "blocks.0.attn.proj"}
    known |= {"mlp.expand": "blocks.0.mlp.fc1", "mlp.contract": "blocks.0.mlp.fc2"}
    lacking = [ours for ours, name in known.items() if f"{name}.weight" in headers and f"{name}.bias" not in headers]
    return {"biases": lacking, "placed": None if placed == leading else placed}


def to_missing(dialect: Mapping[str, Any]) -> Missing:
    """Read what a dialect says that its files lack."""
    said = dialect.get("missing") or {}
    placed = 0 if dialect.get("folded") else said.get("placed")
    return Missing(biases=tuple(said.get("biases", ())), placed=placed)


def table_grid(count: int, stem: Stem, hints: Request, choices: list[int]) -> tuple[Grid, int]:
    """Find the grid of a table, and how many of the tokens before the patches have an entry: one of these numbers."""
    if hints.grid is not None:
        needed = hints.grid[0] * hints.grid[1]
        if count - needed in choices:
            return hints.grid, count - needed
        raise CheckpointError(f"grid={tuple(hints.grid)} has {needed} positions; the file's table has {count}.")
    squares = [entries for entries in choices if is_square(count - entries)]
    rows, cols = (0, 0) if hints.image_size is None else stem.grid(*hints.image_size)
    fits = bool(rows * cols) and count - rows * cols in choices
    if len(squares) == 1 and (not fits or rows == cols or count - rows * cols == squares[0]):
        side = isqrt(count - squares[0])
        return (side, side), squares[0]
    if fits and len(squares) != 1:
        return (rows, cols), count - rows * cols
    raise CheckpointError(
        f"the file's table of {count} positions is no square grid, or more than one. Say which with grid=(rows, cols)."
    )


def activation_of(
    config: Mapping[str, Any],
    said: Mapping[str, Any],
    hints: Request,
    documents: Mapping[str, Any],
    grid: Grid,
    *,
    token: bool,
) -> Any:  # noqa: ANN401
    """Find the activation of a tower of CLIP or SigLIP, of which timm has two kinds; nothing of another ViT."""
    if (noted := read_note(documents).get("activation")) is not None:
        return noted
    told = hints.fields.get("activation")  # where the file leaves it open
    name = architecture_of(documents)
    if any(mark in name for mark in ROTARY):
        raise CheckpointError(f"config.json says architecture={name!r}, whose rotary positions no tensor shows.")
    if "act_layer" in said:
        return None
    if "quickgelu" in name:
        return "quick-gelu"
    if "siglip" in name and (name.startswith(NAMED_TANH) or name in NAMED_TANH_SIZES):
        return "gelu-tanh"
    if name.startswith(("vit_", "test_vit", "deit", "flexivit")) and config["mlp"] != "gated":
        return "gelu"
    if config["mlp"] == "gated":
        return "silu"
    if config["first_norm"]:
        if told is None:
            raise CheckpointError(FIRST_NORM)
        return told
    if config["pooling"] == "attention":
        if (found := _published(config, grid) or told) is None:
            raise CheckpointError(POOLED)
        return found
    siglip = not token and not config["registers"] and config.get("final_norm") is None
    return _published(config, grid) if siglip else None


def architecture_of(documents: Mapping[str, Any]) -> str:
    """Give the name of timm's model that config.json says, without its tag; nothing where it says none."""
    name = documents.get("config.json", {}).get("architecture", "")
    return name.split(".")[0] if isinstance(name, str) else ""


def documented_grid(documents: Mapping[str, Any], stem: Stem, hints: Request, count: int, leading: int) -> Request:
    """Take the grid of the image size that our note says, or timm's config.json where it fits so many positions."""
    known = noted_grid(documents, stem, hints)
    for size in sizes_said(documents) if known.grid is None else ():
        rows, cols = (side // stem.stride for side in size)
        if rows and cols and 0 <= count - rows * cols <= leading:
            return replace(known, grid=(rows, cols))
    return known


def sizes_said(documents: Mapping[str, Any]) -> list[tuple[int, int]]:
    """List the image sizes that timm's config.json may mean: that of its arguments first, then of its preprocessing."""
    said = documents.get("config.json", {})
    args, how = (said.get(part) for part in ("model_args", "pretrained_cfg"))
    given = [args.get("img_size") if isinstance(args, dict) else None]
    size = how.get("input_size") if isinstance(how, dict) else None
    given.append(size[1:] if isinstance(size, list) and len(size) == 3 else None)
    pairs = [(each, each) if isinstance(each, int) else tuple(each) for each in given if isinstance(each, int | list)]
    whole = [pair for pair in pairs if all(isinstance(side, int) and side > 0 for side in pair)]
    return [(pair[0], pair[1]) for pair in whole if len(pair) == 2]


def _published(config: Mapping[str, Any], grid: Grid) -> str | None:
    """Give the activation of timm's published SigLIP of this shape."""
    shape = (config["stem"].patch, config["width"])
    for known, word in ((TANH, "gelu-tanh"), (EXACT, "gelu")):
        if any(shape == (patch, width) and rows in (None, grid[0]) for patch, width, rows in known):
            return word
    return None


def usual_missing(config: ViTConfig) -> dict[str, Any]:
    """Say what timm's files of such a model lack: patches' biases before a norm, positions of registers."""
    biases = ["embedding.projection"] if config.first_norm else []
    distilled = config.pooling == "distilled"
    placed = None if not config.registers or distilled else 0
    return {"biases": biases, "placed": placed}
