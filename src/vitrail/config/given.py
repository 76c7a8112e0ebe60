"""What a command or a call names, looked at before anything is loaded: models, weights, data, fields of a run."""

import glob
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.config.check import check_field, merging_share, number, truth, whole
from vitrail.config.dense import DenseHead, QueryHead
from vitrail.config.fields import hints, make, parts_of, read_settings
from vitrail.config.model import ViTConfig
from vitrail.config.name_tables import is_table
from vitrail.config.preprocessing import MEASURE, SAID_IN_TRAINING, read_preprocessing
from vitrail.config.recipe import Training
from vitrail.config.recipes import recipe
from vitrail.config.words import ANSWERS, MODEL, TRAINING, suggest
from vitrail.config.zoo import EVERY_PART, FILE_FIELDS, boxed, names, parse, read_model_settings, row
from vitrail.errors import CheckpointError, ConfigError, DataError, some_of
from vitrail.files import home_path
from vitrail.files.transfer import STORES

ADDRESSES = ("hf:", "https://", "http://", *(f"{scheme}://" for scheme in STORES))
BUILT_IN = ("sample", "synthetic")  # data that comes with the package, or is drawn
NAMED = 5  # paths that a message lists
TRAINS = ("finetune", "pretrain", "transfer", "vtab", "selftrain")
# What these take beside fields of the training.
OWN = ("data", "folder", "model", "out", "recipe", "minutes", "probe", "callbacks", "settings", "workers", "device")
OWN += ("track", "tensorboard", "allow_pipe", "rates", "seeds", "tasks", "select", "command", "elastic")
OF_SELFTRAIN = ("unlabeled", "teacher", "rounds", "confidence", "balance", "per_class", "noise")
TRAINED = ("evaluate", "fewshot", "verify", "predict", "inspect", "export", "optimize")  # what these measure is weights
LAYOUTS = ("vitrail", "google", "timm", "hf", "torchvision")  # that weights are written in
SEVERITIES = (1, 2, 3, 4, 5)  # of corruptions


def check_usage(verb: str, given: Mapping[str, Any]) -> None:
    """Refuse, without loading anything, what a verb would refuse: names that nothing has, and paths with nothing."""
    model = given.get("model")
    if verb in TRAINS:
        if isinstance(model, str):
            check_name(model)
        own = (*OWN, *SAID_IN_TRAINING, *(OF_SELFTRAIN if verb == "selftrain" else ()))
        fields = {name: value for name, value in given.items() if name not in own}
        ours, _ = read_fields(model, given.get("recipe"), given.get("settings", ()), fields)
        check_minutes(given.get("minutes"), ours)
        from vitrail.config.trackers import check_trackers  # here and below: few calls need it, and each costs a start

        check_trackers(given.get("track") or (), tensorboard=bool(given.get("tensorboard")))
        read_preprocessing({name: given[name] for name in SAID_IN_TRAINING if name in given})
    elif verb == "plan":
        check_plan(given)
    elif verb in ("study", "study_costs"):
        from vitrail.config.study import check_study

        numbers = {name: given.get(name) for name in ("seeds", "minutes", "jobs")}
        check_study(str(given["name"]), str(given.get("scale", "cpu")), **numbers)
    elif verb == "bench":
        from vitrail.config.bench import check_bench

        check_bench(given.get("what"), **{name: given.get(name) for name in ("repeats", "seconds", "jobs")})
    elif verb == "export":
        from vitrail.config.export import read_export

        calibrates = isinstance(images := given.get("calibrate"), str)
        read_export(str(given.get("to", "onnx")), given.get("precision"), given.get("loss"), calibrates=calibrates)
        if isinstance(images, str):
            check_data(images)
    elif verb == "optimize":
        from vitrail.config.engine import check_engine, read_precision

        precision = read_precision(str(given.get("precision", "auto")), ("auto",))
        check_engine(str(given.get("engine", "auto")), "float32" if precision == "auto" else precision)
        read_preprocessing(given)
        if isinstance(images := given.get("calibrate"), str):
            check_images([images])
    elif verb in TRAINED or verb in ("calibrate", "convert", "soup"):
        measured = verb == "evaluate" and str(given.get("preprocessing")).lower() == MEASURE
        read_preprocessing({**given, "preprocessing": None} if measured else given)
        check_layout(given.get("layout", LAYOUTS[0]))
        check_passes(given)
        check_corruptions(
            corruptions=given.get("corruptions", False),
            severities=given.get("severities", SEVERITIES),
            beside=given.get("beside", ()),
            passing=given.get("keep_aspect_ratio", False),
        )
        from vitrail.config.engine import check_engine

        check_engine(str(given.get("engine", "auto")), str(given.get("precision", "float32")))
    weights = given.get("path" if verb == "describe" else "source")
    several = (*given.get("models", ()), *given.get("beside", ())) if verb in ("soup", "evaluate") else ()
    for name in (model if verb in TRAINED else None, given.get("against"), weights, *several):
        if isinstance(name, str):
            check_weights(name)
    for data in (given.get("data"), given.get("unlabeled")):
        if isinstance(data, str):
            check_data(data)
    if verb == "predict" and isinstance(images := given.get("images"), list | tuple):
        check_images([path for path in images if isinstance(path, str)])


