"""Several processes on one GPU at once, by CUDA's multi-process service, where it is installed."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"


@contextmanager
def shared_gpu() -> Iterator[bool]:
    """Let processes that are started meanwhile share a GPU; tells whether they do. Without it they take turns."""
    if shutil.which(CONTROL) is None or PIPES in os.environ:
        yield PIPES in os.environ
        return
    with tempfile.TemporaryDirectory(prefix="vitrail-mps-") as folder:
        os.environ |= {PIPES: folder, LOGS: folder}
        try:
            began = subprocess.run([CONTROL, "-d"], capture_output=True, check=False, timeout=60).returncode == 0
            if not began:
                os.environ.pop(PIPES)
            try:
                yield began
            finally:
                if began:
                    subprocess.run([CONTROL], input=b"quit\n", capture_output=True, check=False, timeout=60)
        finally:
            for name in (PIPES, LOGS):
                os.environ.pop(name, None)
