"""Ways to read a file, tried on images: what several ways have in common is computed once for all of them."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vitrail.checkpoint.adapt import Request, Weights
from vitrail.checkpoint.archives.base import Archive
from vitrail.checkpoint.layouts.table import configure, rows
from vitrail.config import Grid, ViTConfig
from vitrail.config.name_tables import NamesTable
from vitrail.errors import CheckpointError, ConfigError, VitrailError
from vitrail.models import ViT, skeleton

KEPT = 1024  # models without weights
FEW = 1  # images that the search looks at
NEVER = float("inf")
Way = Mapping[str, object]
# Open points of the blocks alone: what stands before them, and what reads them, is the same in each of these.
BLOCKS = ("heads", "activation", "qkv", "order", "scale", "norms")
STARTS = ("patch", "class_entry")  # of what the blocks read
ENDS = ("pooling", "final_norm")  # of what reads them


class Parts(nn.Module):
    """A model without weights of its own, in the three parts that a way to read a file may share with others."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        model = skeleton(config)
        assert isinstance(model, ViT)
        self.model, self.classes = model.eval(), config.classes

    def forward(self, part: str, given: Tensor, grid: Grid) -> tuple[Tensor, ...]:
        """Give the tokens of images, tokens after the blocks, or the representation, with logits if there are any."""
        if part == "start":
            return (self.model.add_positions(self.model.embedding(given), grid),)
        if part == "blocks":
            for layer in range(len(self.model.blocks)):
                given = self.model.run_block(given, layer, grid)
            return (given,)
        features = self.model.read_out(self.model.norm(given))
        return (features, self.model.head(features)) if self.classes else (features,)


class Part:
    """One part of a model, with its weights."""

    def __init__(self, name: str, parts: Parts, weights: Weights) -> None:
        self.name, self.parts = name, parts
        self.weights = {f"model.{ours}": tensor for ours, tensor in weights.items()}

    @torch.inference_mode()
    def __call__(self, given: Tensor) -> tuple[Tensor, ...]:
        """Compute it."""
        return functional_call(self.parts, self.weights, (self.name, given, self.parts.model.positions.grid))


