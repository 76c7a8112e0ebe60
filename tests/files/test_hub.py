"""The Hub's own client against a server that speaks its protocol."""

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from files.servers import COMMIT, HubServer, Served
from huggingface_hub import constants

from vitrail.errors import CheckpointError
from vitrail.files import fetch_repository
from vitrail.files.hub import parse, useful

REPOSITORY = "glass/vit-tiny"
SMALL = {"config.json": b"{}", "preprocessor_config.json": b"{ }", "classes.json": b"[]", "SHA256SUMS": b"sums"}
FILES = SMALL | {
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"pickle",
    "weights.npz": b"arrays",
    "flax_model.msgpack": b"flax",
    "tf_model.h5": b"tf",
    "model.onnx": b"onnx",
    "modeling.py": b"import os",
    "README.md": b"read me",
    "onnx/model.onnx": b"onnx too",
    "other/model.safetensors": b"other weights",
    "other/config.json": b"{  }",
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    server = HubServer(REPOSITORY, FILES)
    monkeypatch.setenv("HF_ENDPOINT", f"{server.address}/")
    # The client would tell huggingface.co which tools are used here, and show the server this machine's own key.
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    with server.running():
        yield server
        huggingface_hub.close_session()


def refusal(name: str = REPOSITORY) -> str:
    with pytest.raises(CheckpointError) as caught:
        fetch_repository(name)
    return str(caught.value)


def held(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()
    }


def test_small_files_and_the_preferred_weights_come_and_nothing_else(hub: HubServer, cache: Path) -> None:
    folder = fetch_repository(REPOSITORY)
    assert held(folder) == SMALL | {"model.safetensors": b"weights"}
    assert hub.fetched() == held(folder).keys()
    assert folder.name == COMMIT
    assert folder.is_relative_to(cache / "hub")


def test_a_second_time_no_contents_are_asked_for(hub: HubServer) -> None:
    folder = fetch_repository(REPOSITORY)
    hub.asked.clear()
    assert fetch_repository(REPOSITORY) == folder
    assert hub.fetched() == set()


def test_one_file_comes_with_the_small_files_beside_it(hub: HubServer) -> None:
    path = fetch_repository(f"{REPOSITORY}@v1/other/model.safetensors")
    assert path.read_bytes() == b"other weights"
    assert hub.fetched() == {"other/model.safetensors", "other/config.json"}
    assert "glass/vit-tiny has no file none.npz. It has README.md, SHA256SUMS" in refusal(f"{REPOSITORY}/none.npz")


@pytest.mark.parametrize("variable", ["VITRAIL_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_the_cache_is_used_with_the_server_down(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    folder = fetch_repository(REPOSITORY)
    hub.stop()
    connected: list[object] = []
    monkeypatch.setattr(socket.socket, "connect", lambda *arguments: connected.append(arguments))
    monkeypatch.setenv(variable, "1")
    assert fetch_repository(REPOSITORY) == folder
    assert fetch_repository(f"{REPOSITORY}@{COMMIT}") == folder
    assert fetch_repository(f"{REPOSITORY}/model.safetensors").read_bytes() == b"weights"
    for name in ("glass/other", f"{REPOSITORY}@v1", f"{REPOSITORY}/weights.npz"):
        message = refusal(name)
        assert "is not (or not wholly) in the cache" in message
        assert f"{variable}=1 forbids to download it. Unset the variable" in message
    (folder / "config.json").unlink()
    assert "is not (or not wholly) in the cache" in refusal()
    assert connected == []


def test_a_client_that_was_imported_offline_is_told_of(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE forbids to download it" in refusal()
    assert hub.asked == []


def test_files_that_another_tool_fetched_are_used(hub: HubServer, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    hub.files[f"/{REPOSITORY}/resolve/main/model.safetensors"] = hub.files[
        f"/{REPOSITORY}/resolve/{COMMIT}/model.safetensors"
    ]
    huggingface_hub.hf_hub_download(
        REPOSITORY, "model.safetensors", cache_dir=cache / "home" / "hub", endpoint=hub.address
    )
    monkeypatch.setenv("VITRAIL_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(cache / "home"))
    assert held(fetch_repository(REPOSITORY)) == {"model.safetensors": b"weights"}
    monkeypatch.setenv("HF_HUB_CACHE", str(cache / "elsewhere"))
    assert f"in the cache {cache / 'elsewhere'}" in refusal()


def test_without_a_connection_the_cache_does_and_else_the_reason_is_told(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fetch_repository(REPOSITORY)
    hub.stop()
    capsys.readouterr()
    assert fetch_repository(REPOSITORY) == folder
    assert "the Hub cannot be reached; using glass/vit-tiny as it is in the cache" in capsys.readouterr().err
    message = refusal("glass/other")
    assert "cannot fetch glass/other from the Hub" in message
    assert "refused" in message
    assert "Check the connection, or download the files elsewhere" in message


def test_unknown_names_and_revisions_are_told_apart(hub: HubServer) -> None:
    message = refusal("glass/none")
    assert "there is no repository glass/none on the Hub, or it is private" in message
    assert "hf auth login" in message
    assert "glass/vit-tiny has no revision v9" in refusal(f"{REPOSITORY}@v9")
    assert "expected the name of a repository, OWNER/NAME; got 'gl--ass/vit'" in refusal("gl--ass/vit")


@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_repository_says_what_to_do(hub: HubServer, status: int) -> None:
    closed = Served(b"", etag=None, status=status, headers={"X-Error-Code": "GatedRepo"})
    for path in hub.files:
        if "/resolve/" in path:  # the list of a gated repository is public, its files are not
            hub.files[path] = closed
    message = refusal()
    assert "asks for an agreement before it is given out" in message
    assert "https://huggingface.co/glass/vit-tiny" in message
    assert message.endswith("run: hf auth login")


def test_refusals_without_a_reason_are_told_by_their_number(hub: HubServer) -> None:
    api = f"/api/models/{REPOSITORY}"
    hub.files[api] = Served(b"", status=403)
    assert (
        "the Hub refuses access to glass/vit-tiny (HTTP 403). Check the name; for a private one run: hf auth login"
        in refusal()
    )
    hub.files[api] = Served(b"", status=503)
    assert "the Hub cannot serve glass/vit-tiny now (HTTP 503). Try again later" in refusal()
    hub.files[api] = Served(b"", status=401)
    assert "(HTTP 401). Check the name" in refusal()


def test_a_file_that_is_listed_but_not_there_is_told(hub: HubServer) -> None:
    hub.files[f"/{REPOSITORY}/resolve/{COMMIT}/config.json"] = Served(
        b"", status=404, headers={"X-Error-Code": "EntryNotFound"}
    )
    assert "lacks a file that it lists" in refusal()


def test_a_list_that_changes_meanwhile_is_noticed(hub: HubServer) -> None:
    hub.files[f"/api/models/{REPOSITORY}/tree/{COMMIT}"] = Served(b"[]")
    assert "changed on the Hub while it was fetched: SHA256SUMS is missing. Run again." in refusal()


def test_a_cache_that_cannot_be_written_is_named(hub: HubServer, cache: Path) -> None:
    cache.mkdir()
    (cache / "hub").write_text("a file")
    assert f"cannot write {cache / 'hub'}" in refusal()


def test_a_missing_or_old_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "Run: pip install 'vitrail[hub]'" in refusal()
    monkeypatch.setitem(sys.modules, "huggingface_hub", pytest)
    assert "needs huggingface_hub 1.31 or newer" in refusal()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "name",
        "/a/b",
        "a/b/",
        "a/b@",
        "a/b@../c",
        "a/b@-x",
        "a/b/../c",
        "a/b/c//d",
        "a/b/c\\..\\d",
        "a b/c",
        "a/b@x y",
    ],
)
def test_names_that_are_none_are_refused(name: str) -> None:
    assert "expected OWNER/NAME, OWNER/NAME@REVISION, or either with /FILE; got" in refusal(name)


def test_names_are_read_in_their_parts() -> None:
    read = [parse(name) for name in ("a/b", "a/b@v1.0", "a/b@refs/pr/3/c/d.npz", "a/b/c@2.npz")]
    assert [(wanted.repository, wanted.revision, wanted.file) for wanted in read] == [
        ("a/b", None, None),
        ("a/b", "v1.0", None),
        ("a/b", "refs/pr/3", "c/d.npz"),
        ("a/b", None, "c@2.npz"),
    ]


@pytest.mark.parametrize(
    ("listed", "chosen"),
    [
        ("model.safetensors model.fp16.safetensors pytorch_model.bin", "model.safetensors"),
        (
            "m-1-of-2.safetensors m-2-of-2.safetensors m.safetensors.index.json pytorch_model.bin.index.json",
            "m-1-of-2.safetensors m-2-of-2.safetensors m.safetensors.index.json",
        ),
        ("a.npz b.npz pytorch_model.bin", "a.npz b.npz"),
        ("pytorch_model.bin training_args.bin optimizer.pt x.pth", "pytorch_model.bin"),
        ("x.pth y.pt rng_state_0.pth scheduler.pt run.py", "x.pth y.pt"),
    ],
)
def test_one_kind_of_weights_is_chosen(listed: str, chosen: str) -> None:
    assert useful(listed.split(), parse("a/b")) == sorted(chosen.split())


def test_a_repository_without_weights_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"a/b has config\.json, run\.py\. Check the name, or name a file"):
        useful(["config.json", "run.py"], parse("a/b"))


@pytest.mark.parametrize("where", ["ETag", "X-Linked-Etag", "X-Repo-Commit"])
@pytest.mark.parametrize("name", ["{out}/evil", "../../evil", 'W/"{out}/evil"', '"..\\evil"'])
def test_a_server_that_names_a_place_outside_the_cache_writes_nothing_there(
    where: str, name: str, hub: HubServer, tmp_path: Path
) -> None:
    out = tmp_path / "outside"
    out.mkdir()
    for path, served in list(hub.files.items()):
        if "/resolve/" in path:
            said = name.format(out=out)
            hub.files[path] = Served(
                served.body,
                etag=said if where == "ETag" else served.etag,
                headers={**served.headers, **({where: said} if where != "ETag" else {})},
            )
    message = refusal()
    assert "calls a file" in message
    assert "lead out of the cache" in message
    assert list(out.iterdir()) == []
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize(
    "change",
    [
        lambda info: {**info, "sha": "/tmp/evil"},
        lambda info: {**info, "sha": "../../evil"},
        lambda info: {**info, "siblings": [*info["siblings"], {"rfilename": "../../evil.json"}]},
        lambda info: {**info, "siblings": [*info["siblings"], {"rfilename": "a.json", "lfs": {"sha256": "/evil"}}]},
    ],
)
def test_a_list_of_files_that_leads_outside_the_cache_is_refused(change: Any, hub: HubServer) -> None:
    for path, served in list(hub.files.items()):
        if path.startswith("/api/") and "/tree/" not in path:
            body = json.dumps(change(json.loads(served.body))).encode()
            hub.files[path] = Served(body, headers=served.headers)
    assert "lead out of the cache" in refusal()


def test_a_tree_that_leads_outside_the_cache_is_refused(hub: HubServer) -> None:
    path = f"/api/models/{REPOSITORY}/tree/{COMMIT}"
    entries = [{"type": "file", "path": "/etc/evil", "size": 3, "oid": "abc"}]
    hub.files[path] = Served(json.dumps(entries).encode(), headers=hub.files[path].headers)
    assert "lead out of the cache" in refusal()
