"""What a server counts, as Prometheus reads it; of several processes all are added up."""

import os
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess

SHARED = "PROMETHEUS_MULTIPROC_DIR"  # the folder in which processes behind one port keep their counts
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
IMAGES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counts of one process, under the prefix vitrail_."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def histogram(name: str, words: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"vitrail_{name}", words, buckets=buckets, registry=registry)

        self.requests = Counter(
            "vitrail_requests", "Requests by path and status.", ("path", "status"), registry=registry
        )
        self._refusals = Counter("vitrail_refusals", "Requests refused, by reason.", ("reason",), registry=registry)
        self.reloads = Counter(
            "vitrail_reloads", "Checkpoints taken up or refused.", ("model", "result"), registry=registry
        )
        self.request_seconds = histogram(
            "request_seconds", "Seconds from the head of a request to its answer.", SECONDS
        )
        self.waiting = histogram("waiting_seconds", "Seconds from the arrival of an image to its batch.", SECONDS)
        self.decoding = histogram("decoding_seconds", "Seconds of decoding an image.", SECONDS)
        self.computing = histogram("computing_seconds", "Seconds of computing a batch.", SECONDS)
        self.batch = histogram("batch_images", "Images in a batch.", IMAGES)
        self._queue = Gauge(
            "vitrail_queue_images",
            "Images that wait, or are being decoded.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._length: Callable[[], int] = lambda: 0

    def watch_queue(self, length: Callable[[], int]) -> None:
        """Say who knows how many images wait."""
        self._length = length

    def refused(self, reason: str) -> None:
        """Count a request that was refused."""
        self._refusals.labels(reason).inc()

    def text(self) -> bytes:
        """Give all counts in Prometheus's format."""
        self._queue.set(self._length())
        if SHARED not in os.environ:
            return generate_latest(self.registry)
        together = CollectorRegistry()
        multiprocess.MultiProcessCollector(together)
        return generate_latest(together)
