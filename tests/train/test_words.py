"""What people of other libraries type reaches the right field, or is answered with its name; never another field."""

from typing import Any

import pytest

import vitrail
from vitrail.cli import main
from vitrail.errors import ConfigError
from vitrail.train.request import TrainRequest, read_request


def read(*settings: str, recipe: str | None = None, **fields: Any) -> TrainRequest:
    return read_request("finetune", "sample", None, recipe, settings, fields)


@pytest.mark.parametrize(
    ("setting", "field", "value"),
    [
        ("lr=1e-3", "learning_rate", 1e-3),
        ("wd=0.1", "weight_decay", 0.1),
        ("max_grad_norm=2", "clip_norm", 2.0),
        ("num_train_epochs=3", "epochs", 3.0),
        ("iters=1e3", "steps", 1000),
        ("lr_warmup_epochs=5", "schedule.warmup_epochs", 5.0),
        ("decay_rate=0.2", "schedule.drop", 0.2),
        ("schedule.drop=0.2", "schedule.drop", 0.2),
        ("lr_min=1e-6", "schedule.final_learning_rate", 1e-6),
        ("lr_scheduler_type=constant_with_warmup", "schedule.curve", "constant"),
        ("layer_wise_lr_decay=0.75", "layer_decay", 0.75),
        ("log_every_n_steps=10", "log_every", 10),
        ("num_ops=1", "randaugment.layers", 1),
        ("randaugment.layers=1", "randaugment.layers", 1),
        ("train_crop_size=64", "image_size", (64, 64)),
        ("holdout=0.1", "validation_share", 0.1),
        ("drop_connect=0.1", "stochastic_depth", 0.1),
        ("optim=adamw_torch", "optimizer", "adam"),
        ("optimizer=SGD", "optimizer", "sgd"),
        ("optim=Muon", "optimizer", "muon"),
        ("nesterov=false", "nesterov", False),
        ("torch_compile=true", "compile", "on"),
        ("use_ema=false", "ema", None),
        ("hflip=0.5", "flip", True),
        ("betas=(0.9, 0.95)", "betas", (0.9, 0.95)),
        ("precision=bf16-mixed", "precision", "bfloat16"),
        ("criterion=ce", "loss", "softmax"),
        ("class_weight=balanced", "class_weights", "balanced"),
        ("class_weights=[1, 2.5, 0]", "class_weights", (1.0, 2.5, 0.0)),
        ("class_weights=none", "class_weights", None),
        ("focal_gamma=2", "focal", 2.0),
    ],
)
def test_a_word_of_training_is_its_field(setting: str, field: str, value: object) -> None:
    request = read(setting)
    assert dict(request.fields) == {field: value}
    assert not request.model_fields


