"""`vitrail.calibrate`: one temperature, fitted on validation images, so that probabilities mean what they say."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from vitrail.checkpoint.load import of_run
from vitrail.checkpoint.run_folder import calibrate_run, is_run
from vitrail.config.outputs import TASK_OF
from vitrail.data.open import open_data
from vitrail.data.source import Source
from vitrail.errors import ConfigError, DataError
from vitrail.evaluation.answers import check_classifier
from vitrail.evaluation.cached import cached_outputs
from vitrail.inspection.views import has_classes_of
from vitrail.models import Model
from vitrail.ops.metrics import calibration, fit_temperature, log_probabilities
from vitrail.runtime.inference import choose_model
from vitrail.train.task import kept_back, was_trained_on, without_held_out
from vitrail.verbs.opening import AnyModel, Measuring, data_name, measuring, model_name, open_model, run_of
from vitrail.verbs.tasks import card_of

FEWEST = 20  # images that say something of a temperature
CHANCE = 3.84  # what a likelihood ratio of one number exceeds by chance in one of twenty cases


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A model's temperature, on what it was fitted, and loss and calibration error there before and after."""

    temperature: float
    images: int
    split: str
    loss: tuple[float, float]
    error: tuple[float, float]  # expected calibration error
    folder: Path | None  # the run whose card has it; None where the model in memory has it

    def document(self) -> dict[str, Any]:
        """Give it as plain values, for JSON."""
        return asdict(self) | {"folder": None if self.folder is None else str(self.folder)}

    def __str__(self) -> str:
        kept = "the model's card" if self.folder is None else f"the card of {self.folder}"
        gain = 2 * self.images * (self.loss[0] - self.loss[1])  # of the log-likelihood, twice
        doubt = "" if gain > CHANCE else " So small a gain may be chance: more validation images would tell."
        return (
            f"temperature {self.temperature:.4f}, fitted on {self.images:,} images ({self.split}); kept in {kept}\n"
            f"there: calibration error {self.error[0]:.2%} before, {self.error[1]:.2%} after; "
            f"loss {self.loss[0]:.4f} before, {self.loss[1]:.4f} after. Other images tell what it is worth.{doubt}"
        )


def calibrate(
    model: AnyModel,
    data: object,
    *,
    split: str | None = None,
    allow_pipe: bool = False,
    **options: Unpack[Measuring],
) -> Calibration:
    """Fit one temperature by the likelihood of validation images, and keep it in the model's card (Guo et al., 2017).

    `model` is a run folder, whose card is written, or a model in memory, whose card is changed. Probabilities are then
    those of the logits over the temperature, in `predict`, `evaluate` and `inspect`; logits and answers stay what they
    are. The images are those that the run kept back from training, or else those of the val split; never those of
    test, whose numbers it would flatter. `split` takes another. Options are those of `vitrail.evaluate`.
    """
    model = of_run(model)
    name, run = model_name(model), run_of(model)
    if (card := card_of(model)) is not None:
        assert card.outputs is not None
        raise ConfigError(
            "a temperature makes the probabilities of one class an image right; the model's task is "
            f"{TASK_OF[type(card.outputs)]}, which has none to fit."
        )
    folder = None if isinstance(run, Model) or isinstance(model, Model) else _card_of(name, run)
    source, said = choose_validation(open_data(data, allow_pipe=allow_pipe), run, data_name(data), split)
    with measuring(calibrate, model, options) as how:
        opened = choose_model(open_model(model, None, how.group.device, options), len(source), how)
        count = check_classifier(opened)
        if not has_classes_of(opened, source):
            raise DataError(f"the model's {count} classes are not the data's. Calibrate on data of the same classes.")
        found = cached_outputs(opened, source, "logits", _logits, how.showing(f"calibrating {name}"))
        writes = how.group.is_main
    known = (found.labels >= 0) & ~torch.from_numpy(found.values["logits"]).isnan().any(dim=1).numpy()
    if known.sum() < FEWEST:
        raise DataError(f"a temperature is fitted on {FEWEST} labeled images at least; {said} has {known.sum()}.")
    logits, labels = torch.from_numpy(found.values["logits"][known]), torch.from_numpy(found.labels[known])
    temperature = round(fit_temperature(logits, labels), 6)
    if folder is None and isinstance(model, Model):
        model.card = replace(model.card, temperature=temperature)
    elif folder is not None and writes:
        calibrate_run(folder, temperature)
    measured = [_measure(logits, labels, each) for each in (opened.card.temperature, temperature)]
    losses, errors = zip(*measured, strict=True)
    return Calibration(
        temperature=temperature, images=len(labels), split=said, loss=losses, error=errors, folder=folder
    )


def choose_validation(
    splits: Mapping[str, Source], run: Path | Model | None, data: str, split: str | None
) -> tuple[Source, str]:
    """Choose the images that a run kept back, or else a val split; refuse test images, and those it learned from."""
    if split == "test":
        raise ConfigError(
            "a temperature that is fitted on test images makes their numbers too good. Give validation images."
        )
    if split is not None and split not in splits:
        raise DataError(f"{data}: there is no split {split!r}. There are: {', '.join(splits)}.")
    for name in ("all", "train") if split is None else (split,):
        if name in splits and run is not None:
            source = without_held_out(run, splits[name])
            if (cut := kept_back(run, source)) is not None:
                return cut[1], f"those of {name} that the run kept back"
    if split is None and "val" not in splits:
        raise DataError(
            f"{data} has no val split, and the model is no run that kept images back. Give validation images: data "
            "with a val split, or split= of those that it was not trained on."
        )
    name = split or "val"
    source = splits[name] if run is None else without_held_out(run, splits[name])
    if name != "val" and run is not None and was_trained_on(run, source):
        raise DataError(f"the run was trained on {name}, of which it is too sure. Give validation images.")
    return source, name


def _card_of(name: str, path: Path | None) -> Path:
    """Give the folder whose card can be written."""
    if path is None or not path.is_dir() or not is_run(path):
        raise ConfigError(
            f"{name} is no run folder, and has no card to keep a temperature in. Give a run folder (vitrail.convert "
            "makes one), or a model in memory."
        )
    return path


def _logits(model: Model, images: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
    return {"logits": model(images).float()}


def _measure(logits: Tensor, labels: Tensor, temperature: float) -> tuple[float, float]:
    """Give mean loss and expected calibration error."""
    shares = log_probabilities(logits, temperature)
    loss = -shares.gather(1, labels[:, None]).double().mean()
    sure, answer = shares.exp().max(dim=1)
    return float(loss), calibration(sure.numpy(), (answer == labels).numpy()).error
