"""Files of others: what is no plain file is never waited for, and nothing is read beyond its bounds."""

import errno
import os
import socket
import threading
from pathlib import Path

import numpy as np
import pytest

from vitrail.files import open_regular, parse_json, read_arrays, read_json, read_regular, reading
from vitrail.files.atomic import open_to_append
from vitrail.files.reading import array_header, read_json_lines


def odd_files(folder: Path) -> dict[str, Path]:
    """One of every kind of name that is no plain file."""
    made = {kind: folder / kind for kind in ("pipe", "folder", "device", "socket")}
    os.mkfifo(made["pipe"])
    made["folder"].mkdir()
    made["device"].symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(made["socket"]))
    return made


def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path) -> None:
    for kind, path in odd_files(tmp_path).items():
        with pytest.raises(OSError, match="it is a folder" if kind == "folder" else "it is no plain file"):
            open_regular(path)


def test_what_was_opened_is_judged_and_not_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody puts a pipe, or a device, in the place of a file between the look and the opening."""
    (tmp_path / "plain").write_bytes(b"x")
    plain, before = os.stat(tmp_path / "plain"), len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "stat", lambda path, **_: plain)
    for path in odd_files(tmp_path).values():
        with pytest.raises(OSError, match=r"no plain file|folder|No such device"):
            open_regular(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_pipe_with_a_writer_is_refused_too(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    number = os.open(tmp_path / "pipe", os.O_RDWR)
    with pytest.raises(OSError, match="no plain file"):
        read_regular(tmp_path / "pipe", most=10)
    os.close(number)


def test_a_file_is_read_whole_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abcdefg")
    assert read_regular(path, most=7) == b"abcdefg"
    with pytest.raises(OSError, match="7 bytes; at most 6 are read") as caught:
        read_regular(path, most=6)
    assert caught.value.errno == errno.EFBIG
    (tmp_path / "link").symlink_to("x")
    assert read_regular(tmp_path / "link", most=7) == b"abcdefg"
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")


@pytest.mark.parametrize("places", [[], [0], [0, 1 << 30], range(0, 1 << 33, 1 << 22)])
def test_a_file_of_holes_is_refused(places: list[int], tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file:
        for place in places:
            file.seek(place)
            file.write(b"data")
        file.truncate(1 << 34)
    with pytest.raises(OSError, match="17,179,869,184 bytes, and nearly all of it is holes"):
        open_regular(tmp_path / "x")


def test_a_small_file_with_holes_is_read(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file:
        file.truncate(1 << 20)
    assert read_regular(tmp_path / "x", most=1 << 20) == bytes(1 << 20)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "[" * 102 + "]" * 102, '{"a": ' + "9" * 5000 + "}", "", "nope", "\0"]
)
def test_json_that_is_none_is_a_value_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse_json(text)
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=r"\S"):
        read_json(tmp_path / "x.json")


def test_json_of_a_likely_depth_is_read() -> None:
    assert parse_json(b'{"a": [1, {"b": null}]}', deepest=3) == {"a": [1, {"b": None}]}
    with pytest.raises(ValueError, match="nested more than 2 deep"):
        parse_json(b'{"a": [1, {"b": null}]}', deepest=2)


def test_an_arrays_header_is_read_as_numpy_reads_it(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(15, dtype=">f4").reshape(3, 5))
    np.save(tmp_path / "x.npy", array)
    data = (tmp_path / "x.npy").read_bytes()
    shape, columns_first, dtype, start = array_header(data)
    assert (shape, columns_first, dtype) == ((3, 5), True, array.dtype)
    assert data[start:] == array.tobytes(order="F")
    for wrong in (b"", data[:20], data.replace(b"'shape'", b"'sh\x00pe'"), b"\x93NUMPY\x01\x00" + b"(" * 9000):
        with pytest.raises(ValueError, match=r"\S"):
            array_header(wrong)


def test_reading_lets_other_threads_go_on(tmp_path: Path) -> None:
    """A file opened without waiting is read as any other: whole, and not in what happens to be there."""
    (tmp_path / "x").write_bytes(os.urandom(1 << 22))
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(read_regular(tmp_path / "x", most=1 << 23))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {len(data) for data in found} == {1 << 22}


@pytest.mark.skipif(not os.path.exists("/proc/self/pagemap"), reason="files of Linux")
def test_a_file_of_the_system_without_a_size_is_refused(tmp_path: Path) -> None:
    """They say that they are plain and empty, and some of them are read without end."""
    (tmp_path / "x").symlink_to("/proc/self/status")
    with pytest.raises(OSError, match="it is no plain file"):
        open_regular(tmp_path / "x")
    (tmp_path / "empty").touch()
    assert read_regular(tmp_path / "empty", most=0) == b""


def test_json_of_very_many_values_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_VALUES", 20)
    for text in ("[" + "[]," * 30 + "1]", '{"a":' * 5 + "1," * 20, b"[" + b"{}," * 30 + b"1]"):
        with pytest.raises(ValueError, match="more than 20 values"):
            parse_json(text)
    assert parse_json(f'["{"x" * 90}"]') == ["x" * 90]
    (tmp_path / "log").write_bytes(b'{"a": 1}\n' * 20)
    assert read_json_lines(tmp_path / "log") == []


def test_lines_that_are_damaged_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b'{"a": 1}\n[]\n\xff\n{"a":\n' + b"[" * 9000 + b'\n{"b": 2}')
    assert read_json_lines(tmp_path / "log") == [{"a": 1}, {"b": 2}]
    os.mkfifo(tmp_path / "pipe")
    assert read_json_lines(tmp_path / "pipe") == read_json_lines(tmp_path / "nothing") == []


def test_arrays_are_read_or_refused_in_one_way(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, a=np.arange(5), b=np.array("text"))
    assert {name: array.tolist() for name, array in read_arrays(path).items()} == {"a": [0, 1, 2, 3, 4], "b": "text"}
    whole = path.read_bytes()
    np.savez(path, a=np.array([{}], dtype=object))
    wrong = [path.read_bytes(), whole[:-30], whole.replace(b"NUMPY", b"NUMPI"), b"PK\x03\x04", b""]
    np.savez_compressed(path, a=np.zeros(1_000_000))
    for data in (*wrong, path.read_bytes()):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"\S"):
            read_arrays(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="no plain file"):
        read_arrays(path)


def test_nothing_is_added_to_what_is_no_plain_file(tmp_path: Path) -> None:
    for text in (b"one", b"two"):
        with open_to_append(tmp_path / "log") as file:
            file.write(text)
    assert (tmp_path / "log").read_bytes() == b"onetwo"
    for path in odd_files(tmp_path).values():
        with pytest.raises(OSError, match=r"no plain file|directory|No such device"):
            open_to_append(path)