def check_minutes(minutes: float | None, fields: Mapping[str, Any]) -> None:
    """Refuse a time that is none, and a length that is said beside it."""
    if minutes is None:
        return
    if not number("minutes", minutes) > 0:
        raise ConfigError(f"minutes must be more than 0; got {minutes:g}.")
    if given := sorted({"steps", "epochs"} & fields.keys()):
        raise ConfigError(f"a run's length is given twice: minutes and {' and '.join(given)}. Give one.")


def check_passes(given: Mapping[str, Any]) -> None:
    """Refuse ways to go through images that no model has, or that do not go together."""
    share, aspect = given.get("token_merging"), given.get("keep_aspect_ratio", False)
    if share is not None:
        merging_share("token_merging", share)
    if truth("keep_aspect_ratio", aspect) and share is not None:
        raise ConfigError(
            "token_merging and keep_aspect_ratio do not go together: images that are packed in one sequence do not "
            "merge. Give one of them."
        )
    if (share is not None or aspect) and given.get("page") is not None:
        why = "merges patches" if share is not None else "reads other ones"
        name = "keep_aspect_ratio" if share is None else "token_merging"
        raise ConfigError(
            f"a page shows the attention of all patches as ever, and {name} {why}. Leave {name} out, or the page."
        )
    if aspect and str(given.get("preprocessing")).lower() == MEASURE:
        raise ConfigError(
            "preprocessing=measure tries crops, and keep_aspect_ratio reads images whole. Give one of them."
        )


def check_corruptions(
    *, corruptions: bool, severities: Sequence[int], beside: Sequence[object], passing: bool = False
) -> None:
    """Refuse severities that there are not, and what goes with corruptions alone."""
    if not isinstance(severities, Sequence) or isinstance(severities, str):
        raise ConfigError(f"severities must be some of 1 to 5, each once; got {severities!r}. Give a list: [3].")
    for severity in severities:
        whole("severities", severity, most=len(SEVERITIES))
    if not severities or len({*severities}) < len(severities):
        raise ConfigError(f"severities must be some of 1 to 5, each once; got {list(severities)}.")
    if beside and not truth("corruptions", corruptions):
        raise ConfigError("beside puts models side by side under corruptions. Give corruptions too, or against=...")
    if len(severities) < len(SEVERITIES) and not corruptions:
        raise ConfigError("severities are of corruptions. Give corruptions too, or leave severities out.")
    if corruptions and passing:
        raise ConfigError("corruptions are of images of one size. Leave keep_aspect_ratio out, or corruptions.")


def check_layout(name: str) -> None:
    """Refuse a layout that nothing is written in."""
    if name not in LAYOUTS and not is_table(name):
        raise ConfigError(
            f"layout must be one of {', '.join(LAYOUTS)}, or a table of names that ends in .toml; got {name!r}."
        )


def check_plan(given: Mapping[str, Any]) -> None:
    """Refuse names of a plan that nothing stands for: its model, its recipe, its device, and a memory that is none."""
    from vitrail.config.devices import device_row, read_memory

    if given.get("model") is not None:
        check_name(str(given["model"]))
    if given.get("recipe") is not None:
        recipe(str(given["recipe"]), examples=1)
    if given.get("on") is not None:
        device_row(given["on"])
    if given.get("fit") is not None:
        read_memory("fit", given["fit"])


def check_name(model: str) -> None:
    """Refuse what is neither a checkpoint that is there nor a name of the zoo."""
    if is_checkpoint(model):
        return
    if Path(model).suffix or model.startswith((".", "~", os.sep)):
        raise CheckpointError(f"there is no file {model}. Check the path; names are those of vitrail.names().")
    parse(model)


def is_checkpoint(model: str) -> bool:
    """Tell a file, folder or address from a name of the zoo."""
    return model.startswith(ADDRESSES) or model in boxed() or os.path.exists(os.path.expanduser(model))


def check_weights(source: str) -> None:
    """Refuse a name of weights that nothing stands for: neither a path, nor an address, nor one of the box."""
    if "://" in source or is_checkpoint(source):
        return
    fresh = f"{source} is a fresh model, which knows nothing yet. Give a checkpoint: a file, a run folder"
    raise CheckpointError(
        (fresh if source in names() else f"there is no file {home_path(source)}. Check the path")
        + f"; a name on the Hugging Face hub is hf:OWNER/NAME, and in the box there is {', '.join(boxed())}."
    )


