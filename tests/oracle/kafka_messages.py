"""Apache Kafka's message classes, called through one small Java process.

RULES    1. One process serves all tests of a run; it starts at the first call and ends with the run.
NOT HERE The Java side (`KafkaMessages.java`), the jars (`tests/support/kafka.py`).
"""

from __future__ import annotations

import atexit
import base64
import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

from protocol.api import APIS
from protocol.messages.headers import RequestHeader, ResponseHeader
from protocol.schema import Message
from replication.metadata.metadata_records import RECORD_TYPES
from tests.support.kafka import tool_command
from tests.support.line_process import LineProcess

_REQUESTS_AND_RESPONSES = {message for api in APIS.values() for message in api} | {RequestHeader, ResponseHeader}


class Reading(NamedTuple):
    """Kafka's result for a frame: the bytes it encodes again, the number of unread bytes, and the values as JSON."""

    written: bytes
    left_over: int
    values: dict[str, Any]


class KafkaRefuses(Exception):
    """Kafka cannot decode the bytes."""


class KafkaMessages:
    """The Java process."""

    def __init__(self) -> None:
        self._process = LineProcess(tool_command(str(Path(__file__).with_name("KafkaMessages.java"))))
        atexit.register(self._process.stop)

    def read(self, cls: type[Message], version: int, frame: bytes) -> Reading:
        """Decodes a frame with Kafka's class; raises KafkaRefuses if that fails."""
        line = f"{java_name(cls)} {version} {base64.b64encode(frame).decode()}"
        status, rest = self._process.ask(line).split(" ", maxsplit=1)
        if status == "no":
            raise KafkaRefuses(rest)
        written, left_over, values = rest.split(" ", maxsplit=2)
        return Reading(base64.b64decode(written), int(left_over), json.loads(values))


@functools.cache
def kafka_messages() -> KafkaMessages:
    """The process of this test run."""
    return KafkaMessages()


def java_name(cls: type[Message]) -> str:
    """The Java class of a message."""
    if cls in RECORD_TYPES.values():
        return f"org.apache.kafka.common.metadata.{cls.__name__}"
    if cls.__module__.endswith(".stored_records") and cls.API_KEY >= 0:
        coordinator = "transaction" if cls.__name__.startswith("TransactionLog") else "group"
        return f"org.apache.kafka.coordinator.{coordinator}.generated.{cls.__name__}"
    suffix = "Data" if cls in _REQUESTS_AND_RESPONSES else ""
    return f"org.apache.kafka.common.message.{cls.__name__}{suffix}"
