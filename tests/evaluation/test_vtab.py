"""VTAB-1k: the table and its means, the thousand images, what is trained on and measured on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweeps import Noted, Reads, Spy, contents, ended, task_for

from vitrail.data.decode import Pixels
from vitrail.data.source import Source
from vitrail.errors import ConfigError, DataError
from vitrail.evaluation.results import read_results, write_document
from vitrail.evaluation.transfer import Score
from vitrail.evaluation.vtab import (
    GROUPS,
    RECIPE,
    TASKS,
    Measured,
    VtabPlan,
    choose_tasks,
    departures,
    draw_thousand,
    find_tasks,
    means,
    vtab,
    vtab_document,
)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    made = Spy(set())
    monkeypatch.setattr("vitrail.evaluation.transfer.run", made)
    return made


def test_table_9_has_the_papers_means() -> None:
    assert [round(float(np.mean([task.paper[row] for task in TASKS])), 1) for row in range(3)] == [77.6, 76.3, 72.7]
    assert [sum(task.group == group for task in TASKS) for group in GROUPS] == [7, 4, 8]
    assert len({task.key for task in TASKS}) == len({task.title for task in TASKS}) == 19


def test_tasks_are_chosen_by_name_and_by_group_in_the_papers_order() -> None:
    assert choose_tasks() == TASKS
    assert [task.key for task in choose_tasks(["svhn", "specialized", "dtd"])] == [
        *("dtd", "svhn", "camelyon", "eurosat", "resisc45", "retinopathy")
    ]
    with pytest.raises(ConfigError, match=r"no task or group 'structred'\. Did you mean 'structured'\?"):
        choose_tasks(["structred"])


def test_a_thousand_are_drawn_by_content_the_same_each_time_and_read_once(tmp_path: Path) -> None:
    reads: Reads = set()
    train, val = Noted("train", 1031, reads), Noted("val", 7, reads)
    few, held = draw_thousand({"train": train, "val": val}, tmp_path / "split.npz")
    assert (len(few), len(held)) == (800, 200)
    assert not contents(few) & contents(held)
    assert contents(few) | contents(held) < contents(train) | contents(val)
    reads.clear()
    again = draw_thousand({"train": train, "val": val}, tmp_path / "split.npz")
    assert not reads
    anew = draw_thousand({"train": train, "val": val}, tmp_path / "other.npz")
    for drawn in (again, anew):
        assert [part.fingerprint for part in drawn] == [few.fingerprint, held.fingerprint]


def test_800_and_200_are_taken_as_they_come() -> None:
    train, val = Noted("train", 800), Noted("val", 200)
    assert draw_thousand({"train": train, "val": val}, Path("nowhere")) == (train, val)


def test_fewer_than_a_thousand_are_shared_out_as_four_to_one(tmp_path: Path) -> None:
    few, held = draw_thousand({"train": Noted("train", 60)}, tmp_path / "split.npz")
    assert (len(few), len(held)) == (48, 12)


class Closed(Noted):
    """A test split that must not be read."""

    def read(self, index: int) -> Pixels:
        raise AssertionError("the test images were read")


def test_1000_images_are_trained_on_and_the_test_images_measured(spy: Spy, tmp_path: Path) -> None:
    pets = choose_tasks(["pets"])[0]
    splits: dict[str, Source] = {"train": Noted("train", 40, spy.reads), "val": Noted("val", 10, spy.reads)}
    splits |= {"test": Noted("test", 17, spy.reads)}
    plan = VtabPlan(task=task_for(tmp_path / "out", {}, RECIPE), tasks={pets: splits}, seeds=(0, 3))
    (one,) = vtab(plan)
    assert list(spy.tasks) == ["pets/seed-0", "pets/seed-3"]
    assert [(score.seed, score.images) for score in one.scores] == [(0, 17), (3, 17)]
    assert one.trained_on == 50
    train = spy.tasks["pets/seed-3"].splits["train"]
    assert contents(train) == contents(splits["train"]) | contents(splits["val"])
    assert len(spy.read["pets/seed-3"]) == 50 + 17
    assert spy.tasks["pets/seed-0"].training.optimizer.learning_rate == 0.01


def test_selecting_trains_on_800_measures_on_200_and_never_reads_test(spy: Spy, tmp_path: Path) -> None:
    pets = choose_tasks(["pets"])[0]
    splits: dict[str, Source] = {"train": Noted("train", 45, spy.reads), "test": Closed("test", 17)}
    task = task_for(tmp_path / "out", {}, RECIPE)
    (one,) = vtab(VtabPlan(task=task, tasks={pets: splits}, seeds=(0,), select=True))
    given = spy.tasks["pets/select-0"].splits
    assert {name: len(part) for name, part in given.items()} == {"train": 36, "val": 9}
    assert not contents(given["train"]) & contents(given["val"])
    assert (one.trained_on, one.scores[0].images) == (36, 9)
    with pytest.raises(AssertionError, match="the test images were read"):
        vtab(VtabPlan(task=task, tasks={pets: splits}, seeds=(0,)))


def measured(task_keys: list[str], values: list[list[float]]) -> list[Measured]:
    return [
        Measured(
            task=task,
            trained_on=1000,
            scores=tuple(Score(seed=s, accuracy=v, images=9, out=Path()) for s, v in enumerate(row)),
        )
        for task, row in zip(choose_tasks(task_keys), values, strict=True)
    ]


def test_means_are_over_tasks_then_seeds_and_say_what_is_missing(tmp_path: Path) -> None:
    values = np.random.default_rng(0).uniform(size=(6, 3))
    keys = ["dtd", "svhn", "camelyon", "eurosat", "resisc45", "retinopathy"]
    found = measured(keys, values.tolist())
    natural, specialized, both = means(found)
    assert (natural.title, specialized.title, both.title) == ("mean of 2 of 7", "mean", "mean of 6 of 19")
    for mean, rows in ((natural, values[:2]), (specialized, values[2:]), (both, values)):
        assert mean.value == pytest.approx(rows.mean())
        assert mean.spread == pytest.approx(rows.mean(axis=0).std(ddof=1))
    assert specialized.paper == pytest.approx((87.0, 86.725, 84.65))
    plan = VtabPlan(
        task=task_for(tmp_path, {}, RECIPE),
        tasks={one.task: {"train": Noted("train", 4)} for one in found},
        seeds=(0, 1, 2),
    )
    write_document(tmp_path / "vtab.json", vtab_document(plan, found))
    rows = read_results(tmp_path / "vtab.json")
    assert [row.data for row in rows] == [*keys, "specialized"]  # a mean of a part is no result
    assert [row.value for row in rows[:6]] == pytest.approx(values.mean(axis=1).tolist())
    assert [row.spread for row in rows[:6]] == pytest.approx(values.std(axis=1, ddof=1).tolist())


def test_what_is_not_the_papers_is_said(tmp_path: Path) -> None:
    full = task_for(tmp_path, {}, RECIPE, steps=2500, batch_size=512, image_size=(384, 384))
    assert departures(full.training) == []
    changes: dict[str, Any] = {"steps": 5, "batch_size": 512, "image_size": (384, 384)}
    other = task_for(tmp_path, {}, RECIPE, seed=3, precision="float32", **changes, **{"optimiser.rate": 0.02})
    assert departures(other.training) == ["optimizer.learning_rate 0.02 instead of 0.01", "steps 5 instead of 2500"]
    (pets,) = measured(["pets"], [[0.5]])
    plan = VtabPlan(task=full, tasks={pets.task: {"train": Noted("train", 4)}}, seeds=(0,))
    assert vtab_document(plan, [pets])["departures"] == ["pets: 3 classes instead of 37"]


def test_all_nineteen_run_and_have_every_mean(tmp_path: Path) -> None:
    tasks: dict[Any, Any] = {
        task: {"train": Noted(task.key, 16, None), "test": Noted(f"{task.key} test", 8)} for task in TASKS
    }
    plan = VtabPlan(task=task_for(tmp_path / "out", {}, RECIPE, steps=1), tasks=tasks, seeds=(0,))
    found = vtab(plan)
    document = vtab_document(plan, found)
    assert [mean.title for mean in means(found)] == ["mean"] * 4
    assert [row["data"] for row in document["results"]][19:] == [*GROUPS, "all tasks"]
    accuracies = [json.loads((tmp_path / "out" / task.key / "seed-0" / "summary.json").read_text()) for task in TASKS]
    wanted = np.mean([each["metrics"]["test_accuracy"] for each in accuracies])
    assert document["results"][-1]["value"] == pytest.approx(wanted)


def test_a_second_time_nothing_is_trained(spy: Spy, tmp_path: Path) -> None:
    tasks: dict[Any, Any] = {
        task: {"train": Noted(task.key, 16, spy.reads), "test": Noted("test", 8, spy.reads)}
        for task in choose_tasks(["dtd", "dmlab"])
    }
    plan = VtabPlan(task=task_for(tmp_path / "out", {}, RECIPE, steps=1), tasks=tasks, seeds=(0,))
    first = vtab(plan)
    assert spy.read["dtd/seed-0"]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.*")}
    assert vtab(plan) == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.*")} == before


def test_too_few_images_to_select_by_are_refused(spy: Spy, tmp_path: Path) -> None:
    spy.answer = lambda task: ended(task, accuracy=0.5, images=1)
    pets = choose_tasks(["pets"])[0]
    plan = VtabPlan(
        task=task_for(tmp_path / "out", {}, RECIPE), tasks={pets: {"train": Noted("a", 1)}}, seeds=(0,), select=True
    )
    with pytest.raises(DataError, match="pets has 1 training images: too few"):
        vtab(plan)
    with pytest.raises(ConfigError, match="Leave patience out"):
        VtabPlan(task=task_for(tmp_path, {}, RECIPE, patience=1), tasks={}, seeds=(0,))


def test_a_folder_that_is_there_and_cannot_be_used_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "pets" / "train" / "ant"
    place.mkdir(parents=True)
    (tmp_path / "dtd").mkdir()
    (place / "1.png").write_bytes(b"")
    tasks = choose_tasks(["pets", "dtd"])
    with pytest.raises(DataError, match=r"pets: there is no split test, only train\. Expected train/CLASS"):
        find_tasks(tmp_path, tasks)
    found, missing = find_tasks(tmp_path, tasks, select=True)
    assert [task.key for task in found] == ["pets"]
    assert [task.key for task in missing] == ["dtd"]
