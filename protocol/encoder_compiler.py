"""Compiles the encoder of one message and version into flat source with inlined nested structs.

RULES    1. Bytes are appended to one bytearray. A records field ends it, adds parts of its own, and starts another.
         2. A field that the version lacks is dropped if it is Ignorable; otherwise a value other than the default
            raises ValueError.
         3. Tagged fields are written in tag order if they differ from their defaults, together with the unknown
            tagged fields that a decoder kept.
         4. A string that is too long raises ValueError, except an error message: it may contain a long name of the
            request, and is cut off.
NOT HERE The cache of encoders (`codec.py`).
"""

from __future__ import annotations

import struct
from contextlib import nullcontext
from functools import partial
from typing import Any, NoReturn

from protocol.codegen import FEW, MAX_STRING_LENGTH, SourceBuilder, default_literal
from protocol.primitives import uvarint
from protocol.schema import Field, Message, Wire, blank, wire_of


def compile_encoder(cls: type[Message], version: int) -> Any:
    """Compiles the function (message) -> list of parts for one version of a message."""
    return _EncoderBuilder(cls, version).compile_message(wire_of(cls))


def _refuse(name: str, version: int) -> NoReturn:
    raise ValueError(f"version {version} cannot carry {name}")


def _string_length(name: str, length: int) -> bytes:
    """The compact length (plus one) of a long string."""
    if length > MAX_STRING_LENGTH + 1:
        raise ValueError(f"{name} is too long: {length - 1} bytes of UTF-8")
    return uvarint(length)


def _cut_off(message: str) -> bytes:
    """An error message in UTF-8, as much of it as fits into a string."""
    text = message.encode()
    return text if len(text) <= MAX_STRING_LENGTH else text[:MAX_STRING_LENGTH].decode("utf-8", "ignore").encode()


def _numbers(code: str, values: list[Any]) -> bytes:
    """Encodes an array of fixed-width elements that is too long for a precompiled struct."""
    if code == "16s":
        joined = b"".join(values)
        assert len(joined) == 16 * len(values), "a uuid has 16 bytes"
        return joined
    return struct.pack(f">{len(values)}{code}", *values)


_ERROR_MESSAGE = "error_message"
_REGIONS = tuple, list  # of file regions: the other type of a records field is a buffer


def _write_tagged(out: bytearray, values: dict[int, bytes | bytearray]) -> None:
    """Writes a tagged section."""
    out += uvarint(len(values))
    for tag in sorted(values):
        out += uvarint(tag)
        out += uvarint(len(values[tag]))
        out += values[tag]


def _write_unknown(out: bytearray, message: Message) -> None:
    """Writes the tagged section of a struct without known tagged fields."""
    _write_tagged(out, dict(message.unknown_tagged_fields or {}))


