"""The recipes against the paper's tables, typed again here; how they change, fit, and go to JSON and back."""

import json
from typing import Any

import pytest

from vitrail.config import parse, read_settings
from vitrail.config.fields import decode, encode
from vitrail.config.recipe import EMA, SGD, Adam, Augmentation, RandAugment, Schedule, Training
from vitrail.config.recipes import adjust, fit, hyperrule, recipe, recipe_names
from vitrail.errors import ConfigError

# Table 3, a line each: recipe, epochs, base rate, curve, weight decay, dropout.
TABLE_3 = """
jft/ViT-B/16           7  8e-4  linear  0.1   0
jft/ViT-B/32           7  8e-4  linear  0.1   0
jft/ViT-L/32           7  6e-4  linear  0.1   0
jft/ViT-L/16           7  4e-4  linear  0.1   0
jft/ViT-L/16-14ep     14  4e-4  linear  0.1   0
jft/ViT-H/14          14  3e-4  linear  0.1   0
jft/BiT-R50x1          7  1e-3  linear  0.1   0
jft/BiT-R50x2          7  1e-3  linear  0.1   0
jft/BiT-R101x1         7  8e-4  linear  0.1   0
jft/BiT-R152x1         7  6e-4  linear  0.1   0
jft/BiT-R152x2         7  6e-4  linear  0.1   0
jft/R50+ViT-B/16       7  8e-4  linear  0.1   0
jft/R50+ViT-B/32       7  8e-4  linear  0.1   0
jft/R50+ViT-L/32       7  2e-4  linear  0.1   0
jft/R50+ViT-L/16       7  4e-4  linear  0.1   0
jft/R50+ViT-L/16-14ep 14  4e-4  linear  0.1   0
i21k/ViT-B/16         90  1e-3  linear  0.03  0.1
i21k/ViT-B/32         90  1e-3  linear  0.03  0.1
i21k/ViT-L/16         30  1e-3  linear  0.03  0.1
i21k/ViT-L/16-90ep    90  1e-3  linear  0.03  0.1
i21k/ViT-L/32         30  1e-3  linear  0.03  0.1
i21k/ViT-L/32-90ep    90  1e-3  linear  0.03  0.1
i1k                  300  3e-3  cosine  0.3   0.1
""".strip().splitlines()
LINEAR_END = {"linear": 1e-5, "cosine": 0.0}  # of the authors' code
# Table 4: recipe, steps, warm-up, rates.
TABLE_4 = """
finetune/imagenet      20000  500  0.003  0.01   0.03  0.06
finetune/imagenet-512  20000  500  0.003  0.01   0.03  0.06
finetune/imagenet-518  20000  500  0.003  0.01   0.03  0.06
finetune/cifar100      10000  500  0.001  0.003  0.01  0.03
finetune/cifar10       10000  500  0.001  0.003  0.01  0.03
finetune/pets            500  100  0.001  0.003  0.01  0.03
finetune/flowers         500  100  0.001  0.003  0.01  0.03
finetune/vtab           2500  500  0.01
""".strip().splitlines()
# AugReg: level, layers and magnitude of RandAugment, Mixup.
LEVELS = """
none     - -  0
light1   2 0  0
light2   2 10 0.2
medium1  2 15 0.2
medium2  2 15 0.5
strong1  2 20 0.5
strong2  2 20 0.8
""".strip().splitlines()


def training(name: str) -> Training:
    return recipe(name, examples=3000).training


@pytest.mark.parametrize("line", TABLE_3, ids=lambda line: line.split()[0])
def test_a_row_of_table_3_is_the_papers(line: str) -> None:
    name, epochs, rate, curve, decay, dropout = line.split()
    row = recipe(name)
    assert row.source == "Table 3"
    assert row.training == Training(
        recipe=name,
        optimizer=Adam(
            learning_rate=float(rate), betas=(0.9, 0.999), epsilon=1e-8, weight_decay=float(decay), decay_on="kernels"
        ),
        schedule=Schedule(
            curve="linear" if curve == "linear" else "cosine",
            warmup_steps=10_000,
            final_learning_rate=LINEAR_END[curve],
        ),
        epochs=int(epochs),
        batch_size=4096,
        image_size=(224, 224),
        clip_norm=1.0 if name == "i1k" else None,
        dropout=float(dropout),
        pre_logits="BiT" not in name,
        augmentation=Augmentation(crop="inception", flip=True),
        ema=None,
        loss="softmax",
        result="last",
    )


