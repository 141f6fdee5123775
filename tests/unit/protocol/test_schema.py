"""Declared message classes (protocol/schema.py)."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated, Generic

import pytest

from protocol.codec import decode, encode
from protocol.schema import (
    EMPTY,
    Ignorable,
    Int8,
    Int32,
    Message,
    Nullable,
    P,
    Since,
    Tag,
    Until,
    blank,
    carries,
    fields_of,
)


class Pebble(Message):
    """A struct."""

    weight: Int32


class Bag(Message, api_key=7, versions=(1, 4), flexible=3):
    """A message with every kind of mark."""

    owner: str
    size: Int8 = 3
    pebbles: list[Pebble] = EMPTY
    label: Annotated[str | None, Nullable(2)] = ""
    colour: Annotated[str, Since(2), Ignorable] = "grey"
    old: Annotated[Int32, Until(1)] = -1
    first: Annotated[Pebble | None, Since(3), Tag(0)] = None
    one: Pebble | None = None


class Pouch(Message, versions=(0, 0)):
    """A message without defaults."""

    pebble: Pebble
    label: str | None


class Heap(Message, Generic[P]):
    """A generic struct."""

    name: str
    things: list[P]


class Hoard(Message, versions=(0, 0)):
    """A message that uses it with two classes."""

    pebbles: list[Heap[Pebble]]
    pouches: Annotated[list[Heap[Pouch]] | None, Nullable(0)]


class Boulder(Pebble):
    """A message with the fields of another one before its own."""

    colour: str = "grey"


def test_a_base_class_gives_its_fields_before_the_own_ones() -> None:
    """Also if an instance of the base class exists, which has compiled the constructor of that."""
    Pebble(weight=0)
    boulder = Boulder(weight=7, colour="red")
    assert [field.name for field in fields_of(Boulder)] == ["weight", "colour"]
    assert boulder != Boulder(weight=8, colour="red")
    assert repr(Boulder(weight=7)) == "Boulder(weight=7, colour='grey')"


def test_the_constructor_takes_keywords_and_sets_defaults() -> None:
    """A field without default is required."""
    bag = Bag(owner="me")
    assert (bag.size, bag.pebbles, bag.label, bag.colour, bag.first) == (3, [], "", "grey", None)
    assert bag.unknown_tagged_fields is None
    with pytest.raises(TypeError, match="owner"):
        Bag()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="weight"):
        Bag(owner="me", weight=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Bag("me")  # type: ignore[call-arg]


def test_every_instance_has_its_own_list() -> None:
    one, other = Bag(owner="a"), Bag(owner="a")
    one.pebbles.append(Pebble(weight=1))
    assert other.pebbles == []


def test_undeclared_attributes_cannot_be_set() -> None:
    with pytest.raises(AttributeError):
        Bag(owner="a").ownr = "b"  # type: ignore[attr-defined]


def test_messages_with_equal_values_are_equal() -> None:
    """Unknown tagged fields and classes are compared too. Messages are mutable, so they have no hash."""
    assert Bag(owner="a", pebbles=[Pebble(weight=1)]) == Bag(owner="a", pebbles=[Pebble(weight=1)])
    assert Bag(owner="a") != Bag(owner="b")
    assert Pebble(weight=1) != Bag(owner="a")
    tagged = Bag(owner="a")
    tagged.unknown_tagged_fields = {9: b"x"}
    assert tagged != Bag(owner="a")
    with pytest.raises(TypeError):
        hash(tagged)


def test_repr_abbreviates_batches() -> None:
    assert repr(Pebble(weight=1)) == "Pebble(weight=1)"
    pebble = Pebble(weight=1)
    pebble.unknown_tagged_fields = {9: b"x"}
    assert repr(pebble) == "Pebble(weight=1, unknown_tagged_fields={9: b'x'})"
    pebble.weight = b"x" * 1000  # type: ignore[assignment]
    assert "<1000 bytes>" in repr(pebble)


def test_each_version_encodes_its_fields() -> None:
    bag = Bag(owner="me", label="l", colour="red")
    assert encode(bag, 1) == b"\0\2me\3\0\0\0\0\0\1l\xff\xff\xff\xff\xff"
    assert encode(bag, 2) == b"\0\2me\3\0\0\0\0\0\1l\0\3red\xff"
    assert encode(bag, 3) == b"\3me\3\1\2l\4red\xff\0"
    bag.first = Pebble(weight=5)
    bag.one = Pebble(weight=6)
    bag.label = None
    assert encode(bag, 4) == b"\3me\3\1\0\4red\1\0\0\0\6\0\1\0\5\0\0\0\5\0"
    assert decode(Bag, 4, encode(bag, 4)) == bag


def test_a_field_names_the_class_in_a_generic_struct() -> None:
    heap, pouch = Heap(name="h", things=[Pebble(weight=5)]), Pouch(pebble=Pebble(weight=6), label="l")
    hoard = Hoard(pebbles=[heap], pouches=[Heap(name="p", things=[pouch])])
    frame = encode(hoard, 0)
    assert frame == b"\0\0\0\1\0\1h\0\0\0\1\0\0\0\5" + b"\0\0\0\1\0\1p\0\0\0\1\0\0\0\6\0\1l"
    assert decode(Hoard, 0, frame) == hoard
    assert decode(Hoard, 0, encode(Hoard(pebbles=[], pouches=None), 0)) == Hoard(pebbles=[], pouches=None)
    assert blank(Heap) == Heap(name="", things=[])


def test_a_field_that_the_version_lacks_decodes_to_its_default() -> None:
    read = decode(Bag, 1, encode(Bag(owner="me", colour="red"), 1))
    assert (read.colour, read.first) == ("grey", None)


def test_a_value_that_the_version_lacks_is_refused_unless_ignorable() -> None:
    """`colour` is ignorable, `old` is not."""
    encode(Bag(owner="me", colour="red"), 1)
    with pytest.raises(ValueError, match="version 2 cannot carry old"):
        encode(Bag(owner="me", old=5), 2)


def test_a_tagged_struct_with_default_values_is_omitted() -> None:
    for first in (None, Pebble(weight=0)):
        assert encode(Bag(owner="me", first=first), 3) == b"\3me\3\1\1\5grey\xff\0"


def test_a_blank_message_has_default_and_zero_values() -> None:
    assert blank(Bag) == Bag(owner="")
    assert blank(Pebble) == Pebble(weight=0)
    assert blank(Pouch) == Pouch(pebble=Pebble(weight=0), label=None)


def test_carries_depends_on_the_version() -> None:
    assert [carries(Bag, "old", version) for version in (1, 2)] == [True, False]
    assert not carries(Bag, "new", 1)


def test_importing_the_messages_compiles_nothing() -> None:
    script = (
        "import sys\n"
        "from protocol import api, codec, schema\n"
        "made = [cls for cls in schema.Message.__subclasses__() if cls.__init__ is not schema.Message.__init__]\n"
        "assert len(schema.Message.__subclasses__()) > 100\n"
        "sys.exit(bool(made or schema._fields or codec._decoders or codec._encoders))\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
