"""Compiles the decoder of one message and version into flat source with inlined nested structs.

RULES    1. Lengths are checked before an allocation or a loop. Whether the message fits in the buffer is checked once,
            at its end; slices past the end of the buffer are short until then.
         2. An array has at most MAX_ARRAY_LENGTH elements and no more than the remaining bytes; a tagged section has
            at most MAX_TAGGED_FIELDS fields; a string has at most 32,767 bytes. The arrays and tagged sections of a request
            have at most MAX_REQUEST_ELEMENTS together: in nested arrays each element may have as many again.
         3. As in Kafka: any non-zero byte is true, invalid UTF-8 becomes U+FFFD, a negative length is null, a tag
            that belongs to another version of the struct is refused, an unknown tag is kept. Stricter than Kafka:
            a known tagged field must have exactly its declared size, and a string must still have at most 32,767 bytes
            when its invalid bytes are replaced, since it could not be encoded again.
         4. Attributes are assigned directly from the unpacked run; `__init__` is not called.
NOT HERE The cache of decoders (`codec.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

from protocol.codegen import FEW, LONGEST_SAFE_STRING, MAX_STRING_LENGTH, SourceBuilder, default_literal
from protocol.errors import MalformedRequest
from protocol.primitives import Buffer, read_uvarint
from protocol.schema import Field, Message, Wire, wire_of

MAX_ARRAY_LENGTH = 1_000_000
MAX_TAGGED_FIELDS = 10_000


def compile_decoder(cls: type[Message], version: int, max_elements: int | None) -> Any:
    """Compiles the function (buffer, position) -> (message, end position) for one version of a message.

    `max_elements` limits the elements of all arrays together.
    """
    return _DecoderBuilder(cls, version, max_elements).compile_message(wire_of(cls))


# Functions that the compiled source calls for unusual input.


def _refuse(what: str) -> NoReturn:
    raise MalformedRequest(what)


def _refuse_null(name: str) -> NoReturn:
    raise MalformedRequest(f"{name} is null")


def _refuse_length(name: str, length: int) -> NoReturn:
    raise MalformedRequest(f"{name} cannot have {length} elements or bytes here")


def _refuse_elements(count: int) -> NoReturn:
    raise MalformedRequest(f"the arrays of the request have more than {count} elements")


def _long_string(buffer: Buffer, position: int, name: str) -> tuple[int, int]:
    """Reads a compact string length of several bytes; `position` is after the first of them."""
    length, position = read_uvarint(buffer, position - 1)
    if length > MAX_STRING_LENGTH + 1:
        _refuse_length(name, length - 1)
    if length > LONGEST_SAFE_STRING + 1:
        _check_text(buffer, position, name, length - 1)
    return length, position


def _check_text(buffer: Buffer, position: int, name: str, length: int) -> None:
    """Refuses a string that is too long to encode again, because its invalid bytes are replaced."""
    size = len(str(buffer[position : position + length], "utf-8", "replace").encode())
    if size > MAX_STRING_LENGTH:
        _refuse_length(name, size)


def _long_array(buffer: Buffer, position: int, name: str) -> tuple[int, int]:
    """Reads and checks a compact array length of several bytes: each element takes at least one byte."""
    count, position = read_uvarint(buffer, position - 1)
    _check_count(buffer, position, name, count - 1)
    return count, position


def _check_count(buffer: Buffer, position: int, name: str, count: int) -> None:
    if count > MAX_ARRAY_LENGTH or count > len(buffer) - position:
        _refuse_length(name, count)


def _unknown(message: Message, buffer: Buffer, position: int, count: int) -> int:
    """Keeps the tagged fields of a struct that declares none; returns the position after them."""
    if count > MAX_TAGGED_FIELDS:
        raise MalformedRequest(f"{count} tagged fields in one struct")
    for _ in range(count):
        tag, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position = _keep(message, buffer, position, tag, size)
    return position


def _keep(message: Message, buffer: Buffer, position: int, tag: int, size: int) -> int:
    """Keeps one tagged field that the version does not declare."""
    end = position + size
    if message.unknown_tagged_fields is None:
        message.unknown_tagged_fields = {}
    message.unknown_tagged_fields[tag] = bytes(buffer[position:end])
    return end


def _numbers(buffer: Buffer, position: int, count: int, code: str, name: str) -> tuple[list[Any] | None, int]:
    """Reads an array of fixed-width elements that is null (None) or too long for a precompiled struct."""
    if count < 0:
        return None, position
    width = struct.calcsize(">" + code)
    end = position + count * width
    if count > MAX_ARRAY_LENGTH or end > len(buffer):
        _refuse_length(name, count)
    if code == _UUID:
        return [bytes(buffer[start : start + width]) for start in range(position, end, width)], end
    return list(struct.unpack_from(f">{count}{code}", buffer, position)), end


def _compact_numbers(buffer: Buffer, position: int, count: int, code: str, name: str) -> tuple[list[Any] | None, int]:
    """Like `_numbers`, with a compact count; `count` is its first byte."""
    if count > 127:
        count, position = read_uvarint(buffer, position - 1)
    return _numbers(buffer, position, count - 1, code, name)


_UUID = "16s"
_new = object.__new__


class _DecoderBuilder(SourceBuilder):
    """Writes `decode(b, p)`: `b` is the buffer, `p` the position, `n` the current length or count, `t` the elements so far.

    A compact length or count is stored plus one, and zero is null; `n` holds the stored number.
    """

    def __init__(self, cls: type[Message], version: int, max_elements: int | None) -> None:
        super().__init__("decode", cls, version, globals())
        self._max_elements = max_elements
        self.has_records = _holds_records(wire_of(cls))

    def compile_message(self, wire: Wire) -> Any:
        with self.block("def decode(b, p):"):
            # Decoding strings from bytes is faster than from a memoryview; copying a small frame is cheap.
            self.line("if type(b) is not memoryview: b = memoryview(b)" if self.has_records else "b = bytes(b)")
            self._start_counting()
            with self.block("try:"):
                self._struct(wire, "m", 0)
                self._end_run()
            with self.block("except (struct.error, IndexError):"):
                self.line("raise MalformedRequest('the message is cut short') from None")
            self.line("if p > len(b): _refuse('the message is cut short')")
            self.line("return m, p")
        return self.compile("decode")

    def _struct(self, wire: Wire, target: str, depth: int) -> None:
        """Read a struct into a new local variable."""
        self._end_run()
        name = self.constant(wire.message, "C", lambda: wire.message)
        self.line(f"{target} = _new({name})")
        fields = wire.fields
        self._defaults(target, [f for f in fields if f.tag is not None or not f.is_in(self.version)])
        for field in fields:
            if field.tag is None and field.is_in(self.version):
                self._value(field.wire, f"{target}.{field.name}", field.is_nullable_in(self.version), depth)
        if self.flexible:
            tagged = [f for f in fields if f.tag is not None]
            reader = self._tagged_reader(wire, tagged) if tagged else "_unknown"
            self._length("B")
            with self.block("if n:"):
                self.line("if n > 127: n, p = read_uvarint(b, p - 1)")
                self._count("n")
                self.line(f"p = {reader}({target}, b, p, n)")

    def _defaults(self, target: str, fields: list[Field]) -> None:
        """Set the fields that this version lacks or that are tagged."""
        by_text: dict[str, list[str]] = {"None": ["unknown_tagged_fields"]}
        for field in fields:
            text = default_literal(field)
            if text == "[]":
                self.line(f"{target}.{field.name} = []")
            else:
                by_text.setdefault(text, []).append(field.name)
        for text, names in by_text.items():
            self.line(" = ".join(f"{target}.{name}" for name in names) + f" = {text}")

    def _tagged_reader(self, wire: Wire, fields: list[Field]) -> str:
        """Reads the known tagged fields of a struct in a separate function, because they are rare."""
        name = self.constant(wire.message, "T", lambda: None)
        with self.function(f"def {name}(m, b, p, n):"):
            self._start_counting()  # of the arrays in it: no array of a request has elements with such fields
            self.line(f"if n > {MAX_TAGGED_FIELDS}: _refuse_length('tagged fields', n)")
            with self.block("for _ in range(n):"):
                self.line("t, p = read_uvarint(b, p)")
                self.line("s, p = read_uvarint(b, p)")
                for field in fields:
                    with self.block(f"if t == {field.tag}:"):
                        if not field.is_in(self.version):
                            self.line(f"_refuse('tag {field.tag} does not belong to version {self.version}')")
                            continue
                        self.line("end = p + s")
                        has_marker = field.has_null_marker
                        if has_marker:
                            self._length("b")
                        with self.block("if n != 0:") if has_marker else nullcontext():
                            is_nullable = not has_marker and field.is_nullable_in(self.version)
                            self._value(field.wire, f"m.{field.name}", is_nullable, 1)
                            self._end_run()
                        self.line("if p != end: _refuse('a tagged field does not fill its size')")
                        self.line("continue")
                self.line("p = _keep(m, b, p, t, s)")
            self.line("return p")
        return name

    def _value(self, wire: Wire, target: str, nullable: bool, depth: int) -> None:  # noqa: FBT001
        if wire.kind == "fixed":
            self.run.append((target, wire.code))
        elif wire.kind in ("string", "legacy_string"):
            self._string(wire, target, nullable)
        elif wire.kind in ("bytes", "records"):
            self._bytes(wire, target, nullable)
        elif wire.kind == "array":
            self._array(wire, target, nullable, depth)
        else:
            self._nested(wire, target, nullable, depth)

    def _nested(self, wire: Wire, target: str, nullable: bool, depth: int) -> None:  # noqa: FBT001
        local = f"m{depth + 1}"
        if nullable:
            self._length("b")
            self.line(f"if n < 0: {target} = None")
        with self.block("else:") if nullable else nullcontext():
            self._struct(wire, local, depth + 1)
            self._end_run()
            self.line(f"{target} = {local}")

    def _string(self, wire: Wire, target: str, nullable: bool) -> None:  # noqa: FBT001
        text = "str(b[p:e], 'utf-8', 'replace')" if self.has_records else "b[p:e].decode('utf-8', 'replace')"
        is_compact = self.flexible and wire.kind == "string"
        long_form = f"_long_string(b, p, {_name(target)!r})" if is_compact else None
        self._slice(target, text, nullable, "h", long_form)

    def _bytes(self, wire: Wire, target: str, nullable: bool) -> None:  # noqa: FBT001
        value = "b[p:e]" if wire.kind == "records" or not self.has_records else "bytes(b[p:e])"
        self._slice(target, value, nullable, "i", "read_uvarint(b, p - 1)" if self.flexible else None)

    def _slice(self, target: str, value: str, nullable: bool, code: str, long_form: str | None) -> None:  # noqa: FBT001
        """Read a length, compact if it has a long form, and the next bytes unless they are null."""
        self._length("B" if long_form else code)
        if long_form:
            self.line(f"if n > 127: n, p = {long_form}")
        elif code == "h":
            self.line(f"if n > {LONGEST_SAFE_STRING}: _check_text(b, p, {_name(target)!r}, n)")
        with self._unless_null("if not n:" if long_form else "if n < 0:", target, nullable):
            self.line("e = p + n - 1" if long_form else "e = p + n")
            self.line(f"{target} = {value}")
            self.line("p = e")

    @contextmanager
    def _unless_null(self, null: str, target: str, nullable: bool) -> Iterator[None]:  # noqa: FBT001
        if nullable:
            self.line(f"{null} {target} = None")
            with self.block("else:"):
                yield
        else:
            self.line(f"{null} _refuse_null({_name(target)!r})")
            yield

    def _array(self, wire: Wire, target: str, nullable: bool, depth: int) -> None:  # noqa: FBT001
        element = wire.element
        assert element is not None
        name = _name(target)
        self._length("B" if self.flexible else "i")
        if element.kind == "fixed":
            self._numbers(element.code, target, nullable)
            return
        if self.flexible:
            self.line(f"if n > 127: n, p = _long_array(b, p, {name!r})")
            null, count = "if not n:", "n - 1"
        else:
            self.line(f"if n > 127: _check_count(b, p, {name!r}, n)")
            null, count = "if n < 0:", "n"
        with self._unless_null(null, target, nullable):
            self._count(count)
            self.line(f"{target} = a{depth} = []")
            with self.block(f"for _ in range({count}):"):
                self._element(element, depth)

    def _numbers(self, code: str, target: str, nullable: bool) -> None:  # noqa: FBT001
        """Reads an array of fixed-width elements; a short one uses a precompiled struct."""
        size, name = struct.calcsize(">" + code), _name(target)
        few = self.constant(code, "F", lambda: [struct.Struct(">" + code * n).unpack_from for n in range(FEW)])
        with self.block(f"if 0 < n <= {FEW}:" if self.flexible else f"if 0 <= n < {FEW}:"):
            if self.flexible:
                self.line("n -= 1")
            self._count("n")
            self.line(f"{target} = [*{few}[n](b, p)] if n else []")
            self.line(f"p += {size} * n")
        with self.block("else:"):
            reader = "_compact_numbers" if self.flexible else "_numbers"
            self.line(f"{target}, p = {reader}(b, p, n, {code!r}, {name!r})")
            if not nullable:
                self.line(f"if {target} is None: _refuse_null({name!r})")
            self._count(f"len({target} or ())")

    def _start_counting(self) -> None:
        if self._max_elements is not None:
            self.line("t = 0")

    def _count(self, count: str) -> None:
        """Counts elements, if they are limited."""
        if self._max_elements is not None:
            self.line(f"t += {count}")
            self.line(f"if t > {self._max_elements}: _refuse_elements({self._max_elements})")

    def _element(self, element: Wire, depth: int) -> None:
        """The body of an array's loop: reads one element and appends it."""
        item = f"i{depth}"
        if element.kind == "struct":
            item = f"m{depth + 1}"
            self._struct(element, item, depth + 1)
        else:
            self._value(element, item, nullable=False, depth=depth + 1)
        self._end_run()
        self.line(f"a{depth}.append({item})")

    def _length(self, code: str) -> None:
        """Reads a length or count into `n`; it ends its run."""
        if code == "B" and not self.run:
            self.line("n = b[p]")
            self.line("p += 1")
            return
        self.run.append(("n", code))
        self._end_run()

    def _end_run(self) -> None:
        if not self.run:
            return
        codes = "".join(code for _, code in self.run)
        targets = ", ".join(target for target, _ in self.run)
        self.line(f"{targets}, = {self.unpacker(codes)}(b, p)")
        self.line(f"p += {struct.calcsize('>' + codes)}")
        self.run = []


def _name(target: str) -> str:
    """The field name in an assignment target."""
    return target.rsplit(".", maxsplit=1)[-1]


def _holds_records(wire: Wire) -> bool:
    """Whether the value contains record batches, which must not be copied."""
    if wire.kind == "array":
        assert wire.element is not None
        return _holds_records(wire.element)
    return wire.kind == "records" or (wire.kind == "struct" and any(_holds_records(f.wire) for f in wire.fields))
