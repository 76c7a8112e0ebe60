"""The cells of every study, at every scale, are those that the paper's table or figure has."""

import itertools
import math
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vitrail.config import ModelConfig, PatchStem, ViTConfig, encode
from vitrail.config.recipe import SGD, Adam, Mimetic, Muon, Training
from vitrail.config.recipes import RECIPES, adjust
from vitrail.config.study import SCALE_NAMES, STUDY_NAMES, UNTRAINED
from vitrail.ops.cost.counts import parameters
from vitrail.studies import work as work_module
from vitrail.studies.paper.scaling import TABLE_6
from vitrail.studies.run import STUDIES, ask
from vitrail.studies.runner import check_names, images_of, jobs_for
from vitrail.studies.scales import SCALES
from vitrail.studies.sets import KNOWN, classes_of, count_of
from vitrail.studies.table import Cell, Count, Done, Images, Look, Results, Speed, Train, seeded
from vitrail.studies.work import Place, asked_of, config_of, costs, length_of, minutes_of

EVERY = list(itertools.product(STUDY_NAMES, SCALE_NAMES))


def cells_of(name: str, scale: str, seeds: int = 1) -> list[Cell]:
    return STUDIES[name].at(SCALES[scale], seeds)


def training(cell: Cell) -> Train:
    assert isinstance(cell.work, Train)
    return cell.work


def config(cell: Cell) -> ModelConfig:
    work = training(cell)
    return config_of(work.network, int(work.fields.get("image_size", work.images.image_size)), classes_of(work.images))


def unnamed(recipe: str) -> Training:
    """What a recipe trains with; rows of Table 3 differ in their names alone."""
    return replace(RECIPES[recipe].training, recipe="")


def flat(value: Any, before: str = "") -> dict[str, Any]:
    """A document's leaves by their paths."""
    if not isinstance(value, dict):
        return {before: value}
    return {path: leaf for key, each in value.items() for path, leaf in flat(each, f"{before}.{key}").items()}


def differing(one: ModelConfig, other: ModelConfig) -> set[str]:
    a, b = flat(encode(one)), flat(encode(other))
    return {path.removeprefix(".") for path in a.keys() | b.keys() if a.get(path) != b.get(path)}


def test_the_names_that_the_command_checks_are_those_that_there_are() -> None:
    assert tuple(STUDIES) == STUDY_NAMES
    assert tuple(SCALES) == SCALE_NAMES
    assert {name for name, study in STUDIES.items() if not study.seeded} == set(UNTRAINED)


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_every_cell_has_a_name_a_network_images_and_a_length(name: str, scale: str) -> None:
    cells = cells_of(name, scale, seeds=2)
    check_names(cells)
    assert {each.name for each in images_of(cells)} <= set(KNOWN)
    for cell in cells:
        match cell.work:
            case Train() as work:
                assert config(cell).image_size[0] > 0
                recipe = adjust(RECIPES[work.recipe].training, work.fields)
                assert recipe.seed == cell.at["seed"]
                batch, steps = length_of(work)
                assert batch >= 1
                assert steps >= 1
                if scale in ("cpu", "gpu") and "steps" in work.fields:
                    assert recipe.schedule.warmup_steps == round(0.06 * steps)
            case Count() as work:
                config_of(work.network, work.image_size, 1000)
            case Speed() as work:
                config_of(work.network, work.image_size, 1000)
            case Look() as work:
                assert work.begins in {each.name for each in cells}


@pytest.mark.parametrize("scale", SCALE_NAMES)
@pytest.mark.parametrize(
    ("name", "model", "fields"),
    [
        ("positions", {"positions"}, set()),
        ("head", {"pooling"}, {"learning_rate"}),
        ("axial", {"attention", "stem"}, set()),
        ("shape", {"depth", "width", "heads", "mlp_width", "stem"}, set()),
    ],
)
def test_runs_that_are_compared_differ_in_what_the_study_is_about_alone(
    name: str, model: set[str], fields: set[str], scale: str
) -> None:
    first, *others = cells_of(name, scale)
    for cell in others:
        assert {path.split(".")[0] for path in differing(config(first), config(cell))} <= model
        one, other = training(first).fields, training(cell).fields
        assert {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)} <= fields
        assert unnamed(training(cell).recipe) == unnamed(training(first).recipe)
        assert training(cell).images == training(first).images


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_every_run_can_be_asked_for(name: str, scale: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Place, "open", lambda self, images: {"train": images, "test": images})
    monkeypatch.setattr(work_module, "with_fresh_positions", lambda model, seed: model)
    monkeypatch.setattr(work_module, "load", lambda path, **how: path)
    place = Place(folder=tmp_path, data=None, packed=None, device="cpu")
    for cell in cells_of(name, scale):
        if isinstance(cell.work, Train):
            found = asked_of(cell.work, place)
            assert found["data"].keys() == {"train", "val" if cell.work.patience else "test"}
            assert found["recipe"] in RECIPES


