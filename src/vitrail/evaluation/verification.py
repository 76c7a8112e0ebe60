"""Who is who by embeddings: verification of all pairs and identification, on people that a model was not trained on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.source import Source
from vitrail.data.splits import SomeClasses
from vitrail.errors import ConfigError, DataError
from vitrail.evaluation.cached import cached_outputs
from vitrail.evaluation.results import Result, document_of
from vitrail.models import Model
from vitrail.ops import verification as ops
from vitrail.runtime.inference import InferenceOptions, Outputs
from vitrail.runtime.reporter import harmless

STRICTER = 0.001  # the second FAR that is always told
SHOWN = 5  # hardest pairs of each kind
RANKS = 10  # of the curve of identification
FEWEST = 10  # impostor pairs that a FAR must allow for an interval of its TAR to be honest
CURVE = 2000  # points of the curve that is written


@dataclass(frozen=True, kw_only=True)
class Number:
    """A measured number, with the interval of 95 % where there is an honest one."""

    value: float
    interval: tuple[float, float] | None = None

    def __str__(self) -> str:
        if self.interval is None:
            return f"{self.value:.2%}"
        return f"{self.value:.2%} (95 %: {self.interval[0]:.2%} to {self.interval[1]:.2%})"


@dataclass(frozen=True, kw_only=True)
class TarAtFar:
    """The share of genuine pairs accepted where at most this share of impostors is, and the threshold for it."""

    far: float
    tar: Number
    threshold: float | None  # None: nothing can be accepted


@dataclass(frozen=True, kw_only=True)
class HardPair:
    """Two images by name, with their people and their cosine."""

    first: str
    second: str
    people: tuple[str, str]
    score: float


@dataclass(frozen=True, kw_only=True, repr=False)
class Verification:
    """What was found on which people."""

    people: int
    trained_on: int  # people of the data that were left out, as the model knows them
    images: int
    skipped: int
    curve: ops.Roc
    eer: Number
    auc: Number
    at: tuple[TarAtFar, ...]
    rank1: Number  # leave-one-out
    gallery: int  # images of each person in it
    gallery_rank1: Number | None  # None: nobody has more images than the gallery takes
    ranks: tuple[float, ...]  # share found among the first k people, leave-one-out
    gallery_ranks: tuple[float, ...]
    alike: tuple[HardPair, ...]  # different people that look most alike
    unlike: tuple[HardPair, ...]  # images of one person that look least alike
    model: str = ""
    data: str = ""
    setting: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Give what `vitrail verify --json` prints: a row for every number, and the rest beside them."""
        rows = [self._row("eer", self.eer), self._row("auc", self.auc)]
        rows += [self._row("tar", each.tar, far=each.far, threshold=each.threshold) for each in self.at]
        rows.append(self._row("rank1", self.rank1, protocol="leave-one-out"))
        if self.gallery_rank1 is not None:
            rows.append(self._row("rank1", self.gallery_rank1, protocol="gallery", gallery=self.gallery))
        return document_of(
            "verify",
            rows,
            **{name: getattr(self, name) for name in ("people", "trained_on", "images", "skipped")},
            pairs={"genuine": self.curve.genuine, "impostor": self.curve.impostors},
            ranks={"leave-one-out": self.ranks, "gallery": self.gallery_ranks},
            alike=[vars(pair) for pair in self.alike],
            unlike=[vars(pair) for pair in self.unlike],
        )

    def _row(self, metric: str, number: Number, **more: object) -> Result:
        measured: Any = {"task": "verify", "model": self.model, "data": self.data, "images": self.images}
        return Result(**measured, metric=metric, **vars(number), setting={**self.setting, **more})

    def lines(self, *, pairs: bool = True) -> Iterator[str]:
        """Say what was found for people, with the hardest `pairs` of images."""
        left_out = f"; {self.trained_on} others were trained on and are left out" if self.trained_on else ""
        yield f"{self.people:,} people, {self.images:,} images{left_out}"
        if self.skipped:
            yield f"{self.skipped:,} images could not be decoded"
        yield f"{self.curve.genuine:,} pairs of one person, {self.curve.impostors:,} of two"
        yield f"equal error rate {self.eer}"
        for each in self.at:
            where = "" if each.threshold is None else f", at a cosine of {each.threshold:.3f}"
            yield f"accepted at {each.far:.2%} false accepts {each.tar}{where}"
        yield f"area under the curve {self.auc}"
        yield f"nearest other image is of the same person {self.rank1}"
        if self.gallery_rank1 is not None:
            images = "the first image" if self.gallery == 1 else f"the first {self.gallery} images"
            yield f"found by {images} of each person {self.gallery_rank1}"
        titled = (("different people, most alike", self.alike), ("one person, least alike", self.unlike))
        for title, some in titled if pairs else ():
            yield f"{title}:"
            yield from (harmless(f"  {pair.score:.3f}  {pair.first}  {pair.second}") for pair in some)

    def __repr__(self) -> str:
        return "\n".join(self.lines())


def strangers(model: Model, source: Source, *, everyone: bool = False) -> tuple[Source, int]:
    """Give the people of a source that the model was not trained on, by their names, and how many are left out."""
    if not source.class_names:
        raise DataError("the images have no names of people. Expected a folder for each person.")
    trained = {*(model.card.class_names or ()), *model.card.seen}
    known = set() if everyone else trained & set(source.class_names)
    if not known:
        return source, 0
    left = [name for name in source.class_names if name not in known]
    if not left:
        raise DataError(
            f"the model was trained on all {len(known)} people of the data, which says nothing about strangers. "
            "Train with held_out=0.25, give other people, or measure all of them with everyone=True."
        )
    return SomeClasses(source, left), len(known)


