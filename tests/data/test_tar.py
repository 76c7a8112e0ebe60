"""Images of tar files, against Python's own reader of them: samples, labels, cut files, indices, commands."""

import io
import json
import os
import pickle
import shlex
import tarfile
from pathlib import Path

import numpy as np
import pytest
from files.servers import Served, Server

from vitrail.data.decode import ImageError
from vitrail.data.open import open_data
from vitrail.data.sources import tar as tars
from vitrail.data.sources.tar import TarSource, expand
from vitrail.data.sources.tar_headers import members
from vitrail.errors import ConfigError, DataError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("VITRAIL_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def blob(number: int, size: int = 700) -> bytes:
    return np.random.default_rng(number).bytes(size + 37 * number)


def write(path: Path, files: dict[str, bytes], *, form: int = tarfile.PAX_FORMAT, mode: str = "w") -> Path:
    with tarfile.open(path, mode, format=form) as tar:  # pyright: ignore[reportArgumentType, reportCallIssue]
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def samples(first: int, count: int) -> dict[str, bytes]:
    made: dict[str, bytes] = {}
    for number in range(first, first + count):
        made |= {f"{number:04}.jpg": blob(number), f"{number:04}.cls": f"{number % 3}\n".encode()}
    return made


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_images_are_those_that_pythons_reader_finds(tmp_path: Path, form: int) -> None:
    long = "a-folder-with-a-long-name/" * (3 if form == tarfile.USTAR_FORMAT else 12)
    members = samples(0, 4) | {f"{long}x.png": blob(9), f"{long}x.cls": b"2"}
    for shard in range(2):
        write(tmp_path / f"set-{shard:03}.tar", members if shard == 0 else samples(10, 3), form=form)
    source = TarSource(str(tmp_path / "set-{000..001}.tar"))
    expected: list[tuple[str, bytes | None]] = []
    for shard in range(2):
        with tarfile.open(tmp_path / f"set-{shard:03}.tar") as tar:
            for member in tar:
                if not member.name.endswith(".cls"):
                    file = tar.extractfile(member)
                    expected.append((f"set-{shard:03}.tar/{member.name}", file.read() if file else None))
    assert [(source.name(i), source.read(i)) for i in range(len(source))] == expected
    assert source.labels.tolist() == [0, 1, 2, 0, 2, 1, 2, 0]
    assert source.class_names == ("0", "1", "2")
    assert source.problems == []


def test_a_key_ends_at_the_first_dot_of_the_last_part(tmp_path: Path) -> None:
    members = {
        "v1.5/a.JPG": blob(1),
        "v1.5/a.cls": b"1",
        "v1.5/a.seg.png": blob(2),
        "v1.5/b.left.png": blob(3),
        "v1.5/b.cls": b"0",
        "v1.5/._a.jpg": b"hidden",
        "v1.5/c.cls": b"0",
        "v2.5/a.webp": blob(4),
        "v2.5/a.cls": b"2",
    }
    source = TarSource(write(tmp_path / "a.tar", members))
    assert [source.read(i) for i in range(len(source))] == [blob(1), blob(3), blob(4)]
    assert source.labels.tolist() == [1, 0, 2]


def test_labels_come_as_numbers_in_json_or_as_names(tmp_path: Path) -> None:
    described = {"a.jpg": blob(1), "a.json": b'{"label": 4, "width": 3}', "b.jpg": blob(2), "b.json": b'{"label": 0}'}
    source = TarSource(write(tmp_path / "json.tar", described))
    assert (source.labels.tolist(), len(source.class_names)) == ([4, 0], 5)
    named = {"a.jpg": blob(1), "a.txt": b"pug\n", "b.jpg": blob(2), "b.json": json.dumps({"label": "ant"}).encode()}
    source = TarSource(write(tmp_path / "named.tar", named))
    assert (source.labels.tolist(), source.class_names) == ([1, 0], ("ant", "pug"))
    (tmp_path / "classes.txt").write_text("pug\nyak\nant\n")
    assert TarSource(tmp_path / "named.tar").labels.tolist() == [0, 2]
    assert TarSource(tmp_path / "named.tar", class_names=("ant", "pug", "x")).class_names == ("ant", "pug", "x")
    with pytest.raises(DataError, match="'pug' is none of the 2 classes"):
        TarSource(tmp_path / "named.tar", class_names=("ant", "yak"))
    mixed = {"a.jpg": blob(1), "a.cls": b"1", "b.jpg": blob(2), "b.txt": b"pug"}
    with pytest.raises(DataError, match="some are numbers and some are names"):
        TarSource(write(tmp_path / "mixed.tar", mixed))


def test_samples_without_a_label_are_told_or_kept_where_allowed(tmp_path: Path) -> None:
    broken = {"a.jpg": blob(1), "b.jpg": blob(2), "b.json": b"{", "c.jpg": blob(3), "c.cls": b"1"}
    path = write(tmp_path / "a.tar", broken)
    source = TarSource(path)
    assert (len(source), source.read(0)) == (1, blob(3))
    assert len(source.problems) == 3
    assert ("a.tar", "a.jpg has no label") in source.problems
    assert TarSource(path, unlabeled=True).labels.tolist() == [-1, -1, 1]
    with pytest.raises(DataError, match=r"expected labelled images .*say that the images are unlabeled"):
        TarSource(write(tmp_path / "b.tar", {"a.jpg": blob(1)}))


def test_of_a_cut_file_what_is_whole_is_used_and_the_rest_is_told(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.tar", samples(0, 6))
    data = whole.read_bytes()
    with tarfile.open(whole) as tar:
        ends = {member.name: member.offset_data + member.size for member in tar}
    lengths = [
        *np.random.default_rng(0).integers(ends["0000.cls"], ends["0005.cls"], size=40).tolist(),
        ends["0002.cls"],
    ]
    for length in lengths:
        cut = tmp_path / "cut.tar"
        cut.write_bytes(data[:length])
        kept = [number for number in range(6) if ends[f"{number:04}.cls"] <= length]
        source = TarSource(cut)
        assert [source.read(i) for i in range(len(source))] == [blob(number) for number in kept]
        assert source.problems


def test_damage_in_the_middle_ends_the_list_and_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", samples(0, 6))
    with tarfile.open(path) as tar:
        place = tar.getmember("0003.jpg").offset
    data = path.read_bytes()
    path.write_bytes(data[:place] + b"\xff" * 512 + data[place + 512 :])
    source = TarSource(path)
    assert len(source) == 3
    assert any("damaged at byte" in reason for _, reason in source.problems)


def test_links_and_twins_are_told_and_not_used(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for name, data in (("a.jpg", blob(1)), ("a.cls", b"0"), ("a.jpg", blob(2))):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("b.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    source = TarSource(path)
    assert [source.read(i) for i in range(len(source))] == [blob(1)]
    assert source.problems == [
        ("a.tar", "a.jpg comes twice; the first is used"),
        ("a.tar", "b.jpg is a link or no plain file"),
    ]


@pytest.mark.parametrize(("mode", "kind"), [("w:gz", "gzip"), ("w:bz2", "bzip2"), ("w:xz", "xz")])
def test_packed_files_are_refused_with_the_way_out(tmp_path: Path, mode: str, kind: str) -> None:
    path = write(tmp_path / "a.tar", samples(0, 2), mode=mode)
    with pytest.raises(DataError, match=rf"packed with {kind}.*Unpack it first"):
        TarSource(path)


def test_what_is_no_tar_file_is_refused(tmp_path: Path) -> None:
    for name, data in (("a.tar", b"no tar at all " * 100), ("b.tar", b""), ("c.tar", bytes(10240))):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match="expected labelled images"):
            TarSource(tmp_path / name)
    with pytest.raises(DataError, match="No such file"):
        TarSource(tmp_path / "none.tar")


def test_a_file_is_looked_through_once_and_a_damaged_index_is_made_again(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.tar", samples(0, 5))
    looked: list[Path] = []
    real = tars._look_through
    monkeypatch.setattr(tars, "_look_through", lambda path, size: looked.append(path) or real(path, size))
    first = TarSource(path)
    assert TarSource(path).fingerprint == first.fingerprint
    assert len(looked) == 1
    (kept,) = (cache / "tars").iterdir()
    good = kept.read_bytes()
    for bad in (b"", good[:-3], good.replace(b'"0003.jpg"', b'"0004.jpg"')):
        kept.write_bytes(bad)
        assert TarSource(path).fingerprint == first.fingerprint
        assert kept.read_bytes() == good
    assert len(looked) == 4
    write(path, samples(1, 5))
    assert TarSource(path).read(0) == blob(1)
    assert TarSource(path).fingerprint != first.fingerprint
    with pytest.raises(ImageError, match="has changed since"):
        first.read(0)
    path.unlink()
    with pytest.raises(ImageError, match="No such file"):
        first.read(0)


def test_pickling_carries_places_only(tmp_path: Path) -> None:
    source = TarSource(write(tmp_path / "a.tar", samples(0, 5)))
    copy = pickle.loads(pickle.dumps(source))
    assert [copy.read(i) for i in (4, 0)] == [blob(4), blob(0)]
    assert (copy.name(2), copy.fingerprint) == (source.name(2), source.fingerprint)
    with pytest.raises(IndexError):
        copy.read(5)


def test_braces_count_and_list() -> None:
    assert list(expand("s-{008..011}.tar")) == ["s-008.tar", "s-009.tar", "s-010.tar", "s-011.tar"]
    assert list(expand("s-{8..11}.tar")) == ["s-8.tar", "s-9.tar", "s-10.tar", "s-11.tar"]
    assert list(expand("{a,b}/{0..1}.tar")) == ["a/0.tar", "a/1.tar", "b/0.tar", "b/1.tar"]
    assert list(expand("plain.tar")) == ["plain.tar"]
    for wrong in ("{9..1}.tar", "{0..999999}.tar", "{0..9999}{0..9999}.tar"):
        with pytest.raises(DataError, match="at most 100,000"):
            list(expand(wrong))


def test_remote_files_are_fetched_once(tmp_path: Path) -> None:
    server = Server()
    for shard in range(2):
        body = write(tmp_path / "made.tar", samples(shard * 3, 3)).read_bytes()
        server.files[f"/s-{shard}.tar"] = Served(body)
    with server.running():
        source = TarSource(server.url("s-{0..1}.tar"))
    assert [source.read(i) for i in range(6)] == [blob(i) for i in range(6)]
    assert len(TarSource(server.url("s-{0..1}.tar"))) == 6  # the server is gone


def test_commands_are_run_only_where_allowed_once_and_failures_leave_nothing(tmp_path: Path, cache: Path) -> None:
    path, log = write(tmp_path / "a.tar", samples(0, 3)), tmp_path / "log"
    command = f"pipe:echo ran >> {shlex.quote(os.fspath(log))}; cat {shlex.quote(os.fspath(path))}"
    with pytest.raises(ConfigError, match=r"would run a command. Say allow_pipe=True"):
        TarSource(command)
    assert not log.exists()
    for _ in range(2):
        source = TarSource(command, allow_pipe=True)
        assert [source.read(i) for i in range(3)] == [blob(i) for i in range(3)]
    assert log.read_text() == "ran\n"
    with pytest.raises(DataError, match="ended with 3; expected 0"):
        TarSource("pipe:echo half; exit 3", allow_pipe=True)
    assert len(list((cache / "pipes").iterdir())) == 1


def test_class_folders_in_a_tar_are_its_labels(tmp_path: Path) -> None:
    members = {f"photos/{name}/{number}.jpg": blob(number) for name in ("cat", "ant", "bee") for number in range(3)}
    members |= {"photos/readme.md": b"mine", "photos/ant/._0.jpg": b"of a file manager"}
    (source,) = open_data(write(tmp_path / "photos.tar", members)).values()
    assert source.class_names == ("ant", "bee", "cat")
    names = [source.class_names[label] for label in source.labels]
    assert [source.name(index) for index in range(9)] == [
        f"photos.tar/photos/{name}/{number}.jpg" for name, number in zip(names, [0, 1, 2] * 3, strict=True)
    ]
    assert [source.read(index) for index in range(9)] == [blob(number) for number in [0, 1, 2] * 3]
    here = {name.replace("photos/", "./"): data for name, data in members.items()}  # tar cf photos.tar -C photos .
    (other,) = open_data(write(tmp_path / "here.tar", here)).values()
    assert (other.class_names, list(other.labels)) == (source.class_names, list(source.labels))


def test_splits_of_class_folders_in_a_tar_are_splits(tmp_path: Path) -> None:
    members = {
        f"photos/{split}/{name}/{number}.jpg": blob(number)
        for split, count in (("train", 3), ("Validation", 2), ("test", 1))
        for name in ("bee", "ant")
        for number in range(count)
    }
    splits = open_data(write(tmp_path / "photos.tar", members))
    assert {name: len(source) for name, source in splits.items()} == {"train": 6, "val": 4, "test": 2}
    assert {source.class_names for source in splits.values()} == {("ant", "bee")}
    assert list(splits["test"].labels) == [1, 0]


@pytest.mark.parametrize("names", [("images/0.jpg", "images/1.jpg"), ("0.jpg", "1.jpg"), ("a/0.jpg", "a/b/1.jpg")])
def test_folders_in_a_tar_that_are_no_classes_label_nothing(names: tuple[str, ...], tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", {name: blob(0) for name in names})
    with pytest.raises(DataError, match="Labels are folders of images, or members"):
        TarSource(path)
    assert list(TarSource(path, unlabeled=True).labels) == [-1, -1]
    folders = write(tmp_path / "b.tar", {"a/0.jpg": blob(0), "b/1.jpg": blob(1), "a/0.cls": b"7"})
    assert list(TarSource(folders).labels) == [7]  # a label that is said goes before the folder


def headers(path: Path) -> tuple[list[tuple[str | int | float, ...]], list[str]]:
    problems: list[str] = []
    with path.open("rb") as file:
        return [tuple(each) for each in members(file, path.stat().st_size, problems)], problems


@pytest.mark.parametrize(
    ("form", "of_all"),
    [
        (tarfile.USTAR_FORMAT, {}),
        (tarfile.GNU_FORMAT, {}),
        (tarfile.PAX_FORMAT, {}),
        (tarfile.PAX_FORMAT, {"mtime": "17.5"}),
    ],
)
def test_plain_headers_are_read_as_pythons_reader_reads_them(tmp_path: Path, form: int, of_all: dict[str, str]) -> None:
    path, random = tmp_path / "all.tar", np.random.default_rng(form)
    names = [
        "a.png",
        "b" * 100,
        "c" * 40 + "/" + "d" * 90,
        "e/" + "f" * 250,
        "\u00e9\u4e2d.png",
        "sub/x.png",
        "g h.cls",
    ]
    names = [name for name in names if form != tarfile.USTAR_FORMAT or len(name) <= 131]
    with tarfile.open(path, "w", format=form, pax_headers=of_all) as tar:
        for number, name in enumerate(names * 3):
            member = tarfile.TarInfo(f"{number}{name}" if len(name) != 100 else name)
            member.size, member.mtime = int(random.integers(0, 2000)), int(random.integers(0, 1 << 32))
            member.uname, member.uid = "\u00e9l\u00e8ve" * (number % 3), int(random.integers(0, 1 << 20))
            tar.addfile(member, io.BytesIO(random.bytes(member.size)))
    with tarfile.open(path) as tar:
        wanted = [(one.name, one.size, one.mtime, one.chksum, one.offset_data) for one in tar]
    assert headers(path) == (wanted, [])


@pytest.mark.parametrize("place", [0, 99, 101, 124, 136, 148, 154, 156, 329, 345, 511])
def test_a_header_with_one_wrong_byte_is_damaged_wherever_it_is(tmp_path: Path, place: int) -> None:
    path = tmp_path / "damaged.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name in ("a.png", "b.png", "c.png"):
            tar.addfile(tarfile.TarInfo(name))
    data = bytearray(path.read_bytes())
    data[512 + place] ^= 1
    path.write_bytes(data)
    found, problems = headers(path)
    assert [each[0] for each in found] == ["a.png"]
    assert len(problems) == 1
    assert "damaged" in problems[0]