@pytest.mark.parametrize("scale", SCALE_NAMES)
def test_positions_are_the_eight_rows_of_table_8(scale: str) -> None:
    cells = cells_of("positions", scale)
    kinds = {(cell.at["positions"], cell.at["at"]): encode(config(cell))["positions"] for cell in cells}
    assert list(kinds) == [
        *(("none", "stem"), ("learned", "stem"), ("learned", "layers"), ("learned", "shared")),
        *(("learned-2d", "stem"), ("learned-2d", "layers"), ("learned-2d", "shared"), ("relative", "layers")),
    ]
    for (kind, at), found in kinds.items():
        assert found["kind"] == kind
        assert found.get("at", "stem") == at
    count = {key: parameters(config(cell)).total for key, cell in zip(kinds, cells, strict=True)}
    shape = config(cells[0])
    assert isinstance(shape, ViTConfig)
    (rows, cols), width, depth = shape.grid, shape.width, shape.depth
    table = (rows * cols + 1) * width
    assert count["learned", "stem"] - count["none", "stem"] == table
    assert count["learned", "layers"] - count["none", "stem"] == depth * table
    assert count["learned", "shared"] == count["learned", "stem"]
    assert count["learned-2d", "stem"] - count["none", "stem"] == (rows + cols) * width // 2 + width


def test_shape_changes_one_axis_at_a_time_from_the_papers_base() -> None:
    base, *others = cells_of("shape", "paper")
    shape = config(base)
    assert isinstance(shape, ViTConfig)
    assert (shape.depth, shape.width, shape.mlp_width, shape.grid) == (8, 1024, 2048, (7, 7))  # D.2
    axes = {"depth": {"depth"}, "width": {"width", "heads"}, "mlp": {"mlp_width"}, "patch": {"stem.patch"}}
    for cell in others:
        assert differing(shape, config(cell)) - {"representation"} == axes[str(cell.at["axis"])]


def test_subsets_grow_to_the_whole_set_and_the_papers_are_9_30_90_and_303_million() -> None:
    sizes = sorted({count_of(training(cell).images) for cell in cells_of("data-size", "paper")})
    assert [round(size / 1e6) for size in sizes] == [9, 30, 90, 303]
    for scale in ("cpu", "gpu"):
        cells = cells_of("data-size", scale)
        assert max(count_of(training(cell).images) for cell in cells) == KNOWN[training(cells[0]).images.name].images
        assert len({str(training(cell).fields) for cell in cells}) == 1  # the same hyper-parameters (Fig. 4)
        assert all(training(cell).patience for cell in cells)


def test_the_papers_scaling_cells_cost_what_table_6_says() -> None:
    said = {(name, epochs): flops for rows in TABLE_6.values() for name, epochs, _, flops in rows}
    rows = {
        (cell.at["size"], cell.at["length"]): costs(training(cell))["exaflops"] for cell in cells_of("scaling", "paper")
    }
    assert rows.keys() == said.keys()
    off = {key: found / said[key] - 1 for key, found in rows.items()}
    known = {("ViT-B/32", 7), ("R50+ViT-L/16", 7)}  # that differ from the authors' own convention
    assert {key for key, share in off.items() if abs(share) > 0.015} == known


def test_pre_training_at_the_papers_scale_is_table_3() -> None:
    rates = {
        **{"ViT-B/32": 8e-4, "ViT-B/16": 8e-4, "ViT-L/32": 6e-4, "ViT-L/16": 4e-4, "ViT-H/14": 3e-4},
        **{"R50+ViT-B/32": 8e-4, "R50+ViT-B/16": 8e-4, "R50+ViT-L/32": 2e-4, "R50+ViT-L/16": 4e-4},
        **{"BiT-R50x1": 1e-3, "BiT-R50x2": 1e-3, "BiT-R101x1": 8e-4, "BiT-R152x1": 6e-4, "BiT-R152x2": 6e-4},
    }
    for cell in cells_of("scaling", "paper"):
        work = training(cell)
        found = adjust(RECIPES[work.recipe].training, work.fields)
        assert (found.batch_size, found.epochs) == (4096, cell.at["length"])
        if cell.at["size"] in rates:  # R200x3 has no row of its own
            assert found.optimizer.learning_rate == rates[str(cell.at["size"])], cell.name


