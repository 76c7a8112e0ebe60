"""`vitrail.verify`: how well a model tells people apart whom it was not trained on."""

import os
from pathlib import Path

from vitrail.data.open import choose_split, open_data
from vitrail.evaluation.results import write_document
from vitrail.evaluation.verification import Verification, curve_table, measure_verification
from vitrail.files import write_bytes
from vitrail.runtime.inference import inference
from vitrail.runtime.reporter import SILENT, Reporter, harmless
from vitrail.verbs.opening import AnyModel, Device, data_name, device_for, model_name, open_model


def verify(
    model: AnyModel,
    data: object,
    *,
    split: str | None = None,
    gallery: int = 1,
    far: float = 0.01,
    flip: bool = True,
    everyone: bool = False,
    out: str | os.PathLike[str] | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    device: Device | None = None,
    precision: str = "float32",
    bad_image_limit: float = 0.01,
    fresh: bool = False,
    allow_pipe: bool = False,
    report: Reporter = SILENT,
) -> Verification:
    """Measure whether a model tells that two images are of one person, on all pairs; a class for each person.

    `model` is a name, a file, a run folder or a model in memory, with a classifier or not; `data` anything that
    `vitrail.data.open.open_data` opens. People whom the model was trained on are left out, unless `everyone`.
    `gallery` is how many images of each person the others are found by; `far` the share of pairs of different people
    that may be accepted; `flip` adds the mirrored image's embedding. `out` is a folder for verification.json and
    roc.csv. Embeddings are cached on disk, unless `fresh`.
    """
    splits = open_data(data, allow_pipe=allow_pipe)
    name, said_data = model_name(model), data_name(data)
    chosen = choose_split(splits, said_data, split)
    with inference(
        device_for(model, device),
        batch_size=batch_size,
        workers=workers,
        bad_image_limit=bad_image_limit,
        precision=precision,
        fresh=fresh,
        report=report,
    ) as options:
        opened = open_model(model, device=options.group.device)
        showing = options.showing(f"embeddings by {harmless(name)}")
        found = measure_verification(
            opened, splits[chosen], showing, gallery=gallery, far=far, flip=flip, everyone=everyone
        )
        writes = options.group.is_main
    found = found.named(name, said_data, {"split": chosen, "flip": flip})
    if writes and out is not None:
        folder = Path(out).expanduser()
        write_document(folder / "verification.json", found.document())
        write_bytes(folder / "roc.csv", curve_table(found.curve).encode())
    return found
