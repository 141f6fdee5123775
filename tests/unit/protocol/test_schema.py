"""protocol/schema.py: what a declared class can do."""

from __future__ import annotations

import subprocess
import sys

import pytest

from protocol.codec import decode, encode
from protocol.schema import (
    EMPTY,
    Annotated,
    Ignorable,
    Int8,
    Int32,
    Message,
    Nullable,
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
    """A message that must be given everything."""

    pebble: Pebble
    label: str | None


def test_a_class_knows_its_key_and_versions() -> None:
    """The class keywords, as Kafka's schema names them."""
    assert (Bag.API_KEY, Bag.MIN_VERSION, Bag.MAX_VERSION, Bag.FLEXIBLE_SINCE) == (7, 1, 4, 3)


def test_a_constructor_takes_keywords_and_gives_defaults() -> None:
    """FORMAT: a field without default must be given."""
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
    """RULE 4."""
    one, other = Bag(owner="a"), Bag(owner="a")
    one.pebbles.append(Pebble(weight=1))
    assert other.pebbles == []


def test_attributes_that_are_not_declared_cannot_be_set() -> None:
    """A misspelt field is an error, not a surprise."""
    with pytest.raises(AttributeError):
        Bag(owner="a").ownr = "b"  # type: ignore[attr-defined]


def test_messages_are_equal_when_all_their_values_are() -> None:
    """Unknown tagged fields count, classes count; messages change, so they have no hash."""
    assert Bag(owner="a", pebbles=[Pebble(weight=1)]) == Bag(owner="a", pebbles=[Pebble(weight=1)])
    assert Bag(owner="a") != Bag(owner="b")
    assert Pebble(weight=1) != Bag(owner="a")
    tagged = Bag(owner="a")
    tagged.unknown_tagged_fields = {9: b"x"}
    assert tagged != Bag(owner="a")
    with pytest.raises(TypeError):
        hash(tagged)


def test_a_repr_shows_values_but_no_batches() -> None:
    """It ends up in log lines."""
    assert repr(Pebble(weight=1)) == "Pebble(weight=1)"
    pebble = Pebble(weight=1)
    pebble.unknown_tagged_fields = {9: b"x"}
    assert repr(pebble) == "Pebble(weight=1, unknown_tagged_fields={9: b'x'})"
    pebble.weight = b"x" * 1000  # type: ignore[assignment]
    assert "<1000 bytes>" in repr(pebble)


def test_fields_are_in_the_order_of_the_wire() -> None:
    """Annotations keep their order."""
    names = [field.name for field in fields_of(Bag)]
    assert names == ["owner", "size", "pebbles", "label", "colour", "old", "first", "one"]


def test_versions_carry_what_the_marks_say() -> None:
    """RULE 2 and 3: the bytes of each version, by hand."""
    bag = Bag(owner="me", label="l", colour="red")
    assert encode(bag, 1) == b"\0\2me\3\0\0\0\0\0\1l\xff\xff\xff\xff\xff"
    assert encode(bag, 2) == b"\0\2me\3\0\0\0\0\0\1l\0\3red\xff"
    assert encode(bag, 3) == b"\3me\3\1\2l\4red\xff\0"
    bag.first = Pebble(weight=5)
    bag.one = Pebble(weight=6)
    bag.label = None
    assert encode(bag, 4) == b"\3me\3\1\0\4red\1\0\0\0\6\0\1\0\5\0\0\0\5\0"
    assert decode(Bag, 4, encode(bag, 4)) == bag


def test_a_field_outside_the_version_comes_back_as_its_default() -> None:
    """RULE 3."""
    read = decode(Bag, 1, encode(Bag(owner="me", colour="red"), 1))
    assert (read.colour, read.first) == ("grey", None)


def test_a_value_that_a_version_cannot_carry_is_refused_unless_ignorable() -> None:
    """RULE 3: colour is ignorable, old is not."""
    encode(Bag(owner="me", colour="red"), 1)
    with pytest.raises(ValueError, match="version 2 cannot carry old"):
        encode(Bag(owner="me", old=5), 2)


def test_a_tagged_struct_equal_to_its_defaults_is_not_written() -> None:
    """As Kafka: tagged fields with their default stay out."""
    for first in (None, Pebble(weight=0)):
        assert encode(Bag(owner="me", first=first), 3) == b"\3me\3\1\1\5grey\xff\0"


def test_a_blank_message_has_defaults_and_zeros() -> None:
    """For an answer that only says what went wrong."""
    assert blank(Bag) == Bag(owner="")
    assert blank(Pebble) == Pebble(weight=0)
    assert blank(Pouch) == Pouch(pebble=Pebble(weight=0), label=None)


def test_a_class_tells_which_version_carries_a_field() -> None:
    """The error code of a whole answer is not in every version."""
    assert [carries(Bag, "old", version) for version in (1, 2)] == [True, False]
    assert not carries(Bag, "new", 1)


def test_importing_the_messages_compiles_nothing() -> None:
    """RULE 1: the start of the broker pays for the messages it uses only."""
    script = (
        "import sys\n"
        "from protocol import api, codec, schema\n"
        "made = [cls for cls in schema.Message.__subclasses__() if '__init__' in vars(cls)]\n"
        "assert len(schema.Message.__subclasses__()) > 100\n"
        "sys.exit(bool(made or schema._fields or codec._decoders or codec._encoders))\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
