r"""kcat's dialect: its -f, translated into ours, and its -J.

FORMAT   %s value, %S its size, %R its size as big32, %k %K key, %t topic, %p partition, %o offset, %T timestamp in
         milliseconds, %h headers as a=b,c=d, %% a percent sign, \n \r \t \xNN
         -J is {"topic","partition","offset","tstype","ts","headers":[name,value,…],"key","payload"}
RULES    1. A null prints as nothing, in %h as NULL. In -J bytes that are not UTF-8 are replaced; our own JSON lines keep them.
         2. "broker" of kcat's -J is not printed, and ignored when it is read.
"""

from __future__ import annotations

import json
from typing import Any

from barnabas.cli.records.layout import Part, parse_layout
from barnabas.cli.records.parsed_record import MalformedInput, ParsedRecord, check_place
from barnabas.client.record_batches import Header, Record

KCAT_HEADERS = "kcat"
"""The modifier of %h that prints a=b,c=d."""
_LETTERS = frozenset("sSRkKtpoTh")
_OURS = {
    "s": Part("v"),
    "S": Part("V"),
    "R": Part("V", "big32"),
    "T": Part("d"),
    "h": Part("h", KCAT_HEADERS),
}


def parse_kcat_layout(text: str) -> list[Part]:
    """Cuts kcat's format into our parts. Raises ClientError."""
    return [_OURS.get(part.letter, part) for part in parse_layout(text, _LETTERS, has_modifiers=False)]


def kcat_headers(headers: Any) -> bytes:
    """All headers, as %h prints them."""
    return b",".join(name + b"=" + (b"NULL" if value is None else value) for name, value in headers)


def kcat_line(record: Record) -> bytes:
    """The line of kcat -J."""
    fields: dict[str, Any] = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    fields |= {"tstype": "logappend" if record.batch.has_append_time else "create", "ts": record.timestamp}
    if record.headers:
        fields["headers"] = [_text(part) for header in record.headers for part in header]
    fields |= {"key": _text(record.key), "payload": _text(record.value)}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def parse_kcat_line(line: bytes) -> ParsedRecord:
    """The record of a line of kcat -J. Raises MalformedInput."""
    try:
        fields = json.loads(line)
        texts = fields.get("headers", [])
        headers: list[Header] = [(texts[at].encode(), _bytes(texts[at + 1])) for at in range(0, len(texts), 2)]
        place = fields.get("topic"), fields.get("partition"), fields.get("ts")
        check_place(*place)
        return ParsedRecord(_bytes(fields["payload"]), _bytes(fields.get("key")), headers, *place)
    except (ValueError, KeyError, AttributeError, IndexError, TypeError, RecursionError) as failure:
        raise MalformedInput(f"it is no line of kcat -J ({type(failure).__name__}: {failure})") from failure


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
