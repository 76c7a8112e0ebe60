"""What the commands that measure a model have in common: their options, the machine, how far they are."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vitrail.cli.render import harmless
from vitrail.config.check import one_of, rate, whole
from vitrail.runtime.machine import usual_workers

if TYPE_CHECKING:
    from vitrail.runtime.inference import Pass

Split = Annotated[str | None, typer.Option(help="Which split.", show_default="test, else val, else the only one")]
Size = Annotated[int | None, typer.Option(metavar="SIDE", help="Of the images.", show_default="the model's own")]
Out = Annotated[str | None, typer.Option(metavar="FOLDER", help="Write the results there too.")]
Batch = Annotated[int | None, typer.Option(help="Images at once.", show_default="16; 256 on a GPU")]
Workers = Annotated[int | None, typer.Option(help="Processes that decode images.", show_default="by the machine")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda.", show_default="a GPU where there is one")]
Precision = Annotated[str, typer.Option(help="float32 or bfloat16.")]
Limit = Annotated[float, typer.Option(help="Share of images that may be unreadable.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Compute everything again; use and keep nothing.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show nothing but errors and the result.")]
# What names the work, what moves the bar, what says a line that stays.
Shown = tuple[Callable[[str], None], Callable[[int, int], None], Callable[[str], None]]
CPU_BATCH, GPU_BATCH = 16, 256  # a small one stays in a CPU's cache: a fifth faster than 64


@dataclass(frozen=True, kw_only=True)
class Work:
    """How to go through images, and how to tell people what is going on."""

    how: "Pass"
    tell: Callable[[str], None]  # what is being done
    say: Callable[[str], None]  # what should stay on the screen


@contextmanager
def measuring(
    device: str | None,
    *,
    batch: int | None,
    workers: int | None,
    limit: float,
    precision: str,
    fresh: bool,
    quiet: bool,
) -> Iterator[Work]:
    """Join the processes that measure together, and show how far they are."""
    from vitrail.runtime.group import joined
    from vitrail.runtime.inference import Pass
    from vitrail.runtime.memory import keep_memory

    one_of("precision", precision, ("float32", "bfloat16"))
    keep_memory()
    with joined(device) as group:
        gpu = group.device.type == "cuda"
        with showing_progress(quiet=quiet or not group.is_main) as (tell, advance, say):
            how = Pass(
                group=group,
                batch=(GPU_BATCH if gpu else CPU_BATCH) if batch is None else whole("batch", batch),
                workers=usual_workers(gpu=gpu) if workers is None else whole("workers", workers, least=0),
                limit=rate("limit", limit),
                precision=precision,  # pyright: ignore[reportArgumentType]
                keeps=not fresh,
                progress=advance,
            )
            yield Work(how=how, tell=tell, say=say)


@contextmanager
def showing_progress(*, quiet: bool) -> Iterator[Shown]:
    """Show a bar on a terminal, lines elsewhere; give what names the work, what moves the bar, and what says a line."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    if quiet:
        yield (lambda text: None), (lambda done, total: None), (lambda text: None)
        return

    def say(text: str) -> None:
        console.print(harmless(text), markup=False)

    if not console.is_terminal:
        yield (lambda text: say(f"{text} ...")), (lambda done, total: None), say
        return
    columns = (BarColumn(bar_width=16), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
    with Progress(*columns, TextColumn("{task.description}"), console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def tell(text: str) -> None:
            bar.reset(task, description=text, total=None)

        yield tell, (lambda done, total: bar.update(task, completed=done, total=total)), say
