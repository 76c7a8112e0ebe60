"""What a server writes down: a line for each request and event, as JSON for programs or as text for people."""

import json
import logging
import sys
import time
from typing import Any

from vitrail.errors import harmless


class JsonLines(logging.Formatter):
    """A JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Give the time, the level, what is said, and what belongs to it."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        notes: dict[str, Any] = getattr(record, "notes", {})
        line: dict[str, Any] = {"time": f"{stamp}.{int(record.msecs):03d}Z", "level": record.levelname.lower()}
        line |= {"message": record.getMessage(), **notes}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class Plain(logging.Formatter):
    """A line for people; nothing in it drives a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Give the time of day and what is said."""
        line = f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {record.getMessage()}"
        if record.levelno >= logging.WARNING:
            line = line.replace(" ", f" {record.levelname.lower()}: ", 1)
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return harmless(line)


def set_up(form: str, *, quiet: bool = False) -> None:
    """Send what the server and the web engine say to standard error."""
    text = form == "text" or (form == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Plain() if text else JsonLines())
    for name, level in (("vitrail", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.WARNING if quiet else level)
