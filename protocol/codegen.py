"""Builds the Python source of compiled codecs: lines, constants, and runs of fixed-width fields.

RULES    1. One precompiled struct packs or unpacks adjacent fixed-width fields (a *run*). A run ends with the length
            of the next variable-length field.
NOT HERE The code for each field type (`decoder_compiler.py`, `encoder_compiler.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from struct import Struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from protocol.schema import Field, Message

MAX_STRING_LENGTH = 32_767
LONGEST_SAFE_STRING = MAX_STRING_LENGTH // 3
"""A longer string can become too long when U+FFFD, three bytes, replaces each of its invalid bytes."""
MAX_REQUEST_ELEMENTS = 250_000
"""Of all arrays of a request together, five times the partitions of a large cluster: one such request takes seconds."""
FEW = 9  # shorter arrays of numbers have precompiled structs


class SourceBuilder:
    """The source of one compiled codec: a message in one version. It can use the names of the compiler's module."""

    def __init__(self, verb: str, cls: type[Message], version: int, names: dict[str, Any]) -> None:
        self.title = f"{verb} {cls.__name__} v{version}"
        self.version = version
        self.flexible = version >= cls.FLEXIBLE_SINCE
        self.names = dict(names)  # the namespace of the source
        self.run: list[tuple[str, str]] = []  # of the current run: target or value, and struct code
        self._lines: list[str] = []
        self._indent = 0
        self._constants: dict[Any, str] = {}
        self._finished: list[str] = []

    def line(self, text: str) -> None:
        """Add a line at the current indentation."""
        self._lines.append(" " * self._indent + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add a head line; lines added inside the context are indented."""
        self.line(head)
        self._indent += 1
        yield
        self._indent -= 1

    @contextmanager
    def function(self, head: str) -> Iterator[None]:
        """Write another top-level function while the current one is unfinished."""
        outer = self._lines, self._indent, self.run
        self._lines, self._indent, self.run = [], 0, []
        with self.block(head):
            yield
        self._finished += self._lines
        self._lines, self._indent, self.run = outer

    def constant(self, key: Any, prefix: str, make: Callable[[], Any]) -> str:
        """The name of a value in the source's namespace; equal keys share one name."""
        name = self._constants.get((prefix, key))
        if name is None:
            name = self._constants[prefix, key] = f"{prefix}{len(self._constants)}"
            self.names[name] = make()
        return name

    def packer(self, codes: str) -> str:
        """The name of a struct's `pack`."""
        return self.constant(codes, "P", lambda: Struct(">" + codes).pack)

    def unpacker(self, codes: str) -> str:
        """The name of a struct's `unpack_from`."""
        return self.constant(codes, "U", lambda: Struct(">" + codes).unpack_from)

    def compile(self, entry: str) -> Any:
        """Compiles the source and returns the function called `entry`."""
        text = "\n".join(self._finished + self._lines) + "\n"
        exec(compile(text, f"<{self.title}>", "exec"), self.names)  # noqa: S102 - made from our own declarations
        function = self.names[entry]
        function.__qualname__ = self.title
        return function


def default_literal(field: Field) -> str:
    """The source text of a field's default; a list is created each time."""
    return "[]" if field.default == () else repr(field.default)
