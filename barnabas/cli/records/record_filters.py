"""Which records `consume` prints: regular expressions over key, value and headers, and paths into JSON values.

FORMAT   a path is .name or ["name"] for fields and [3] for elements, such as .order.items[0].id, also with a leading $;
         PATH alone wants a value that is not null, PATH=TEXT one that is TEXT, or the JSON of TEXT
RULES    1. A record must pass all filters. A null matches no expression, a value that is not JSON has no path.
         2. Expressions are Python's, over bytes, and match anywhere.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from barnabas.client.errors import BAD_EXPRESSION, ArgumentError
from barnabas.client.record_batches import Record

Filter = Callable[[Record], bool]
_STEP = re.compile(r"\.([A-Za-z_][\w-]*)|\[(-?[0-9]{1,18})\]|\[(\"(?:[^\"\\]|\\.)*\")\]")
_NOTHING = object()


def filters_of(
    keys: Iterable[str], values: Iterable[str], headers: Iterable[str], paths: Iterable[str]
) -> list[Filter]:
    """The filters of these options. Raises ArgumentError."""
    return [
        *map(_key_filter, keys),
        *map(_value_filter, values),
        *map(_header_filter, headers),
        *map(_path_filter, paths),
    ]


def _key_filter(text: str) -> Filter:
    search = _expression("--grep-key", text).search
    return lambda record: record.key is not None and search(record.key) is not None


def _value_filter(text: str) -> Filter:
    search = _expression("--grep", text).search
    return lambda record: record.value is not None and search(record.value) is not None


def _header_filter(text: str) -> Filter:
    name, equals, pattern = text.partition("=")
    search, wanted = _expression("--grep-header", pattern).search, os.fsencode(name)

    def has_header(record: Record) -> bool:
        return any(
            key == wanted and (not equals or (value is not None and search(value) is not None))
            for key, value in record.headers
        )

    return has_header


def _path_filter(text: str) -> Filter:
    path, equals, wanted = _split_path(text)
    try:
        steps = [
            found[1] if found[1] is not None else int(found[2]) if found[2] is not None else json.loads(found[3])
            for found in _STEP.finditer(path)
        ]
    except ValueError as failure:  # an escape that JSON does not have
        raise ArgumentError(f"--json-path {text} is no path: {failure}.") from failure
    accepted: list[Any] = [wanted]
    with suppress(ValueError, RecursionError):  # a text that is no JSON is compared as text only
        accepted.append(json.loads(wanted))

    def has_value(record: Record) -> bool:
        try:
            found = _at(json.loads(record.value or b""), steps)
        except (ValueError, RecursionError):
            return False
        if not equals:
            return found is not _NOTHING and found is not None
        return any(found == value and type(found) is type(value) for value in accepted)

    return has_value


def _split_path(text: str) -> tuple[str, bool, str]:
    """The path, whether a value is wanted, and the value."""
    at = start = 1 if text.startswith("$") else 0
    while found := _STEP.match(text, at):
        at = found.end()
    if (at == start and start == 0) or (at < len(text) and text[at] != "="):
        raise ArgumentError(f"--json-path {text} is no path; .order.items[0].id=7 is.")
    return text[start:at], at < len(text), text[at + 1 :]


def _at(value: Any, steps: list[Any]) -> Any:
    """The value that a path leads to; _NOTHING if it leads nowhere."""
    for step in steps:
        is_field = isinstance(step, str) and isinstance(value, dict) and step in value
        is_element = isinstance(step, int) and isinstance(value, list) and -len(value) <= step < len(value)
        if not (is_field or is_element):
            return _NOTHING
        value = value[step]
    return value


def _expression(option: str, text: str) -> re.Pattern[bytes]:
    try:
        return re.compile(os.fsencode(text))
    except BAD_EXPRESSION as failure:
        raise ArgumentError(f"{option} {text} is not a regular expression: {failure}.") from failure
