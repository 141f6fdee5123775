"""Stored messages as JSON, like Apache Kafka's generated converters.

RULES    1. Field names are in camel case, in the order of the message. A field that the version does not have is left out,
            and so is a tagged field with its default, except a struct.
         2. A uuid is Kafka's text of it, bytes are base64.
NOT HERE The message class of a record (decoding.py).
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from typing import Any

from protocol.primitives import uuid_text
from protocol.schema import EMPTY, Message, Wire, fields_of


def json_text(value: Any) -> str:
    """One line of JSON, as compact as Kafka's."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def message_json(message: Message, version: int) -> dict[str, Any]:
    """The fields of a message in this version."""
    found = {}
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        default = [] if field.default is EMPTY else field.default
        is_optional = field.tag is not None and field.wire.kind != "struct"
        if field.is_in(version) and not (is_optional and value == default):
            found[_camel_case(field.name)] = _value(value, field.wire, version)
    return found


def type_name(message: Message) -> str:
    """The name of a record's type, such as TOPIC_RECORD."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(message).__name__).upper()


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return ("kRaft" if first == "kraft" else first) + "".join(word.capitalize() for word in others)


def _value(value: Any, wire: Wire, version: int) -> Any:
    if isinstance(value, Message):
        return message_json(value, version)
    if isinstance(value, list):
        assert wire.element is not None
        return [_value(element, wire.element, version) for element in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return uuid_text(bytes(value)) if wire.code == "16s" else b64encode(value).decode("ascii")
    return value
