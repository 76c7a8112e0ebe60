"""What pycocotools measures of boxes or masks."""

import contextlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

import pytest


def judge(truth: Mapping[str, Any], answers: Sequence[Mapping[str, Any]], kind: str) -> Any:
    """Compare answers with a document of COCO, by `bbox` or `segm`; `stats` and `eval` have the numbers."""
    coco = pytest.importorskip("pycocotools.coco")
    evaluating = pytest.importorskip("pycocotools.cocoeval")
    with contextlib.redirect_stdout(io.StringIO()):
        known = coco.COCO()
        known.dataset = {"info": {}, **truth}
        known.createIndex()
        judged = evaluating.COCOeval(known, known.loadRes(list(answers)), kind)
        judged.evaluate()
        judged.accumulate()
        judged.summarize()
    return judged
