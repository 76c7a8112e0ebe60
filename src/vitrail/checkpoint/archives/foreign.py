"""Files that people take for weights of a ViT, and models that are none: each named for what it is, with what to do."""

from collections.abc import Iterable, Mapping

TORCHSCRIPT = (
    "a program of TorchScript, which is not run. Save its weights: torch.save(torch.jit.load(FILE).state_dict(), NEW)"
)
UNPACK = "Unpack it, and give the file of weights in it"
KERAS = "of Keras, whose names no layout here has. Take the .npz, safetensors or .pth that it was made from"
# By how they begin.
KINDS = {
    b"\x93NUMPY": "a single array (.npy)",
    b"\x80": "a pickle, but not one of torch.save; a pickle can run anything, so it was not opened",
    b"\x89HDF": f"an HDF5 file (.h5), as those {KERAS}",
    **dict.fromkeys((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf", b"Rar!"), f"a compressed file. {UNPACK}"),
    b"GGUF": "GGUF, quantised weights of llama.cpp. Take the checkpoint that it was made from",
    b"\x08\x01\x12": "a SavedModel of TensorFlow. Take the checkpoint that it was made from",
    b"\x08": "an ONNX graph, which is a program. Take the checkpoint that it was exported from",
    b"version https://": "the pointer of a file in Git LFS; fetch the file itself",
    b"<": "a web page or XML; of a page that vitrail.export wrote, take the checkpoint that it was made from",
}
# By what a zip archive holds.
ZIPPED = {
    "constants.pkl": TORCHSCRIPT,
    "model.weights.h5": f"a file {KERAS}",
    "archive_format": "a program of torch.export. Save the weights of the model that it was made of, its state_dict()",
}
PACKED = (".pth", ".pt", ".ckpt", ".bin", ".safetensors", ".npz", ".onnx", ".h5")  # files that people put into archives
# By a part of a name that no ViT of the paper has: of one all the same, saved while something was done to its weights.
ALTERED = {
    ".lora_A.": "a LoRA adapter of peft: changes to weights, without the model. Merge it, model.merge_and_unload(), "
    "and save the result with save_pretrained",
    "lora_": "a model with LoRA layers beside its weights. Merge them into the weights, and save those alone",
    "_packed_params": "a model of quantised weights. Save the model as it was before it was quantised",
    ".weight_orig": "a pruned model, with masks beside its weights. Make them permanent, "
    "torch.nn.utils.prune.remove(module, 'weight') for each pruned module, and save it again",
    ".parametrizations.": "a model with parametrized weights. Call "
    "torch.nn.utils.parametrize.remove_parametrizations(module, 'weight') for each module that has them, and save it "
    "again",
    ".weight_g": "a model with weight norm. Call torch.nn.utils.remove_weight_norm(module) for each module that has "
    "it, and save it again",
}
# Tensors of other kinds, by what torch puts them together with.
TENSORS = {
    "_rebuild_qtensor": "quantised tensors. Save the model as it was before it was quantised",
    "_rebuild_sparse": "sparse tensors. Make them dense, tensor.to_dense(), and save them again",
    "_rebuild_meta": "tensors without numbers, of the device meta. Save the model after its weights are loaded",
    "_rebuild_nested": "nested tensors. Save a tensor for each of their parts",
}
MODELS = {
    "vision_model.encoder.layers": "a part of CLIP or SigLIP of transformers, without the patches of its image tower",
    "layers.0.self_attn.in_proj_": "built of torch's nn.TransformerEncoder, of which it has two, or not all parts",
    "image_encoder.": "SAM, with relative positions",
    "relative_position_bias_table": "Swin, with relative positions in windows",
    "mlp_tokens.": "an MLP-Mixer",
    "conv_dw.": "a convolutional network",
    "layer1.0.conv1.": "a ResNet with batch norms; BiT has GroupNorm and standardised filters",
    "patch_embed.projection.": "a ViT of MMPretrain, whose names no layout here has",
    "transformer.layers.0.0.": "a model of vit-pytorch that is neither its ViT nor its SimpleViT",
}


def name_file(start: bytes) -> str | None:
    """Say what a file is by its first bytes."""
    if start[4:8] == b"TFL3":
        return "a model of TensorFlow Lite. Take the checkpoint that it was made from"
    if start[257:262] == b"ustar":
        return f"a tar archive. {UNPACK}"
    if start[:1] in (b"\x81", b"\x82", b"\x83") and 0xA0 <= start[1] < 0xC0:  # a small map whose first key is a text
        return "a file of Flax (msgpack). Take the .npz, safetensors or .pth of the same model"
    return next((what for magic, what in KINDS.items() if start.startswith(magic)), None)


def name_zip(members: Iterable[str]) -> str | None:
    """Say what a zip archive is where it is none of weights."""
    held = {name.rpartition("/")[2] for name in members}
    packed = f"a zip archive of files. {UNPACK}" if any(name.endswith(PACKED) for name in held) else None
    return next((what for member, what in ZIPPED.items() if member in held), packed)


def name_model(names: Iterable[str], known: Mapping[str, str]) -> str | None:
    """Say which known model has tensors of these names."""
    names = [name for name in names if ".last_layer." not in name]  # of DINO's head, which has weight norm
    return next((what for mark, what in known.items() if any(mark in name for name in names)), None)
