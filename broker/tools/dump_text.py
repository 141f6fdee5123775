"""Rows of a dump as lines, identical to those of Apache Kafka's DumpLogSegments for the files that it supports.

NOT HERE JSON (dump_log.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.tools.dump_batches import Row
from broker.tools.message_json import json_text

_BATCH = (
    *("baseOffset", "lastOffset", "count", "baseSequence", "lastSequence", "producerId", "producerEpoch"),
    *("partitionLeaderEpoch", "isTransactional", "isControl", "deleteHorizonMs", "position", "timestamp", "size"),
    *("magic", "compresscodec", "crc", "isvalid"),
)
_OPTIONAL = {"deleteHorizonMs", "currentTxnFirstOffset"}


def line(row: Row, *, skip_record_metadata: bool = False) -> str:
    """A row as one line without its end; empty if nothing of it is shown, like Kafka's."""
    if row["type"] == "record" and skip_record_metadata:
        return _bare_record(row)
    return _LINES.get(row["type"], _all)(row)


def _labelled(row: Row, names: tuple[str, ...] | list[str]) -> str:
    return " ".join([f"{_label(row, name)}: {_java(name, row[name])}" for name in names])


def _label(row: Row, name: str) -> str:
    return str(row["timestampType"]) if name == "timestamp" and "timestampType" in row else name


def _java(name: str, value: Any) -> str:
    if name in _OPTIONAL:
        return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _record(row: Row) -> str:
    metadata = _labelled(row, ["offset", "timestamp", "keySize", "valueSize", "sequence"])
    control = "".join([_control(name, value) for name, value in row.get("control", {}).items()])
    return f"| {metadata} headerKeys: [{','.join(row['headerKeys'])}]{control}{_contents(row)}"


def _control(name: str, value: Any) -> str:
    if not isinstance(value, dict):
        return f" {name}: {value}"
    return f" {name}{':' if name == 'LeaderChange' else ''} {json_text(value)}"


def _bare_record(row: Row) -> str:
    contents = _contents(row)
    return f"|{contents}" if contents else ""


def _contents(row: Row) -> str:
    key, payload = row.get("key"), row.get("payload")
    shown = "" if key is None else f" key: {_text(key)}"
    return shown if payload is None else f"{shown} payload: {_text(payload)}"


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else json_text(value)


def _all(row: Row) -> str:
    return _labelled(row, [name for name in row if name != "type"])


def _producer(row: Row) -> str:
    return _all(row) + ("" if "timestamp" in row else " ")  # Kafka ends the line with a blank


_LINES: dict[str, Callable[[Row], str]] = {
    "log": lambda row: f"Log starting offset: {row['startOffset']}",
    "snapshot": lambda row: f"Snapshot end offset: {row['endOffset']}, epoch: {row['epoch']}",
    "bootstrapSnapshot": lambda row: "KRaft bootstrap snapshot",  # noqa: ARG005
    "batch": lambda row: _labelled(row, _BATCH),
    "record": _record,
    "tail": lambda row: f"Found {row['size']} invalid bytes at the end of {row['name']}",
    "empty": lambda row: f"{row['path']} is empty.",
    "sanity": lambda row: f"{row['path']} passed sanity check.",
    "producer": _producer,
    "property": lambda row: f"{row['name']}: {row['value']}",
    "json": lambda row: json_text(row["content"]),
}
