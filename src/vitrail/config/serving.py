"""How models are served: addresses, limits and deadlines; checked, without torch."""

import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Literal

from vitrail.config.check import Checked, needs, not_negative, positive, truth, whole
from vitrail.config.engine import Engine, Precision, check_engine
from vitrail.errors import ConfigError

LogFormat = Literal["auto", "json", "text"]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]{0,99}")  # of a model in an address and in logs


@dataclass(frozen=True, kw_only=True)
class Serving(Checked):
    """What a server allows, and when it gives up; the defaults suit a machine of one's own."""

    host: str = "127.0.0.1"
    port: int = needs(whole, 8000, least=0, most=65_535)  # 0: any that is free
    token: str | None = None  # what clients must send: Authorization: Bearer TOKEN
    tls_cert: str | None = None  # files of a certificate and its key
    tls_key: str | None = None
    device: str | None = None  # several, with commas between them, are a process each
    precision: Precision = "float32"
    engine: Engine = "auto"  # auto: the faster path on a CPU; on a GPU it is made for a minute, and must be asked for
    batch_size: int | None = None  # most images in a batch; None: as many as have `batch_tokens`
    batch_tokens: int | None = None  # None: 1,024 on a CPU, 16,384 on a GPU
    queue: int = needs(whole, 1024)  # most images that wait
    deadline: float = needs(positive, 30.0)  # seconds from the arrival of a request to its answer
    drain: float = needs(not_negative, 2.0)  # seconds in which requests are still taken after SIGTERM
    max_bytes: int = needs(whole, 32 << 20, least=1024)  # of a request's body
    max_pixels: int = needs(whole, 50_000_000)  # of an image
    max_images: int = needs(whole, 64)  # of a request
    max_connections: int = needs(whole, 512)
    receive: float = needs(positive, 5.0)  # seconds for a request to arrive, before it must keep to a least rate
    watch: float = needs(not_negative, 2.0)  # seconds between looks for a new checkpoint; 0: never
    allow_urls: bool = needs(truth, default=False)  # whether an image may be named by a public address
    log_format: LogFormat = "auto"  # auto: text on a terminal, else JSON

    def __post_init__(self) -> None:
        super().__post_init__()
        check_engine(self.engine, self.precision)
        if (self.tls_cert is None) != (self.tls_key is None):
            given, other = ("tls_cert", "tls_key") if self.tls_key is None else ("tls_key", "tls_cert")
            raise ConfigError(f"{given} is given without {other}. TLS needs both files.")
        if self.token is not None and not re.fullmatch(r"[\x21-\x7e]{1,1024}", self.token):
            raise ConfigError("token must be 1 to 1,024 visible ASCII characters, without spaces.")

    @property
    def devices(self) -> tuple[str | None, ...]:
        """The devices, of which each has a process of its own; None is chosen by the machine."""
        named = [name.strip() for name in (self.device or "").split(",") if name.strip()]
        return tuple(named) or (None,)

    @property
    def is_local(self) -> bool:
        """Whether nobody outside this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


def read_models(words: list[str] | tuple[str, ...]) -> dict[str, str]:
    """Read `CHECKPOINT` and `NAME=CHECKPOINT`: the checkpoints of models by the names that clients use.

    A checkpoint without a name is called as its file or folder is.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, checkpoint = word.partition("=")
        if not equals or not NAME.fullmatch(name):
            name, checkpoint = usual_name(word), word
        if not checkpoint:
            raise ConfigError(f"expected CHECKPOINT or NAME=CHECKPOINT; got {word!r}.")
        if name in found:
            raise ConfigError(f"two models are called {name!r}. Name them: NAME=CHECKPOINT.")
        found[name] = checkpoint
    if not found:
        raise ConfigError("there is no model to serve. Give a checkpoint, or NAME=CHECKPOINT.")
    return found


def usual_name(checkpoint: str) -> str:
    """Call a model as its file or folder is called, in signs that an address may hold."""
    last = re.split(r"[/\\]", checkpoint.rstrip("/\\"))[-1]
    stem = re.sub(r"\.(safetensors|npz|pth|pt|bin|ckpt)$", "", last)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:100]
    return name if NAME.fullmatch(name) else "model"
