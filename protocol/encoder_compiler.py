"""Compiles the encoder of one message and version: flat source, nested structs inlined.

RULES    1. Everything is appended to one bytearray; a records field closes it, stands as parts of its own, and
            begins another.
         2. A field outside the version is dropped when it is Ignorable, else any value but the default is a
            ValueError: the caller meant something the peer will never learn.
         3. Tagged fields are written when they differ from their default, by ascending tag, the unknown ones that a
            decoder kept among them.
NOT HERE Handing encoders out (`codec.py`).
"""

from __future__ import annotations

import struct
from contextlib import nullcontext
from functools import partial
from typing import Any, NoReturn

from protocol.codegen import Source, default_text, is_flexible
from protocol.primitives import uvarint
from protocol.schema import Field, Message, Wire, blank, fields_of

_MAX_STRING_LENGTH = 32_767
_FEW = 9  # arrays of fewer numbers have structs of their own


def compile_encoder(cls: type[Message], version: int) -> Any:
    """The function (message) -> list of parts for one version of a message."""
    return _EncoderSource(cls, version).compile_message(cls)


def _refuse(name: str, version: int) -> NoReturn:
    raise ValueError(f"version {version} cannot carry {name}")


def _string_length(name: str, length: int) -> bytes:
    """The compact length (plus one) of a long string."""
    if length > _MAX_STRING_LENGTH + 1:
        raise ValueError(f"{name} is too long: {length - 1} bytes of UTF-8")
    return uvarint(length)


def _numbers(code: str, values: list[Any]) -> bytes:
    """An array of fixed-width elements that has no struct of its own."""
    if code == "16s":
        joined = b"".join(values)
        assert len(joined) == 16 * len(values), "a uuid has 16 bytes"
        return joined
    return struct.pack(f">{len(values)}{code}", *values)


def _size(records: Any) -> int:
    """Bytes of a records field: one buffer or several file regions."""
    if isinstance(records, bytes | bytearray | memoryview):
        return len(records)
    size = 0
    for region in records:
        size += region.length
    return size


def _add_parts(parts: list[Any], records: Any) -> None:
    if isinstance(records, bytes | bytearray | memoryview):
        parts.append(records)
    else:
        parts.extend(records)


def _write_tagged(out: bytearray, values: dict[int, bytes | bytearray]) -> None:
    """A tagged section."""
    out += uvarint(len(values))
    for tag in sorted(values):
        out += uvarint(tag)
        out += uvarint(len(values[tag]))
        out += values[tag]


def _write_unknown(out: bytearray, message: Message) -> None:
    """The tagged section of a struct that has no tagged field of its own to write."""
    _write_tagged(out, dict(message.unknown_tagged_fields or {}))


_NAMES: dict[str, Any] = {
    "add_parts": _add_parts,
    "numbers": _numbers,
    "refuse": _refuse,
    "size": _size,
    "string_length": _string_length,
    "uvarint": uvarint,
    "write_tagged": _write_tagged,
    "write_unknown": _write_unknown,
}


