"""Files that have come in part, and of which version of the file they are a part."""

import json
from dataclasses import dataclass
from pathlib import Path

from vitrail.files.atomic import write_bytes


@dataclass(frozen=True)
class Part:
    """A partial file, and beside it the record of which version of the file it is a part of."""

    path: Path

    @property
    def record(self) -> Path:
        """Where the version is written down."""
        return self.path.with_name(f"{self.path.name}.json")

    def begin(self, shown: str, validator: str | None, total: int | None) -> None:
        """Start from nothing; the old bytes go before the new record comes, so that the two never mix."""
        self.clear()
        record = {"url": shown, "validator": validator, "total": total}
        write_bytes(self.record, json.dumps(record, indent=1).encode())

    def state(self) -> tuple[int, str, int | None]:
        """The bytes that can be continued, the version that they are of, and its size; 0 where that is not known."""
        try:
            record = json.loads(self.record.read_bytes())
            validator, total = record["validator"], record["total"]
            size = self.path.stat().st_size
        except (OSError, ValueError, KeyError, TypeError):
            return 0, "", None
        if not isinstance(validator, str) or not isinstance(total, int | None):
            return 0, "", None
        return size, validator, total

    def clear(self) -> None:
        """Forget what came so far."""
        self.path.unlink(missing_ok=True)
        self.record.unlink(missing_ok=True)
