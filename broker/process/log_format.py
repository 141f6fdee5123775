"""Log lines on standard error, as text or JSON (`barnabas.log.format`).

FORMAT   text   2026-11-24 00:13:43,123 INFO barnabas.quorum: node 1 leads the metadata quorum
         json   {"time": "2026-11-24T00:13:43.123Z", "level": "INFO", "logger": "barnabas.quorum", "message": "node 1 leads …"}
                with "exception" for a stack trace, and the fields that a line has besides, such as those of a slow request
RULES    1. Control characters are escaped, so that names from clients cannot add lines; in text a stack trace keeps its lines.
         2. Lines before the settings are read are held, and written in their format.
NOT HERE Levels (`log_levels.py`).
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, ClassVar, Final

TEXT: Final = "text"
JSON: Final = "json"
FIELDS: Final = "fields"
"""The key in `extra` of a log call for a dictionary of fields, which only JSON shows."""


class OneLine(logging.Formatter):
    """A text line."""

    _SHOWN: ClassVar = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The escaped line."""
        return super().formatMessage(record).translate(self._SHOWN)


class JsonLine(logging.Formatter):
    """A line with one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """The object; its time is UTC."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(getattr(record, FIELDS, {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class StandardError(logging.StreamHandler[Any]):
    """Writes log lines to standard error; holds them until it knows their format (rule 2)."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._held: list[logging.LogRecord] | None = []

    def emit(self, record: logging.LogRecord) -> None:
        """Writes or holds a line."""
        if self._held is None:
            super().emit(record)
        else:
            self._held.append(record)

    def begin(self, log_format: str) -> None:
        """Writes the held lines, and later ones at once."""
        text = OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self.setFormatter(JsonLine() if log_format == JSON else text)
        held, self._held = self._held or [], None
        for record in held:
            super().emit(record)


def log_to_standard_error() -> StandardError:
    """Sends all log lines to the handler that is returned."""
    handler = StandardError()
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    return handler
