"""What a table of names finds in the shapes of a file: sides, counts and sizes, or a refusal."""

from collections.abc import Mapping
from math import isqrt

from vitrail.checkpoint.adapt import Request
from vitrail.checkpoint.archives.base import Shape
from vitrail.config import PatchStem
from vitrail.config.check import DEEPEST
from vitrail.config.name_tables import NamesTable, expand
from vitrail.config.words import suggest
from vitrail.errors import CheckpointError

BLOCK = "blocks.{layer}."
PATCH = "embedding.projection.weight"


class Look:
    """Shapes of a file by our names, as a table finds them."""

    def __init__(self, table: NamesTable, shapes: Mapping[str, Shape]) -> None:
        self.table, self.shapes = table, shapes

    def find(self, ours: str) -> Shape | None:
        """Give the shape of the first tensor behind a name of ours; nothing where there is none."""
        theirs = self.table.names.get(ours, ())
        if not theirs:
            return None
        name = expand(theirs[0], 0)
        if name not in self.shapes:
            near = suggest(name, self.shapes) if len(self.shapes) < 2000 else ""
            near = near if "mean" in near else ""
            raise CheckpointError(f"the table of names has {name!r} for {ours}; the file lacks it.{near}")
        return self.shapes[name]

    def matrix(self, ours: str, *, missing: Shape | None = None) -> Shape:
        """Give the shape of a matrix that must be there, or of one that is constant."""
        found = self.find(ours) or missing
        if found is None:
            raise CheckpointError(f"the table of names has no tensor for {ours}. Name it.")
        if len(found) != 2 or not all(found):
            raise CheckpointError(f"{ours} must be a matrix; the file's {self.table.names[ours][0]!r} is {found}.")
        return found

    def rows(self, ours: str, *, turned: bool) -> int | None:
        """Count the outputs of a linear layer; nothing where there is none."""
        return self.matrix(ours)[1 if turned else 0] if ours in self.table.names else None

    def depth(self, ours: str) -> int:
        """Count the layers."""
        template, depth = self.table.names[ours][0], 0
        while expand(template, depth) in self.shapes and depth <= DEEPEST:
            depth += 1
            if expand(template, 0) == expand(template, 1):
                break  # one layer, without a number
        if depth > DEEPEST:
            raise CheckpointError(f"the file has more than {DEEPEST:,} layers.")
        return depth

    def heads(self) -> int:
        """Count the heads, where each has tensors of its own."""
        template, heads = next(iter(self.table.names.get(f"{BLOCK}attention.qkv.weight", ())), ""), 0
        if "{head" not in template:
            raise CheckpointError("the table of names does not say how many heads there are: heads = ... in [model].")
        while expand(template, 0, heads) in self.shapes and heads < 4096:
            heads += 1
        return max(heads, 1)


def find_patch(table: NamesTable, look: Look, width: int) -> tuple[int, int]:
    """Find the side of a patch and the channels."""
    shape = look.find(PATCH)
    if shape is None:
        raise CheckpointError(f"the table of names has no tensor for {PATCH}. Name the file's patch layer.")
    if table.get("patch") == "convolution":
        if len(shape) != 4 or shape[2] != shape[3]:
            raise CheckpointError(
                f"the file's patch layer is {shape}; a convolution of square patches has four axes. Say patch in "
                "[reading] where it is a matrix."
            )
        return shape[2], shape[1]
    if len(shape) != 2:
        raise CheckpointError(f"the file's patch layer is {shape}, and the table reads it as a matrix.")
    values = shape[0] if table.get("linear") == "in out" else shape[1]
    said = table.get("channels")
    for channels in (said,) if said else (3, 1, 4, 2):
        side = isqrt(values // channels)
        if side and side * side * channels == values:
            return side, channels
    raise CheckpointError(f"patches of {values} values are no squares. Say channels in [model].")


def find_size(table: NamesTable, look: Look, hints: Request, stem: PatchStem, leading: int) -> tuple[int, int]:
    """Find the image size: said, or that of the square grid of the positions."""
    if hints.grid is not None:
        return hints.grid[0] * stem.patch, hints.grid[1] * stem.patch
    if said := table.get("image_size"):
        return said
    shape = look.find("positions.table.0")
    if shape is None:
        if hints.image_size is not None:
            return hints.image_size
        raise CheckpointError("nothing in the file says for which image size it is: image_size = [...] in [model].")
    count = (shape[-2] if len(shape) > 1 else 0) - (0 if table.get("class_entry") == "none" else leading)
    if count < 1 or isqrt(count) ** 2 != count:
        if hints.image_size is not None:
            return hints.image_size
        raise CheckpointError(f"the file's {count} positions are no square: say image_size = [...] in [model].")
    return isqrt(count) * stem.patch, isqrt(count) * stem.patch
