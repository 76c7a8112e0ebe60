"""The rows of the bench: every one well-formed, and its numbers those of arithmetic."""

from collections import Counter

import pytest

from vitrail.config.bench import BENCH_GROUPS
from vitrail.errors import ConfigError
from vitrail.studies.bench.peers import TIMM, config_of
from vitrail.studies.bench.rows import cases_for
from vitrail.studies.bench.run import chosen
from vitrail.studies.bench.runner import Place, parts_of, waves
from vitrail.studies.bench.table import Case, Decode, Forward, Found, Load, Shape, TrainStep, Unit, Way, row_document
from vitrail.studies.bench.work import gpu_bytes

WORK = Decode(height=8, width=8, count=1, by="Pillow")
KINDS = pytest.mark.parametrize("kind", ["cpu", "cuda"])


def case(unit: Unit, *names: str, ceiling: str | None = None) -> Case:
    ways = [Way(name=name, work=WORK, ceiling=ceiling if name == names[-1] else None) for name in names]
    return Case(name="row", group="forward", title="a row", unit=unit, base=names[0], ways=ways)


def found(*values: float, **about: float) -> Found:
    return Found(values=list(values), about=about)


@KINDS
def test_every_row_names_ways_that_it_has_and_models_that_there_are(kind: str) -> None:
    cases = cases_for(kind)
    assert max(Counter(each.name for each in cases).values()) == 1
    assert [each.group for each in cases] == sorted((each.group for each in cases), key=BENCH_GROUPS.index)
    assert {each.group for each in cases if each.in_all} == set(BENCH_GROUPS)
    for each in cases:
        names = [way.name for way in each.ways]
        assert len(set(names)) == len(names)
        assert {each.base, *(way.ceiling for way in each.ways)} - {None} <= set(names)
        for way in each.ways:
            assert gpu_bytes(way.work) >= 0
            if isinstance(way.work, Forward | TrainStep) and way.work.by == "timm":
                assert way.work.shape.model in TIMM
            if not isinstance(way.work, Decode | Load):
                assert config_of(way.work.shape).classes == 1000


def test_the_rows_of_a_gpu_compare_one_model_and_batch_each() -> None:
    rows = {each.name: each for each in cases_for("cuda")}
    names = ("forward-B16", "forward-R50-B16", "training-L16", "training-BiT-R50x1", "latency-B16")
    shapes = {
        name: [way.work.shape for way in rows[name].ways if isinstance(way.work, Forward | TrainStep)] for name in names
    }
    assert {name: {(shape.model, shape.batch) for shape in each} for name, each in shapes.items()} == {
        "forward-B16": {("ViT-B/16", 256)},
        "forward-R50-B16": {("R50+ViT-B/16", 128)},
        "training-L16": {("ViT-L/16", 256)},
        "training-BiT-R50x1": {("BiT-R50x1", 128)},
        "latency-B16": {("ViT-B/16", 1)},
    }


@pytest.mark.parametrize(
    ("unit", "ratio"),
    [("images/s", (2.0, 1.5, 3.0)), ("ms", (0.5, 1 / 3, 2 / 3)), ("MiB", (2.0, 1.5, 3.0))],
)
def test_a_ratio_is_the_median_of_the_turns_own(unit: Unit, ratio: tuple[float, ...]) -> None:
    made = row_document(case(unit, "a", "b"), {"a": found(10, 20, 40), "b": found(20, 60, 60)}, 1.0)
    one, two = made["ways"]
    assert (two["median"], two["low"], two["high"], two["values"]) == (60, 20, 60, [20, 60, 60])
    assert tuple(two["ratio"].values()) == pytest.approx(ratio)
    assert one["ratio"]["median"] == 1


def test_the_share_of_a_ceiling_is_how_much_of_its_speed_is_reached() -> None:
    fast = row_document(case("images/s", "limit", "a", ceiling="limit"), {"limit": found(8), "a": found(6)}, 1.0)
    slow = row_document(case("ms", "limit", "a", ceiling="limit"), {"limit": found(6), "a": found(8)}, 1.0)
    assert fast["ways"][1]["share"] == slow["ways"][1]["share"] == 0.75


def test_what_was_not_measured_is_a_gap_and_what_is_compared_with_it_has_no_ratio() -> None:
    ways = {"timm": Found(gap="timm is not installed."), "a": found(6)}
    made = row_document(case("images/s", "timm", "a", ceiling="timm"), ways, 1.0)
    assert made["ways"][0] == {
        "name": "timm",
        "series": "",
        "at": None,
        "ceiling": None,
        "gap": "timm is not installed.",
    }
    assert (made["ways"][1]["ratio"], made["ways"][1]["share"]) == (None, None)


def test_a_case_that_measures_something_else_has_another_digest() -> None:
    cases = cases_for("cpu")
    assert cases[0].digest == cases_for("cpu")[0].digest
    assert len({each.digest for each in cases}) == len(cases)


def test_rows_are_chosen_by_words_in_their_names() -> None:
    cases = cases_for("cuda")
    assert [each.name for each in chosen(cases, "training", ["b16", "SMALL"])] == [
        "training-B16",
        "training-R50-B16",
        "training-small",
        "training-loop-B16",
    ]
    assert "training-loop-B16" not in {each.name for each in chosen(cases, "all", None)}
    assert "training-loop-B16" in {each.name for each in chosen(cases, "training", None)}
    with pytest.raises(ConfigError, match=r"no row has 'G14' in its name\. There are: latency-B16"):
        chosen(cases, "latency", ["G14"])


def test_on_a_gpu_a_way_has_its_own_process_and_waves_are_no_larger_than_asked() -> None:
    cases = cases_for("cuda")
    place = Place(device="cuda", repeats=5, seconds=0.5, jobs=8, apart=True)
    row = next(each for each in cases if each.name == "latency-B16")
    assert [part.ways for part in parts_of(row, place)] == [
        ("timm, graph",),
        ("Vitrail, graph",),
        ("Vitrail, eager", "products alone", "timm, eager"),
    ]
    found = list(waves(cases, place))
    assert [each for wave in found for each in wave] == list(cases)
    assert max(sum(len(parts_of(each, place)) for each in wave) for wave in found) <= 16
    one = Place(device="cpu", repeats=5, seconds=0.5)
    assert {len(parts_of(each, one)) for each in cases} == {1}


def test_what_a_way_takes_of_a_gpu_grows_with_its_batch() -> None:
    steps = [gpu_bytes(TrainStep(shape=Shape(model="ViT-L/16", batch=batch))) for batch in (128, 256)]
    assert 25 * 2**30 < steps[0] < steps[1] < 70 * 2**30
