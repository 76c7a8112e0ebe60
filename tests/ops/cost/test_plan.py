import json
from typing import Any

from vitrail.config import decode, parse
from vitrail.ops.cost.counts import Step
from vitrail.ops.cost.plan import CostPlan

STEP = Step(kind="train", batch=256, precision="bfloat16")


def planned(name: str, **run: Any) -> CostPlan:
    return CostPlan(name=name, config=parse(name), step=STEP, **run)


def test_a_plan_speaks_json_that_says_it_all() -> None:
    plan = planned("ViT-B/16", images=303_000_000, epochs=7)
    document = json.loads(json.dumps(plan.document()))
    assert decode(document["config"]) == parse("ViT-B/16")
    assert document["parameters"]["total"] == 86_567_656
    assert document["tokens"] == 197
    assert abs(document["run"]["exaflops"] - 223.5) < 0.1
    assert document["run"]["steps"] == -(-2_121_000_000 // 256)
    memory = document["memory"]["training"]
    assert memory["total"] == sum(size for part, size in memory.items() if part != "total")
    said = {"batch": 256, "precision": "bfloat16", "optimizer": "adam", "device": "cuda"}
    assert document["step"] == said | {"compiled": False, "objects": 0, "class_token_alone": False}


def test_a_plan_without_a_run_has_none() -> None:
    assert planned("ViT-B/16").document()["run"] is None


def test_attention_to_every_pixel_is_nearly_all_of_the_work() -> None:
    patches, pixels = (planned(name) for name in ("ViT-B/16", "ViT-B/1"))
    assert patches.pair_share < 0.05
    assert pixels.pair_share > 0.9
    assert pixels.macs.total > 2000 * patches.macs.total
    axial = planned("Axial-ViT-B/16")
    pairs = 12 * 2 * (14 + 14) * 196 * 768
    assert abs(axial.pair_share - pairs / axial.macs.backbone) < 1e-12
    assert planned("BiT-R50x1").pair_share == 0
