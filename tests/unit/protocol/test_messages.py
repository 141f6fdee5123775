"""protocol/messages/: the tables as a whole."""

from __future__ import annotations

import json
import re
import zipfile
from functools import cache
from typing import Any

import pytest

from protocol.api import APIS
from protocol.messages import admin, groups, headers, metadata, produce_fetch, quorum, stored, transactions
from protocol.schema import Message, fields_of
from replication.metadata_records import RECORD_TYPES
from tests.oracle.values import MESSAGES, version_id
from tests.support.kafka import KAFKA_VERSION, kafka_home, needs_kafka

MODULES = (admin, groups, headers, metadata, produce_fetch, quorum, stored, transactions)
CLASSES = [
    cls
    for module in MODULES
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, Message) and cls is not Message
]


@cache
def kafka_schemas() -> dict[str, dict[str, Any]]:
    """Kafka's own schemas, by the name of their message."""
    schemas = {}
    for jar in ("kafka-clients", "kafka-metadata", "kafka-group-coordinator"):
        with zipfile.ZipFile(kafka_home() / "libs" / f"{jar}-{KAFKA_VERSION}.jar") as archive:
            for name in archive.namelist():
                if re.match(r"common/(message|metadata)/\w+\.json", name):
                    text = re.sub(r"(?m)(^|\s)//.*$", "", archive.read(name).decode())
                    schema = json.loads(text)
                    schemas[schema["name"]] = schema
    return schemas


@needs_kafka
@pytest.mark.parametrize("cls", MESSAGES, ids=version_id)
def test_key_and_versions_are_kafkas(cls: type[Message]) -> None:
    """All versions of Kafka 4.3, none missing at either end."""
    schema = kafka_schemas()[cls.__name__]
    low, _, high = schema["validVersions"].partition("-")
    flexible = schema["flexibleVersions"]
    assert (int(low), int(high or low)) == (cls.MIN_VERSION, cls.MAX_VERSION)
    assert (None if flexible == "none" else int(flexible.removesuffix("+"))) == cls.FLEXIBLE_SINCE
    assert schema.get("apiKey", -1) == cls.API_KEY


@pytest.mark.parametrize("cls", CLASSES, ids=version_id)
def test_every_class_is_documented_and_evaluates(cls: type[Message]) -> None:
    """Annotations are text until used: a misspelt type shows here, not in production."""
    assert cls.__doc__
    for field in fields_of(cls):
        low, high = (cls.MIN_VERSION, cls.MAX_VERSION) if cls.MAX_VERSION >= 0 else (0, 99)
        assert field.since <= high, f"{field.name} begins after the last version"
        assert field.until >= low, f"{field.name} ends before the first version"
        if field.since > low or field.until < high:
            assert field.has_default, f"{field.name} is not in every version, so it needs a default"


def test_tags_of_a_struct_differ() -> None:
    """A tag names one field, in whatever version."""
    for cls in CLASSES:
        tags = [field.tag for field in fields_of(cls) if field.tag is not None]
        assert len(tags) == len(set(tags)), cls.__name__


def test_every_message_has_its_row() -> None:
    """A request belongs to api.py, a metadata record to metadata_records.py: who forgets it learns it here."""
    in_tables = {message for api in APIS.values() for message in api} | set(RECORD_TYPES.values())
    for cls in MESSAGES:
        if cls.API_KEY >= 0 and cls.__name__.endswith(("Request", "Response", "Record")):
            assert cls in in_tables, f"{cls.__name__} has no row"


def test_nested_structs_are_used() -> None:
    """A struct that no message holds is dead."""
    held, waiting = set(), [cls for cls in CLASSES if cls.MAX_VERSION >= 0]
    while waiting:
        cls = waiting.pop()
        held.add(cls)
        for field in fields_of(cls):
            inner = field.wire.message or (field.wire.element and field.wire.element.message)
            if inner and inner not in held:
                waiting.append(inner)
    assert set(CLASSES) == held
