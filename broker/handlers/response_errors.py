"""The error codes in a response, of any API.

RULES    1. Every field `error_code` of the response counts, at any depth, if it is not NONE.
         2. The search is one compiled expression for each class of response: a comprehension for each path of arrays.
NOT HERE Counting (`broker/telemetry/request_metrics.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Final

from protocol.schema import Message, Wire, fields_of

FindErrors = Callable[[Message], "list[int]"]

_CODE: Final = "error_code"


@cache
def error_finder(response_class: type[Message]) -> FindErrors:
    """The function that finds the error codes of a response."""
    terms = list(_terms(response_class, None, "m", ""))
    find: FindErrors = eval(f"lambda m: {' + '.join(terms) or '[]'}")  # noqa: S307 - made from our own declarations
    return find


def _terms(cls: type[Message], parameter: Wire | None, name: str, loops: str) -> Iterator[str]:
    """The lists of error codes below a struct, which `name` refers to within `loops`."""
    for field in fields_of(cls, parameter):
        value, wire = f"{name}.{field.name}", field.wire
        if field.name == _CODE:
            yield f"[{value}{loops} if {value}]" if loops else f"([{value}] if {value} else [])"
        elif wire.kind == "array" and wire.element is not None and wire.element.message is not None:
            inner = f"{name}_{field.name}"
            yield from _terms(
                wire.element.message, wire.element.element, inner, f"{loops} for {inner} in {value} or ()"
            )
        elif wire.kind == "struct" and wire.message is not None:
            inner = f"{name}_{field.name}"
            yield from _terms(wire.message, wire.element, inner, f"{loops} for {inner} in ({value},) if {inner}")