@pytest.mark.parametrize("line", TABLE_4, ids=lambda line: line.split()[0])
def test_a_row_of_table_4_is_the_papers(line: str) -> None:
    name, steps, warmup, *rates = line.split()
    row = recipe(name)
    side = int(name[-3:]) if name.endswith(("512", "518")) else 384
    assert row.rates == tuple(map(float, rates))
    assert row.training == Training(
        recipe=name,
        optimizer=SGD(learning_rate=0.01, momentum=0.9),
        schedule=Schedule(curve="cosine", warmup_steps=int(warmup), final_learning_rate=0.0),
        steps=int(steps),
        batch_size=512,
        image_size=(side, side),
        clip_norm=1.0,
        dropout=0.0,
        stochastic_depth=0.0,
        ema=EMA(decay=0.9999, ramp=False) if side > 384 else None,
        augmentation=Augmentation(crop="inception", crop_area=(0.05, 1.0), flip=True),
        pre_logits=False,
        result="last",
    )
    assert row.training.optimizer.learning_rate in row.rates


@pytest.mark.parametrize("line", LEVELS, ids=lambda line: line.split()[0])
@pytest.mark.parametrize("regularized", [False, True])
def test_a_level_of_augreg_is_the_papers(line: str, regularized: bool) -> None:
    level, layers, magnitude, mixup = line.split()
    found = training(f"augreg/{level}" + ("-reg" if regularized else ""))
    part = None if layers == "-" else RandAugment(layers=int(layers), magnitude=float(magnitude))
    assert found.augmentation == Augmentation(randaugment=part, mixup=float(mixup))
    assert (found.dropout, found.stochastic_depth) == ((0.1, 0.1) if regularized else (0.0, 0.0))
    assert (found.loss, found.head_bias, found.epochs, found.batch_size, found.clip_norm) == (
        "sigmoid",
        -6.9,
        300,
        4096,
        1,
    )
    assert found.optimizer == Adam(learning_rate=1e-3, weight_decay=0.1)
    assert found.schedule == Schedule(curve="cosine", warmup_steps=10_000)


@pytest.mark.parametrize(
    ("examples", "steps", "mixup"),
    [
        (1, (100, 200, 300, 400, 500), 0.0),
        (19_999, (100, 200, 300, 400, 500), 0.0),
        (20_000, (500, 3000, 6000, 9000, 10_000), 0.1),
        (499_999, (500, 3000, 6000, 9000, 10_000), 0.1),
        (500_000, (500, 6000, 12_000, 18_000, 20_000), 0.1),
    ],
)
def test_the_hyperrule_goes_by_the_number_of_images(examples: int, steps: tuple[int, ...], mixup: float) -> None:
    warmup, *drops, end = steps
    assert recipe("bit/hyperrule", examples=examples).training == Training(
        recipe="bit/hyperrule",
        optimizer=SGD(learning_rate=0.003, momentum=0.9),
        schedule=Schedule(curve="staircase", warmup_steps=warmup, milestones=tuple(drops), drop=0.1),
        steps=end,
        batch_size=512,
        image_size=(480, 480),
        augmentation=Augmentation(mixup=mixup),
        result="last",
    )


@pytest.mark.parametrize(("side", "size"), [(32, 128), (95, 128), (96, 480), (500, 480)])
def test_the_hyperrule_goes_by_the_size_of_the_images(side: int, size: int) -> None:
    assert recipe("bit/hyperrule", examples=1, side=side).training.image_size == (size, size)


def test_the_hyperrule_asks_for_the_number_of_images() -> None:
    with pytest.raises(ConfigError, match=r"depends on the number of training images\. Say examples="):
        recipe("bit/hyperrule")


