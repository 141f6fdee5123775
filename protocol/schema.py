"""Declares messages: a class whose annotations give the type, versions and tag of each field.

FORMAT   class FetchRequest(Message, api_key=1, versions=(4, 18), flexible=12):
             max_wait_ms: Int32                                            in every version, required
             max_bytes: Annotated[Int32, Since(3), Ignorable] = 0x7FFFFFFF from version 3 on
             rack: Annotated[str | None, Nullable(2)] = None               nullable from version 2 on
             aborted: list[AbortedTransaction]                             an array of a nested class
             responses: list[FetchTopic[PartitionData]]                    of a generic class: its P is PartitionData
             cluster_id: Annotated[str | None, Tag(0)] = None              a tagged field
         class FetchResponse(Response, request=FetchRequest):              has the key and versions of its request, and the
                                                                           fields of its base class before its own
RULES    1. A declaration only creates slots at import. Annotations stay text until the first instance, encoding or
            decoding of the class.
         2. Versions are Kafka's; Since and Until are inclusive. A nested class uses the versions of the enclosing
            message, so several messages can share it.
         3. A field that the version lacks decodes to its default. When encoding, an Ignorable field is dropped; any
            other field must have its default value, as in Kafka.
         4. The default `EMPTY` creates a new list for every instance.
         5. A tagged struct is omitted if it is None or has only default values, and an omitted one decodes to None. A
            tagged struct marked Nullable starts with a null marker (0 null, 1 present), and null is written.
NOT HERE Encoding (`codec.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar, dataclass_transform

from protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from protocol.file_region import Region

# Types of fields, besides bool, str, bytes, list[...] and message classes.
Int8: TypeAlias = int
Int16: TypeAlias = int
Int32: TypeAlias = int
Int64: TypeAlias = int
UInt16: TypeAlias = int
Float64: TypeAlias = float
Uuid: TypeAlias = bytes
LegacyString: TypeAlias = str  # never compact, not even in a flexible version
Records: TypeAlias = "bytes | bytearray | memoryview | Sequence[Region]"

EMPTY: Final[Any] = ()
NEVER: Final = 0x8000
"""The first flexible version of a message without flexible versions."""


class Since(NamedTuple):
    """The first version that has the field."""

    version: int


class Until(NamedTuple):
    """The last version that has the field."""

    version: int


class Nullable(NamedTuple):
    """The first version in which an optional field may be null; without this mark, every version that has the field.

    On a tagged struct: null is written explicitly (rule 5).
    """

    version: int


class Tag(NamedTuple):
    """The field is tagged: it is written only if it differs from its default."""

    number: int


class Ignorable:
    """In a version that lacks the field, its value is dropped without an error."""


class Wire:
    """The wire type of a value.

    `kind` is fixed, string, legacy_string, bytes, records, array or struct. `code` is the struct character of a fixed
    type, `element` the type of an array's elements or the `P` of a generic struct, `message` the class of a struct.
    """

    __slots__ = ("code", "element", "is_nullable", "kind", "message", "zero")

    def __init__(self, kind: str, zero: Any, code: str = "") -> None:
        self.kind = kind
        self.zero = zero
        self.code = code
        self.is_nullable = False
        self.element: Wire | None = None
        self.message: type[Message] | None = None

    def __or__(self, other: None) -> Wire:
        """`X | None` in an annotation."""
        assert other is None, "a field has one type, optionally `| None`"
        wire = Wire(self.kind, None, self.code)
        wire.element, wire.message, wire.is_nullable = self.element, self.message, True
        return wire

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of a struct in wire order."""
        assert self.message is not None
        return fields_of(self.message, self.element)


class _ListOf:
    def __getitem__(self, element: Any) -> Wire:
        wire = Wire("array", EMPTY)
        wire.element = wire_of(element)
        return wire


class _Marked:
    def __getitem__(self, item: tuple[Any, ...]) -> tuple[Any, ...]:
        return item


