"""Downloads from a server that cuts, changes, lies and goes away."""

import hashlib
import json
import multiprocessing
import random
import shutil
import threading
from pathlib import Path

import pytest
from files.servers import Served, Server

from vitrail.errors import CheckpointError
from vitrail.files import fetch, progress, transfer
from vitrail.files.transfer import check_redirect

BODY = random.Random(3).randbytes(300_007)
SUM = hashlib.sha256(BODY).hexdigest()
OTHER = random.Random(5).randbytes(300_007)  # as long: no check of sizes tells the two apart


def refusal(url: str) -> str:
    with pytest.raises(CheckpointError) as caught:
        fetch(url)
    return str(caught.value)


def kept(cache: Path, ending: str = "") -> list[Path]:
    return sorted((cache / "downloads").glob(f"*{ending}"))


@pytest.fixture
def url(server: Server) -> str:
    server.files["models/ViT-B_16.npz"] = Served(BODY)
    return server.url("models/ViT-B_16.npz")


def test_a_file_comes_once_and_is_used_without_the_server(server: Server, url: str, cache: Path) -> None:
    path = fetch(url)
    assert path.read_bytes() == BODY
    assert path.parent == cache / "downloads"
    assert path.name.startswith("ViT-B_16-")
    assert path.suffix == ".npz"
    assert json.loads(path.with_name(f"{path.name}.json").read_text()) == {
        "url": url,
        "sha256": SUM,
        "bytes": len(BODY),
    }
    assert kept(cache, ".part*") == []
    server.stop()
    assert fetch(url) == path
    assert fetch(f"{url}#sha256={SUM}") == path
    assert server.ranges() == [None]


def test_a_query_is_part_of_the_key_and_is_never_shown(server: Server, url: str, cache: Path) -> None:
    first, second = fetch(f"{url}?token=secret"), fetch(url)
    assert first != second
    assert "secret" not in "".join(file.read_text() for file in kept(cache, ".json"))
    assert "secret" not in refusal(f"{server.url('none')}?token=secret")


def test_a_cut_connection_is_continued_where_it_ended(server: Server, url: str) -> None:
    server.files["models/ViT-B_16.npz"].cuts = [100_003, 50_001]
    assert fetch(url).read_bytes() == BODY
    assert server.ranges() == [None, "bytes=100003-", "bytes=150004-"]
    assert [asked.if_range for asked in server.asked] == [None, '"one"', '"one"']


def test_a_download_that_is_cut_every_time_says_where_the_next_one_continues(
    server: Server, url: str, cache: Path
) -> None:
    server.files["models/ViT-B_16.npz"].cuts = [1000, 1000, 1000, 1000]
    message = refusal(url)
    assert "was cut 4 times: 4,000 of 300,007 bytes came" in message
    assert "Run again: it continues at 4,000 bytes." in message
    assert kept(cache, ".npz") == []
    assert fetch(url).read_bytes() == BODY
    assert server.ranges()[-1] == "bytes=4000-"


def test_a_file_that_changed_meanwhile_starts_again(server: Server, url: str) -> None:
    for if_range in (True, False):  # some servers do ranges but do not compare versions
        server.files["models/ViT-B_16.npz"] = Served(BODY, cuts=[1000] * 4)
        refusal(url)
        server.files["models/ViT-B_16.npz"] = Served(OTHER, etag='"two"', if_range=if_range)
        path = fetch(url)
        assert path.read_bytes() == OTHER
        path.unlink()


@pytest.mark.parametrize(
    ("served", "ranges"),
    [
        (Served(BODY, ranges=False, cuts=[1000]), [None, "bytes=1000-"]),
        (Served(BODY, etag=None, cuts=[1000]), [None, None]),
        (Served(BODY, etag='W/"weak"', cuts=[1000]), [None, None]),
        (Served(BODY, shift=7, cuts=[1000]), [None, "bytes=1000-", None]),
        (Served(BODY, length=False), [None]),
        (Served(BODY, chunked=True), [None]),
        (Served(BODY, chunked=True, cuts=[1000]), [None, "bytes=1000-"]),
        (Served(b""), [None]),
    ],
    ids=["no ranges", "no version", "weak version", "wrong range", "no length", "chunked", "cut chunk", "empty"],
)
def test_servers_that_do_less_or_lie_still_give_the_whole_file(
    server: Server, served: Served, ranges: list[str | None]
) -> None:
    server.files["file"] = served
    assert fetch(server.url("file")).read_bytes() == served.body
    assert server.ranges() == ranges


def test_a_last_modified_date_does_for_a_version(server: Server) -> None:
    date = "Wed, 21 Oct 2020 07:28:00 GMT"
    server.files["file"] = Served(BODY, etag=None, if_range=False, headers={"Last-Modified": date}, cuts=[1000])
    assert fetch(server.url("file")).read_bytes() == BODY
    assert (server.asked[-1].range, server.asked[-1].if_range) == ("bytes=1000-", date)