def test_the_tables_here_name_every_recipe_and_their_models_are_there() -> None:
    typed = [line.split()[0] for line in (*TABLE_3, *TABLE_4)]
    typed += [f"augreg/{line.split()[0]}{kind}" for line in LEVELS for kind in ("", "-reg")]
    assert {*typed, "small", "scratch", "masked-patch", "mae", "next-pixel", "finetune/small"} | {
        *("segment", "detect", "bit/hyperrule")
    } == set(recipe_names())
    for name in typed:
        data, _, model = name.partition("/")
        if data in ("jft", "i21k"):
            assert parse(model.removesuffix("-14ep").removesuffix("-90ep"))


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_has_its_name_and_survives_json(name: str) -> None:
    found = training(name)
    assert found.recipe == name
    document = json.loads(json.dumps(encode(found)))
    assert decode(document, Training, "training") == found
    assert document["optimizer"]["kind"] == ("adam" if isinstance(found.optimizer, Adam) else "sgd")


def test_json_of_a_recipe_is_read_strictly() -> None:
    document = encode(training("scratch"))
    for changes, message in (
        ({"stpes": 3}, r"training has no field 'stpes'\. Did you mean 'steps'"),
        ({"optimizer": {"kind": "lion"}}, "optimizer must be an object with a kind of adam, sgd, muon; got 'lion'"),
        ({"ema": {"kind": "ema", "decay": 0.5}}, "training.ema lacks ramp"),
        ({"augmentation": None}, "training.augmentation must be an object with a kind of augmentation; got None"),
        ({"batch_size": 0}, "batch_size must be a whole number, at least 1; got 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            decode(document | changes, Training, "training")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("finetune/cifar", "Did you mean 'finetune/cifar10"),
        ("I1K", "Did you mean 'i1k'"),
        ("jft/vit-b/16", "Did you mean 'jft/ViT-B/16'"),
        ("hyperrule", "Did you mean 'bit/hyperrule'"),
        (
            "qqqq",
            r"There are: jft/ViT-B/16, .*small, scratch, .*finetune/small, segment, detect, bit/hyperr",
        ),
    ],
)
def test_an_unknown_recipe_is_refused_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f"there is no recipe '{name}'.*{near}"):
        recipe(name)


def test_steps_take_the_place_of_epochs_and_the_other_way_round() -> None:
    pretraining, finetuning = training("i1k"), training("finetune/pets")
    assert (pretraining.steps, pretraining.epochs) == (None, 300)
    shorter = adjust(pretraining, {"steps": 70})
    assert (shorter.steps, shorter.epochs) == (70, None)
    longer = adjust(finetuning, {"epochs": 2.5})
    assert (longer.steps, longer.epochs) == (None, 2.5)
    assert adjust(shorter, {"epochs": 300}) == pretraining
    assert adjust(pretraining, {"steps": None}) == pretraining
    for both in ({"steps": 3, "epochs": 4}, {"steps": None, "epochs": None}):
        with pytest.raises(ConfigError, match=r"give steps or epochs, one of them; got steps="):
            adjust(pretraining, both)


@pytest.mark.parametrize(
    ("name", "steps", "warmup", "drops"),
    [
        ("finetune/pets", 200, 100, ()),
        ("finetune/pets", 199, 19, ()),
        ("finetune/pets", 100, 10, ()),
        ("finetune/pets", 37, 3, ()),
        ("i1k", 10_000, 1_000, ()),
        ("i1k", 1, 0, ()),
        ("bit/hyperrule", 401, 100, (200, 300, 400)),
        ("bit/hyperrule", 400, 89, (179, 269, 359)),
        ("bit/hyperrule", 50, 11, (22, 33, 44)),
        ("bit/hyperrule", 1, 0, (1,)),
    ],
)
def test_a_schedule_that_does_not_fit_is_scaled_and_said(
    name: str, steps: int, warmup: int, drops: tuple[int, ...]
) -> None:
    asked = adjust(training(name), {"steps": steps})
    fitted, said = fit(asked, steps)
    assert (fitted.schedule.warmup_steps, fitted.schedule.milestones) == (warmup, drops)
    assert adjust(fitted, {"schedule": asked.schedule}) == asked
    assert bool(said) == (fitted != asked)
    if said:
        most = max(asked.schedule.warmup_steps, *asked.schedule.milestones, 0)
        assert said[0].startswith(f"warm-up of {warmup} steps")
        assert said[0].endswith(f"as {most:,} do not fit into {steps:,}")
        assert all(str(drop) in said[0] for drop in drops)


