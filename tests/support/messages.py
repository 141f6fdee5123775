"""Messages whose structs are written as dictionaries: the schema knows their classes."""

from __future__ import annotations

from typing import Any, TypeVar

from protocol.schema import Message, Wire, wire_of

M = TypeVar("M", bound=Message)


def message(cls: type[M], **values: Any) -> M:
    """`message(DeleteTopicsRequest, topics=[{"name": "t"}])`: dictionaries become the structs of their fields."""
    return cls(**_fields(wire_of(cls), values))


def _fields(struct: Wire, values: dict[str, Any]) -> dict[str, Any]:
    wires = {field.name: field.wire for field in struct.fields}
    return {name: _structs(wires[name], value) for name, value in values.items()}


def _structs(wire: Wire | None, value: Any) -> Any:
    assert wire is not None
    if isinstance(value, list):
        return [_structs(wire.element, one) for one in value]
    if isinstance(value, dict):
        assert wire.message is not None
        return wire.message(**_fields(wire, value))
    return value