def check_data(text: str) -> None:
    """Refuse a name of data that nothing stands for."""
    shards = "{" in text and text.endswith(".tar")
    if text in BUILT_IN or text.startswith((*ADDRESSES, "pipe:")) or shards or os.path.exists(os.path.expanduser(text)):
        return
    near = suggest(text, BUILT_IN) if os.sep not in text else ""
    hint = near if "mean" in near else f" Check the path; in the box there are {' and '.join(BUILT_IN)}."
    raise DataError(f"there is no data at {text!r}.{hint}")


def check_images(paths: Sequence[str]) -> None:
    """Refuse paths of images where nothing is; patterns are looked for later."""
    gone = [
        path
        for path in paths
        if not (path == "-" or path in BUILT_IN or path.startswith(ADDRESSES) or glob.has_magic(path))
        and not os.path.exists(os.path.expanduser(path))
    ]
    if gone:
        raise no_images(gone)


def no_images(paths: Sequence[str]) -> DataError:
    """Say that there is no image where one was named."""
    return DataError(f"there is no image at {some_of([*map(repr, paths)], NAMED)}. Check the path.")


def read_fields(
    model: str | None, recipe_name: str | None, settings: Sequence[str], fields: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the fields of a training and those of its model, `field=value` texts and values alike, each once."""
    given = {_placed(name): value for name, value in fields.items()}
    settings = [_placed(text.strip()) for text in settings]
    if any(re.match(r"model\.classes\b", name) for name in (*given, *settings)):
        raise ConfigError("the data decides the number of classes. Leave classes out.")
    head, given, settings = _take_head(given, settings)
    of_model = {name.removeprefix("model."): value for name, value in given.items() if name.startswith("model.")}
    texts = [text.removeprefix("model.") for text in settings if text.startswith("model.")]
    named = {"name": model} if model is not None and not is_checkpoint(model) else {}
    theirs = read_model_settings(texts, of_model, **named) if texts or of_model else {}
    given = {name: value for name, value in given.items() if not name.startswith("model.")}
    if head is not None:
        theirs["head"] = head
    ours = _read_training(recipe_name, [text for text in settings if not text.startswith("model.")], given)
    if "steps" in ours and "epochs" in ours:
        raise ConfigError("a run's length is given twice: steps and epochs. Give one.")
    return ours, theirs


def _take_head(given: Mapping[str, Any], settings: Sequence[str]) -> tuple[DenseHead | None, dict[str, Any], list[str]]:
    """Take what is said of a head of pixels or objects: its kind, and its fields, which no model has before."""
    pairs = [
        *given.items(),
        *((name.strip(), value.strip()) for name, _, value in (t.partition("=") for t in settings)),
    ]
    said = {name.removeprefix("model."): value for name, value in pairs if re.match(r"(model\.)?head(\.|$)", name)}
    if not said:
        return None, dict(given), list(settings)
    kind = said.pop("head", QueryHead())
    base = make(ViTConfig, row(EVERY_PART)[1], {"head": kind}).head
    if base is None:
        raise ConfigError("a head of pixels or objects is queries or linear; got none. Leave head out.")
    fields = {name.removeprefix("head."): value for name, value in said.items()}
    texts = [f"{name}={value}" for name, value in fields.items() if isinstance(value, str)]
    values = {name: value for name, value in fields.items() if not isinstance(value, str)}
    head = make(type(base), vars(base), read_settings(type(base), vars(base), texts, values))
    mine = re.compile(r"(model\.)?head(\.|\s*=|$)")
    left = {name: value for name, value in given.items() if not mine.match(name)}
    return head, left, [text for text in settings if not mine.match(text)]


def _placed(text: str) -> str:
    """Give a name, or a setting, of the model as model.FIELD, whatever word for it is said; others as they are."""
    name, equals, value = text.partition("=")
    bare = name.strip().removeprefix("model.")
    field = MODEL.get(bare, bare)
    parts = [leaf for hint in hints(Training).values() for part in parts_of(hint).values() for leaf in hints(part)]
    ours = bare in (*TRAINING, *hints(Training), *ANSWERS, *parts)
    of_model = not ours and field in (*MODEL.values(), *hints(ViTConfig), *FILE_FIELDS)
    return f"model.{field}{equals}{value}" if of_model or name.startswith("model.") else text


def _read_training(name: str | None, settings: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse fields that the recipe cannot have; where it is chosen later, those that none of the usual ones has."""
    refused: list[ConfigError] = []
    for each in ("scratch", "finetune/imagenet") if name is None else (name,):
        try:
            found = read_settings(Training, vars(recipe(each, examples=1).training), settings, given)
            known = {
                name for name, hint in hints(Training).items() if not parts_of(hint)
            }  # a word may stand for a part
            return {
                name: check_field(Training, name, value) if name in known else value for name, value in found.items()
            }
        except ConfigError as error:
            refused.append(error)
    raise refused[0]


def usual_out(kind: str, data: str) -> Path:
    """Give the folder of a run where none is said: runs/, the verb and the data."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", Path(data).name or data).strip("-").lower()
    return Path("runs") / f"{kind}-{name or 'data'}"