class _EncoderBuilder(SourceBuilder):
    """Writes `encode(m)`: `o` is the output, `parts` the finished parts, `n` the current length or count."""

    def __init__(self, cls: type[Message], version: int) -> None:
        super().__init__("encode", cls, version, globals())

    def compile_message(self, wire: Wire) -> Any:
        with self.block("def encode(m):"):
            self.line("o = bytearray()")
            self.line("parts = []")
            self._struct(wire, "m", 0)
            self._end_run()
            self.line("if o or not parts: parts.append(o)")
            self.line("return parts")
        return self.compile("encode")

    def _struct(self, wire: Wire, source: str, depth: int) -> None:
        fields = wire.fields
        for field in fields:
            if not field.is_in(self.version) and not field.is_ignorable:
                self.line(f"if {_differs(field, f'{source}.{field.name}')}: _refuse({field.name!r}, {self.version})")
        for field in fields:
            if field.tag is None and field.is_in(self.version):
                self._value(field.wire, f"{source}.{field.name}", field.is_nullable_in(self.version), depth)
        if self.flexible:
            self._tagged_section(wire, source, [f for f in fields if f.tag is not None and f.is_in(self.version)])

    def _tagged_section(self, wire: Wire, source: str, fields: list[Field]) -> None:
        """Usually a zero byte that joins the current run."""
        conditions = [f"{source}.unknown_tagged_fields is None"]
        conditions += [
            "False" if field.has_null_marker else f"not ({_differs(field, f'{source}.{field.name}')})"
            for field in fields
        ]
        writer = self._tagged_writer(wire, fields) if fields else "_write_unknown"
        run = self.run
        with self.block(f"if {' and '.join(conditions)}:"):
            self.run = [*run, ("0", "B")]
            self._end_run()
        with self.block("else:"):
            self.run = run
            self._end_run()
            self.line(f"{writer}(o, {source})")

    def _tagged_writer(self, wire: Wire, fields: list[Field]) -> str:
        """Writes the known tagged fields of a struct in a separate function, because they are rare."""
        name = self.constant(wire.message, "T", lambda: None)
        with self.function(f"def {name}(section, m):"):
            self.line("values = dict(m.unknown_tagged_fields or {})")
            for field in fields:
                source = f"m.{field.name}"
                condition = _differs(field, source)
                has_marker = field.has_null_marker
                if field.wire.message is not None:
                    plain = self.constant(field.wire.message, "D", partial(blank, field.wire.message))
                    condition = f"{source} != {plain}" if has_marker else f"{condition} and {source} != {plain}"
                with self.block(f"if {condition}:"):
                    self.line(f"o = bytearray(({source} is not None,))" if has_marker else "o = bytearray()")
                    with self.block(f"if {source} is not None:") if has_marker else nullcontext():
                        self._value(field.wire, source, not has_marker and field.is_nullable_in(self.version), 1)
                        self._end_run()
                    self.line(f"values[{field.tag}] = o")
            self.line("_write_tagged(section, values)")
        return name

    def _value(self, wire: Wire, source: str, nullable: bool, depth: int) -> None:  # noqa: FBT001
        if wire.kind == "fixed":
            self.run.append((source, wire.code))
            return
        local = f"v{depth}"
        if nullable:
            run = self.run
            self.line(f"{local} = {source}")
            with self.block(f"if {local} is None:"):
                self.run = [*run, self._null(wire)]
                self._end_run()
            with self.block("else:"):
                self.run = [*run, ("1", "b")] if wire.kind == "struct" else run
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
            self.line(f"s = _cut_off({value})" if name.endswith(_ERROR_MESSAGE) else f"s = {value}.encode()")
            self._length(wire, "s", "h", f"_string_length({name!r}, n)")
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
            self._struct(wire, value, depth + 1)

    def _length(self, wire: Wire, value: str, code: str, long_form: str) -> None:
        """Writes the length of `value`, the last element of its run. `n` is the length, plus one if it is compact."""
        if not self.flexible or wire.kind == "legacy_string":
            self.run.append((f"len({value})", code))
            self._end_run()
            return
        self.line(f"n = len({value}) + 1")
        self._compact(long_form)

    def _compact(self, long_form: str) -> None:
        run = self.run
        with self.block("if n < 128:"):
            self.run = [*run, ("n", "B")]
            self._end_run()
        with self.block("else:"):
            self.run = run
            self._end_run()
            self.line(f"o += {long_form}")

    def _records(self, value: str) -> None:
        self.line(f"r = {value}")  # one buffer or several file regions
        self.line("has_regions = isinstance(r, _REGIONS)")
        self.line("n = sum(map(len, r)) if has_regions else len(r)")
        if self.flexible:
            self.line("n += 1")
            self._compact("uvarint(n)")
            empty = "n == 1"
        else:
            self.run.append(("n", "i"))
            self._end_run()
            empty = "n == 0"
        with self.block(f"if not {empty}:"):
            self.line("parts.append(o)")
            self.line("if has_regions: parts += r")
            self.line("else: parts.append(r)")
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
                self._struct(element, f"i{depth}", depth + 1)
            else:
                self._value(element, f"i{depth}", nullable=False, depth=depth + 1)
            self._end_run()

    def _numbers(self, code: str, values: str) -> None:
        """Writes an array of fixed-width elements. A short one shares a struct with its count and the preceding run."""
        run, self.run = self.run, []
        codes = "".join(code for _, code in run) + ("B" if self.flexible else "i")
        few = self.constant((codes, code), "F", lambda: [struct.Struct(f">{codes}{code * n}").pack for n in range(FEW)])
        count = "n + 1" if self.flexible else "n"
        arguments = "".join(f"{value}, " for value, _ in run)
        self.line(f"n = len({values})")
        if not run and self.flexible:
            self.line("if not n: o.append(1)")
        with self.block(f"{'elif' if not run and self.flexible else 'if'} n < {FEW}:"):
            self.line(f"o += {few}[n]({arguments}{count}, *{values})")
        with self.block("else:"):
            self.run = run
            if self.flexible:
                self._end_run()
                self.line("o += uvarint(n + 1)")
            else:
                self.run = [*run, ("n", "i")]
                self._end_run()
            self.line(f"o += _numbers({code!r}, {values})")

    def _end_run(self) -> None:
        if not self.run:
            return
        codes = "".join(code for _, code in self.run)
        if codes == "B":
            self.line(f"o.append({self.run[0][0]})")
        else:
            self.line(f"o += {self.packer(codes)}({', '.join(value for value, _ in self.run)})")
        self.run = []


def _differs(field: Field, source: str) -> str:
    """The condition that a value differs from the field's default."""
    if field.default is None:
        return f"{source} is not None"
    if field.default in ((), "", False, 0):
        return f"{source} is None or {source}" if field.wire.is_nullable else source
    return f"{source} != {default_literal(field)}"