class Trial:
    """A file's tensors, images, and the outputs that its own model gave for them."""

    def __init__(self, archive: Archive, images: Tensor, outputs: Tensor) -> None:
        self.read = archive.read
        self.images, self.outputs = check_pair(images, outputs)
        self.tried = 0
        self._raw: dict[str, Tensor] = {}
        self.shapes = {name: entry.shape for name, entry in archive.entries.items()}
        self._models: dict[ViTConfig, Parts] = {}
        self._tokens: dict[object, Tensor] = {}
        self._ends: dict[object, Part] = {}
        self.scale = max(1.0, float(self.outputs.abs().max()))
        self.refusals: list[str] = []

    def tensor(self, name: str) -> Tensor:
        """Read a tensor once."""
        if name not in self._raw:
            self._raw[name] = self.read(name).float()
        return self._raw[name]

    def build(self, table: NamesTable, *names: str) -> list[Part]:
        """Give parts of the model that a settled table means, at the size of the images, with their weights."""
        size = (self.images.shape[2], self.images.shape[3])
        config = configure(table, self.shapes, Request(image_size=size))
        if config.image_size != size:
            raise CheckpointError(f"its positions are of images of {_by(config.image_size)}; these are {_by(size)}.")
        if config.channels != self.images.shape[1]:
            raise CheckpointError(
                f"its patches have {config.channels} channels; the images have {self.images.shape[1]}."
            )
        weights: dict[str, Weights] = {name: {} for name in names}
        for row in rows(table, config):
            if (part := _part_of(row.ours)) not in weights:
                continue
            for name, shape in row.shapes().items():
                if self.shapes.get(name) != shape:
                    raise CheckpointError(f"{name!r} is {self.shapes.get(name, 'not there')}, not {shape}.")
            weights[part][row.ours] = row.codec.read(*map(self.tensor, row.theirs)).contiguous()
        if config not in self._models:
            if len(self._models) == KEPT:
                self._models.clear()
            self._models[config] = Parts(config)
        return [Part(name, self._models[config], weights[name]) for name in names]

    def difference(self, table: NamesTable, count: int | None = None) -> tuple[float, str]:
        """Give the largest difference of a way from the outputs, and what these are."""
        self.tried += 1
        try:
            start, blocks, end = self.build(table, "start", "blocks", "end")
            (tokens,) = blocks(*start(self.images[:count]))
            return self._compare(end(tokens), self.outputs[:count])
        except (VitrailError, RuntimeError) as error:
            self.refusals.append(str(error))
            return NEVER, ""

    def differences(
        self, table: NamesTable, way: Way, starts: Sequence[Way], ends: Sequence[Way]
    ) -> Iterator[tuple[float, Way]]:
        """Give the difference of all that is computed with the same blocks: every start with every end."""
        shared = tuple((name, value) for name, value in way.items() if name not in BLOCKS)
        given = [(start, self._start(table, {**way, **start}, ends[0], (shared, _key(start)))) for start in starts]
        sizes = {tokens.shape for _, tokens in given if tokens is not None}
        for size in sizes:
            alike = [(start, tokens) for start, tokens in given if tokens is not None and tokens.shape == size]
            try:
                (blocks,) = self.build(table.settled({**way, **alike[0][0], **ends[0]}, checked={}), "blocks")
                (after,) = blocks(torch.cat([tokens for _, tokens in alike]))
            except (VitrailError, RuntimeError) as error:
                self.refusals.append(str(error))
                continue
            for end in ends:
                self.tried += len(alike)
                reader = self._end(table, {**way, **alike[0][0], **end}, (shared, _key(end)))
                outputs = [part.split(len(self.images[:FEW])) for part in reader(after)] if reader else []
                for number, (start, _) in enumerate(alike):
                    found, _ = self._compare([part[number] for part in outputs], self.outputs[:FEW])
                    yield found, {**way, **start, **end}

    def _start(self, table: NamesTable, way: Way, end: Way, key: object) -> Tensor | None:
        """Give the tokens that the blocks read."""
        if key not in self._tokens:
            try:
                (part,) = self.build(table.settled({**way, **end}, checked={}), "start")
                self._tokens[key] = part(self.images[:FEW])[0]
            except (VitrailError, RuntimeError) as error:
                self.refusals.append(str(error))
        return self._tokens.get(key)

    def _end(self, table: NamesTable, way: Way, key: object) -> Part | None:
        """Give what reads the tokens after the blocks."""
        if key not in self._ends:
            try:
                (self._ends[key],) = self.build(table.settled(way, checked={}), "end")
            except (VitrailError, RuntimeError) as error:
                self.refusals.append(str(error))
        return self._ends.get(key)

    def _compare(self, given: Sequence[Tensor], wanted: Tensor) -> tuple[float, str]:
        """Give the largest difference, of what is nearest among features, logits and probabilities."""
        kinds: dict[str, Tensor] = {}
        features, logits = (*given, None, None)[:2]
        if logits is not None and logits.shape == wanted.shape:
            kinds = {"logits": logits}
            if is_probability(wanted):
                kinds["probabilities"] = logits.softmax(dim=1)
            elif bool((wanted <= 0).all()) and is_probability(wanted.exp()):
                kinds["log-probabilities"] = logits.log_softmax(dim=1)
        if features is not None and features.shape == wanted.shape:
            kinds["features"] = features
        if not kinds:
            if features is not None:
                has = f"{0 if logits is None else logits.shape[1]} classes and {features.shape[1]} features"
                self.refusals.append(f"the outputs have {wanted.shape[1]} columns; the model has {has}.")
            return NEVER, ""
        found = {kind: float((answer - wanted).abs().max()) for kind, answer in kinds.items()}
        kind = min(found, key=lambda each: found[each])
        return (found[kind] if found[kind] == found[kind] else NEVER), kind


def _part_of(ours: str) -> str:
    """Name the part of a model that has a parameter."""
    first = ours.partition(".")[0]
    if first == "blocks":
        return "blocks"
    return "start" if first in ("embedding", "class_token", "registers", "positions", "first_norm") else "end"


def _key(way: Way) -> object:
    return tuple(way.items())


def check_pair(images: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Refuse images and outputs that do not go together."""
    if images.ndim != 4 or not images.is_floating_point() or 0 in images.shape:
        raise ConfigError(
            f"the images must be float B C H W, as the model read them; got {images.dtype} {tuple(images.shape)}."
        )
    if outputs.ndim != 2 or not outputs.is_floating_point() or outputs.shape[0] != images.shape[0]:
        raise ConfigError(
            f"the outputs must be float B K, one row for each of the {images.shape[0]} images; got {outputs.dtype} "
            f"{tuple(outputs.shape)}."
        )
    if not (torch.isfinite(images).all() and torch.isfinite(outputs).all()):
        raise ConfigError("the images and outputs must be finite numbers; some are NaN or infinity.")
    return images.float(), outputs.float()


def is_probability(rows: Tensor) -> bool:
    """Tell whether every row is made of probabilities."""
    return bool((rows >= 0).all()) and bool(((rows.sum(dim=1) - 1).abs() < 1e-4).all())


def _by(size: tuple[int, int]) -> str:
    return "x".join(map(str, size))