@pytest.mark.parametrize("scale", SCALE_NAMES)
def test_families_that_transfer_were_pre_trained_with_the_same_compute(scale: str) -> None:
    cells = [cell for cell in cells_of("transfer", scale) if cell.at["on"] == "upstream"]
    spent = [float(costs(training(cell))["exaflops"]) for cell in cells]
    margin = 1.0 if scale == "smoke" else 0.01  # a smoke's run has three steps, of which none can be halved
    assert max(spent) / min(spent) - 1 < margin
    tuned = [cell for cell in cells_of("transfer", scale) if cell.at["on"] != "upstream"]
    assert len(tuned) == 3 * len(SCALES[scale].targets)
    assert all(training(cell).begins == f"{cell.at['family']}_upstream_seed0" for cell in tuned)


def test_halves_of_the_classes_are_apart_and_all() -> None:
    for scale in ("smoke", "cpu", "gpu"):
        images = {cell.at["on"]: training(cell).images for cell in cells_of("self-supervision", scale)}
        assert (images["first"].half, images["second"].half) == ("first", "second")
        assert sum(classes_of(each) for each in images.values()) == KNOWN[images["first"].name].classes
    assert classes_of(Images(name="tiny-imagenet", image_size=64, half="first")) == 100
    scratch, tuned = (
        next(cell for cell in cells_of("self-supervision", "gpu") if cell.at == at)
        for at in (
            {"pre-training": "scratch", "on": "second", "seed": 0},
            {"pre-training": "labels", "on": "second", "seed": 0},
        )
    )
    assert length_of(training(scratch)) == length_of(training(tuned))
    assert training(scratch).fields["learning_rate"] == training(tuned).fields["learning_rate"]


def test_self_supervision_at_the_papers_scale_is_its_own_recipes_and_then_table_4() -> None:
    begun = {
        cell.at["pre-training"]: training(cell)
        for cell in cells_of("self-supervision", "paper")
        if cell.at["on"] == "first"
    }
    assert {way: (work.recipe, work.images.name) for way, work in begun.items()} == {
        "scratch": ("i1k", "imagenet"),  # Table 5: ImageNet alone, 77.9
        "labels": ("i21k/ViT-B/16", "imagenet-21k"),  # 84.0
        "masked-patch": ("masked-patch", "jft-300m"),
        "mae": ("mae", "imagenet"),
    }
    assert length_of(begun["masked-patch"]) == (4096, 1_000_000)  # B.1.2
    tuned = [training(cell) for cell in cells_of("self-supervision", "paper") if cell.at["on"] == "second"]
    assert {(work.recipe, work.images.name, work.fields["image_size"]) for work in tuned} == {
        ("finetune/imagenet", "imagenet", 384)
    }
    assert len(tuned) == 4


def test_resolution_fine_tunes_one_pre_training_with_both_kinds_of_positions() -> None:
    first, *tuned = cells_of("resolution", "paper")
    assert [(cell.at["side"], cell.at["positions"]) for cell in tuned] == [
        *((224, "resampled"), (224, "fresh"), (384, "resampled"), (384, "fresh"))
    ]
    for cell in tuned:
        work = training(cell)
        assert work.begins == first.name
        assert work.fields["image_size"] == work.images.image_size == cell.at["side"]
        assert work.fresh_positions == (cell.at["positions"] == "fresh")


def test_optimizers_differ_in_pre_training_and_not_in_fine_tuning() -> None:
    for scale in SCALE_NAMES:
        for cell in cells_of("optimizers", scale):
            work = training(cell)
            found = adjust(RECIPES[work.recipe].training, work.fields).optimizer
            if cell.at["on"] == "upstream":
                assert isinstance(found, SGD if cell.at["optimizer"] == "SGD" else Adam)
                assert found.learning_rate == cell.at["rate"]
                assert found.weight_decay > 0
            elif cell.at["optimizer"] == "Adam":
                twin = next(
                    other
                    for other in cells_of("optimizers", scale)
                    if other.at["on"] == cell.at["on"] and other.at["optimizer"] == "SGD"
                )
                assert training(twin).fields == work.fields


def test_axial_models_have_the_shape_of_their_twins_and_cost_more() -> None:
    for scale in SCALE_NAMES:
        by = {(cell.at["attention"], cell.at["patch"]): cell for cell in cells_of("axial", scale)}
        for patch in {key[1] for key in by}:
            full, axial = config(by["full", patch]), config(by["axial", patch])
            assert differing(full, axial) <= {"attention", "attention.kind"}
            assert costs(training(by["axial", patch]))["exaflops"] > costs(training(by["full", patch]))["exaflops"]


