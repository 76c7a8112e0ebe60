"""Weights by address and by name, end to end, from servers on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
import pytest
import torch
from families import family, images_for
from files.servers import HubServer, Served, Server
from huggingface_hub import constants
from peers import hf_model, images, saved

import vitrail
from vitrail.cli import main
from vitrail.errors import CheckpointError
from vitrail.files import transfer

SETTINGS = ("VITRAIL_OFFLINE", "HF_HUB_OFFLINE", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_ENDPOINT")
SMALL = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 100}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(transfer, "PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    return tmp_path / "cache"


@contextmanager
def hub_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    server = HubServer("glass/vit", files)
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    with server.running():
        yield server
        huggingface_hub.close_session()


def test_a_file_is_loaded_by_its_address_and_then_from_the_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = family("vit", image_size=(20, 20))
    vitrail.save(model, tmp_path / "w.npz", layout="google")
    server = Server()
    server.files["/w.npz"] = Served((tmp_path / "w.npz").read_bytes())
    with server.running():
        url = f"{server.address}/w.npz"
        ours = vitrail.load(url)
        assert "w.npz" in capsys.readouterr().err  # progress
        assert torch.equal(ours(images_for(ours)), model(images_for(ours)))
        assert ours.card.provenance is not None
        assert ours.card.provenance.source == url
        asked = len(server.asked)
    vitrail.load(url)  # the server is down
    assert len(server.asked) == asked
    monkeypatch.setenv("VITRAIL_OFFLINE", "1")
    vitrail.load(url)
    with pytest.raises(CheckpointError, match="VITRAIL_OFFLINE"):
        vitrail.load(f"{server.address}/other.npz")
    monkeypatch.delenv("VITRAIL_OFFLINE")
    with pytest.raises(CheckpointError, match=r"127\.0\.0\.1"):
        vitrail.load(f"{server.address}/other.npz")


@pytest.mark.parametrize("shards", [False, True])
def test_a_model_of_transformers_is_loaded_by_its_name_on_the_hub(
    shards: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = hf_model("ViTForImageClassification", **SMALL, image_size=96, num_labels=7)
    if shards:
        theirs.save_pretrained(tmp_path / "hf", max_shard_size="80KB")  # pyright: ignore[reportCallIssue]
        assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 1
    else:
        saved(theirs, tmp_path / "hf")
    batch = images(96, 96)
    with hub_of(tmp_path / "hf", monkeypatch):
        ours = vitrail.load("hf:glass/vit")
        with torch.inference_mode():
            torch.testing.assert_close(ours(batch), theirs(batch).logits, atol=5e-5, rtol=0)
        assert vitrail.describe("hf:glass/vit").layout == "hf"
        with pytest.raises(CheckpointError, match="glass/none"):
            vitrail.load("hf:glass/none")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert torch.equal(vitrail.load("hf:glass/vit")(batch), ours(batch))
    with pytest.raises(CheckpointError, match="HF_HUB_OFFLINE"):
        vitrail.load("hf:glass/none")


def test_a_run_folder_of_ours_is_loaded_from_the_hub_with_its_sums_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = family("hybrid")
    vitrail.save(model, tmp_path / "run")
    with hub_of(tmp_path / "run", monkeypatch) as server:
        ours = vitrail.load("hf:glass/vit")
        assert ours.config == model.config
        assert torch.equal(ours(images_for(ours)), model(images_for(ours)))
        assert server.asked


def test_the_commands_take_addresses_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vitrail.save(family("vit", image_size=(20, 20)), tmp_path / "w.npz", layout="google")
    server = Server()
    server.files["/w.npz"] = Served((tmp_path / "w.npz").read_bytes())
    with server.running():
        assert main(["convert", f"{server.address}/w.npz", str(tmp_path / "run"), "--layout", "vitrail"]) == 0
    assert vitrail.load(tmp_path / "run").config.classes == 7
    assert main(["describe", "ftp://example.org/w.npz"]) == 1
    assert "https://" in capsys.readouterr().err