_VOCABULARY: dict[str, Any] = {
    "bool": Wire("fixed", False, "?"),
    "Int8": Wire("fixed", 0, "b"),
    "Int16": Wire("fixed", 0, "h"),
    "Int32": Wire("fixed", 0, "i"),
    "Int64": Wire("fixed", 0, "q"),
    "UInt16": Wire("fixed", 0, "H"),
    "Float64": Wire("fixed", 0.0, "d"),
    "Uuid": Wire("fixed", ZERO_UUID, "16s"),
    "str": Wire("string", ""),
    "LegacyString": Wire("legacy_string", ""),
    "bytes": Wire("bytes", b""),
    "Records": Wire("records", b""),
    "list": _ListOf(),
    "Annotated": _Marked(),
    "Since": Since,
    "Until": Until,
    "Nullable": Nullable,
    "Tag": Tag,
    "Ignorable": Ignorable,
}


def wire_of(kind: Any) -> Wire:
    """The wire type of an evaluated annotation: a type name, a message class, or `class | None`."""
    if isinstance(kind, Wire):
        return kind
    if isinstance(kind, type):
        assert issubclass(kind, Message), f"{kind} is no field type"
        wire = Wire("struct", None)
        wire.message = kind
        return wire
    message, none = kind.__args__  # types.UnionType
    assert none is type(None), "a field has one type, optionally `| None`"
    return wire_of(message) | None


class Field:
    """One field of a message, as declared."""

    def __init__(self, name: str, annotation: Any, defaults: dict[str, Any]) -> None:
        kind, *marks = annotation if isinstance(annotation, tuple) else (annotation,)
        self.name = name
        self.wire = wire_of(kind)
        numbers: dict[type, int] = {}
        for mark in marks:
            if mark is not Ignorable:
                assert isinstance(mark, Since | Until | Nullable | Tag), f"{mark!r} marks no field"
                (numbers[type(mark)],) = mark
        self.since: int = numbers.get(Since, 0)
        self.until: int = numbers.get(Until, 0x7FFF)
        self.nullable_since: int = numbers.get(Nullable, 0)
        self.is_marked_nullable = Nullable in numbers
        self.tag: int | None = numbers.get(Tag)
        self.is_ignorable = Ignorable in marks
        self.has_default = name in defaults
        self.default = defaults.get(name, self.wire.zero)

    def is_in(self, version: int) -> bool:
        """Whether this version has the field."""
        return self.since <= version <= self.until

    @property
    def has_null_marker(self) -> bool:
        """Whether a null marker precedes the value: a tagged struct that is marked Nullable (rule 5)."""
        return self.is_marked_nullable and self.tag is not None and self.wire.kind == "struct"

    def is_nullable_in(self, version: int) -> bool:
        """Whether the field may be written as null in this version. (A tagged struct is omitted instead.)"""
        if self.tag is not None and self.wire.kind == "struct":
            return self.has_null_marker
        return self.wire.is_nullable and version >= self.nullable_since