@pytest.mark.parametrize(
    ("setting", "field", "value"),
    [
        ("hidden_size=192", "width", 192),
        ("num_hidden_layers=6", "depth", 6),
        ("model.depth=6", "depth", 6),
        ("num_attention_heads=3", "heads", 3),
        ("intermediate_size=768", "mlp_width", 768),
        ("dim_feedforward=768", "mlp_width", 768),
        ("patch_size=8", "stem.patch", 8),
        ("layer_norm_eps=1e-6", "epsilon", 1e-6),
        ("attention_probs_dropout_prob=0.1", "attention_dropout", 0.1),
        ("gradient_checkpointing=true", "checkpointing", True),
        ("global_pool=avg", "pooling", "mean"),
        ("init_values=1e-5", "layer_scale", 1e-5),
    ],
)
def test_a_word_of_the_model_is_its_field_also_without_a_prefix(setting: str, field: str, value: object) -> None:
    request = read(setting)
    assert dict(request.model_fields) == {field: value}
    assert not request.fields


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("per_device_train_batch_size=8", "set batch_size, and micro_batch"),
        ("blr=1e-3", r"learning_rate = that \* batch_size / 256"),
        ("layers=6", "Set model.depth, or randaugment.layers"),
        ("drop=0.1", "Did you mean 'dropout'"),
        ("adam_beta2=0.95", "Set betas=0.9,0.95"),
        ("aa=rand-m9-mstd0.5-inc1", "Set randaugment.magnitude=9"),
        ("schedule=cosine", "Set schedule.curve=cosine"),
        ("eval_batch_size=8", "batches that fit"),
        ("warmup_ratio=0.1", "Set warmup_steps"),
        ("mixup_off_epoch=10", "stay on to the end"),
        ("norm_weight_decay=0", "decay_on=kernels"),
        ("resume=run", "It resumes by itself where out=... is the same"),
        ("num_classes=3", "the data decides the number of classes"),
        ("lerning_rate=1", "Did you mean 'learning_rate'"),
        ("modle=vit.npz", "Did you mean 'model'"),
        ("checkpoint=vit.npz", "Give model="),
        ("save_dir=run", "Give out="),
        ("num_gpus=2", "device=cuda; torchrun"),
        ("max_time=3", "Give minutes="),
        ("weighted_sampler=true", "sampling=balanced"),
        ("class_weights=even", "balanced, effective, or numbers such as"),
        ("vflip=0.5", "flip is horizontal"),
        ("lr_decay=0.1", "Set curve, and final_learning_rate"),
        ("smoothing_label=0.1", "Did you mean 'label_smoothing'"),
        ("lr_noise=0.1", "The fields are in docs/training.md"),  # nothing is like it, and so nothing is proposed
        ("qk_scale=1", "The fields are in docs/training.md"),
        ("pos_drop_rate=0.1", "The fields are in docs/training.md"),
    ],
)
def test_a_word_that_is_no_field_is_answered(setting: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read(setting)


def test_a_share_of_masks_is_that_of_the_objective() -> None:
    assert dict(read("mask_ratio=0.6", recipe="masked-patch").fields) == {"corrupted": 0.6}
    assert dict(read("mask_ratio=0.6", recipe="mae").fields) == {"masked": 0.6}


def test_none_switches_off_by_keyword_as_by_text() -> None:
    assert dict(read(clip_norm=None, ema=False).fields) == {"clip_norm": None, "ema": None}
    assert dict(read("clip_norm=none", "ema=none").fields) == {"clip_norm": None, "ema": "none"}


def test_a_rate_does_not_rise_to_its_end() -> None:
    with pytest.raises(ConfigError, match="cannot fall to 1"):
        vitrail.finetune("sample", model="ViT-Ti/7", recipe="small", steps=1, learning_rate=1e-3, min_lr=1, quiet=True)


def test_create_takes_other_words_for_what_it_has_defaults_for() -> None:
    config = vitrail.create("ViT-Ti/16", num_classes=3, img_size=64, depth=1).config
    assert (config.classes, config.image_size) == (3, (64, 64))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--lr", "fast"], "learning_rate must be a number; got 'fast'"),
        (["--weight-decay=much"], "weight_decay must be a number; got 'much'"),
        (["--drop-path", "2"], "stochastic_depth must be"),
        (["--hidden_size", "wide"], "width must be a whole number; got 'wide'"),
        (["-b", "0"], "batch_size must be"),
        (["--amp"], "--precision bfloat16"),
        (["--foo", "3"], "no field 'foo'"),
        (["--num_gpus", "2"], "Give --device cpu"),
        (["--set", "minutes=3"], "Give --minutes ..."),
    ],
)
def test_a_flag_of_another_program_is_a_setting(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["finetune", "sample", "--model", "ViT-Ti/7", *flags]) == 1
    assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vit_base_patch16_224", "Did you mean 'ViT-B/16'"),
        ("deit3_small_patch16_224", "Did you mean 'ViT-S/16'"),
        ("vit_l_32", "Did you mean 'ViT-L/32'"),
        ("google/vit-base-patch16-224", "Did you mean 'hf:google/vit-base-patch16-224'"),
    ],
)
def test_another_librarys_name_of_a_model_is_answered_with_ours(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        vitrail.create(name)


def test_words_of_loading_are_answered() -> None:
    for word, words in (("map_location", "Give device"), ("revision", "@REVISION"), ("pretrained", "leave it out")):
        with pytest.raises(ConfigError, match=words):
            vitrail.load("vitrail-ti8", **{word: "cpu"})  # pyright: ignore[reportArgumentType]
    with pytest.raises(AttributeError, match=r"Did you mean vitrail\.create\?"):
        vitrail.create_model  # noqa: B018
    with pytest.raises(
        ConfigError, match=r"'pos_embed', which is positions: the file decides\. Leave it out, or begin"
    ):
        vitrail.load("vitrail-ti8", pos_embed="learned")


def test_a_command_and_an_option_of_another_program_are_answered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "photos"]) == 2
    assert "Did you mean 'finetune'?" in capsys.readouterr().err
    assert main(["predict", "vitrail-ti8", "nowhere.jpg", "--img-size", "x"]) == 1
    assert "--image-size must be a side" in " ".join(capsys.readouterr().err.split())


def test_fields_that_weights_decide_are_refused_before_any_image_is_read() -> None:
    class Unread:
        classes, targets = ("a", "b"), (0, 1) * 4

        def __len__(self) -> int:
            return len(self.targets)

        def __getitem__(self, index: int) -> tuple[object, int]:
            raise AssertionError("read")

    with pytest.raises(ConfigError, match="load cannot change 'depth'"):
        vitrail.finetune(Unread(), model="vitrail-ti8", depth=3, quiet=True)
