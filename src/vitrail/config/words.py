"""The field's words: what people of timm, transformers and big_vision type, and the fields that they mean here."""

from collections.abc import Iterable
from difflib import get_close_matches


def _by_word(table: dict[str, str]) -> dict[str, str]:
    """Turn fields with the words for each into words with the field that each stands for."""
    return {word: field for field, words in table.items() for word in words.split()}


# Old names and those of other libraries, each with the field that it stands for; of a part by a dot.
TRAINING = _by_word(
    {
        "learning_rate": "lr rate base_lr peak_lr initial_lr lr0 max_lr lr_rate",
        "weight_decay": "wd weight_decay_rate l2 l2_reg",
        "optimizer": "optimiser opt optim optimizer_name optax_name",
        "ema": "average model_ema polyak use_ema weight_averaging",
        "ema.decay": "ema_decay model_ema_decay polyak_decay ema_momentum ema_rate",
        "stochastic_depth": "drop_path drop_path_rate droppath stochdepth drop_connect drop_connect_rate "
        "stochastic_depth_prob",
        "label_smoothing": "smoothing label_smoothing_factor label_smooth",
        "random_erasing": "erasing reprob random_erase erasing_prob random_erasing_prob erase_prob",
        "crop_area": "area scale crop_scale rrc_scale train_crop_min",
        "aspect": "ratio aspect_ratio",
        "batch_size": "batch train_batch_size global_batch_size bs bsz b mini_batch_size",
        "micro_batch": "micro_batch_size microbatch",
        "clip_norm": "clip clip_grad max_grad_norm grad_clip grad_clip_norm max_norm gradient_clip_val "
        "gradient_clipping clipnorm clip_gradients",
        "pre_logits": "hidden representation_layer",
        "schedule.warmup_steps": "warmup warmup_steps num_warmup_steps warmup_iters lr_warmup_steps warmup_iterations",
        "schedule.warmup_epochs": "warmup_epochs lr_warmup_epochs warmup_epoch",
        "schedule.final_learning_rate": "end min_lr lr_end end_lr final_lr lr_min min_learning_rate eta_min",
        "schedule.curve": "sched scheduler lr_scheduler lr_scheduler_type lr_schedule decay_type lr_policy "
        "lr_decay_type",
        "schedule.milestones": "decay_milestones multistep lr_milestones lr_steps",
        "validation_share": "dev val_split validation_split val_share val_size holdout val_ratio val_fraction "
        "validation_fraction valid_size test_size",
        "augment_on": "augmenting",
        "bad_image_limit": "limit bad_limit max_bad_images",
        "image_size": "img_size input_size resolution res train_crop_size crop_size train_res",
        "epochs": "num_train_epochs num_epochs total_epochs max_epochs n_epochs",
        "steps": "max_steps total_steps num_steps training_steps iterations iters niter max_iters max_iter num_iters "
        "num_training_steps train_steps",
        "optimizer.epsilon": "opt_eps adam_epsilon eps adam_eps",
        "optimizer.betas": "opt_betas adam_betas",
        "optimizer.newton_schulz_steps": "ns_steps newton_schulz_iterations muon_steps",
        "optimizer.momentum": "muon_momentum sgd_momentum",
        "optimizer.adjust": "adjust_lr_fn",
        "initialization": "init weight_init weight_initialization initialisation init_scheme",
        "dropout": "dropout_rate hidden_dropout_prob",
        "mixup": "mixup_alpha mix_up",
        "cutmix": "cutmix_alpha cut_mix",
        "jitter": "color_jitter colour_jitter",
        "flip": "hflip horizontal_flip random_flip",
        "randaugment": "aa auto_augment rand_augment randaug",
        "three_augment": "3augment",
        "layer_decay": "layer_lr_decay layerwise_lr_decay lr_layer_decay llrd layer_wise_lr_decay layerwise_decay "
        "layer_wise_decay",
        "rank": "lora_r lora_rank r lora_dim",
        "alpha": "lora_alpha",
        "matrices": "target_modules lora_target_modules lora_targets",
        "task": "problem_type task_type",
        "distill": "distillation distillation_type distill_type kd",
        "teacher": "teacher_model teacher_path teacher_checkpoint",
        "temperature": "distillation_tau distill_temperature distillation_temperature",
        "share": "distillation_alpha distill_alpha",
        "token": "distillation_token distill_token",
        "adapt": "adaptation tuning finetuning_type peft peft_type tuning_method",
        "patience": "early_stopping_patience early_stopping",
        "evaluate_every": "eval_steps eval_every eval_interval evaluation_interval eval_freq eval_frequency",
        "save_every": "save_steps ckpt_steps checkpoint_every save_interval save_freq",
        "log_every": "logging_steps log_interval log_steps log_training_steps log_every_n_steps print_freq log_freq",
        "keep": "save_total_limit keep_last checkpoint_hist save_top_k max_to_keep",
        "seed": "random_seed manual_seed",
        "compile": "torch_compile torchcompile",
        "precision": "dtype amp_dtype mixed_precision",
        "loss": "loss_fn criterion",
        "head_bias": "init_head_bias bias_init",
        "masked": "mask_ratio masking_ratio",
        "normalized": "norm_pix_loss norm_pix normalised",
        "decoder_width": "decoder_embed_dim decoder_hidden_size",
        "decoder_depth": "decoder_num_hidden_layers",
        "colors": "colours num_colors n_colors",
        "margin": "arcface_margin arc_margin",
        "class_weights": "class_weight cls_weight cls_weights",
        "sampling": "sampler",
        "logit_adjustment": "logit_adjust logit_adj",
        "focal": "focal_gamma focal_loss",
        "ema.ramp": "model_ema_warmup ema_warmup ema_ramp",
        "schedule.drop": "decay_rate gamma lr_gamma lr_decay_rate lr_decay_factor",
        "randaugment.layers": "num_ops rand_augment_num_ops",
        "randaugment.magnitude": "rand_augment_magnitude",
        "resizing": "interpolation train_interpolation",
        "parallel": "strategy",
        "deterministic": "full_determinism",
    }
)
MODEL = _by_word(
    {
        "classes": "num_classes num_labels n_classes num_outputs nb_classes num_class",
        "image_size": "img_size input_size resolution res",
        "width": "embed_dim hidden_size dim d_model embedding_dim hidden_dim",
        "depth": "num_layers num_hidden_layers n_layers layers",
        "heads": "num_heads num_attention_heads n_heads nhead",
        "mlp_width": "mlp_dim intermediate_size ffn_dim mlp_hidden_dim dim_feedforward",
        "channels": "in_chans num_channels in_channels in_chs",
        "pooling": "global_pool pool pool_type classifier",
        "stem.patch": "patch_size patches",
        "checkpointing": "grad_checkpointing gradient_checkpointing remat",
        "pre_logits": "hidden representation_width representation_size rep_size",
        "stochastic_depth": "drop_path drop_path_rate droppath stochdepth",
        "dropout": "dropout_rate hidden_dropout_prob proj_drop_rate",
        "attention_dropout": "attn_drop attn_drop_rate attention_dropout_rate attention_probs_dropout_prob",
        "epsilon": "layer_norm_eps norm_eps eps",
        "activation": "hidden_act act_layer act",
        "layer_scale": "init_values layerscale layer_scale_init_value layerscale_value",
        "positions": "pos_embed posemb position_embedding_type pos_embedding",
        "head_bias": "init_head_bias head_bias_init",
        "registers": "reg_tokens num_register_tokens register_tokens num_registers",
        "first_norm": "pre_norm ln_pre norm_pre",
        "projection": "projection_dim output_dim proj_dim",
        "class_token": "cls_token use_class_token",
        "attention_width": "attn_dim inner_dim",
    }
)
# Words that no one field stands for, each with what to say instead.
ANSWERS = _by_word(
    {
        "batch_size is what an update sees, however it is cut: set batch_size, and micro_batch for the images that go "
        "through at once.": "grad_accum grad_accum_steps gradient_accumulation_steps accum_steps accum_iter "
        "accumulate_grad_batches per_device_batch_size per_device_train_batch_size",
        "batch_size is of training; what is evaluated goes through in batches that fit.": "eval_batch_size "
        "per_device_eval_batch_size validation_batch_size val_batch_size",
        "learning_rate = that * batch_size / 256: set learning_rate.": "blr lr_base base_learning_rate",
        "Set precision=bfloat16 or precision=float32.": "bf16 fp16 amp half half_precision",
        "Give workers=..., how many processes decode images.": "num_workers dataloader_num_workers workers j",
        "Give out=..., the folder of the run.": "output_dir output workdir log_dir out save_dir logging_dir folder "
        "run_name",
        "Give model=...: a name, a file or a run.": "initial_checkpoint model_name_or_path init_checkpoint backbone "
        "checkpoint checkpoint_path ckpt ckpt_path weights arch model model_name finetune",
        "Open trained weights with vitrail.load(FILE); to train on from them, give model=...": "pretrained",
        "Give minutes=..., for as many steps as fit.": "minutes max_time time_limit",
        "Give recipe=..., a name.": "recipe",
        "Give probe=..., labelled images.": "probe",
        "The images are the first argument; splits may be a mapping: {'train': ..., 'val': ...}.": "data_dir "
        "data_path train_dir train_data val_dir val_data eval_dataset validation_data train_dataset val_dataset "
        "train_split data dataset",
        "It resumes by itself where out=... is the same; another folder begins anew.": "resume "
        "resume_from_checkpoint auto_resume start_epoch overwrite_output_dir",
        "Give track=wandb, mlflow or tensorboard.": "report_to wandb log_wandb tensorboard mlflow track tracker "
        "trackers logger loggers log_with",
        "Give device=cpu or device=cuda; torchrun takes several GPUs.": "device gpu gpus devices cuda use_cpu no_cuda "
        "use_gpu accelerator num_gpus n_gpu",
        "Give callbacks=[...], functions of a record of the log.": "callback callbacks compute_metrics metric",
        "Give quiet=True.": "verbose disable_tqdm quiet silent",
        "Set parallel=fsdp or parallel=ddp.": "fsdp ddp deepspeed",
        "Set evaluate_every or save_every, in steps.": "eval_strategy evaluation_strategy save_strategy "
        "val_check_interval check_val_every_n_epoch",
        "Set result=best, as it is, or result=last; patience ends early.": "load_best_model_at_end "
        "metric_for_best_model",
        "Did you mean 'dropout'?": "drop drop_rate",
        "Set mlp_width, in features: four times the width is usual.": "mlp_ratio mlp_expansion",
        "Set heads: the width divided by the features of a head.": "head_dim dim_head",
        "Set warmup_steps: that share of the steps.": "warmup_ratio warmup_proportion warmup_percent pct_start",
        "A warm-up begins at 0. Set warmup_steps.": "warmup_lr warmup_init_lr warmup_lr_init start_lr lr_warmup_decay",
        "Set final_learning_rate, itself a rate.": "min_lr_ratio final_div_factor div_factor min_lr_rate",
        "Set curve=staircase with milestones, in steps.": "decay_epochs lr_step_size step_size lr_step_epochs",
        "A curve ends with the run: set steps or epochs.": "cooldown_epochs cooldown_steps patience_epochs T_max t_max "
        "lr_cycle_limit lr_cycle_mul lr_cycle_decay steps_per_epoch",
        "There is optimizer=sgd with momentum, optimizer=adam (AdamW), and optimizer=muon (nesterov=true).": "amsgrad",
        "Set mixup and cutmix, alphas; they stay on to the end.": "mixup_prob cutmix_prob mixup_switch_prob mixup_mode "
        "mixup_off_epoch",
        "Set jitter, a strength.": "color_jitter_prob",
        "Set random_erasing, a probability.": "remode recount",
        "three_augment=true draws gray, solarized or blurred.": "grayscale_prob gaussian_blur_prob",
        "Set decay_on: which parameters decay; decay_on=kernels leaves norms and biases out.": "norm_weight_decay "
        "bias_weight_decay no_decay",
        "Gradients are clipped by their norm: set clip_norm.": "clip_mode clipvalue clip_value",
        "How images are read is no field: give preprocessing, mean, deviation, resize, crop_share and value_range as "
        "arguments (--value-range), or give them to vitrail.load.": "crop_pct crop_share mean std "
        "deviation resize preprocessing normalize value_range",
        "Set adapt, which says what is trained: lora, head, norms, last-2 (blocks) or full.": "freeze freeze_backbone "
        "freeze_layers linear_probe linear_probing freeze_encoder unfreeze bitfit trainable_layers",
        "Set layer_decay: each block learns at that share of the next one's rate.": "backbone_lr head_lr lr_mult",
        "Set curve, and final_learning_rate; layer_decay is of the blocks.": "lr_decay lrf",
        "Set loss=sigmoid.": "bce_loss bce_target_thresh",
        "Set sampling=balanced.": "weighted_sampler class_balanced_sampler oversample oversampling",
        "Every image is seen once in an epoch, and the last batch counts.": "repeated_aug aug_repeats drop_last "
        "dataloader_drop_last",
        "Augmentation has fields, each off with 0, false or none: crop_area, flip, jitter, randaugment, three_augment, "
        "random_erasing, mixup, cutmix.": "augment no_aug transform transforms train_transform trivialaugment",
        "flip is horizontal, and there is no vertical one.": "vflip vertical_flip",
        "The model's norms are no batch norms.": "bn_momentum bn_eps sync_bn split_bn",
        "Write the run in transformers' layout (convert), and upload that folder.": "push_to_hub hub_model_id",
        "The paper's ViT has none.": "num_experts",
        "Set final_norm=pooled for a norm after pooling.": "fc_norm",
        "A ViT takes any image size whose patches fit: leave it out.": "dynamic_img_size interpolate_pos_encoding",
        "Set epsilon, or norm=post for a norm after each part.": "norm_layer",
        "Set positions=relative.": "use_rel_pos_bias rel_pos_bias",
        "Set model.depth, or randaugment.layers.": "layers",
    }
)
# Arguments of the functions that train, which a name that is spelled wrongly may mean.
ARGUMENTS = ("model", "out", "recipe", "minutes", "probe", "callbacks", "settings", "workers", "device", "track")
ARGUMENTS += ("tensorboard", "quiet")
BETAS = _by_word({"0": "adam_beta1 beta1 beta_1 b1", "1": "adam_beta2 beta2 beta_2 b2"})
# Words for values, by the field.
VALUES: dict[str, dict[str, object]] = {
    "optimizer": {
        **dict.fromkeys(("adam", "adamw", "adamw_torch", "adamw_torch_fused", "scale_by_adam"), "adam"),
        **dict.fromkeys(("sgd", "momentum", "big_vision.momentum_hp"), "sgd"),
        **dict.fromkeys(("muon", "muonadamw", "muon_adamw", "muonwithauxadam"), "muon"),
    },
    "initialization": {"mimetic_init": "mimetic", "default": None, "xavier": None},
    "pooling": {"avg": "mean", "gap": "mean", "tok": "token"},
    "activation": {
        "gelu_tanh": "gelu-tanh",
        "gelu_pytorch_tanh": "gelu-tanh",
        "gelu_new": "gelu-tanh",
        "quick_gelu": "quick-gelu",
        "swish": "silu",
    },
    "positions": {"learn": "learned", "sincos2d": "sinusoidal-2d"},
    "target": {"mean-colour": "mean-color", "small-colours": "small-colors"},
    "precision": {
        **dict.fromkeys(("bf16", "bf16-mixed", "bf16-true"), "bfloat16"),
        **dict.fromkeys(("fp32", "float", "no", "32", "32-true"), "float32"),
    },
    "ema": {"true": "ema", "average": "ema", "false": None},
    "randaugment": {"true": "randaugment", "false": None},
    "compile": {"true": "on", "false": "off", "inductor": "on", "reduce-overhead": "graphs"},
    "flip": {"0.5": True, "0": False, "0.0": False},
    "curve": {
        **dict.fromkeys(("multistep", "step", "steplr", "multisteplr"), "staircase"),
        **dict.fromkeys(("cosineannealinglr", "cosine_with_min_lr"), "cosine"),
        "constant_with_warmup": "constant",
    },
    "adapt": {"linear": "head", "probe": "head", "all": "full", "none": "full", "norm": "norms", "ln": "norms"},
    "task": {
        **dict.fromkeys(("classification", "single_label_classification", "labels"), "classify"),
        **dict.fromkeys(("multi-label", "multi_label", "multi_label_classification", "tags"), "multilabel"),
        **dict.fromkeys(("regress", "numbers"), "regression"),
        **dict.fromkeys(("ordered", "ordinal_regression", "ranks"), "ordinal"),
        **dict.fromkeys(("segmentation", "semantic-segmentation"), "segment"),
        **dict.fromkeys(("detection", "object-detection"), "detect"),
    },
    "loss": {
        **dict.fromkeys(("sigmoid_xent", "bce", "binary_crossentropy", "bce_with_logits"), "sigmoid"),
        **dict.fromkeys(("softmax_xent", "ce", "cross_entropy", "crossentropy", "categorical_crossentropy"), "softmax"),
    },
}
# What fields and kinds were called in documents of before, each with its name of today.
_OLD = ("optimiser", "rate", "warmup", "end", "batch", "clip", "smoothing", "average", "hidden", "representation_width")
_OLD += ("dev", "augmenting", "limit", "area", "erasing", "normalised", "colours")
RENAMED = {old: {**MODEL, **TRAINING}[old].rpartition(".")[2] for old in _OLD}
RENAMED["decay"] = "weight_decay"  # of an optimizer; an average's is still its decay
# Fields that documents do not have which were written before there were any: there they have their defaults,
ADDED = frozenset({"cosine_scale", "margin", "held_out", "objective", "causal", "probe_every", "decoder_head_width"})
ADDED |= {"warmup_epochs", "result", "class_token", "registers", "first_norm", "final_norm", "mlp", "inner_norm"}
ADDED |= {"qk_norm", "attention_width", "projection", "norms", "code"}
ADDED |= {"adapt", "class_weights", "sampling", "logit_adjustment", "focal"}
ADDED |= {"head", "masks", "initialization", "task", "distill"}
MEANT = {"decoder_head_width": 32, "result": "last"}  # or what was meant then


