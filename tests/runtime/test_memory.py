"""Memory that is kept."""

import subprocess
import sys

import pytest

CODE = """
import resource, torch
from vitrail.runtime.machine import keep_memory
torch.set_num_threads(1)
kept = keep_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        parts = [torch.ones(3_000_000) for _ in range(5)]
        del parts
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(int(kept), faults())
"""


def measure() -> tuple[int, int]:
    shown = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout.split()
    return int(shown[0]), int(shown[1])


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is asked")
def test_pages_are_not_asked_for_again() -> None:
    kept, few = measure()
    assert not kept or few < 1000  # of 234,000 pages; without it the system gives them anew in some runs
