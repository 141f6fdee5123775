"""Records as JSON, one in a line; nothing is lost.

FORMAT   {"topic":"t","partition":0,"offset":7,"timestamp":1767225600000,"key":"k","value":"text",
         "headers":[{"key":"a","value":null}]}
         bytes that are UTF-8 are a string, others {"base64":"/w=="}, null is null; with log append time there is
         "timestamp_type":"log-append"
RULES    1. Of a record that was read, every byte of key, value and headers is in the line, and parsing it gives them back.
         2. A line needs only "value". An absent key is null; an absent timestamp is the time of writing. "offset" and
            "timestamp_type" are ignored; other names are refused, since a misspelt one would be lost.
NOT HERE Formats for people and other programs (`layout.py`, `kcat_dialect.py`).
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from json.encoder import encode_basestring
from typing import Any

from barnabas.cli.records.parsed_record import MalformedInput, ParsedRecord, check_place
from barnabas.client.batch_header import LOG_APPEND_TIME
from barnabas.client.record_batches import Header, Record

_FIELDS = {"topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers"}
_decode = json.JSONDecoder().decode


def line_of(record: Record, *, has_value: bool = True) -> bytes:
    """The line of a record, with its end."""
    topic, partition, offset, timestamp, key, value, headers, batch = record
    mark = ',"timestamp_type":"log-append"' if batch.attributes & LOG_APPEND_TIME else ""
    tail = "".join(f',"headers":[{",".join(map(_header, headers))}]') if headers else ""
    content = f',"value":{_text(value)}' if has_value else ""
    return (
        f'{{"topic":{encode_basestring(topic)},"partition":{partition},"offset":{offset},"timestamp":{timestamp}{mark},'
        f'"key":{_text(key)}{content}{tail}}}\n'
    ).encode()


def json_value(data: bytes | None) -> str | dict[str, str] | None:
    """A key, a value or a part of a header as a JSON value: text, an object with base64, or null."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def _text(data: bytes | None) -> str:
    value = json_value(data)
    return encode_basestring(value) if type(value) is str else json.dumps(value, separators=(",", ":"))


def _header(header: Header) -> str:
    return f'{{"key":{_text(header[0])},"value":{_text(header[1])}}}'


def parse_line(line: bytes) -> ParsedRecord:
    """The record of a line. Raises MalformedInput."""
    try:
        fields = _decode(line.decode())
    except (ValueError, RecursionError) as failure:
        raise MalformedInput(f"it is not JSON: {failure}; -f gives another format, --lines takes text") from failure
    if type(fields) is not dict:
        raise MalformedInput("it is not a JSON object; -f gives another format, --lines takes text")
    if "value" not in fields:
        raise MalformedInput('it has no "value"; a tombstone has "value":null')
    if not fields.keys() <= _FIELDS:
        raise MalformedInput(f'"{min(fields.keys() - _FIELDS)}" is no field of a record: {", ".join(sorted(_FIELDS))}')
    get = fields.get
    topic, partition, timestamp, headers = get("topic"), get("partition"), get("timestamp"), get("headers")
    check_place(topic, partition, timestamp)
    pairs = () if headers is None else [_parse_header(header) for header in _list(headers)]
    return ParsedRecord(_bytes("value", fields["value"]), _bytes("key", get("key")), pairs, topic, partition, timestamp)


def _bytes(name: str, found: Any) -> bytes | None:
    if found is None:
        return None
    try:
        if isinstance(found, str):
            return found.encode()
        if isinstance(found, dict) and found.keys() == {"base64"}:
            return b64decode(found["base64"], validate=True)
    except (ValueError, TypeError) as failure:
        raise MalformedInput(f'"{name}" cannot be decoded: {failure}') from failure
    raise MalformedInput(f'"{name}" is no string, no {{"base64":"…"}} and not null')


def _list(found: Any) -> list[Any]:
    if not isinstance(found, list):
        raise MalformedInput('"headers" is not a list')
    return found


def _parse_header(found: Any) -> Header:
    if not isinstance(found, dict) or not {"key"} <= found.keys() <= {"key", "value"}:
        raise MalformedInput('a header is not {"key":"…","value":"…"}')
    name = _bytes("key", found["key"])
    if name is None:
        raise MalformedInput("the key of a header is null")
    return name, _bytes("value", found.get("value"))
