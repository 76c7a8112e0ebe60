"""`vitrail.fewshot` and `vitrail.verify`: what the features of a model are worth, for classes and for people."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Unpack

from vitrail.checkpoint.load import of_run
from vitrail.data.open import choose_split, open_data
from vitrail.errors import ConfigError
from vitrail.evaluation.features import Cell, Table, choose_sets, few_shot_table, results_of
from vitrail.evaluation.results import document_of, over_seeds, write_document
from vitrail.evaluation.shots import NEIGHBORS, PAPER_L2, PROBES, Settings
from vitrail.evaluation.verification import Verification, curve_table, measure_verification
from vitrail.files import home_path, write_bytes
from vitrail.models.build import first_blocks
from vitrail.runtime.inference import choose_model, computed_in
from vitrail.runtime.reporter import harmless, text_table
from vitrail.verbs.opening import AnyModel, Measuring, data_name, measuring, model_name, open_model, run_of

NAMES = {"ridge": "least squares", "knn": "nearest neighbors", "logistic": "logistic"}
SHOWN_L2 = (1, 16, 256, 4096, 65536)
AS_AUTHORS = {"resize": "squash", "crop_share": 224 / 256, "interpolation": "bilinear", "antialias": False}


@dataclass(frozen=True, kw_only=True, repr=False)
class FewShot:
    """Accuracies of classifiers of frozen features, by shots and probe; `cells` has one number for each seed."""

    table: Table
    settings: Settings
    split: str  # what was learned from, and tested on
    found: Mapping[str, Any]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """What each number of shots gives."""
        return self.table.cells

    def accuracy(self, shots: int | Literal["all"], probe: str = "ridge") -> float:
        """Give the mean accuracy over the seeds."""
        wanted = None if shots == "all" else shots
        cell = next((cell for cell in self.cells if cell.shots == wanted), None)
        if cell is None or probe not in cell.accuracy:
            raise ConfigError(f"shots={shots} with probe={probe!r} was not measured. Ask for it in vitrail.fewshot.")
        return over_seeds(cell.accuracy[probe])[0]

    def document(self) -> Mapping[str, Any]:
        """Give what `vitrail fewshot --json` prints."""
        return self.found

    def __repr__(self) -> str:
        table, settings, seeds = self.table, self.settings, len(self.settings.seeds)
        title = f"accuracy on {table.test_images:,} images of {table.classes} classes, {seeds} draw{'s'[: seeds > 1]}"
        rows = [[_shots(cell), *(_said(cell.accuracy[probe]) for probe in settings.probes)] for cell in table.cells]
        lines = text_table(title, ("shots", *(NAMES[probe] for probe in settings.probes)), rows)
        if "ridge" in settings.probes:
            strengths = [l2 for l2 in table.cells[0].sweep if l2 in SHOWN_L2 or l2 == settings.l2]
            means = [[over_seeds(cell.sweep[l2])[0] for l2 in strengths] for cell in table.cells]
            rows = [[row[0], *(f"{mean:.1%}" for mean in some)] for row, some in zip(rows, means, strict=True)]
            lines += ["", *text_table("least squares by l2", ("shots", *(f"l2 {l2:g}" for l2 in strengths)), rows)]
        lines += ["", self.split]
        lines.append(f"features of {table.computed:,} images computed, {table.reused:,} kept from before")
        if table.short:
            lines.append(f"{table.short:,} classes have fewer images than the most shots: all they have are taken")
        if table.left_out:
            lines.append(f"{table.left_out:,} images could not be decoded")
        return harmless("\n".join(lines))


def _several(values: Any) -> Sequence[Any]:  # noqa: ANN401
    return [values] if isinstance(values, int | str) else values


def fewshot(
    model: AnyModel,
    data: object,
    *,
    shots: int | Literal["all"] | Sequence[int | Literal["all"]] = (1, 5, 10, 25),
    seeds: int | Sequence[int] = (0, 1, 2),
    l2: float = PAPER_L2,
    probes: Sequence[str] = PROBES,
    neighbors: int = NEIGHBORS,
    image_size: int | tuple[int, int] | None = None,
    layer: int | None = None,
    as_authors: bool = False,
    out: str | os.PathLike[str] | None = None,
    allow_pipe: bool = False,
    **options: Unpack[Measuring],
) -> FewShot:
    """Train classifiers of frozen features from few images of every class, and test them.

    `model` is a name, a file, a run folder or a model in memory; `data` anything that `vitrail.data.open.open_data`
    opens; without a test split, it is split by content. `shots` are images of every class, or "all"; each of `seeds`
    draws others. `probes` are "ridge" (least squares, with `l2`), "knn" (with `neighbors`) and "logistic". `layer`
    takes the features after so many blocks. `as_authors` squashes images to 8/7 of the size and crops the center, as
    the paper's authors do. `out` is a folder for fewshot.json. Features are cached on disk, unless `fresh`.
    Options: batch_size, workers, device, precision, engine, bad_image_limit, fresh, report; and
    preprocessing, mean, deviation, resize, crop_share, interpolation, as in `vitrail.load`; and what the file leaves
    open: heads, grid, activation, epsilon.
    """
    model = of_run(model)
    settings = Settings(
        shots=tuple(None if count == "all" else count for count in _several(shots)),
        seeds=tuple(_several(seeds)),
        l2=l2,
        probes=tuple(probes),
        neighbors=neighbors,
    )
    sets, said = choose_sets(open_data(data, allow_pipe=allow_pipe), run_of(model))
    with measuring(fewshot, model, options) as how:
        prepared = {**options, **AS_AUTHORS} if as_authors else options
        opened = open_model(model, image_size, how.group.device, prepared)
        if layer is not None:
            opened = first_blocks(opened.plain, layer)
        opened = choose_model(opened, sum(map(len, sets)), how)
        table, computed = few_shot_table(opened, sets, how, settings), computed_in(opened, how)
        writes = how.group.is_main
    rows = results_of(table, model_name(model), data_name(data), settings)
    more = {"left_out": table.left_out, "short_classes": table.short, "computed": computed}
    document = document_of("fewshot", rows, split=said, layer=layer, **more)
    if writes and out is not None:
        write_document(home_path(out) / "fewshot.json", document)
    return FewShot(table=table, settings=settings, split=said, found=document)


def verify(
    model: AnyModel,
    data: object,
    *,
    split: str | None = None,
    gallery: int = 1,
    far: float = 0.01,
    flip: bool = True,
    everyone: bool = False,
    image_size: int | tuple[int, int] | None = None,
    out: str | os.PathLike[str] | None = None,
    allow_pipe: bool = False,
    **options: Unpack[Measuring],
) -> Verification:
    """Measure whether a model tells that two images are of one person, on all pairs; a class for each person.

    `model` is a name, a file, a run folder or a model in memory, with a classifier or not; `data` anything that
    `vitrail.data.open.open_data` opens. People whom the model was trained on are left out, unless `everyone`.
    `gallery` is how many images of each person the others are found by; `far` the share of pairs of different people
    that may be accepted; `flip` adds the mirrored image's embedding. `out` is a folder for verification.json and
    roc.csv. Embeddings are cached on disk, unless `fresh`.
    Options: batch_size, workers, device, precision, engine, bad_image_limit, fresh, report; and
    preprocessing, mean, deviation, resize, crop_share, interpolation, as in `vitrail.load`; and what the file leaves
    open: heads, grid, activation, epsilon.
    """
    model = of_run(model)
    splits = open_data(data, allow_pipe=allow_pipe)
    name, said_data = model_name(model), data_name(data)
    chosen = choose_split(splits, said_data, split)
    with measuring(verify, model, options) as how:
        opened = choose_model(open_model(model, image_size, how.group.device, options), len(splits[chosen]), how)
        showing = how.showing(f"embeddings by {harmless(name)}")
        found = measure_verification(
            opened, splits[chosen], showing, gallery=gallery, far=far, flip=flip, everyone=everyone
        )
        writes = how.group.is_main
    found = replace(found, model=name, data=said_data, setting={"split": chosen, "flip": flip})
    if writes and out is not None:
        folder = home_path(out)
        write_document(folder / "verification.json", found.document())
        write_bytes(folder / "roc.csv", curve_table(found.curve).encode())
    return found


def _shots(cell: Cell) -> str:
    return "all" if cell.shots is None else str(cell.shots)


def _said(values: list[float]) -> str:
    mean, spread = over_seeds(values)
    return f"{mean:.1%}" if spread is None else f"{mean:.1%} ± {100 * spread:.1f}"
