"""What a process of the bench does: it makes ways ready, keeps them, and measures one of them when it is asked to."""

import logging
import multiprocessing
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from vitrail.errors import VitrailError, shortened
from vitrail.runtime.machine import choose_device
from vitrail.studies.bench.table import Case, Opened
from vitrail.studies.bench.timing import Clock, release
from vitrail.studies.bench.work import open_work

LONGEST = 300  # signs of a reason
READY: dict[str, dict[str, Opened]] = {}  # by case and way, in this process


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Some ways of a case, to be made ready."""

    case: Case
    ways: tuple[str, ...]
    device: str
    seconds: float


def make_ready(asked: Asked) -> Mapping[str, Any]:
    """Make ways ready; give what was found on the way, the reason of each that failed, and the bytes that are held."""
    if multiprocessing.parent_process() is not None:  # what libraries say of themselves is not the bench's
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        os.dup2(2, 1)  # standard output is the command's
    case, device = asked.case, choose_device(asked.device)
    clock = Clock(device=device, unit=case.unit, seconds=case.seconds or asked.seconds)
    gaps: dict[str, str] = {}
    ready = READY.setdefault(case.name, {})
    for way in case.ways:
        if way.name not in asked.ways:
            continue
        try:
            ready[way.name] = open_work(way.work, clock)
        except Exception as error:  # another library's may be any
            gaps[way.name] = reason(error)
    release(device)
    held = torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
    return {"gaps": gaps, "about": {name: dict(opened.about) for name, opened in ready.items()}, "held": held}


def measure(given: tuple[str, str]) -> Mapping[str, float] | str:
    """Measure a way once; where that fails, say why."""
    case, way = given
    try:
        return dict(READY[case][way].once())
    except Exception as error:
        return reason(error)


def close(case: str) -> None:
    """Let go of the ways of a case."""
    for opened in READY.pop(case, {}).values():
        opened.close()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def reason(error: Exception) -> str:
    """Say in a line why something failed."""
    text = " ".join(str(error).split())
    said = text if isinstance(error, VitrailError) else f"{type(error).__name__}: {text}"
    return shortened(said, LONGEST)
