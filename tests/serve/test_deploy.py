"""What `deploy/` holds fits the server: as far as a machine without a container engine and a cluster can tell."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

import vitrail
import vitrail.serve
from vitrail.cli import main

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, each with the rest of its line."""
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def the(name: str) -> str:
    """What the last instruction of this name says: the one that counts in the image."""
    return [rest for found, rest in instructions() if found == name][-1]


def documents() -> dict[str, dict[str, Any]]:
    return {found["kind"]: found for found in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


def container() -> dict[str, Any]:
    return documents()["Deployment"]["spec"]["template"]["spec"]["containers"][0]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], dict[str, Any]]:
    """Run the program up to where it would serve, and give what would be served."""
    monkeypatch.delenv("VITRAIL_TOKEN", raising=False)

    def take(words: list[str]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        monkeypatch.setattr(vitrail.serve, "run", lambda **given: seen.update(given))
        assert words[0] == "vitrail"
        assert main(words[1:]) == 0
        return seen

    return take


@pytest.fixture(scope="module")
def routes() -> set[str]:
    app = vitrail.serve.create_app("vitrail-ti8", device="cpu")
    return {path for route in app.routes if (path := getattr(route, "path", None))}


def test_the_image_is_made_of_files_that_are_there_and_sent() -> None:
    sources = [
        word for name, rest in instructions() if name == "COPY" and "--from" not in rest for word in rest.split()
    ]
    sources = [word for word in sources if not word.startswith("./")]
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(sources) == sent
    assert all((ROOT / source).exists() for source in sources)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {project["readme"], *project["license-files"], "pyproject.toml", "constraints.txt", "src"}
    assert needed == set(sources)
    extras = re.search(r"'\.\[([a-z,]+)\]'", " ".join(rest for name, rest in instructions() if name == "RUN"))
    assert extras is not None
    assert set(extras[1].split(",")) <= project["optional-dependencies"].keys()


def test_the_image_serves_at_its_port_as_a_user_without_rights(taken: Callable[..., dict[str, Any]]) -> None:
    words = [*json.loads(the("ENTRYPOINT")), *json.loads(the("CMD"))]
    served = taken(words)
    assert served["models"] == {"vitrail-ti8": "vitrail-ti8"}
    assert served["host"] == "0.0.0.0"
    assert served["port"] == int(the("EXPOSE")) == container()["ports"][0]["containerPort"]
    user = the("USER").split(":")[0]
    assert int(user) > 0
    assert documents()["Deployment"]["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == int(user)
    assert taken([*words, "a=vitrail-ti8", "--port", "8100"])["port"] == 8100  # a user's words come last, and count


def test_the_health_check_tells_a_server_that_lives_from_one_that_does_not(routes: set[str]) -> None:
    program, flag, code = json.loads(the("HEALTHCHECK").partition("CMD ")[2])
    assert (program, flag) == ("python", "-c")
    found = re.search(r"'(/\w+)'", code)
    assert found is not None
    assert found[1] in routes

    class Handler(BaseHTTPRequestHandler):
        status = 200

        def do_GET(self) -> None:
            self.send_response(self.status if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        own = code.replace(the("EXPOSE"), str(server.server_address[1]))
        for Handler.status, expected in ((200, 0), (500, 1)):
            assert subprocess.run([sys.executable, "-ISc", f"from sys import exit; {own}"]).returncode == expected
        server.shutdown()
        thread.join()


def test_every_object_keeps_to_the_schemas_of_kubernetes() -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    found = documents()
    assert set(found) == {"Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler"}
    for document in found.values():
        validator.validate(document, "1.37", strict=True)


def test_names_labels_and_ports_lead_to_the_deployment() -> None:
    found = documents()
    deployment, pod = found["Deployment"], found["Deployment"]["spec"]["template"]
    labels = pod["metadata"]["labels"].items()
    spread = pod["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]
    budget = found["PodDisruptionBudget"]["spec"]
    for selector in (deployment["spec"]["selector"]["matchLabels"], spread, budget["selector"]["matchLabels"]):
        assert selector
        assert selector.items() <= labels
    service, scaler = found["Service"]["spec"], found["HorizontalPodAutoscaler"]["spec"]
    assert service["selector"].items() <= labels
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert {port["targetPort"] for port in service["ports"]} <= ports.keys()
    reference = scaler["scaleTargetRef"]
    assert [reference[key] for key in ("apiVersion", "kind", "name")] == [
        deployment["apiVersion"],
        deployment["kind"],
        deployment["metadata"]["name"],
    ]
    assert budget["minAvailable"] < scaler["minReplicas"] == deployment["spec"]["replicas"] <= scaler["maxReplicas"]
    assert container()["resources"]["requests"]["cpu"]  # the autoscaler's share is of this


def test_probes_ask_what_the_server_answers(routes: set[str]) -> None:
    probes = {kind: container()[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")}
    ports = {port["name"] for port in container()["ports"]}
    for probe in probes.values():
        assert probe["httpGet"]["path"] in routes
        assert probe["httpGet"]["port"] in ports
    paths = {kind: probe["httpGet"]["path"] for kind, probe in probes.items()}
    assert paths == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}


def test_a_pod_has_time_to_end_and_to_be_forgotten(taken: Callable[..., dict[str, Any]]) -> None:
    served = taken([*json.loads(the("ENTRYPOINT")), *container()["args"]])
    pod = documents()["Deployment"]["spec"]["template"]["spec"]
    assert served["log_format"] == "json"
    # It drains, may go on as long again for what came last, and gives connections a deadline to end.
    assert pod["terminationGracePeriodSeconds"] > 2 * served["drain"] + served["deadline"] + 5
    readiness = container()["readinessProbe"]
    assert readiness["periodSeconds"] * readiness["failureThreshold"] + readiness["timeoutSeconds"] < served["drain"]


def test_a_pod_has_no_rights_and_writes_only_to_its_volumes() -> None:
    pod, own = documents()["Deployment"]["spec"]["template"]["spec"], container()["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert own["readOnlyRootFilesystem"]
    assert not own["allowPrivilegeEscalation"]
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert not pod["automountServiceAccountToken"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container()["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
    image = dict(word.split("=", 1) for word in the("ENV").split())
    folders = tuple(f"{folder}/" for folder in mounts.values())
    assert all(f"{image[name]}/".startswith(folders) for name in ("HOME", "MPLCONFIGDIR", "VITRAIL_CACHE"))
    token = {entry["name"]: entry["valueFrom"] for entry in container()["env"]}["VITRAIL_TOKEN"]
    assert token["secretKeyRef"]["key"] == "token"


def ask(url: str, body: bytes | None = None, token: str = "") -> tuple[int, dict[str, Any]]:
    headers = {"Content-Type": "image/png", "Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.slow
def test_the_application_answers_on_a_local_ray_as_predict_does(tmp_path: Path) -> None:
    pytest.importorskip("ray.serve", reason="ray[serve] is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = {"PORT": str(port), "VITRAIL_TOKEN": "secret", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    ray = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    command = [sys.executable, str(DEPLOY / "ray_serve.py"), "models=box=vitrail-ti8", "cpus=0.5", "max_replicas=1"]
    pixels = np.random.default_rng(3).integers(0, 256, (37, 53, 3), dtype=np.uint8)
    picture = io.BytesIO()
    Image.fromarray(pixels).save(picture, "png")
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **own, **ray}, stdout=log, stderr=log, cwd=tmp_path)
    try:
        url, until = f"http://127.0.0.1:{port}", time.monotonic() + 180
        while process.poll() is None and time.monotonic() < until and not is_ready(url):
            time.sleep(0.5)
        assert is_ready(url), (tmp_path / "log").read_text()[-3000:]
        assert ask(f"{url}/v1/classify", picture.getvalue())[0] == 401
        status, answer = ask(f"{url}/v1/classify?top=3", picture.getvalue(), "secret")
        assert (status, answer["model"]) == (200, "box")
        expected = vitrail.predict("vitrail-ti8", picture.getvalue(), device="cpu")[0].top(3)
        found = [(row["label"], row["probability"]) for row in answer["predictions"][0]["top"]]
        assert [label for label, _ in found] == [label for label, _ in expected]
        assert [each for _, each in found] == pytest.approx([each for _, each in expected], abs=1e-6)
        assert ask(f"{url}/v1/classify", b"no image", "secret")[0] == 422
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_ready(url: str) -> bool:
    try:
        return ask(f"{url}/readyz")[0] == 200
    except (OSError, ValueError):
        return False