def test_a_partial_file_that_is_whole_already_is_taken_and_one_too_long_is_not(server: Server, url: str) -> None:
    path = fetch(url)
    part, record = path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.part.json")
    for contents, asked in ((BODY, 1), (BODY + b"more", 2)):
        record.write_text(json.dumps({"url": url, "validator": '"one"', "total": len(BODY)}))
        part.write_bytes(contents)
        path.unlink()
        server.asked.clear()
        assert fetch(url).read_bytes() == BODY
        assert server.ranges() == [f"bytes={len(contents)}-", None][:asked]


def test_a_damaged_record_of_a_partial_file_starts_again(server: Server, url: str) -> None:
    path = fetch(url)
    for record in ("", "[1]", '{"validator": 5, "total": "x"}', '{"validator": "x"}'):
        path.unlink()
        path.with_name(f"{path.name}.part").write_bytes(b"wrong")
        path.with_name(f"{path.name}.part.json").write_text(record)
        assert fetch(url).read_bytes() == BODY
    assert set(server.ranges()) == {None}


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(url: str, cache: Path) -> None:
    message = refusal(f"{url}#sha256={'0' * 64}")
    assert f"expected sha256 {'0' * 64}, got {SUM}" in message
    assert "Compare the checksum with the publisher's" in message
    assert [file.suffix for file in kept(cache)] == [".lock"]
    assert fetch(f"{url}#sha256={SUM.upper()}").read_bytes() == BODY


def test_a_cached_file_of_another_checksum_is_fetched_anew(server: Server, url: str, cache: Path) -> None:
    fetch(url)
    server.files["models/ViT-B_16.npz"] = Served(OTHER, etag='"two"')
    assert fetch(f"{url}#sha256={hashlib.sha256(OTHER).hexdigest()}").read_bytes() == OTHER
    assert "expected sha256" in refusal(f"{url}#sha256={SUM}")
    assert kept(cache, ".npz") == []


def test_a_damaged_file_of_the_cache_is_fetched_anew(
    server: Server, url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fetch(url)
    path.write_bytes(BODY[:-1] + b"x")
    monkeypatch.setenv("VITRAIL_OFFLINE", "1")
    assert "is damaged, or another file than asked for" in refusal(url)
    monkeypatch.delenv("VITRAIL_OFFLINE")
    capsys.readouterr()
    assert fetch(url).read_bytes() == BODY
    shown = capsys.readouterr()
    assert f"expected sha256 {SUM}" in shown.err
    assert "It is downloaded again." in shown.err
    assert shown.out == ""
    path.with_name(f"{path.name}.json").unlink()
    assert fetch(f"{url}#sha256={SUM}") == path
    assert len(server.asked) == 2
    assert fetch(url).read_bytes() == BODY
    assert len(server.asked) == 3


def test_offline_only_the_cache_is_used(server: Server, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VITRAIL_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "yes")
        message = refusal(url)
        assert f"{name}=yes forbids to download {url}" in message
        assert "Unset the variable, or download the file elsewhere and give its path." in message
        monkeypatch.delenv(name)
    assert server.asked == []
    path = fetch(url)
    monkeypatch.setenv("VITRAIL_OFFLINE", "1")
    assert fetch(url) == path


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, "there is no file at"),
        (403, "refuses access to"),
        (503, "Try again later, or download the file elsewhere"),
        (418, "answered HTTP 418"),
        (204, "expected a file; the server answered HTTP 204"),
    ],
)
def test_what_the_server_refuses_is_explained(server: Server, status: int, message: str) -> None:
    server.files["file"] = Served(b"no", status=status)
    shown = refusal(server.url("file"))
    assert message in shown
    assert str(status) in shown


def test_a_packed_answer_is_refused(server: Server) -> None:
    server.files["file"] = Served(BODY, headers={"Content-Encoding": "gzip"})
    assert "the server packs it (gzip)" in refusal(server.url("file"))


def test_a_server_that_is_not_there_is_named(server: Server, url: str) -> None:
    server.stop()
    message = refusal(url)
    assert "cannot reach 127.0.0.1" in message
    assert "refused" in message
    assert "Check the connection, or download the file elsewhere and give its path." in message


