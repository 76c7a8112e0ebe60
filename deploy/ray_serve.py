"""The same application on Ray Serve: replicas on the machines of a Ray cluster, as many as requests under way ask for.

`serve run deploy.ray_serve:app models=pets=/models/pets device=cpu`, or `python deploy/ray_serve.py` with the same
words, which listens at HOST and PORT of its environment. VITRAIL_TOKEN is read where the command runs.
"""

import os
import sys
from typing import Any

from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.serve import Application
from starlette.types import ASGIApp


class Arguments(BaseModel):
    """The words of the command line, each NAME=VALUE."""

    model_config = ConfigDict(extra="forbid")
    models: str = "vitrail-ti8"  # CHECKPOINT or NAME=CHECKPOINT, several with commas; every machine must find them
    device: str = "cpu"  # or cuda: a GPU for each replica
    cpus: float = 1  # for each replica
    min_replicas: int = 1
    max_replicas: int = 4
    ongoing: int = 32  # requests under way at a replica before another is started
    deadline: float = 30.0  # seconds


class Replica:
    """What Ray asks of a replica beside its answers."""

    app: ASGIApp  # Ray sets it

    async def check_health(self) -> None:
        """Ask the application whether it is ready; Ray starts another replica where it is not."""
        statuses: list[int] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:  # noqa: ANN401
            statuses.append(message.get("status", 200))

        scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "path": "/readyz"}
        scope |= {"raw_path": b"/readyz", "query_string": b"", "root_path": "", "scheme": "http", "headers": []}
        await self.app(scope, receive, send)
        if statuses[0] != 200:
            raise RuntimeError(f"/readyz answers {statuses[0]}")


def app(arguments: Arguments) -> Application:
    """Make the application; each replica loads the models and starts an engine of its own."""
    words, token = arguments.models.split(","), os.environ.get("VITRAIL_TOKEN") or None
    device, deadline = arguments.device, arguments.deadline

    def build() -> ASGIApp:
        from vitrail.config.serving import read_models
        from vitrail.serve import create_app

        return create_app(read_models(words), device=device, deadline=deadline, token=token)

    deployment: Any = serve.deployment(
        serve.ingress(build)(Replica),
        name="vitrail",
        ray_actor_options={"num_cpus": arguments.cpus, "num_gpus": float(device.startswith("cuda"))},
        autoscaling_config={
            "min_replicas": arguments.min_replicas,
            "max_replicas": arguments.max_replicas,
            "target_ongoing_requests": arguments.ongoing,
        },
        # The application's own queue is what fills batches, and what refuses: Ray hands on more than it can answer.
        max_ongoing_requests=8 * arguments.ongoing,
        health_check_period_s=10,
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=deadline + 10,
    )
    return deployment.bind()


if __name__ == "__main__":
    given = Arguments(**dict(word.split("=", 1) for word in sys.argv[1:]))  # pyright: ignore[reportArgumentType]
    serve.start(http_options={"host": os.environ.get("HOST", "127.0.0.1"), "port": int(os.environ.get("PORT", "8000"))})
    serve.run(app(given), blocking=True)
