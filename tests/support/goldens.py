"""Answers of Apache Kafka, recorded once and compared always.

RULES    1. `golden(name)` returns the record of this name in tests/goldens; `as_json` makes other values comparable with it.
         2. A test marked `golden` calls `check_golden`: it asks a live Apache Kafka and fails if the record differs.
            With RECORD_GOLDENS=1 (`make goldens`) it writes the record instead.
         3. A record names the version of Apache Kafka that answered.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.support.kafka import KAFKA_VERSION

FOLDER = Path(__file__).parents[1] / "goldens"


def golden(name: str) -> Any:
    """The recorded answers."""
    return json.loads((FOLDER / f"{name}.json").read_text())["answers"]


def as_json(value: Any) -> Any:
    """The value after a round trip through JSON: tuples become lists, integer keys become text, bytes become hexadecimal."""
    return json.loads(json.dumps(value, default=_encode))


def check_golden(name: str, answers: Any) -> None:
    """Compare the answers of a live Apache Kafka with the record, or write them (rule 2)."""
    if os.environ.get("RECORD_GOLDENS"):
        FOLDER.mkdir(exist_ok=True)
        record = {"kafka": KAFKA_VERSION, "answers": as_json(answers)}
        (FOLDER / f"{name}.json").write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    assert as_json(answers) == golden(name), "make goldens records the answers of this Apache Kafka"


def _encode(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
