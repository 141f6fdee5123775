"""Python source in the making: lines, constants and runs of fixed-width fields, for the codec compilers.

RULES    1. Adjacent fixed-width fields are packed or unpacked by one precompiled struct (a *run*); the run ends
            where something of variable length begins, and takes that thing's length along.
NOT HERE What is written for which field (`decoder_compiler.py`, `encoder_compiler.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from struct import Struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from protocol.schema import Field, Message


class Source:
    """The functions of one message and version, written line by line."""

    def __init__(self, title: str, names: dict[str, Any]) -> None:
        self.title = title
        self.names = dict(names)  # what the source refers to
        self._lines: list[str] = []
        self._indent = 0
        self._constants: dict[Any, str] = {}
        self._finished: list[str] = []

    def line(self, text: str) -> None:
        """Add a line at the present depth."""
        self._lines.append(" " * self._indent + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add a head line; what is added inside stands one deeper."""
        self.line(head)
        self._indent += 1
        yield
        self._indent -= 1

    @contextmanager
    def function(self, head: str) -> Iterator[None]:
        """Write another function in the middle of the present one."""
        outer, self._lines, depth, self._indent = self._lines, [], self._indent, 0
        with self.block(head):
            yield
        self._finished += self._lines
        self._lines, self._indent = outer, depth

    def constant(self, key: Any, prefix: str, make: Callable[[], Any]) -> str:
        """The name under which the source finds a value; equal keys share it."""
        name = self._constants.get((prefix, key))
        if name is None:
            name = self._constants[prefix, key] = f"{prefix}{len(self._constants)}"
            self.names[name] = make()
        return name

    def packer(self, codes: str) -> str:
        """The name of `pack` of a struct."""
        return self.constant(codes, "P", lambda: Struct(">" + codes).pack)

    def unpacker(self, codes: str) -> str:
        """The name of `unpack_from` of a struct."""
        return self.constant(codes, "U", lambda: Struct(">" + codes).unpack_from)

    def compile(self, entry: str) -> Any:
        """The function called `entry`."""
        text = "\n".join(self._finished + self._lines) + "\n"
        exec(compile(text, f"<{self.title}>", "exec"), self.names)  # noqa: S102 - made from our own declarations
        function = self.names[entry]
        function.__qualname__ = self.title
        return function


def default_text(field: Field) -> str:
    """The source of a field's default; a list is fresh each time."""
    return "[]" if field.default == () else repr(field.default)


def is_flexible(message: type[Message], version: int) -> bool:
    """Is this version of the message in the flexible encoding?"""
    return message.FLEXIBLE_SINCE is not None and version >= message.FLEXIBLE_SINCE