def test_a_server_that_says_nothing_is_left(
    server: Server, url: str, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setattr(transfer, "TIMEOUT", 0.1)
    wait = threading.Event()
    monkeypatch.setattr(server, "finish_request", lambda *_: wait.wait())
    assert "timed out" in refusal(url)
    wait.set()
    assert kept(cache, ".part") == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://example.com/a.npz", "is not safe"),
        ("http://127.0.0.1.example.com/a.npz", "is not safe"),
        ("ftp://example.com/a.npz", "expected an address such as https://HOST/FILE; got 'ftp://example.com/a.npz'"),
        ("file:///etc/passwd", "expected an address such as"),
        ("a.npz", "expected an address such as"),
        ("https://", "expected an address such as"),
        ("https://[::1/a", "got one that is none"),
        ("https://example.com:port/a", "got one that is none"),
        ("https://example.com/a b", "Write %20 for a blank"),
        ("https://name:secret@example.com/a", "a user name or a password are not taken"),
        ("ftp://name:secret@example.com/a", "a user name or a password are not taken"),
        ("https://example.com/a#sha256=12", "expected #sha256= and 64 hexadecimal digits"),
        ("https://example.com/a#part", "expected #sha256= and 64 hexadecimal digits"),
    ],
)
def test_addresses_that_are_not_safe_or_none_are_refused(url: str, message: str, cache: Path) -> None:
    shown = refusal(url)
    assert message in shown
    assert "secret" not in shown
    assert not cache.exists()


def test_a_redirect_is_followed_with_its_range_but_not_anywhere(server: Server, url: str) -> None:
    server.files["moved"] = Served(b"", status=302, headers={"Location": "/models/ViT-B_16.npz"})
    server.files["models/ViT-B_16.npz"].cuts = [1000]
    assert fetch(server.url("moved")).read_bytes() == BODY
    assert server.ranges() == [None, None, "bytes=1000-", "bytes=1000-"]
    for target, message in (
        ("http://example.com/a", "http://example.com/a is not safe"),
        ("ftp://example.com/a", "expected an address such as"),
        ("https://name:secret@example.com/a", "are not taken"),
    ):
        server.files["moved away"] = Served(b"", status=302, headers={"Location": target})
        assert message in refusal(server.url("moved%20away"))


def test_a_redirect_from_https_to_http_is_refused_even_to_this_machine() -> None:
    with pytest.raises(CheckpointError, match=r"sends on from https to http://127\.0\.0\.1/a, which is not safe"):
        check_redirect("https://example.com/a?token=secret", "http://127.0.0.1/a")


def test_names_of_any_letters_are_fetched_and_kept_under_safe_names(server: Server) -> None:
    server.files["modèle n°1.npz"] = Served(BODY)
    path = fetch(server.url("modèle%20n°1.npz"))
    assert path.read_bytes() == BODY
    assert path.name.startswith("mod-le-n-1-")
    for strange in ("..%2F..%2Fetc", ".hidden", "x" * 300 + ".npz", "", "%00"):
        server.files[strange.replace("%2F", "/").replace("%00", "\0")] = Served(BODY)
        path = fetch(server.url(strange))
        assert path.parent.name == "downloads"
        assert not path.name.startswith(".")
        assert len(path.name) <= 120


def test_interrupting_keeps_what_came(server: Server, url: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object, count: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(progress.Progress, "advance", interrupt)
        patch.setattr(transfer, "CHUNK", 20_011)
        with pytest.raises(KeyboardInterrupt):
            fetch(url)
    (part,) = kept(cache, ".part")
    came = part.stat().st_size
    assert 0 < came <= 20_011
    assert part.read_bytes() == BODY[:came]
    assert fetch(url).read_bytes() == BODY
    assert server.ranges() == [None, f"bytes={came}-"]


def test_threads_that_ask_at_once_share_one_download(server: Server, url: str) -> None:
    server.files["models/ViT-B_16.npz"].cuts = [1000]
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(fetch(url))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 5
    assert {path.read_bytes() for path in paths} == {BODY}
    assert server.ranges() == [None, "bytes=1000-"]


def test_processes_that_ask_at_once_share_one_download(server: Server, url: str) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as processes:
        paths = processes.map(fetch, [url] * 4, chunksize=1)
    assert {path.read_bytes() for path in paths} == {BODY}
    assert server.ranges() == [None]


def test_a_full_disk_is_seen_before_and_during(url: str, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    usage = shutil.disk_usage("/")._replace(free=100_000)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage)
        message = refusal(url)
    assert "needs 0 MB more" in message
    assert "set VITRAIL_CACHE to a folder on another disk" in message

    def full(_: object, count: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(progress.Progress, "advance", full)
        message = refusal(url)
    assert "No space left on device. Free some space" in message
    assert kept(cache, ".npz") == []


def test_a_cache_that_cannot_be_written_is_named(url: str, cache: Path) -> None:
    cache.write_text("a file")
    message = refusal(url)
    assert f"cannot write {cache}" in message
    assert "A part of the path is a file" in message


def test_progress_is_two_lines_where_there_is_no_terminal(
    server: Server, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch(url)
    first, last = capsys.readouterr().err.splitlines()
    assert first == "downloading ViT-B_16.npz  0.3 MB"
    assert last == "downloaded ViT-B_16.npz  0.3 MB in 0 s"
    fetch(url)
    assert capsys.readouterr() == ("", "")
