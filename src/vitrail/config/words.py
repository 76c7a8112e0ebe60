"""The field's words: what people of timm, transformers and big_vision type, and the fields that they mean here."""

# Old names and those of other libraries, each with the field that it stands for; of a part by a dot.
TRAINING = {
    **dict.fromkeys(("lr", "rate", "base_lr", "peak_lr", "blr"), "learning_rate"),
    **dict.fromkeys(("wd", "weight_decay_rate"), "weight_decay"),
    **dict.fromkeys(("optimiser", "opt", "optim", "optimizer_name", "optax_name"), "optimizer"),
    **dict.fromkeys(("average", "model_ema", "polyak", "use_ema", "weight_averaging"), "ema"),
    **dict.fromkeys(("ema_decay", "model_ema_decay", "polyak_decay"), "ema.decay"),
    **dict.fromkeys(("drop_path", "drop_path_rate", "droppath", "stochdepth"), "stochastic_depth"),
    **dict.fromkeys(("smoothing", "label_smoothing_factor", "label_smooth"), "label_smoothing"),
    **dict.fromkeys(("erasing", "reprob", "random_erase"), "random_erasing"),
    **dict.fromkeys(("area", "scale", "crop_scale", "rrc_scale"), "crop_area"),
    **dict.fromkeys(("ratio", "aspect_ratio"), "aspect"),
    **dict.fromkeys(("batch", "train_batch_size", "global_batch_size"), "batch_size"),
    **dict.fromkeys(
        ("micro_batch_size", "per_device_batch_size", "per_device_train_batch_size", "microbatch"), "micro_batch"
    ),
    **dict.fromkeys(("clip", "clip_grad", "max_grad_norm", "grad_clip", "grad_clip_norm", "max_norm"), "clip_norm"),
    **dict.fromkeys(("hidden", "representation_layer"), "pre_logits"),
    **dict.fromkeys(("warmup", "warmup_steps", "num_warmup_steps", "warmup_iters"), "schedule.warmup_steps"),
    "warmup_epochs": "schedule.warmup_epochs",
    **dict.fromkeys(("end", "min_lr", "lr_end", "end_lr", "final_lr"), "schedule.final_learning_rate"),
    **dict.fromkeys(("sched", "scheduler", "lr_scheduler", "lr_scheduler_type", "lr_schedule"), "schedule.curve"),
    **dict.fromkeys(("decay_milestones", "multistep"), "schedule.milestones"),
    **dict.fromkeys(("dev", "val_split", "validation_split", "val_share", "val_size"), "validation_share"),
    "augmenting": "augment_on",
    **dict.fromkeys(("limit", "bad_limit", "max_bad_images"), "bad_image_limit"),
    **dict.fromkeys(("img_size", "input_size", "resolution", "res"), "image_size"),
    **dict.fromkeys(("num_train_epochs", "num_epochs", "total_epochs", "max_epochs", "n_epochs"), "epochs"),
    **dict.fromkeys(("max_steps", "total_steps", "num_steps", "training_steps", "iterations"), "steps"),
    **dict.fromkeys(("opt_eps", "adam_epsilon", "eps"), "optimizer.epsilon"),
    **dict.fromkeys(("opt_betas", "adam_betas"), "optimizer.betas"),
    **dict.fromkeys(("dropout_rate", "hidden_dropout_prob"), "dropout"),
    **dict.fromkeys(("mixup_alpha", "mix_up"), "mixup"),
    **dict.fromkeys(("cutmix_alpha", "cut_mix"), "cutmix"),
    **dict.fromkeys(("color_jitter", "colour_jitter"), "jitter"),
    **dict.fromkeys(("hflip", "horizontal_flip", "random_flip"), "flip"),
    **dict.fromkeys(("aa", "auto_augment", "rand_augment"), "randaugment"),
    "3augment": "three_augment",
    **dict.fromkeys(("layer_lr_decay", "layerwise_lr_decay", "lr_layer_decay", "llrd"), "layer_decay"),
    **dict.fromkeys(("early_stopping_patience", "early_stopping"), "patience"),
    **dict.fromkeys(("eval_steps", "eval_every", "eval_interval", "evaluation_interval"), "evaluate_every"),
    **dict.fromkeys(("save_steps", "ckpt_steps", "checkpoint_every", "save_interval"), "save_every"),
    **dict.fromkeys(("logging_steps", "log_interval", "log_steps", "log_training_steps"), "log_every"),
    **dict.fromkeys(("save_total_limit", "keep_last", "checkpoint_hist"), "keep"),
    **dict.fromkeys(("random_seed", "manual_seed"), "seed"),
    **dict.fromkeys(("torch_compile", "torchcompile"), "compile"),
    **dict.fromkeys(("dtype", "amp_dtype", "mixed_precision"), "precision"),
    **dict.fromkeys(("loss_fn", "criterion"), "loss"),
    **dict.fromkeys(("init_head_bias", "bias_init"), "head_bias"),
    **dict.fromkeys(("mask_ratio", "masking_ratio"), "masked"),
    **dict.fromkeys(("norm_pix_loss", "norm_pix", "normalised"), "normalized"),
    **dict.fromkeys(("decoder_embed_dim", "decoder_hidden_size"), "decoder_width"),
    "decoder_num_hidden_layers": "decoder_depth",
    **dict.fromkeys(("colours", "num_colors", "n_colors"), "colors"),
    **dict.fromkeys(("arcface_margin", "arc_margin"), "margin"),
}
MODEL = {
    **dict.fromkeys(("num_classes", "num_labels", "n_classes", "num_outputs"), "classes"),
    **dict.fromkeys(("img_size", "input_size", "resolution", "res"), "image_size"),
    **dict.fromkeys(("embed_dim", "hidden_size", "dim", "d_model", "embedding_dim"), "width"),
    **dict.fromkeys(("num_layers", "num_hidden_layers", "n_layers", "layers"), "depth"),
    **dict.fromkeys(("num_heads", "num_attention_heads", "n_heads"), "heads"),
    **dict.fromkeys(("mlp_dim", "intermediate_size", "ffn_dim"), "mlp_width"),
    **dict.fromkeys(("in_chans", "num_channels", "in_channels", "in_chs"), "channels"),
    **dict.fromkeys(("global_pool", "pool", "pool_type", "classifier"), "pooling"),
    **dict.fromkeys(("patch_size", "patches"), "stem.patch"),
    **dict.fromkeys(("grad_checkpointing", "gradient_checkpointing", "remat"), "checkpointing"),
    **dict.fromkeys(("hidden", "representation_width", "representation_size"), "pre_logits"),
    **dict.fromkeys(("drop_path", "drop_path_rate", "droppath", "stochdepth"), "stochastic_depth"),
    **dict.fromkeys(("dropout_rate", "hidden_dropout_prob", "proj_drop_rate"), "dropout"),
    **dict.fromkeys(
        ("attn_drop", "attn_drop_rate", "attention_dropout_rate", "attention_probs_dropout_prob"), "attention_dropout"
    ),
    **dict.fromkeys(("layer_norm_eps", "norm_eps", "eps"), "epsilon"),
    **dict.fromkeys(("hidden_act", "act_layer", "act"), "activation"),
    **dict.fromkeys(("init_values", "layerscale", "layer_scale_init_value", "layerscale_value"), "layer_scale"),
    **dict.fromkeys(("pos_embed", "posemb", "position_embedding_type", "pos_embedding"), "positions"),
    **dict.fromkeys(("init_head_bias", "head_bias_init"), "head_bias"),
}
# Words that no one field stands for, each with what to say instead.
ANSWERS = {
    **dict.fromkeys(
        ("grad_accum", "grad_accum_steps", "gradient_accumulation_steps", "accum_steps", "accumulate_grad_batches"),
        "batch_size is what an update sees, however it is cut: set batch_size, and micro_batch for the images that go "
        "through at once.",
    ),
    **dict.fromkeys(("bf16", "fp16", "amp", "half", "half_precision"), "Set precision=bfloat16 or precision=float32."),
    **dict.fromkeys(("num_workers", "dataloader_num_workers", "workers"), "The argument is workers."),
    **dict.fromkeys(("output_dir", "output", "workdir", "log_dir"), "The argument is out."),
    **dict.fromkeys(("drop", "drop_rate"), "Did you mean 'dropout'?"),
    "out": "out is an argument of its own, and no field of the training.",
    **dict.fromkeys(("mlp_ratio", "mlp_expansion"), "Set mlp_width, in features: four times the width is usual."),
    **dict.fromkeys(("head_dim", "dim_head"), "Set heads: the width divided by the features of a head."),
    **dict.fromkeys(("warmup_ratio", "warmup_proportion"), "Set warmup_steps or warmup_epochs."),
    **dict.fromkeys(("warmup_lr", "warmup_init_lr", "warmup_lr_init"), "A warm-up begins at 0. Set warmup_steps."),
    **dict.fromkeys(
        ("adam_beta1", "beta1", "b1", "adam_beta2", "beta2", "b2"), "Set both: betas=0.9,0.999 of the optimizer."
    ),
    **dict.fromkeys(("nesterov", "amsgrad"), "There is optimizer=sgd with momentum, and optimizer=adam (AdamW)."),
    **dict.fromkeys(("mixup_prob", "cutmix_prob", "mixup_switch_prob", "mixup_mode"), "Set mixup and cutmix, alphas."),
    **dict.fromkeys(("cooldown_epochs", "decay_epochs", "patience_epochs"), "Set curve and milestones."),
    **dict.fromkeys(("crop_pct", "mean", "std"), "Preprocessing belongs to the checkpoint: model.card.preprocessing."),
    **dict.fromkeys(
        ("freeze", "freeze_backbone", "linear_probe"), "vitrail.fewshot fits classifiers of frozen features."
    ),
}
# Words for values, by the field.
VALUES: dict[str, dict[str, object]] = {
    "optimizer": {"adamw": "adam", "momentum": "sgd"},
    "pooling": {"avg": "mean", "gap": "mean", "tok": "token"},
    "activation": {"gelu_tanh": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "gelu_new": "gelu-tanh"},
    "target": {"mean-colour": "mean-color", "small-colours": "small-colors"},
    "precision": {"bf16": "bfloat16", "fp32": "float32", "float": "float32", "no": "float32"},
    "ema": {"true": "ema", "average": "ema"},
    "curve": {"multistep": "staircase", "step": "staircase"},
    "loss": {"sigmoid_xent": "sigmoid", "softmax_xent": "softmax", "bce": "sigmoid", "cross_entropy": "softmax"},
}