class _MessageType(type):
    """Turns annotations into slots and moves the defaults out of the class body."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        api_key: int = -1,
        versions: tuple[int, int] = (0, -1),
        flexible: int = NEVER,
        request: type[Message] | None = None,
    ) -> _MessageType:
        if request is not None:
            api_key, versions = request.API_KEY, (request.MIN_VERSION, request.MAX_VERSION)
            flexible = request.FLEXIBLE_SINCE
        names = namespace.get("__annotations__", {})
        if bases:
            namespace["_DEFAULTS"] = {field: namespace.pop(field) for field in names if field in namespace}
            namespace["__slots__"] = tuple(names)
            namespace["API_KEY"] = api_key
            namespace["MIN_VERSION"], namespace["MAX_VERSION"] = versions
            namespace["FLEXIBLE_SINCE"] = flexible
            namespace["REQUEST"] = request
            namespace["__init__"] = Message.__init__  # a base class may have its compiled one
        return super().__new__(mcs, name, bases, namespace)

    def __getitem__(cls, parameter: Any) -> Wire:
        """`Topic[X]` in an annotation: the generic struct whose `P` is X."""
        wire = wire_of(cls)
        wire.element = wire_of(parameter)
        return wire


@dataclass_transform(kw_only_default=True, eq_default=True)
class Message(metaclass=_MessageType):
    """A request, a response, a stored record, or a struct inside one of them.

    A top-level message has API_KEY (for a stored record its type, or -1), MIN_VERSION, MAX_VERSION, and FLEXIBLE_SINCE,
    the first flexible version (NEVER if there is none). REQUEST is the request of a response.
    """

    __slots__ = ("unknown_tagged_fields",)

    API_KEY: ClassVar[int]
    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]
    FLEXIBLE_SINCE: ClassVar[int]
    REQUEST: ClassVar[type[Message] | None]
    _DEFAULTS: ClassVar[dict[str, Any]]
    unknown_tagged_fields: dict[int, bytes] | None  # by tag, as received; None if there were none

    def __init__(self, **values: Any) -> None:
        """Compile the `__init__` of the class, which replaces this one, and call it."""
        cls = type(self)
        _compile_init(cls)
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        assert isinstance(other, Message)
        return self.unknown_tagged_fields == other.unknown_tagged_fields and all(
            getattr(self, field.name) == getattr(other, field.name) for field in fields_of(type(self))
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ", ".join(f"{field.name}={_short(getattr(self, field.name))}" for field in fields_of(type(self)))
        if self.unknown_tagged_fields:
            values += f", unknown_tagged_fields={self.unknown_tagged_fields!r}"
        return f"{type(self).__name__}({values})"


def _short(value: Any) -> str:
    """The repr of a field, abbreviated if it holds record batches."""
    if isinstance(value, bytes | bytearray | memoryview) and len(value) > 64:
        return f"<{len(value)} bytes>"
    return repr(value)


P = TypeVar("P")
"""The struct or number in the arrays of a generic struct."""

_fields: dict[tuple[type[Message], Wire | None], tuple[Field, ...]] = {}


def fields_of(cls: type[Message], parameter: Wire | None = None) -> tuple[Field, ...]:
    """The fields of a message in wire order. The first call evaluates the annotations.

    `parameter` is the `P` of a generic struct; without it, the type of its array's elements is not known.
    """
    fields = _fields.get((cls, parameter))
    if fields is None:
        names = {**vars(sys.modules[cls.__module__]), **_VOCABULARY, "P": parameter or Wire("struct", None)}
        base: Any = cls.__base__
        inherited = () if base is Message else fields_of(base, parameter)
        fields = _fields[cls, parameter] = inherited + tuple(
            Field(name, eval(annotation, names), cls._DEFAULTS)  # noqa: S307 - our own class bodies
            for name, annotation in cls.__annotations__.items()
        )
    return fields


M = TypeVar("M", bound=Message)


def blank(cls: type[M], **values: Any) -> M:
    """A message with these values and defaults; any other required field is zero, empty, or a blank struct."""
    for field in fields_of(cls):
        if not field.has_default and field.name not in values:
            inner = field.wire.message
            values[field.name] = blank(inner) if inner and not field.wire.is_nullable else field.default
    return cls(**values)


def carries(cls: type[Message], name: str, version: int) -> bool:
    """Whether this version of a message has a field of this name."""
    return any(field.name == name and field.is_in(version) for field in fields_of(cls))


def _compile_init(cls: type[Message]) -> None:
    """Set the `__init__` of the class, with one keyword argument per field."""
    parameters, lines = [], []
    for field in fields_of(cls):
        default = f"={field.default!r}" if field.has_default else ""
        parameters.append(f"{field.name}{default}")
        value = f"[] if {field.name} is EMPTY else {field.name}" if field.default is EMPTY else field.name
        lines.append(f"  self.{field.name} = {value}\n")
    signature = f"(self, *, {', '.join(parameters)})" if parameters else "(self)"
    source = f"def __init__{signature}:\n{''.join(lines)}  self.unknown_tagged_fields = None\n"
    made: dict[str, Any] = {}
    code = compile(source, f"<{cls.__name__}.__init__>", "exec")
    exec(code, {"EMPTY": EMPTY}, made)  # noqa: S102 - source made from our own class bodies
    made["__init__"].__qualname__ = f"{cls.__name__}.__init__"
    cls.__init__ = made["__init__"]  # type: ignore[method-assign]
