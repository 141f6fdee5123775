"""How a message is declared: a class whose annotations say type, versions and tags of its fields.

FORMAT   class FetchRequest(Message, api_key=1, versions=(4, 18), flexible=12):
             max_wait_ms: Int32                                            in every version, must be given
             max_bytes: Annotated[Int32, Since(3), Ignorable] = 0x7FFFFFFF from version 3 on
             rack: Annotated[str | None, Nullable(2)] = None               None allowed from version 2 on only
             topics: list[FetchTopic]                                      an array of a nested class
             cluster_id: Annotated[str | None, Tag(0)] = None              a tagged field
RULES    1. Declaring is cheap: nothing but slots is made at import. Annotations stay text until the first instance,
            encode or decode of the class.
         2. Versions are Kafka's; since and until are inclusive. A nested class lives in the versions of the
            message around it, so one class may serve several messages.
         3. A field outside the version at hand decodes to its default. Encoding drops its value when it is
            Ignorable and refuses any value but the default when not, as Kafka does.
         4. `EMPTY` as default is a fresh list for every instance.
         5. A tagged struct that is None is not written, and one that is not written is None; so it is with a blank
            one. One that is marked Nullable says in front whether it is null (0) or not (1), and null is written.
NOT HERE Bytes (`codec.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeAlias, TypeVar, dataclass_transform

from protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from protocol.records import FileRegion

__all__ = [
    "EMPTY",
    "Annotated",
    "Float64",
    "Ignorable",
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "LegacyString",
    "Message",
    "Nullable",
    "Records",
    "Since",
    "Tag",
    "UInt16",
    "Until",
    "Uuid",
    "blank",
    "carries",
    "fields_of",
]

# What a field annotation may name beside bool, str, bytes, list[...] and message classes.
Int8: TypeAlias = int
Int16: TypeAlias = int
Int32: TypeAlias = int
Int64: TypeAlias = int
UInt16: TypeAlias = int
Float64: TypeAlias = float
Uuid: TypeAlias = bytes
LegacyString: TypeAlias = str  # never in the compact form, not even in a flexible version
Records: TypeAlias = "bytes | bytearray | memoryview | Sequence[FileRegion]"

EMPTY: Final[Any] = ()


class Since:
    """The first version that carries the field."""

    def __init__(self, version: int) -> None:
        self.version = version


class Until:
    """The last version that carries the field."""

    def __init__(self, version: int) -> None:
        self.version = version


class Nullable:
    """The first version in which an optional field may be null; without it, every version that has the field.

    On a tagged struct: null is written too (rule 5).
    """

    def __init__(self, since: int) -> None:
        self.since = since


class Tag:
    """The field is tagged: written only when it differs from its default."""

    def __init__(self, tag: int) -> None:
        self.tag = tag


class Ignorable:
    """Losing the field's value in a version that lacks it is harmless."""