def suggest(name: str, known: Iterable[str]) -> str:
    """Say which known name is nearest, letter case aside, or list them all."""
    known = list(known)
    folded = {other.lower(): other for other in reversed(known)}
    near = get_close_matches(name.lower(), folded, n=1)
    return f" Did you mean {folded[near[0]]!r}?" if near else f" There are: {', '.join(known)}."


def by_meaning(name: str, known: Iterable[str], words: dict[str, str]) -> str:
    """Say which field a name that is spelled wrongly means, also in other libraries' words; else where all are."""
    known, (where, dot, leaf) = [*known, *(ARGUMENTS if words is TRAINING else ())], name.lower().rpartition(".")
    inside = [other for other in known if dot in other]
    word = next(iter(get_close_matches(leaf, words, n=1, cutoff=0.8)), "")
    theirs = [path for path in (f"{where}.{words.get(word, '').rpartition('.')[2]}",) if path in inside]
    plain = {"_".join(sorted(other.split("_"))): other for other in (*words, *known)}  # smoothing_label
    spelled = theirs or get_close_matches(name.lower(), inside, n=1, cutoff=0.6 if dot else 0.8) or [word]
    near = plain.get("_".join(sorted(leaf.split("_"))), spelled[0])
    if near:
        return f" Did you mean {words.get(near, near)!r}?"
    everywhere = " The fields are in docs/training.md and docs/variants.md."
    return f" There are: {', '.join(known)}." if len(known) < 20 else everywhere
