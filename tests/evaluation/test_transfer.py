"""Table 4's protocol: which images each run sees, which rate is taken, what is reported, how it goes on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweeps import Noted, Reads, Spy, contents, ended, task_for

from vitrail.data.source import Source
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.evaluation.results import read_results
from vitrail.evaluation.transfer import TransferPlan, transfer
from vitrail.train.guard import DivergedError
from vitrail.train.run import Outcome
from vitrail.train.task import Task

TRAIN, VAL, TEST = 41, 13, 17


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    made = Spy(set())
    monkeypatch.setattr("vitrail.evaluation.transfer.run", made)
    return made


def splits_of(reads: Reads, *, val: bool = False) -> dict[str, Source]:
    made: dict[str, Source] = {"train": Noted("train", TRAIN, reads), "test": Noted("test", TEST, reads)}
    return made | ({"val": Noted("val", VAL, reads)} if val else {})


def plan_for(
    out: Path, splits: dict[str, Source], *rates: float, seeds: tuple[int, ...] = (0,), **more: Any
) -> TransferPlan:
    return TransferPlan(task=task_for(out, splits, **more), rates=rates, seeds=seeds)


def titled(title: str, numbers: range) -> Reads:
    return {(title, number) for number in numbers}


def test_rates_are_tried_without_what_is_kept_back_and_the_last_runs_see_all(spy: Spy, tmp_path: Path) -> None:
    splits = splits_of(spy.reads)
    found = transfer(plan_for(tmp_path / "out", splits, 0.03, 0.003, seeds=(2, 5), validation_share=0.25))
    assert list(spy.tasks) == ["grid/rate-0.003", "grid/rate-0.03", "final/seed-2", "final/seed-5"]
    whole, test = contents(splits["train"]), contents(splits["test"])
    cuts = []
    for name in ("grid/rate-0.003", "grid/rate-0.03"):
        given = spy.tasks[name].splits
        assert set(given) == {"train", "val"}
        train, dev = contents(given["train"]), contents(given["val"])
        assert train | dev == whole
        assert not train & dev
        assert len(dev) == found.dev_images == round(TRAIN / 4)
        assert spy.read[name] == titled("train", range(TRAIN))
        cuts.append((train, dev))
    assert cuts[0] == cuts[1]
    for name in ("final/seed-2", "final/seed-5"):
        assert contents(spy.tasks[name].splits["train"]) == whole
        assert contents(spy.tasks[name].splits["test"]) == test
        assert spy.read[name] == titled("train", range(TRAIN)) | titled("test", range(TEST))
        assert spy.tasks[name].training.validation_share == 0


def test_a_val_split_is_what_is_chosen_by_and_is_trained_on_at_last(spy: Spy, tmp_path: Path) -> None:
    splits = splits_of(spy.reads, val=True)
    transfer(plan_for(tmp_path / "out", splits, 0.003, 0.01))
    given = spy.tasks["grid/rate-0.01"].splits
    assert (given["train"], given["val"]) == (splits["train"], splits["val"])
    assert spy.read["grid/rate-0.01"] == titled("train", range(TRAIN)) | titled("val", range(VAL))
    every = titled("train", range(TRAIN)) | titled("val", range(VAL)) | titled("test", range(TEST))
    assert spy.read["final/seed-0"] == every
    assert contents(spy.tasks["final/seed-0"].splits["train"]) == contents(splits["train"]) | contents(splits["val"])


def answers(dev: dict[float, float | None], test: dict[int, float]) -> Any:
    """Runs that come to these accuracies: of the grid by rate, of the last by seed."""

    def answer(task: Task) -> Outcome:
        if "test" in task.splits:
            return ended(task, test_accuracy=test[task.training.seed], test_images=TEST)
        accuracy = dev[task.training.optimizer.learning_rate]
        if accuracy is None:
            raise DivergedError("step 2: loss is nan.")
        return ended(task, accuracy=accuracy, images=10)

    return answer


@pytest.mark.parametrize(
    ("dev", "best"),
    [
        ({0.001: 0.2, 0.003: 0.5, 0.01: 0.7, 0.03: 0.6}, 0.01),
        ({0.001: 0.2, 0.003: 0.7, 0.01: 0.7, 0.03: 0.7}, 0.003),  # of equals the lowest
        ({0.003: 0.1, 0.01: None}, 0.003),
        ({0.003: 0.0, 0.06: None}, 0.003),
    ],
)
def test_the_best_rate_is_taken(dev: dict[float, float | None], best: float, spy: Spy, tmp_path: Path) -> None:
    spy.answer = answers(dev, {0: 0.5})
    found = transfer(plan_for(tmp_path / "out", splits_of(spy.reads), *reversed(dev)))
    assert found.rate == best
    assert [(tried.rate, tried.accuracy) for tried in found.grid] == list(dev.items())
    assert spy.tasks["final/seed-0"].training.optimizer.learning_rate == best
    assert {spy.tasks[f"grid/rate-{rate}"].training.optimizer.learning_rate for rate in dev} == set(dev)


def test_rates_that_all_diverge_are_an_error(spy: Spy, tmp_path: Path) -> None:
    spy.answer = answers({0.03: None, 0.1: None}, {})
    with pytest.raises(DivergedError, match=r"diverged at every rate: 0\.03, 0\.1\. Give lower rates"):
        transfer(plan_for(tmp_path / "out", splits_of(spy.reads), 0.03, 0.1))


def test_one_rate_needs_no_grid(spy: Spy, tmp_path: Path) -> None:
    spy.answer = answers({}, {0: 0.5})
    found = transfer(plan_for(tmp_path / "out", splits_of(spy.reads), 0.01, validation_share=0.0))
    assert list(spy.tasks) == ["final/seed-0"]
    assert (found.rate, found.grid, found.dev_images) == (0.01, (), 0)
    assert found.result.spread is None


def test_the_report_is_the_mean_and_sample_deviation_over_seeds(spy: Spy, tmp_path: Path) -> None:
    values = {0: 0.71, 1: 0.74, 7: 0.69}
    spy.answer = answers({0.003: 0.4, 0.01: 0.6}, values)
    transfer(plan_for(tmp_path / "out", splits_of(spy.reads), 0.003, 0.01, seeds=(0, 1, 7)))
    (result,) = read_results(tmp_path / "out" / "transfer.json")
    assert result.value == pytest.approx(np.mean(list(values.values())))
    assert result.spread == pytest.approx(np.std(list(values.values()), ddof=1))
    assert (result.seeds, result.images, result.setting["rate"]) == ((0, 1, 7), TEST, 0.01)
    document = json.loads((tmp_path / "out" / "transfer.json").read_text())
    assert document["grid"] == [{"rate": 0.003, "accuracy": 0.4}, {"rate": 0.01, "accuracy": 0.6}]
    assert [(run["seed"], run["accuracy"], run["out"]) for run in document["runs"]] == [
        (seed, value, f"final/seed-{seed}") for seed, value in values.items()
    ]


def test_what_is_finished_is_reused_after_an_interruption(spy: Spy, tmp_path: Path) -> None:
    def plan(name: str) -> TransferPlan:
        return plan_for(tmp_path / name, splits_of(spy.reads), 0.003, 0.03, seeds=(0, 1))

    whole = transfer(plan("whole"))
    spy.answer = lambda task: (
        Outcome(out=task.out, finished=False, step=1, steps=2, metrics={}, seconds=0.0)
        if task.out.name == "seed-1"
        else None
    )
    with pytest.raises(KeyboardInterrupt, match=r"interrupted at step 1 of 2 in .*seed-1, and saved"):
        transfer(plan("part"))
    assert not (tmp_path / "part" / "transfer.json").exists()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "part").rglob("weights.safetensors")}
    assert len(before) == 3
    spy.answer = lambda task: None
    again = transfer(plan("part"))
    assert again.document() == whole.document()
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert spy.read["final/seed-1"]
    assert not list(tmp_path.rglob("checkpoints"))


def test_something_else_in_the_same_folder_is_refused(spy: Spy, tmp_path: Path) -> None:
    splits = splits_of(spy.reads)
    transfer(plan_for(tmp_path / "out", splits, 0.003, 0.01))
    with pytest.raises(ConfigError, match=r"rate-0\.003 was begun otherwise: training\.steps was 2, is 4\. Ask"):
        transfer(plan_for(tmp_path / "out", splits, 0.003, 0.01, steps=4))
    with pytest.raises(
        CheckpointError, match=r"expected a folder for several runs; .*seed-0 is a run itself\. Give an"
    ):
        transfer(plan_for(tmp_path / "out" / "final" / "seed-0", splits, 0.01))


def test_a_run_without_test_accuracy_says_what_to_do(spy: Spy, tmp_path: Path) -> None:
    spy.answer = lambda task: ended(task)
    with pytest.raises(DataError, match=r"too many of its test images cannot be read.*remove that folder"):
        transfer(plan_for(tmp_path / "out", splits_of(spy.reads), 0.01))


@pytest.mark.parametrize(
    ("rates", "seeds", "more", "message"),
    [
        ((), (0,), {}, "expected one or more rates"),
        ((0.01, 0.01), (0,), {}, "rates, each once"),
        ((0.01, -1.0), (0,), {}, "rates must be positive"),
        ((0.01,), (), {}, "expected one or more seeds"),
        ((0.01,), (3, 3), {}, "seeds, each once"),
        (
            (0.01, 0.03),
            (0,),
            {"validation_share": 0.0},
            r"2 rates need images to choose by: a val split, or",
        ),
        ((0.01,), (0,), {"patience": 2}, "Leave patience out"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(
    rates: tuple[float, ...], seeds: tuple[int, ...], more: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_for(tmp_path / "out", splits_of(set()), *rates, seeds=seeds, **more)


def test_data_without_what_the_protocol_needs_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    reads: Reads = set()
    splits = splits_of(reads)
    with pytest.raises(DataError, match=r"no test split to report on; there is only train\. Put the images"):
        plan_for(tmp_path / "out", {"train": splits["train"]}, 0.01)
    with pytest.raises(DataError, match="the classes of test are not those of train"):
        plan_for(tmp_path / "out", splits | {"test": Noted("test", 4, reads, ("ant", "cow"))}, 0.01)
    few: dict[str, Source] = {**splits, "train": Noted("train", 2, reads)}
    with pytest.raises(DataError, match=r"1% of 2 training images is none to choose by\. Keep more back"):
        transfer(plan_for(tmp_path / "out", few, 0.01, 0.03, validation_share=0.01))
    assert not list(tmp_path.rglob("training.json"))