class Wire:
    """How a value looks on the wire.

    kind: fixed, string, legacy_string, bytes, records, array or struct; `code` is a struct character for the fixed
    ones, `element` what an array holds, `message` the class of a struct.
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
        assert other is None, "a field has one type, or one type and None"
        wire = Wire(self.kind, None, self.code)
        wire.element, wire.message, wire.is_nullable = self.element, self.message, True
        return wire


class _ListOf:
    def __getitem__(self, element: Any) -> Wire:
        wire = Wire("array", EMPTY)
        wire.element = _wire(element)
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


def _wire(kind: Any) -> Wire:
    """The wire of an evaluated annotation: one of ours, a message class, or `class | None`."""
    if isinstance(kind, Wire):
        return kind
    if isinstance(kind, type):
        assert issubclass(kind, Message), f"{kind} is no field type"
        wire = Wire("struct", None)
        wire.message = kind
        return wire
    message, none = kind.__args__  # types.UnionType
    assert none is type(None), "a field has one type, or one type and None"
    return _wire(message) | None


class Field:
    """One field of a message, as declared."""

    __slots__ = (
        "default",
        "has_default",
        "has_null_mark",
        "is_ignorable",
        "name",
        "nullable_since",
        "since",
        "tag",
        "until",
        "wire",
    )

    def __init__(self, name: str, annotation: Any, defaults: dict[str, Any]) -> None:
        kind, *marks = annotation if isinstance(annotation, tuple) else (annotation,)
        self.name = name
        self.wire = _wire(kind)
        self.since = 0
        self.until = 0x7FFF
        self.nullable_since = 0
        self.has_null_mark = False
        self.tag: int | None = None
        self.is_ignorable = False
        self.has_default = name in defaults
        self.default = defaults.get(name, self.wire.zero)
        for mark in marks:
            self._apply(mark)

    def _apply(self, mark: Any) -> None:
        if mark is Ignorable:
            self.is_ignorable = True
        elif isinstance(mark, Since):
            self.since = mark.version
        elif isinstance(mark, Until):
            self.until = mark.version
        elif isinstance(mark, Nullable):
            self.nullable_since = mark.since
            self.has_null_mark = True
        else:
            assert isinstance(mark, Tag), f"{mark!r} marks no field"
            self.tag = mark.tag

    def is_in(self, version: int) -> bool:
        """Does this version carry the field?"""
        return self.since <= version <= self.until

    @property
    def says_whether_null(self) -> bool:
        """Is it a tagged struct that is marked Nullable (rule 5)?"""
        return self.has_null_mark and self.tag is not None and self.wire.kind == "struct"

    def is_nullable_in(self, version: int) -> bool:
        """May the field be written as null in this version? (A tagged struct is left out instead.)"""
        if self.tag is not None and self.wire.kind == "struct":
            return self.says_whether_null
        return self.wire.is_nullable and version >= self.nullable_since


class _MessageType(type):
    """Turns annotations into slots and takes the defaults out of the class body."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        api_key: int = -1,
        versions: tuple[int, int] = (0, -1),
        flexible: int | None = None,
    ) -> _MessageType:
        names = namespace.get("__annotations__", {})
        if bases:
            namespace["_DEFAULTS"] = {field: namespace.pop(field) for field in names if field in namespace}
            namespace["__slots__"] = tuple(names)
            namespace["API_KEY"] = api_key
            namespace["MIN_VERSION"], namespace["MAX_VERSION"] = versions
            namespace["FLEXIBLE_SINCE"] = flexible
        return super().__new__(mcs, name, bases, namespace)

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **_: Any) -> None:
        super().__init__(name, bases, namespace)


@dataclass_transform(kw_only_default=True, eq_default=True)
class Message(metaclass=_MessageType):
    """A request, an answer, a stored record, or a struct inside one of them.

    A message of its own has API_KEY (for a stored record: its type, -1 where there is none), MIN_VERSION,
    MAX_VERSION, and FLEXIBLE_SINCE, the first version in the flexible encoding (None: none is).
    """

    __slots__ = ("unknown_tagged_fields",)

    API_KEY: ClassVar[int]
    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]
    FLEXIBLE_SINCE: ClassVar[int | None]
    _DEFAULTS: ClassVar[dict[str, Any]]
    unknown_tagged_fields: dict[int, bytes] | None  # by tag, as the peer sent them; None when there were none

    def __init__(self, **values: Any) -> None:
        """Make the class's own `__init__` (it replaces this one) and run it."""
        cls = type(self)
        _compile_init(cls)
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        assert isinstance(other, Message)
        return self.unknown_tagged_fields == other.unknown_tagged_fields and all(
            getattr(self, name) == getattr(other, name) for name in type(self).__slots__
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={_short(getattr(self, name))}" for name in type(self).__slots__)
        if self.unknown_tagged_fields:
            values += f", unknown_tagged_fields={self.unknown_tagged_fields!r}"
        return f"{type(self).__name__}({values})"


def _short(value: Any) -> str:
    """The repr of a field, cut where it holds a batch of records."""
    if isinstance(value, bytes | bytearray | memoryview) and len(value) > 64:
        return f"<{len(value)} bytes>"
    return repr(value)


_fields: dict[type[Message], tuple[Field, ...]] = {}


def fields_of(cls: type[Message]) -> tuple[Field, ...]:
    """The fields of a message in their order on the wire; its annotations are evaluated the first time."""
    fields = _fields.get(cls)
    if fields is None:
        names = {**vars(sys.modules[cls.__module__]), **_VOCABULARY}
        fields = _fields[cls] = tuple(
            Field(name, eval(annotation, names), cls._DEFAULTS)  # noqa: S307 - our own class bodies
            for name, annotation in cls.__annotations__.items()
        )
    return fields


M = TypeVar("M", bound=Message)


def blank(cls: type[M]) -> M:
    """A message of defaults alone; a field that must be given is zero, empty, or a blank struct."""
    values: dict[str, Any] = {}
    for field in fields_of(cls):
        if not field.has_default:
            inner = field.wire.message
            values[field.name] = blank(inner) if inner and not field.wire.is_nullable else field.default
    return cls(**values)


def carries(cls: type[Message], name: str, version: int) -> bool:
    """Has this version of a message a field of this name?"""
    return any(field.name == name and field.is_in(version) for field in fields_of(cls))


def _compile_init(cls: type[Message]) -> None:
    """Give the class an `__init__` with one keyword argument for each field."""
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
