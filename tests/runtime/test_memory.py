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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc is asked")
def test_pages_are_not_asked_for_again() -> None:
    kept, few = measure()
    assert not kept or few < 1000  # of 234,000 pages; without it the system gives them anew in some runs


HELD = """
import torch
from vitrail.runtime.machine import keep_memory
from vitrail.runtime.memory import held_memory
torch.set_num_threads(1)
asked = keep_memory(give_back=True)
cpu = torch.device("cpu")
parts = [torch.ones(1_000_000) for _ in range(40)]
before = held_memory(cpu)
del parts[::2]
print(int(asked), (before - held_memory(cpu)) >> 20)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc is asked")
def test_what_is_freed_between_what_stays_is_given_back_where_that_is_asked() -> None:
    shown = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=True).stdout.split()
    assert shown[0] == "0" or int(shown[1]) > 70  # MiB, of 20 parts of 3.8; a heap that is kept gives none back
