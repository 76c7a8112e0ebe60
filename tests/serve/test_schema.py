"""The server is asked whatever its own schema allows, and what it does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from serve.live import live
from serve.test_process import small


@pytest.mark.slow
def test_no_answer_is_an_error_of_the_server_or_undocumented(tmp_path: Path) -> None:
    with live(small(tmp_path), "--watch", "0") as server:
        command = [Path(sys.prefix) / "bin" / "schemathesis", "run", f"http://127.0.0.1:{server.port}/openapi.json"]
        # Bytes that a schema allows need not be an image, which is refused.
        given = ["--checks", "all", "--exclude-checks", "positive_data_acceptance", "--max-examples", "15"]
        given += ["--seed", "1", "--generation-database", "none", "--suppress-health-check", "all"]
        ran = subprocess.run(
            [*command, *given], cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "CI": "1"}
        )
        assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
        assert server.ask("GET", "/healthz")[0] == 200