def test_seeds_are_runs_of_their_own_that_begin_with_their_own() -> None:
    cells = cells_of("resolution", "cpu", seeds=3)
    assert len(cells) == 3 * len(cells_of("resolution", "cpu"))
    for cell in cells:
        assert training(cell).fields["seed"] == cell.at["seed"]
        assert cell.begins is None or cell.begins.endswith(f"_seed{cell.at['seed']}")


def test_models_are_counted_with_the_authors_numbers() -> None:
    report = STUDIES["models"]
    assert len(cells_of("models", "smoke")) >= 14
    assert not report.seeded
    assert math.isclose(float(count_of(Images(name="jft-300m", image_size=224))), 303e6)


def test_a_speed_run_is_a_plain_vit_from_nothing_one_at_a_time() -> None:
    before: dict[str, str] = {}
    for cell in cells_of("speedrun", "gpu"):
        work, made, way = training(cell), config(cell), str(cell.at["way"])
        assert isinstance(made, ViTConfig)
        assert isinstance(made.stem, PatchStem)
        assert made.plain_blocks
        assert (work.images.name, work.begins, work.timed) == ("cifar10", before.get(way), True)
        recipe = adjust(RECIPES[work.recipe].training, work.fields)
        assert (recipe.validation_share, recipe.result) == (0.0, "last")
        assert recipe.initialization == (None if way in before else Mimetic())
        assert isinstance(recipe.optimizer, Muon)
        before[way] = cell.name
    assert len(before) == 2
    asked = ask("speedrun", "gpu")
    assert jobs_for(asked, asked.cells, gpus=1) == 1


def test_the_minutes_of_a_speed_run_are_those_of_all_its_parts() -> None:
    cells = [seeded(cell, seed) for seed in range(2) for cell in cells_of("speedrun", "gpu")]
    numbers = {"pixels": 0.5, "labels": 1.0, "larger": 0.25}
    done = [
        Done(
            cell=cell,
            numbers={
                "minutes": numbers[str(cell.at["part"])] + int(cell.at["seed"]),
                "aside": 0.5,
                "in_all": 1.0,
                "accuracy": 0.9 if cell.at["part"] == "labels" else 0.95,
            },
        )
        for cell in cells
    ]
    found = STUDIES["speedrun"].read(Results(done), SCALES["gpu"])
    first, alone = found.tables[0].rows
    assert first[2:] == ["95.0 ± 0.0", "3.25 ± 2.12", "1.50 ± 0.00", "3.00 ± 0.00", "yes"]
    assert alone[2:] == ["90.0 ± 0.0", "1.50 ± 0.71", "0.50 ± 0.00", "1.00 ± 0.00", "no"]
    assert found.notes[0].startswith("94 % in 3.25 minutes")
    assert "MAE first against labels alone: +5.0 points" in found.notes[1]
    assert [each.estimate and each.estimate.mean for each in found.findings] == pytest.approx([1.0, 0.25])
    assert found.verdict == "not seen"  # as 2.75 and 4.75 minutes do not say


def test_a_speed_run_is_judged_by_the_accuracy_and_the_minutes_that_it_claims() -> None:
    def verdict(accuracy: float, minutes: float) -> str:
        cells = [seeded(cell, seed) for seed in range(3) for cell in cells_of("speedrun", "gpu")]
        done = [
            Done(
                cell=cell,
                numbers={"minutes": minutes / 3 + int(cell.at["seed"]) / 900, "aside": 0.5, "in_all": 1.0}
                | {"accuracy": accuracy + int(cell.at["seed"]) / 9000},
            )
            for cell in cells
        ]
        return STUDIES["speedrun"].read(Results(done), SCALES["gpu"]).verdict

    assert verdict(0.945, 2.7) == "confirmed"
    assert verdict(0.945, 9.7) == "contradicted"  # of both ways the faster has a third of it
    assert verdict(0.93, 2.7) == "contradicted"


def test_minutes_are_by_the_clock_and_the_first_line_and_pauses_count_at_the_usual_pace() -> None:
    clocks = {10: 100.0, 20: 102.0, 30: 104.5, 40: 906.5, 50: 908.5}  # the model was compiled before step 10
    history = [{"kind": "train", "step": step, "time": {"clock": clock}} for step, clock in clocks.items()]
    run = Namespace(history=[{"kind": "evaluation", "step": 5}, *history], step=50, seconds=1000.0)
    found = minutes_of(run, training(cells_of("speedrun", "smoke")[0]))  # pyright: ignore[reportArgumentType]
    steps = (2.0 + 2.5 + 2.25 + 2.0) * 50 / 40  # paces of 0.2, 0.25, 80.2 and 0.2 s: the pause counts as their median
    assert found["minutes"] * 60 == pytest.approx(steps)
    assert found["in_all"] == found["minutes"] + found["aside"] == pytest.approx(1000 / 60)