def test_a_long_rule_of_bit_shrinks_in_its_own_proportions() -> None:
    fitted, _ = fit(adjust(hyperrule(30_000).training, {"steps": 1000}), 1000)
    assert (fitted.schedule.warmup_steps, fitted.schedule.milestones) == (50, (300, 600, 900))


def set_on(name: str, *settings: str) -> Training:
    base = training(name)
    return adjust(base, read_settings(Training, vars(base), settings))


def changed(name: str, *settings: str) -> dict[str, Any]:
    """What the settings changed, alone."""
    before, after = training(name), set_on(name, *settings)
    return {field: value for field, value in vars(after).items() if value != getattr(before, field)}


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("i1k", ["rate=5e-4"], {"optimizer": Adam(learning_rate=5e-4, weight_decay=0.3)}),
        ("i1k", ["decay=0.2"], {"optimizer": Adam(learning_rate=3e-3, weight_decay=0.2)}),
        ("i1k", ["optimiser.decay=0.2"], {"optimizer": Adam(learning_rate=3e-3, weight_decay=0.2)}),
        ("i1k", ["betas=0.8,0.95"], {"optimizer": Adam(learning_rate=3e-3, weight_decay=0.3, betas=(0.8, 0.95))}),
        ("i1k", ["momentum=0.8", "optimiser=sgd"], {"optimizer": SGD(momentum=0.8)}),
        (
            "finetune/imagenet-512",
            ["optimiser=sgd", "momentum=0.8"],
            {"optimizer": SGD(learning_rate=0.01, momentum=0.8)},
        ),
        ("i1k", ["optimiser=adam"], {}),
        (
            "i1k",
            ["warmup=7", "end=1e-4"],
            {"schedule": Schedule(curve="cosine", warmup_steps=7, final_learning_rate=1e-4)},
        ),
        (
            "i1k",
            ["curve=staircase", "milestones=30,50"],
            {"schedule": Schedule(curve="staircase", warmup_steps=10_000, milestones=(30, 50))},
        ),
        (
            "i1k",
            ["randaugment.magnitude=3"],
            {"augmentation": Augmentation(randaugment=RandAugment(layers=2, magnitude=3))},
        ),
        (
            "augreg/light2",
            ["magnitude=3", "augmentation.randaugment.layers=5"],
            {"augmentation": Augmentation(randaugment=RandAugment(layers=5, magnitude=3), mixup=0.2)},
        ),
        ("augreg/light2", ["randaugment=none"], {"augmentation": Augmentation(mixup=0.2)}),
        ("i1k", ["mixup=0.4"], {"augmentation": Augmentation(mixup=0.4)}),
        ("i1k", ["area=0.2,1"], {"augmentation": Augmentation(crop_area=(0.2, 1.0))}),
        ("i1k", ["flip=false"], {"augmentation": Augmentation(flip=False)}),
        ("finetune/imagenet-512", ["average=none"], {"ema": None}),
        ("finetune/pets", ["average=average"], {"ema": EMA()}),
        ("finetune/pets", ["average.decay=0.99"], {"ema": EMA(decay=0.99)}),
        ("finetune/imagenet-512", ["decay=0.99"], {"ema": EMA(decay=0.99)}),
        ("finetune/pets", ["clip=none", "image_size=96x160"], {"clip_norm": None, "image_size": (96, 160)}),
        ("finetune/pets", ["epochs=3"], {"steps": None, "epochs": 3.0}),
    ],
)
def test_a_setting_reaches_into_parts_of_parts(name: str, settings: list[str], expected: dict[str, Any]) -> None:
    assert changed(name, *settings) == expected


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("scratch", ["decay=0.2"], r"'decay' may mean optimizer\.weight_decay or ema\.decay\. Write it out"),
        (
            "finetune/pets",
            ["decay=0.2"],
            r"'decay' is a field of ema, which there is none of\. Write it out: ema\.decay",
        ),
        ("i1k", ["magnitude=3"], r"a field of randaugment, .* Write it out: augmentation\.randaugment\.magnitude"),
        ("i1k", ["mixpu=0.4"], r"has no field 'mixpu'\. Did you mean 'mixup'\?"),
        ("i1k", ["stpes=4"], r"has no field 'stpes'\. Did you mean 'steps'\?"),
        (
            "i1k",
            ["objective=mae", "target=mean-color"],
            "'target' is a field of objective=masked-patch; here objective is mae, whose fields are masked, "
            r"normalized, decoder_depth, decoder_width, decoder_head_width\. Leave target out, or take "
            "objective=masked-patch",
        ),
        ("i1k", ["objective=mae", "objective.target=pixels"], "here objective is mae, whose fields are masked"),
        ("i1k", ["masked=0.5"], "'masked' is a field of objective=masked-patch or mae; .* is labels, which has none"),
        ("i1k", ["momentum=0.8"], "'momentum' is a field of optimizer=sgd or muon; here optimizer is adam"),
        ("i1k", ["optimizer=sgd", "nesterov=true"], "'nesterov' is a field of optimizer=muon; here optimizer is sgd"),
        ("i1k", ["schedule.momentum=1"], "has no field 'schedule.momentum'"),
        ("i1k", ["optimiser.rte=1"], r"Did you mean 'optimizer\.learning_rate'\?"),
        ("i1k", ["randaugment.magnitud=1"], r"Did you mean '.*randaugment\.magnitude'\?"),
        ("augreg/light2", ["magnitude=3", "randaugment.magnitude=4"], r"randaugment\.magnitude is given twice"),
        ("i1k", ["randaugment.magnitude=31"], "magnitude must be from 0 to 30; got 31"),
        ("i1k", ["area=0.2,0.4,0.6"], r"area must be two rising shares; got \(0\.2, 0\.4, 0\.6\)"),
        ("i1k", ["area=0.6,0.2"], "area must be two rising shares"),
        ("i1k", ["optimiser=lion"], "optimizer must be one of adam, sgd, muon; got 'lion'"),
        ("i1k", ["average=yes"], "ema must be one of ema, none; got 'yes'"),
        ("i1k", ["curve=exp"], "curve must be one of 'constant', 'linear', 'cosine', 'staircase'; got 'exp'"),
        ("i1k", ["milestones=3"], r"milestones belong to curve=staircase; got \(3,\) with cosine"),
        ("bit/hyperrule", ["milestones=5,3"], "milestones must be rising steps"),
        ("finetune/pets", ["rate=-1"], "rate must be positive; got -1"),
        ("finetune/pets", ["layer_decay=1.5"], "layer_decay must be at most 1; got 1.5"),
        ("finetune/pets", ["compile=maybe"], "compile must be one of 'auto', 'on', 'off', 'graphs'; got 'maybe'"),
    ],
)
def test_a_wrong_setting_of_training_is_refused_with_what_would_do(
    untyped: None, name: str, settings: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        set_on(name, *settings)


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": None},
        {"schedule": "cosine"},
        {"ema": 0.9},
        {"augmentation": {}},
        {"recipe": 3},
        {"batch": 2.5},
        {"clip": 0},
        {"dropout": 1.0},
        {"smoothing": -0.1},
        {"pre_logits": 1},
        {"seed": -1},
        {"image_size": (8,)},
        {"steps": 0},
        {"loss": "hinge"},
    ],
)
def test_a_value_that_cannot_be_is_refused_by_its_name(untyped: None, changes: dict[str, Any]) -> None:
    (name,) = changes
    with pytest.raises(ConfigError, match=name):
        adjust(training("finetune/pets"), changes)
