"""All message classes compared with Kafka's schemas (protocol/messages/)."""

from __future__ import annotations

import json
import re
import zipfile
from functools import cache
from typing import Any

import pytest

from protocol.api import APIS
from protocol.primitives import ZERO_UUID
from protocol.schema import NEVER, Field, Message, Wire, fields_of, wire_of
from replication.metadata.metadata_records import RECORD_TYPES
from tests.oracle.values import CLASSES, MESSAGES, version_id
from tests.support.kafka import KAFKA_VERSION, kafka_home, needs_kafka


@cache
def kafka_schemas() -> dict[str, dict[str, Any]]:
    """Kafka's schemas by message name."""
    schemas = {}
    for jar in ("kafka-clients", "kafka-metadata", "kafka-group-coordinator", "kafka-transaction-coordinator"):
        with zipfile.ZipFile(kafka_home() / "libs" / f"{jar}-{KAFKA_VERSION}.jar") as archive:
            for name in archive.namelist():
                if re.match(r"common/(message|metadata)/\w+\.json", name):
                    text = re.sub(r"(?m)(^|\s)//.*$", "", archive.read(name).decode())
                    schema = json.loads(text)
                    schemas[schema["name"]] = schema
    return schemas


@needs_kafka
@pytest.mark.smoke  # reads schemas out of the jars, without a JVM
@pytest.mark.parametrize("cls", MESSAGES, ids=version_id)
def test_key_and_versions_equal_kafkas(cls: type[Message]) -> None:
    """All versions of Kafka 4.3."""
    schema = kafka_schemas()[cls.__name__]
    low, _, high = schema["validVersions"].partition("-")
    flexible = schema["flexibleVersions"]
    assert (int(low), int(high or low)) == (cls.MIN_VERSION, cls.MAX_VERSION)
    assert (NEVER if flexible == "none" else int(flexible.removesuffix("+"))) == cls.FLEXIBLE_SINCE
    assert schema.get("apiKey", -1) == cls.API_KEY


# Fields whose default differs from Kafka's "", zero or empty list.
OWN_DEFAULTS = {
    ("CreatePartitionsTopic", "assignments"): None,
    ("DescribeConfigsResource", "configuration_keys"): None,
    ("DescribeConfigsResourceResult", "documentation"): None,
    ("ListOffsetsRequest", "replica_id"): -1,
    ("MemberResponse", "group_instance_id"): None,
    ("PartitionData", "aborted_transactions"): None,
    ("RegisterBrokerRecord", "rack"): None,
}


@needs_kafka
@pytest.mark.smoke  # reads schemas out of the jars, without a JVM
@pytest.mark.parametrize("cls", MESSAGES, ids=version_id)
def test_every_field_equals_kafkas(cls: type[Message]) -> None:
    """Order, type, versions, nullability, tag, default and ignorability of each field."""
    schema = kafka_schemas()[cls.__name__]
    shared = {struct["name"]: struct["fields"] for struct in schema.get("commonStructs", ())}
    assert_fields(wire_of(cls), schema["fields"], shared, set(range(cls.MIN_VERSION, cls.MAX_VERSION + 1)))


def assert_fields(struct: Wire, schemas: list[dict[str, Any]], shared: dict[str, Any], versions: set[int]) -> None:
    """Compares a struct in those versions of its message that have it."""
    cls, fields = struct.message, struct.fields
    assert cls is not None
    assert [field.name.replace("_", "") for field in fields] == [schema["name"].lower() for schema in schemas]
    for field, schema in zip(fields, schemas, strict=True):
        where = f"{cls.__name__}.{field.name}"
        carried = in_range(schema["versions"] if "versions" in schema else schema["taggedVersions"]) & versions
        assert {version for version in versions if field.is_in(version)} == carried, where
        assert schema.get("tag") == field.tag, where
        assert carried == versions or schema.get("ignorable", False) is field.is_ignorable, where
        nullable = {version for version in carried if field.is_nullable_in(version)}
        assert nullable == in_range(schema.get("nullableVersions", "none")) & carried, where
        assert wire_name(field.wire) == kafka_name(schema["type"]), where
        assert (field.wire.kind == "array") is schema["type"].startswith("[]"), where
        assert_default(cls, field, schema)
        inner = _innermost(field.wire)
        if inner.kind == "struct":
            kind = schema["type"].removeprefix("[]")
            assert_fields(inner, schema.get("fields") or shared[kind], shared, carried)