def embed(model: Model, source: Source, options: InferenceOptions, *, flip: bool) -> Outputs:
    """Give every image's embedding: what the classifier reads, of length 1; `flip` adds the mirrored image's."""

    def read(model: Model, images: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
        return {"embedding": unit(model, images) + unit(model, images.flip(3)) if flip else unit(model, images)}

    return cached_outputs(model, source, "embeddings-flip" if flip else "embeddings", read, options)


def unit(model: Model, images: Tensor) -> Tensor:
    """Represent images by directions."""
    return torch.nn.functional.normalize(model.represent(images).float(), dim=1)


def verify(
    embeddings: NDArray[np.floating],
    labels: ops.Numbers,
    names: Sequence[str],
    class_names: Sequence[str],
    *,
    gallery: int = 1,
    far: float = 0.01,
    trained_on: int = 0,
    skipped: int = 0,
) -> Verification:
    """Measure verification on all pairs, and identification; `names` are those of the images."""
    _check(embeddings, labels, gallery, far)
    rows = ops.normalize(embeddings)
    unlike, alike = ops.Hardest(SHOWN, -1), ops.Hardest(SHOWN, 1)
    genuine = np.concatenate([block.scores for block in unlike.watch(ops.genuine_pairs(rows, labels))])
    if not len(genuine):
        raise DataError("nobody has two images, so there is no genuine pair. Give people with several images each.")
    counts = ops.PairCounts(labels, genuine)
    counts.add_genuine(ops.genuine_pairs(rows, labels))
    curve = ops.roc(genuine, counts.watch(alike.watch(ops.impostor_pairs(rows, labels))))
    fars = tuple(sorted({far, STRICTER}, reverse=True))
    drawn = {name: ops.interval_of(values, counts.people) for name, values in ops.drawn_rates(counts, fars).items()}
    others = ops.leave_one_out(labels)
    ranks = ops.identification_ranks(rows, labels, *others)
    later = ops.first_images(labels, gallery)
    placed = ops.identification_ranks(rows, labels, *later)

    def named(pair: ops.Pair) -> HardPair:
        people = class_names[int(labels[pair.first])], class_names[int(labels[pair.second])]
        return HardPair(first=names[pair.first], second=names[pair.second], people=people, score=pair.score)

    return Verification(
        people=len(np.unique(labels)),
        trained_on=trained_on,
        images=len(labels),
        skipped=skipped,
        curve=curve,
        eer=Number(value=ops.equal_error_rate(curve), interval=drawn["eer"]),
        auc=Number(value=ops.area_under(curve), interval=drawn["auc"]),
        at=tuple(_at(curve, each, drawn[f"tar{number}"]) for number, each in enumerate(fars)),
        rank1=_found(ranks, labels[others[1]]),
        gallery=gallery,
        gallery_rank1=_found(placed, labels[later[1]]) if len(placed) else None,
        ranks=_curve_of(ranks),
        gallery_ranks=_curve_of(placed),
        alike=tuple(map(named, alike.pairs)),
        unlike=tuple(map(named, unlike.pairs)),
    )


def _check(embeddings: NDArray[np.floating], labels: ops.Numbers, gallery: int, far: float) -> None:
    if gallery < 1:
        raise ConfigError(f"gallery must be 1 image of each person or more; got {gallery}.")
    if not 0 < far < 1:
        raise ConfigError(f"far must be a share between 0 and 1; got {far}. Take far=0.01.")
    if len(np.unique(labels)) < 2:
        raise DataError("there is one person alone, and nobody to tell apart. Give images of two people or more.")
    if not np.isfinite(embeddings).all():
        raise DataError("some embeddings are not finite: the model has diverged, or bfloat16 is too coarse for it.")


def _at(curve: ops.Roc, far: float, interval: tuple[float, float] | None) -> TarAtFar:
    tar, threshold = ops.tar_at(curve, far)
    honest = interval if far * curve.impostors >= FEWEST else None
    level = threshold if np.isfinite(threshold) else None
    return TarAtFar(far=far, tar=Number(value=tar, interval=honest), threshold=level)


def _found(ranks: ops.Numbers, people: ops.Numbers) -> Number:
    hits = ranks == 1
    interval = ops.interval_of(ops.drawn_share(hits, people), len(np.unique(people)))
    return Number(value=float(hits.mean()), interval=interval)


def _curve_of(ranks: ops.Numbers) -> tuple[float, ...]:
    return tuple(float((ranks <= k).mean()) for k in range(1, RANKS + 1)) if len(ranks) else ()


def measure_verification(
    model: Model,
    source: Source,
    options: InferenceOptions,
    *,
    gallery: int = 1,
    far: float = 0.01,
    flip: bool = True,
    everyone: bool = False,
) -> Verification:
    """Embed the people that the model does not know, and measure how well it tells them apart."""
    people, trained_on = strangers(model, source, everyone=everyone)
    rows = embed(model, people, options, flip=flip)
    known = rows.labels >= 0
    return verify(
        rows.values["embedding"][known],
        rows.labels[known],
        [people.name(sample) for sample in rows.samples[known].tolist()],
        people.class_names,
        gallery=gallery,
        far=far,
        trained_on=trained_on,
        skipped=len(rows.skipped),
    )


def curve_table(curve: ops.Roc) -> str:
    """Write the curve as CSV: thresholds fall, and of very many points some, evenly, are taken."""
    some = np.unique(np.linspace(0, len(curve.far) - 1, min(CURVE, len(curve.far))).astype(np.int64))
    rows = zip(curve.thresholds[some], curve.far[some], curve.tar[some], strict=True)
    return "threshold,far,tar\n" + "".join(f"{level:.9g},{far:.9g},{tar:.9g}\n" for level, far, tar in rows)
