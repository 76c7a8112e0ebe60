"""A simulated step: against sums by hand, bounds that hold for any, and what the plan says of the same traffic."""

import runpy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import pytest

from vitrail.config import parse
from vitrail.ops.cost.counts import Step
from vitrail.ops.cost.ranks import Ranks
from vitrail.ops.cost.timeline import Layer, Network, simulate
from vitrail.verbs.plan import plan

Kind = Literal["ddp", "fsdp"]
SLOW = Network(nodes=3, each=1, between=2.0, hop_between=0.0)  # a layer of 3 bytes takes a second
LAYERS = [Layer(forward=2.0, backward=4.0, size=3.0)] * 2


def test_three_steps_by_hand() -> None:
    ddp = simulate("ddp", LAYERS, SLOW, update=0.5)
    # Forward 4, backward to 8 and 12; the first's gradients take 2 from 8 on, the second's from 12 on; the update.
    assert (ddp.seconds, ddp.computed, ddp.sent) == (14.5, 12.5, 4.0)
    fsdp = simulate("fsdp", LAYERS, SLOW, update=0.3)
    # The first is gathered in 1, the others meanwhile; the last gradients take 1, and then a third of the update.
    assert fsdp.seconds == pytest.approx(1 + 12 + 1 + 0.1)
    assert fsdp.sent == 4 + 2
    assert simulate("fsdp", LAYERS, replace(SLOW, nodes=1), update=0.5).seconds == 12.5


def test_a_network_that_is_slow_decides_and_one_that_is_fast_does_not() -> None:
    for kind in get_args(Kind):
        slow, fast = (simulate(kind, LAYERS, replace(SLOW, between=speed), update=0.0) for speed in (1e-3, 1e6))
        assert slow.seconds == pytest.approx(slow.sent, rel=0.01)
        assert fast.seconds == pytest.approx(12.0, rel=1e-4)


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("nodes", [1, 8, 64])
def test_a_step_lasts_at_least_its_longer_part_and_at_most_both(kind: Kind, nodes: int) -> None:
    layers = [Layer(forward=0.003 * number, backward=0.006 * number, size=1e8 * number) for number in range(1, 9)]
    found = simulate(kind, layers, Network(nodes=nodes, each=8), update=0.01)
    assert max(found.computed, found.sent) <= found.seconds <= found.computed + found.sent + 1e-9


@pytest.mark.parametrize("kind", get_args(Kind))
def test_what_is_sent_is_what_the_plan_counts(kind: Kind) -> None:
    config = parse("ViT-G/14", {"classes": 1000})
    step = Step(kind="train", batch=8, precision="bfloat16", optimizer="adam", device="cuda")
    ranks = Ranks(config=config, step=step, world=64)
    layers = [Layer(forward=0.0, backward=0.0, size=ranks.gradient_bytes / 50)] * 50
    found = simulate(kind, layers, Network(nodes=8, each=8, hop_between=0.0, hop_within=0.0), update=0.0)
    counted = ranks.ddp_traffic() if kind == "ddp" else ranks.fsdp_traffic()
    assert found.sent * 50e9 == pytest.approx(counted)


def test_the_tables_of_the_document_are_what_the_program_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(__file__).parents[2]
    document = (root / "docs" / "scale.md").read_text()
    monkeypatch.setattr(sys, "argv", ["scale.py"])
    runpy.run_path(str(root / "benchmarks" / "scale.py"), run_name="__main__")
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 2 + 6
    assert "\n".join(rows) in document
    # The same as `vitrail plan` says of 64 GPUs, in GiB.
    ranks = plan("ViT-G/14", on="H200", nodes=8, gpus_per_node=8, batch_size=4096).ranks
    assert ranks is not None
    assert [line.split(" | ")[2] for line in rows[4:6]] == [
        f"{size / 2**30:.0f} GiB" for size in (ranks.ddp_memory(), ranks.fsdp_memory())
    ]
