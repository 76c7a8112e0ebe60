"""`vitrail serve`: models by HTTP."""

import os
from importlib.util import find_spec
from typing import Annotated, Any

from vitrail.cli.app import call, read_flags
from vitrail.cli.options import Engine, Precision, Quiet, Said, argument, option, preparing, with_options_of
from vitrail.config.given import check_weights
from vitrail.config.serving import Serving, read_models
from vitrail.errors import ConfigError

Models = Annotated[list[str], argument("CHECKPOINT", "A run folder, a file of weights or a name; or NAME=CHECKPOINT.")]
Host = Annotated[str, option("Where to listen; 0.0.0.0 is every address of this machine.", metavar="ADDRESS")]
Port = Annotated[int, option("0 takes any that is free.")]
Token = Annotated[
    str | None, option("What clients must send: Authorization: Bearer TOKEN.", default="the variable VITRAIL_TOKEN")
]
Device = Annotated[
    str | None,
    option("cpu, cuda, or several: cuda:0,cuda:1 is a process each.", default="a GPU where there is one"),
]
Cert = Annotated[str | None, option("A certificate (PEM), for https.", metavar="FILE")]
Key = Annotated[str | None, option("Its private key.", metavar="FILE")]
Batch = Annotated[
    int | None, option("Most images in a batch; 1 is no batching.", "--batch", "--batch-size", default="by tokens")
]
Tokens = Annotated[int | None, option("Most tokens in a batch.", default="1024; 16384 on a GPU")]
Queue = Annotated[int, option("Most images that wait; more are refused with 429.", metavar="IMAGES")]
Deadline = Annotated[float, option("Answer within this, or refuse at once with 429.", metavar="SECONDS")]
Drain = Annotated[float, option("Go on answering for this long after SIGTERM.", metavar="SECONDS")]
Bytes = Annotated[int, option("Most bytes of a request.", metavar="BYTES")]
Pixels = Annotated[int, option("Most pixels of an image, read from its header.", metavar="PIXELS")]
Images = Annotated[int, option("Most images of a request.", metavar="IMAGES")]
Connections = Annotated[int, option("Most connections at once.", metavar="COUNT")]
Receive = Annotated[float, option("Cut off a request that arrives slowly after this.", metavar="SECONDS")]
Watch = Annotated[float, option("Look for a new checkpoint this often; 0: never.", metavar="SECONDS")]
Urls = Annotated[bool, option("Fetch images that clients name by a public http(s) address.", "--allow-urls")]
LogFormat = Annotated[str, option("json, text, or auto: text on a terminal.", metavar="FORMAT")]
Size = Annotated[str | None, option("Of the images.", metavar="SIDE|HxW", default="the model's own")]
NEEDED = ("fastapi", "uvicorn", "httptools", "python_multipart", "prometheus_client")
USUAL = Serving()


@with_options_of(preparing)
def serve(
    models: Models,
    host: Host = USUAL.host,
    port: Port = USUAL.port,
    token: Token = None,
    device: Device = None,
    tls_cert: Cert = None,
    tls_key: Key = None,
    deadline: Deadline = USUAL.deadline,
    drain: Drain = USUAL.drain,
    queue: Queue = USUAL.queue,
    batch_size: Batch = None,
    batch_tokens: Tokens = None,
    max_bytes: Bytes = USUAL.max_bytes,
    max_pixels: Pixels = USUAL.max_pixels,
    max_images: Images = USUAL.max_images,
    max_connections: Connections = USUAL.max_connections,
    receive: Receive = USUAL.receive,
    watch: Watch = USUAL.watch,
    allow_urls: Urls = False,
    log_format: LogFormat = USUAL.log_format,
    image_size: Size = None,
    precision: Precision = "float32",
    engine: Engine = "auto",
    settings: Said = None,
    quiet: Quiet = False,
    **options: Any,  # noqa: ANN401
) -> None:
    """Serve models by HTTP, with a page to try them at the same address.

    POST /v1/classify, /v1/embed, /v1/attention and /v1/embeddings (OpenAI's shape) take
    images; GET /docs describes them, /v1/models, /healthz, /readyz and /metrics say how
    the server is. A new checkpoint in the same folder is taken up while it runs; SIGTERM
    ends it when all that was taken is answered. It listens to this machine alone unless
    --host says otherwise: then give it a token, and TLS or a proxy.

    Examples:
      vitrail serve runs/pets

      curl --data-binary @cat.jpg -H 'Content-Type: image/jpeg' localhost:8000/v1/classify

      curl -F image=@cat.jpg -F image=@dog.jpg 'localhost:8000/v1/classify?top=3'

      VITRAIL_TOKEN=secret vitrail serve pets=runs/pets birds=birds.npz --host 0.0.0.0

      vitrail serve runs/pets --device cuda:0,cuda:1
    """
    given = locals()
    named = read_models(given.pop("models"))
    given["token"] = token or os.environ.get("VITRAIL_TOKEN") or None
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise ConfigError(f"serving needs {', '.join(missing)}. Install them: pip install 'vitrail[serve]'.")
    fields = {name: value for name, value in read_flags(given).items() if name in Serving.__dataclass_fields__}
    checked = Serving(**fields)
    for path in (checked.tls_cert, checked.tls_key):
        if path is not None and not os.path.isfile(path):
            raise ConfigError(f"there is no file {path}. Check the path.")
    for checkpoint in named.values():
        check_weights(checkpoint)
    from vitrail.serve import run

    call(run, {**given, "models": named})
