"""What each lever of a compiled training step is worth on a GPU: `python benchmarks/levers.py [--case MODEL=BATCH]`.

Every variant is a process of its own. All compile first, as many at once as fit into memory; then they are measured in
turns, one at a time, while the others hold still: images a second of the loop's own step, the most that tensors hold,
and the norm of the gradients after some steps from the same weights on the same images, which tells a wrong kernel from
a fast one. timm's step stands beside. Variants: what torch compiles by itself (inductor); with our options (quick);
what is recomputed too (lean); cuDNN's attention too (cudnn); of convolutions the fastest that cuDNN finds (tuned),
images with their channels last (last), norms channel by channel (norms).
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import IO, Any, NamedTuple

CASES = ("ViT-B/16=256", "ViT-L/16=256", "R50+ViT-B/16=128", "BiT-R50x1=128")
OF_TOKENS = ("timm", "inductor", "quick", "lean", "lean cudnn")
OF_CONVOLUTIONS = ("timm", "inductor", "quick", "quick tuned", "quick tuned last", "quick tuned last norms")
READY, ROUNDS = "ready", 5
HELD = 20 << 30  # bytes of a GPU that the variants hold that are ready: weights, and what their updates remember


class Variant(NamedTuple):
    """A process that measures one way of a step whenever it is told to."""

    case: str
    name: str
    process: subprocess.Popen[str]
    said: IO[str]  # what it complains of


def answer(case: str, name: str, device: str, seconds: float) -> None:
    """Be one variant: get ready, then measure at every line that comes in."""
    import torch
    from torch.nn.attention import sdpa_kernel

    from vitrail.ops import attention
    from vitrail.ops.attention_kernels import kernels_for
    from vitrail.ops.fused import group_norm_by_channel
    from vitrail.runtime import compiled
    from vitrail.studies.bench.table import Shape, TrainStep
    from vitrail.studies.bench.timing import Clock, peak_of, release
    from vitrail.studies.bench.training import own_step, peer_step
    from vitrail.train import loop, prepare

    model, batch = case.split("=")
    place, norms = torch.device(device), [0.0]
    backends = {"inductor": "inductor", "quick": compiled.quick_inductor, "lean": compiled.lean_inductor}
    if name != "timm":
        prepare.backend_for = lambda config, device: backends[name.split()[0]]
    if "cudnn" in name:

        def fused(query: Any, key: Any, value: Any, bias: Any, dropout: float, *, causal: bool = False) -> Any:
            with sdpa_kernel(kernels_for(query, key), set_priority=True):
                return torch.nn.functional.scaled_dot_product_attention(
                    query, key, value, attn_mask=bias, dropout_p=dropout, is_causal=causal
                )

        attention.fused_attention = fused
        import vitrail.runtime.class_token as last

        last.fused_attention = fused
    if "tuned" in name:
        torch.backends.cudnn.benchmark = True
    if "norms" in name:

        def normalize(norm: Any, features: Any) -> Any:
            return group_norm_by_channel(features, norm.num_groups, norm.weight, norm.bias, norm.eps)

        type.__setattr__(torch.nn.GroupNorm, "forward", normalize)
    if "last" in name:
        wrap = prepare.wrap

        def wrapped(model: Any, module: Any, training: Any, group: Any) -> Any:
            model.register_forward_pre_hook(lambda _, given: (given[0].to(memory_format=torch.channels_last),))
            return wrap(model, module, training, group)

        prepare.wrap = wrapped
    clip = loop.clip

    def watched(*given: Any) -> Any:
        found = clip(*given)
        norms.append(float(found))
        return found

    shape = Shape(model=model, batch=int(batch), image_size=32 if place.type == "cpu" else 224)
    work = TrainStep(shape=shape, by="timm" if name == "timm" else "vitrail", compiled=place.type == "cuda")
    clock = Clock(device=place, unit="images/s", seconds=seconds)
    with ExitStack() as stack:
        step, held = peer_step(work, place) if name == "timm" else own_step(work, clock, stack)
        loop.clip = watched
        for _ in range(3):
            step()
        loop.clip = clip
        memory = peak_of(step, place, held).get("memory", 0)
        once = clock.times(step, shape.batch)
        release(place)  # for the others, who compile
        sys.stdout.write(f"{READY}\n")
        sys.stdout.flush()
        for _ in sys.stdin:
            sys.stdout.write(json.dumps({**once(), "memory": memory, "norm": norms[-1]}) + "\n")
            sys.stdout.flush()


def fitting(case: str, device: str) -> int:
    """Say how many variants of a case may take their first steps at once."""
    if device == "cpu":
        return len(OF_CONVOLUTIONS)
    import torch

    from vitrail.studies.bench.table import Shape, TrainStep
    from vitrail.studies.bench.work import gpu_bytes

    model, batch = case.split("=")
    room = torch.cuda.mem_get_info()[0] - HELD
    return max(int(room // gpu_bytes(TrainStep(shape=Shape(model=model, batch=int(batch))))), 1)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--case", action="append", help="MODEL=BATCH")
    parser.add_argument("--variants", help="names with commas between; the usual ones of a model where nothing is said")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each of five rounds")
    parser.add_argument("--jobs", type=int, default=5, help="processes that compile at once")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        case, name = given.one
        answer(case, name, given.device, given.seconds)
        return

    def begin(asked: tuple[str, str]) -> Variant:
        command = [sys.executable, __file__, "--device", given.device, "--seconds", str(given.seconds), "--one", *asked]
        said, pipe = tempfile.TemporaryFile(mode="w+"), subprocess.PIPE  # noqa: SIM115
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=said, text=True)
        assert process.stdout is not None
        while process.stdout.readline().strip() not in (READY, ""):
            pass
        return Variant(asked[0], asked[1], process, said)

    row = "{:<20}{:<24}{:>10}{:>20}{:>8}{:>9}{:>7}{:>12}\n"
    sys.stdout.write(row.format("", "", "images/s", "lowest to highest", "times", "GiB", "times", "norm"))
    for case in given.case or CASES:
        names = OF_CONVOLUTIONS if case.startswith(("R", "BiT")) else OF_TOKENS
        names = given.variants.split(",") if given.variants else names
        with ThreadPoolExecutor(min(given.jobs, fitting(case, given.device))) as pool:
            variants = list(pool.map(begin, [(case, name) for name in names]))
        rounds = [[measured(variant) for variant in variants] for _ in range(ROUNDS)]
        for number, variant in enumerate(variants):
            found = [each for each in (turn[number] for turn in rounds) if each is not None]
            if len(found) < ROUNDS:
                variant.said.seek(0)
                reason = (variant.said.read().strip().splitlines() or ["it ended"])[-1]
                sys.stdout.write(f"{case:<20}{variant.name:<24} failed: {reason}\n")
                continue
            values = [each["value"] for each in found]
            base = rounds[0][0]
            ratios = [each["value"] / turn[0]["value"] for each, turn in zip(found, rounds, strict=True) if turn[0]]
            times = f"{statistics.median(ratios):.3f}" if ratios else ""
            memory = found[0]["memory"]
            share = f"{memory / base['memory']:.2f}" if base and base["memory"] else ""
            spread = f"{min(values):,.0f} to {max(values):,.0f}"
            told = (f"{statistics.median(values):,.0f}", spread, times, f"{memory / 2**30:.1f}", share)
            sys.stdout.write(row.format(case, variant.name, *told, f"{found[0]['norm']:.5g}"))
        sys.stdout.flush()
        for variant in variants:
            variant.process.communicate()


def measured(variant: Variant) -> dict[str, float] | None:
    """Let a variant measure once; None where it has ended."""
    assert variant.process.stdin is not None
    assert variant.process.stdout is not None
    try:
        variant.process.stdin.write("now\n")
        variant.process.stdin.flush()
        return json.loads(variant.process.stdout.readline())
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    main()