def _innermost(wire: Wire) -> Wire:
    """The type of an array's elements, or the type itself."""
    return wire.element if wire.kind == "array" and wire.element is not None else wire


def assert_default(cls: type[Message], field: Field, schema: dict[str, Any]) -> None:
    """The schema's default, or zero; a missing struct is None."""
    if not field.has_default or field.wire.kind == "struct":
        assert "default" not in schema or field.default is None, f"{cls.__name__}.{field.name} needs its default"
        return
    text = "" if schema.get("default") is None else str(schema["default"])  # Kafka ignores JSON's null
    expected: Any = OWN_DEFAULTS.get((cls.__name__, field.name), text)
    if field.name == "error_message":  # error messages are null by default in every response
        text = "null"
    if text == "null":
        expected = None
    elif text and field.wire.code == "?":
        expected = text == "true"
    elif text:
        expected = int(text, 0)
    elif expected == "" and field.wire.kind != "string":
        expected = {"array": (), "bytes": b""}.get(field.wire.kind, ZERO_UUID if field.wire.code == "16s" else 0)
    assert field.default == expected, f"{cls.__name__}.{field.name}"


def in_range(text: str) -> set[int]:
    """The versions of "3+", "0-7", "4" or "none"."""
    low, _, high = text.removesuffix("+").partition("-")
    last = 99 if text.endswith("+") else int(high or low) if text != "none" else -1
    return set(range(int(low), last + 1)) if text != "none" else set()


def wire_name(wire: Wire) -> str:
    """Kafka's name of a type; all structs are "struct"."""
    wire = _innermost(wire)
    names = {"?": "bool", "b": "int8", "h": "int16", "H": "uint16", "i": "int32", "q": "int64"} | {
        "d": "float64",
        "16s": "uuid",
    }
    return names.get(wire.code, wire.kind.removeprefix("legacy_"))


def kafka_name(text: str) -> str:
    """The type name of a schema; struct names start with a capital letter."""
    return "struct" if text.removeprefix("[]")[0].isupper() else text.removeprefix("[]")


@pytest.mark.parametrize("cls", CLASSES, ids=version_id)
def test_annotations_of_every_class_are_valid(cls: type[Message]) -> None:
    """Annotations are text until used, so a misspelt type would otherwise fail at run time."""
    assert cls.__doc__ or cls.REQUEST
    for field in fields_of(cls):
        low, high = (cls.MIN_VERSION, cls.MAX_VERSION) if cls.MAX_VERSION >= 0 else (0, 99)
        assert field.since <= high, f"{field.name} begins after the last version"
        assert field.until >= low, f"{field.name} ends before the first version"
        if field.since > low or field.until < high:
            assert field.has_default, f"{field.name} is not in every version, so it needs a default"


def test_tags_of_a_struct_are_unique() -> None:
    for cls in CLASSES:
        tags = [field.tag for field in fields_of(cls) if field.tag is not None]
        assert len(tags) == len(set(tags)), cls.__name__


def test_every_message_is_in_its_table() -> None:
    """A request needs a row in api.py, a metadata record one in metadata_records.py."""
    in_tables = {message for api in APIS.values() for message in api} | set(RECORD_TYPES.values())
    for cls in MESSAGES:
        if cls.API_KEY >= 0 and cls.__name__.endswith(("Request", "Response", "Record")):
            assert cls in in_tables, f"{cls.__name__} has no row"


def test_nested_structs_and_base_classes_are_used() -> None:
    held, waiting = set(), [wire_of(cls) for cls in CLASSES if cls.MAX_VERSION >= 0]
    while waiting:
        struct = waiting.pop()
        assert struct.message is not None
        held |= set(struct.message.__mro__)
        inner = [_innermost(field.wire) for field in struct.fields]
        waiting += [wire for wire in inner if wire.kind == "struct"]
    assert held >= set(CLASSES)
