"""Every version of every message compared with three other implementations, with generated values.

Other implementations decode our bytes completely and encode them to the same bytes; we decode our bytes to the same
values. Values are compared by name with Kafka's JSON.
"""

from __future__ import annotations

import base64
import functools
import importlib
import io
import os
import re
from pathlib import Path
from typing import Any

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import kio.schema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.protocol.api_message import ApiMessage
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer

from protocol.codec import decoder, encode
from protocol.messages.metadata import ApiVersionsResponse
from protocol.primitives import uuid_text
from protocol.schema import Field, Message, Wire, fields_of
from tests.oracle.kafka_messages import kafka_messages
from tests.oracle.values import VERSIONS, Limits, messages, version_id
from tests.support.kafka import needs_kafka

EXAMPLES = int(os.environ.get("MESSAGE_EXAMPLES", "6"))
EVERY_VERSION = pytest.mark.parametrize(("cls", "version"), VERSIONS, ids=version_id)
bounded = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


@functools.cache
def kafka_python_class(name: str) -> Any:
    modules = (kafka.protocol.admin, kafka.protocol.consumer, kafka.protocol.metadata, kafka.protocol.producer)
    assert all(modules)
    waiting, found = [ApiMessage], {}
    while waiting:
        cls = waiting.pop()
        found[cls.__name__] = cls
        waiting += cls.__subclasses__()
    return found.get(name)


def kio_module(name: str, version: int) -> str:
    stem, kind = re.fullmatch(r"(.*?)(Request|Response|)", name).groups()  # type: ignore[union-attr]
    if name.endswith("Header"):
        stem, kind = name, "header"
    package = re.sub(r"(?<!^)(?=[A-Z])", "_", stem).lower()
    return f"{package}.v{version}.{kind.lower() or 'data'}"


def in_kio(name: str, version: int) -> bool:
    """Whether kio has the message; imports nothing: 650 modules would take 3 s."""
    (root,) = kio.schema.__path__
    return Path(root, *kio_module(name, version).split(".")).with_suffix(".py").exists()


def kio_class(name: str, version: int) -> Any:
    if not in_kio(name, version):
        return None
    return getattr(importlib.import_module(f"kio.schema.{kio_module(name, version)}"), name)


IN_PYTHON = pytest.mark.parametrize(
    ("cls", "version"),
    [(cls, version) for cls, version in VERSIONS if in_kio(cls.__name__, version) or kafka_python_class(cls.__name__)],
    ids=version_id,
)
"""Messages that kio or kafka-python implement: all except the records that only brokers and controllers store."""


def read_back(cls: type[Message], version: int, message: Message, frame: bytes) -> None:
    """Our decoder returns the encoded message and its end position."""
    for buffer in (frame, memoryview(b"\x00\x00" + frame + b"\x01")[2:]):
        decoded, end = decoder(cls, version)(buffer, 0)
        assert decoded == message
        assert end == len(frame)


@needs_kafka
@EVERY_VERSION
@bounded
@given(data=st.data())
def test_kafka_decodes_and_encodes_the_same(cls: type[Message], version: int, data: st.DataObject) -> None:
    """Kafka's own classes, including unknown tagged fields and extreme values."""
    message = data.draw(messages(cls, version))
    frame = encode(message, version)
    read_back(cls, version, message, frame)
    reading = kafka_messages().read(cls, version, frame)
    assert reading.written == frame
    assert reading.left_over == 0
    assert_same(message, fields_of(cls), version, reading.values)


def assert_same(message: Message, fields: tuple[Field, ...], version: int, values: dict[str, Any]) -> None:
    """Compares a message with Kafka's JSON, which omits tagged fields with default values."""
    by_name = {name.lower(): value for name, value in values.items()}
    for field in fields:
        ours = getattr(message, field.name)
        key = field.name.replace("_", "")
        if key in by_name:
            assert_same_value(field.wire, version, ours, by_name.pop(key))
        elif field.is_in(version):
            assert field.tag is not None
            assert ours == ([] if field.default == () else field.default) or ours == type(ours)()
    assert not by_name, f"fields of Kafka that are missing here: {by_name}"


def assert_same_value(wire: Wire, version: int, ours: Any, theirs: Any) -> None:
    """Compares a field's value with Kafka's JSON, which omits records."""
    if wire.kind == "records":
        return
    if ours is None:
        assert theirs is None
    elif wire.kind == "array":
        assert wire.element is not None
        assert len(ours) == len(theirs)
        for our_element, their_element in zip(ours, theirs, strict=True):
            assert_same_value(wire.element, version, our_element, their_element)
    elif wire.kind == "struct":
        assert_same(ours, wire.fields, version, theirs)
    elif wire.kind == "bytes":
        assert ours == base64.b64decode(theirs)
    elif wire.code == "16s":
        assert uuid_text(ours) == theirs
    else:
        assert ours == theirs


KIO_LIMITS = Limits(
    error_codes=tuple(code.value for code in KioErrorCode),
    times=(0, 253_402_300_799_000),  # kio refuses -1 where Kafka's schema does not name it as the default
    with_unknown_tags=False,
)


@IN_PYTHON
@bounded
@given(data=st.data())
def test_python_libraries_decode_and_encode_the_same(cls: type[Message], version: int, data: st.DataObject) -> None:
    """kio's classes are generated from Kafka's schemas; kafka-python reads the schemas at run time."""
    kio, kafka_python = kio_class(cls.__name__, version), kafka_python_class(cls.__name__)
    message = data.draw(messages(cls, version, KIO_LIMITS))
    frame = encode(message, version)
    read_back(cls, version, message, frame)
    if kio is not None:
        entity, size = entity_reader(kio)(frame, 0)
        assert size == len(frame)
        buffer = io.BytesIO()
        entity_writer(kio)(buffer, entity)
        assert buffer.getvalue() == frame
    if kafka_python is not None and not decodes_as_version_0(message):
        decoded = kafka_python.decode(frame, version=version)
        decoded._header = None  # its decoder does not set this, its encoder needs it
        assert decoded.encode(version=version) == frame


def decodes_as_version_0(message: Message) -> bool:
    """kafka-python decodes every ApiVersions response with an error as version 0."""
    return isinstance(message, ApiVersionsResponse) and message.error_code != 0
