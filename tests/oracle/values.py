"""Hypothesis strategies for messages: any value that a version can encode."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import string
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import protocol.messages
from protocol.messages import search, stored_records
from protocol.schema import Field, Message, Wire, blank, wire_of

_BITS = {"b": 8, "h": 16, "i": 32, "q": 64}
# Around the lengths whose encoding needs another byte.
_LENGTHS = (0, 1, 126, 127, 128, 255, 256, 16_382, 16_383, 32_767)
_OF_A_LATER_RELEASE = {stored_records.UnregisterControllerRecord}  # than the jars of the tests
CLASSES: list[type[Message]] = [
    cls
    for module in pkgutil.iter_modules(protocol.messages.__path__, "protocol.messages.")
    for cls in vars(importlib.import_module(module.name)).values()
    if isinstance(cls, type) and issubclass(cls, Message) and cls is not Message
]
_OURS = [cls for cls in CLASSES if cls.__module__ == search.__name__ and cls.MAX_VERSION >= 0]
MESSAGES = [cls for cls in CLASSES if cls.MAX_VERSION >= 0 and cls not in _OF_A_LATER_RELEASE and cls not in _OURS]
"""Those of Apache Kafka, without our own APIs."""

VERSIONS = [(cls, version) for cls in MESSAGES for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1)]


def version_id(value: object) -> str:
    """The test id of a class or version."""
    return value.__name__ if isinstance(value, type) else str(value)


class Limits(NamedTuple):
    """Restrictions for implementations that do not support all values."""

    error_codes: tuple[int, ...] | None = None
    times: tuple[int, int] | None = None
    """Of timestamps."""
    with_unknown_tags: bool = True


NO_LIMITS = Limits()


@functools.cache
def messages(cls: type[Message], version: int, limits: Limits = NO_LIMITS) -> SearchStrategy[Message]:
    """Messages of one class with values for the fields of the version."""
    return _structs(wire_of(cls), version, version >= cls.FLEXIBLE_SINCE, limits)


@functools.cache
def _structs(wire: Wire, version: int, flexible: bool, limits: Limits) -> SearchStrategy[Message]:
    fields = {field.name: _field(field, version, flexible, limits) for field in wire.fields if field.is_in(version)}
    tags = st.none()
    if flexible and limits.with_unknown_tags:
        few = st.dictionaries(st.integers(50, 2**31 - 2), st.binary(max_size=5), min_size=1, max_size=2)
        tags = st.one_of(st.none(), st.none(), st.none(), few)

    def make(values: dict[str, Any], unknown: dict[int, bytes] | None) -> Message:
        assert wire.message is not None
        message = wire.message(**values)
        message.unknown_tagged_fields = unknown
        return message

    return st.builds(make, st.fixed_dictionaries(fields), tags)


def _field(field: Field, version: int, flexible: bool, limits: Limits) -> SearchStrategy[Any]:
    values = _named(field, limits)
    if values is None:
        values = _values(field.wire, version, flexible, limits)
    if field.tag is not None and field.wire.kind != "struct":
        values = st.one_of(st.just([] if field.default == () else field.default), values)
    if field.tag is not None and field.wire.kind == "struct":
        assert field.wire.message is not None
        plain = blank(field.wire.message)  # is omitted, so it would decode to None
        values = st.one_of(st.none(), values.filter(lambda value: value != plain))
    elif field.is_nullable_in(version):
        values = st.one_of(st.none(), values)
    return values


def _named(field: Field, limits: Limits) -> SearchStrategy[Any] | None:
    """Values of a field that are restricted by its name."""
    if limits.error_codes is not None and field.name.endswith("error_code"):
        return st.sampled_from(limits.error_codes)
    if limits.times is not None and field.wire.code == "q" and field.name.endswith(("_ms", "timestamp")):
        return st.integers(*limits.times)
    return None


def _values(wire: Wire, version: int, flexible: bool, limits: Limits) -> SearchStrategy[Any]:
    if wire.kind == "fixed":
        return _numbers(wire.code)
    if wire.kind in ("string", "legacy_string"):
        return _texts()
    if wire.kind in ("bytes", "records"):
        return _blobs()
    if wire.kind == "array":
        assert wire.element is not None
        few = st.lists(_values(wire.element, version, flexible, limits), max_size=3)
        if wire.element.kind == "fixed":
            return st.one_of(few, few, st.lists(_numbers(wire.element.code), min_size=8, max_size=11))
        return few
    return _structs(wire, version, flexible, limits)


@functools.cache
def _numbers(code: str) -> SearchStrategy[Any]:
    if code == "?":
        return st.booleans()
    if code == "16s":
        return st.one_of(st.just(bytes(16)), st.binary(min_size=16, max_size=16))
    if code == "H":
        return st.integers(0, 2**16 - 1)
    if code == "d":
        return st.floats(allow_nan=False, allow_infinity=False)
    bits = _BITS[code]
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.one_of(st.integers(low, high), st.sampled_from((low, -1, 0, 1, high)))


@functools.cache
def _texts() -> SearchStrategy[str]:
    short = st.text(st.characters(codec="utf-8"), max_size=6)
    letters = st.text(string.ascii_lowercase, max_size=6)
    long = st.builds(lambda length, letter: letter * length, st.sampled_from(_LENGTHS), st.sampled_from("xy"))
    return st.one_of(letters, short, letters, long)


@functools.cache
def _blobs() -> SearchStrategy[bytes]:
    long = st.builds(lambda length: b"\xff" * length, st.sampled_from((*_LENGTHS, 32_768, 70_000)))
    return st.one_of(st.binary(max_size=6), st.binary(max_size=6), long)