class _EncoderSource(Source):
    """Writes `encode(m)`: o is what is written to, parts the parts before it, n the length or count at hand."""

    def __init__(self, cls: type[Message], version: int) -> None:
        super().__init__(f"encode {cls.__name__} v{version}", _NAMES)
        self.version = version
        self.flexible = is_flexible(cls, version)
        self._run: list[tuple[str, str]] = []  # (expression, struct code)

    def compile_message(self, cls: type[Message]) -> Any:
        with self.block("def encode(m):"):
            self.line("o = bytearray()")
            self.line("parts = []")
            self._struct(cls, "m", 0)
            self._end_run()
            self.line("if o or not parts: parts.append(o)")
            self.line("return parts")
        return self.compile("encode")

    def _struct(self, cls: type[Message], source: str, depth: int) -> None:
        fields = fields_of(cls)
        for field in fields:
            if not field.is_in(self.version):
                self._absent(field, f"{source}.{field.name}")
        for field in fields:
            if field.tag is None and field.is_in(self.version):
                self._value(field.wire, f"{source}.{field.name}", field.is_nullable_in(self.version), depth)
        if self.flexible:
            self._tagged_section(cls, source, [f for f in fields if f.tag is not None and f.is_in(self.version)])

    def _absent(self, field: Field, source: str) -> None:
        if not field.is_ignorable:
            self.line(f"if {_differs(field, source)}: refuse({field.name!r}, {self.version})")

    def _tagged_section(self, cls: type[Message], source: str, fields: list[Field]) -> None:
        """Mostly a zero in the run before it."""
        claims = [f"{source}.unknown_tagged_fields is None"]
        claims += [
            "False" if field.says_whether_null else f"not ({_differs(field, f'{source}.{field.name}')})"
            for field in fields
        ]
        writer = self._tagged_writer(cls, fields) if fields else "write_unknown"
        run = self._run
        with self.block(f"if {' and '.join(claims)}:"):
            self._run = [*run, ("0", "B")]
            self._end_run()
        with self.block("else:"):
            self._run = run
            self._end_run()
            self.line(f"{writer}(o, {source})")

    def _tagged_writer(self, cls: type[Message], fields: list[Field]) -> str:
        """A function of its own for the known tagged fields of a struct; they are rare."""
        name = self.constant((cls, "tags"), "T", lambda: None)
        outer, self._run = self._run, []
        with self.function(f"def {name}(section, m):"):
            self.line("values = dict(m.unknown_tagged_fields or {})")
            for field in fields:
                source = f"m.{field.name}"
                claim = _differs(field, source)
                has_mark = field.says_whether_null
                if field.wire.message is not None:
                    plain = self.constant(field.wire.message, "D", partial(blank, field.wire.message))
                    claim = f"{source} != {plain}" if has_mark else f"{claim} and {source} != {plain}"
                with self.block(f"if {claim}:"):
                    self.line(f"o = bytearray(({source} is not None,))" if has_mark else "o = bytearray()")
                    with self.block(f"if {source} is not None:") if has_mark else nullcontext():
                        self._value(field.wire, source, not has_mark and field.is_nullable_in(self.version), 1)
                        self._end_run()
                    self.line(f"values[{field.tag}] = o")
            self.line("write_tagged(section, values)")
        self._run = outer
        return name

    def _value(self, wire: Wire, source: str, nullable: bool, depth: int) -> None:  # noqa: FBT001
        if wire.kind == "fixed":
            self._run.append((source, wire.code))
            return
        local = f"v{depth}"
        if nullable:
            run = self._run
            self.line(f"{local} = {source}")
            with self.block(f"if {local} is None:"):
                self._run = [*run, self._null(wire)]
                self._end_run()
            with self.block("else:"):
                self._run = [*run, ("1", "b")] if wire.kind == "struct" else run
                self._present(wire, local, source, depth)
                self._end_run()
        else:
            self._present(wire, source, source, depth)

    def _null(self, wire: Wire) -> tuple[str, str]:
        if wire.kind == "struct":
            return "-1", "b"
        if self.flexible and wire.kind != "legacy_string":
            return "0", "B"
        return "-1", "h" if wire.kind in ("string", "legacy_string") else "i"

    def _present(self, wire: Wire, value: str, source: str, depth: int) -> None:
        if wire.kind in ("string", "legacy_string"):
            name = source.rsplit(".", maxsplit=1)[-1]
            self.line(f"s = {value}.encode()")
            self._length(wire, "s", "h", f"string_length({name!r}, n)")
            self.line("o += s")
        elif wire.kind == "bytes":
            self.line(f"s = {value}")
            self._length(wire, "s", "i", "uvarint(n)")
            self.line("o += s")
        elif wire.kind == "records":
            self._records(value)
        elif wire.kind == "array":
            self._array(wire, value, depth)
        else:
            assert wire.message is not None
            self._struct(wire.message, value, depth + 1)

    def _length(self, wire: Wire, value: str, code: str, long_form: str) -> None:
        """The length of `value`: the last of its run. `n` is the length, plus one when it is compact."""
        if not self.flexible or wire.kind == "legacy_string":
            self._run.append((f"len({value})", code))
            self._end_run()
            return
        self.line(f"n = len({value}) + 1")
        self._compact(long_form)

    def _compact(self, long_form: str) -> None:
        run = self._run
        with self.block("if n < 128:"):
            self._run = [*run, ("n", "B")]
            self._end_run()
        with self.block("else:"):
            self._run = run
            self._end_run()
            self.line(f"o += {long_form}")

    def _records(self, value: str) -> None:
        self.line(f"n = size({value})")
        if self.flexible:
            self.line("n += 1")
            self._compact("uvarint(n)")
            empty = "n == 1"
        else:
            self._run.append(("n", "i"))
            self._end_run()
            empty = "n == 0"
        with self.block(f"if not {empty}:"):
            self.line("parts.append(o)")
            self.line(f"add_parts(parts, {value})")
            self.line("o = bytearray()")

    def _array(self, wire: Wire, value: str, depth: int) -> None:
        element = wire.element
        assert element is not None
        self.line(f"a{depth} = {value}")
        if element.kind == "fixed":
            self._numbers(element.code, f"a{depth}")
            return
        self._length(wire, f"a{depth}", "i", "uvarint(n)")
        with self.block(f"for i{depth} in a{depth}:"):
            if element.kind == "struct":
                assert element.message is not None
                self._struct(element.message, f"i{depth}", depth + 1)
            else:
                self._value(element, f"i{depth}", nullable=False, depth=depth + 1)
            self._end_run()

    def _numbers(self, code: str, values: str) -> None:
        """An array of fixed-width elements: a few share a struct with their count and with the run before it."""
        run, self._run = self._run, []
        codes = "".join(code for _, code in run) + ("B" if self.flexible else "i")
        few = self.constant(
            (codes, code), "F", lambda: [struct.Struct(f">{codes}{code * n}").pack for n in range(_FEW)]
        )
        count = "n + 1" if self.flexible else "n"
        arguments = "".join(f"{value}, " for value, _ in run)
        self.line(f"n = len({values})")
        if not run and self.flexible:
            self.line("if not n: o.append(1)")
        with self.block(f"{'elif' if not run and self.flexible else 'if'} n < {_FEW}:"):
            self.line(f"o += {few}[n]({arguments}{count}, *{values})")
        with self.block("else:"):
            self._run = run
            if self.flexible:
                self._end_run()
                self.line("o += uvarint(n + 1)")
            else:
                self._run = [*run, ("n", "i")]
                self._end_run()
            self.line(f"o += numbers({code!r}, {values})")

    def _end_run(self) -> None:
        if not self._run:
            return
        codes = "".join(code for _, code in self._run)
        if codes == "B":
            self.line(f"o.append({self._run[0][0]})")
        else:
            self.line(f"o += {self.packer(codes)}({', '.join(value for value, _ in self._run)})")
        self._run = []


def _differs(field: Field, source: str) -> str:
    """The claim that a value is not the field's default."""
    if field.default is None:
        return f"{source} is not None"
    if field.default in ((), "", False, 0):
        return source if field.wire.kind != "array" or not field.wire.is_nullable else f"{source} is None or {source}"
    return f"{source} != {default_text(field)}"
