"""`vitrail.describe`: what a file of weights is, or a program that `vitrail.export` wrote."""

import os
from collections.abc import Callable

from vitrail.checkpoint import describe as describe_weights
from vitrail.checkpoint.description import Arrays, Description
from vitrail.config import Grid, name_of
from vitrail.errors import CheckpointError, ConfigError
from vitrail.files import home_path
from vitrail.runtime.engines import about_file, is_exported


def describe(
    path: str | os.PathLike[str],
    *,
    image_size: int | tuple[int, int] | None = None,
    grid: Grid | None = None,
    propose: bool = False,
    check: tuple[Arrays, Arrays] | None = None,
    write_names: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], object] = lambda done, total: None,
    **fields: object,
) -> Description:
    """Say what a file, folder, address or name holds; `image_size`, `grid` and `heads` tell what it leaves open.

    Of a file in no layout that is known, and of any with `propose`, it proposes which tensor is what: a table of names.
    `check` is images (float B C H W, as their own model read them) and its outputs, arrays or .npy files: what is open
    in the proposal, or in the table `names`, is settled by trying. `write_names` is the .toml to write the table to.
    A file of `vitrail.export` says what it takes and gives, and how far it is from the model that it was made of.
    """
    if not is_exported(os.fspath(path)):
        return describe_weights(
            path,
            image_size=image_size,
            grid=grid,
            propose=propose,
            check=check,
            write_names=write_names,
            overwrite=overwrite,
            progress=progress,
            **fields,
        )
    told = {"image_size": image_size, "grid": grid, "check": check, "write_names": write_names, **fields}
    told |= {"propose": propose or None}
    for name, value in told.items():
        if value is not None:
            raise ConfigError(f"an exported file knows its model; got {name}={value}. Leave {name} out.")
    file = home_path(path)
    parts = [file, *([file.with_suffix(".bin")] if file.suffix.lower() == ".xml" else [])]
    try:
        size = sum(part.stat().st_size for part in parts)
    except OSError as error:
        raise CheckpointError(f"cannot read {error.filename}: {error.strerror}. Check the path.") from error
    config, card, said = about_file(file)
    return Description(
        source=os.fspath(path),
        container=file.suffix[1:],
        size=size,
        layout="export",
        title="a program of vitrail.export",
        model=name_of(config),
        config=config,
        card=card,
        reason=None,
        odd=(),
        tensors=(),
        program={name: value for name, value in said.items() if name not in ("format", "model", "card")},
    )
