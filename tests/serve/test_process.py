"""The server as a process: signals, slow clients, several devices behind one port."""

import io
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from PIL import Image
from serve.live import Live, live, wait_until
from serve.test_app import picture

import vitrail


def small(folder: Path) -> str:
    """Save a tiny model, which loads at once."""
    model = vitrail.create("ViT-Ti/16", image_size=32, classes=3, depth=1)
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    vitrail.save(model, folder / "tiny")
    return str(folder / "tiny")


@pytest.mark.slow
def test_sigterm_loses_nothing_and_a_slow_client_is_cut_off(tmp_path: Path) -> None:
    checkpoint, data = small(tmp_path), picture(0)
    wanted = vitrail.predict(checkpoint, data)[0].probability
    with live(checkpoint, "--receive", "0.5", "--drain", "1.5", "--watch", "0") as server:
        slow = socket.create_connection(("127.0.0.1", server.port))
        slow.sendall(
            b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: 5000\r\n\r\n"
        )
        slow.settimeout(20)
        found: list[tuple[int, float | None]] = []
        ending = threading.Event()

        def ask() -> None:
            while not ending.is_set():
                status, document, headers = server.ask("POST", "/v1/classify?top=1", data)
                top = document["predictions"][0]["top"][0]["probability"] if status == 200 else None
                found.append((status, top))
                if headers.get("connection") == "close":  # it ends
                    return

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        said = b""
        for _ in range(40):  # a byte at a time
            try:
                slow.sendall(b"x")
                slow.settimeout(0.2)
                said += slow.recv(4096)
                break
            except TimeoutError:
                continue
            except OSError:
                break
        slow.close()
        assert b"408" in said
        before = len(found)
        assert server.ask("GET", "/readyz")[0] == 200
        server.process.terminate()
        wait_until(lambda: _readiness(server) == 503)
        for thread in threads:
            thread.join(30)
        ending.set()
        assert server.process.wait(30) == 0
    assert len(found) > before > 0
    assert all(status == 200 and top == pytest.approx(wanted, abs=1e-6) for status, top in found)


def _readiness(server: Live) -> int:
    try:
        return server.ask("GET", "/readyz")[0]
    except OSError:
        return 503


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not say how much memory is resident")
def test_what_large_images_took_is_given_back(tmp_path: Path) -> None:
    large, text = io.BytesIO(), b'{"image": "%b"}' % (b"A" * 20_000_000)
    Image.new("RGB", (6000, 5000), (9, 99, 200)).save(large, "PNG")
    with live(small(tmp_path)) as server:

        def ask() -> None:
            for path in ("classify", "embed", "attention"):
                assert server.ask("POST", f"/v1/{path}", large.getvalue())[0] == 200
                assert server.ask("POST", f"/v1/{path}", text, "application/json")[0] == 422

        def resident() -> int:
            return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])

        for path in ("classify", "embed", "attention"):  # what is loaded once is loaded now
            assert server.ask("POST", f"/v1/{path}", picture(0))[0] == 200
        before = resident()
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_until(lambda: resident() < 1.05 * before)
        assert server.end() == 0


@pytest.mark.slow
def test_two_devices_are_two_processes_behind_one_port(tmp_path: Path) -> None:
    checkpoint, data = small(tmp_path), picture(0)
    with live(checkpoint, "--device", "cpu,cpu", "--drain", "0.2") as server:
        time.sleep(5)
        for _ in range(20):
            assert server.ask("POST", "/v1/classify", data)[0] == 200
        text = server.ask("GET", "/metrics")[1].decode()
        assert 'vitrail_requests_total{path="/v1/classify",status="200"} 20.0' in text
        assert server.end() == 0


@pytest.mark.slow
def test_a_wrong_port_is_told_before_a_model_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [sys.executable, "-m", "vitrail", "serve", "vitrail-ti8", "--port", str(taken.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "cannot listen at" in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout
