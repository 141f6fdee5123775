"""Ranges, filters, partitions, and the line of progress."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import Mock

import click
import pytest

from barnabas.cli.admin.common import compiled
from barnabas.cli.number_options import number_ranges
from barnabas.cli.offset_ranges import OffsetRange, Place, parse_range
from barnabas.cli.partition_choice import PartitionChoice
from barnabas.cli.partitioning import partition_of_key
from barnabas.cli.progress import describe
from barnabas.cli.records.format_parser import FormatParser
from barnabas.cli.records.input_parser import LineParser
from barnabas.cli.records.layout import parse_layout
from barnabas.cli.records.parsed_record import ParsedRecord
from barnabas.cli.records.record_filters import filters_of
from barnabas.client.errors import ArgumentError, ClientError
from barnabas.client.record_batches import Record
from tests.unit.barnabas.cli.test_json_lines import BATCH

NOW = 1_800_000_000_000
HOUR = 3_600_000
START, END = Place("start"), Place("end")


def at(moment: int) -> Place:
    return Place("moment", moment)


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("start", START, None),
        ("end", END, None),
        ("17", Place("offset", 17), None),
        ("+10", Place("start", 10), None),
        ("-10", Place("end", -10), None),
        ("5:9", Place("offset", 5), Place("offset", 9)),
        (":end", START, END),
        (":-1", START, Place("end", -1)),
        ("5:", Place("offset", 5), None),
        ("@1700000000", at(1_700_000_000_000), None),
        ("@1700000000123", at(1_700_000_000_123), None),
        ("@-1h30m", at(NOW - HOUR * 3 // 2), None),
        ("@-1h:end", at(NOW - HOUR), END),
        ("@-2h:-1h", at(NOW - 2 * HOUR), at(NOW - HOUR)),
        ("@start:now", START, at(NOW)),
        ("@2026-01-01", at(1_767_225_600_000), None),
        ("@2026-01-01:1h", at(1_767_225_600_000), at(1_767_225_600_000 + HOUR)),
        ("@2026-01-01T00:00:00Z:2026-01-01T02:00:00+01:00", at(1_767_225_600_000), at(1_767_225_600_000 + HOUR)),
        ("@2026-01-01:", at(1_767_225_600_000), None),
    ],
)
def test_a_range_is_read(text: str, first: Place, last: Place | None) -> None:
    assert parse_range(text, NOW) == OffsetRange(first, last)


def test_a_range_of_any_length_ends_at_a_64_bit_timestamp() -> None:
    last = parse_range(f"@{'9' * 18}:{'9' * 12}w", NOW).last
    assert last is not None
    assert last.number < 1 << 63


@pytest.mark.parametrize("text", ["", "x", "5:x", "@", "@x", "@2026-13-01", "@-1h:x", "5-9"])
def test_no_range_is_refused(text: str) -> None:
    with pytest.raises(ClientError, match="is not a range"):
        parse_range(text, NOW)


def test_lists_of_partitions_have_numbers_and_ascending_ranges() -> None:
    assert [list(one) for one in number_ranges("0,2,4-6")] == [[0], [2], [4, 5, 6]]
    for text in ("a", "", "1-", "1,", "-1", "9" * 5000):
        with pytest.raises(ArgumentError, match="Partitions are written"):
            number_ranges(text)
    with pytest.raises(ArgumentError, match="The partitions 6-4 are none"):
        number_ranges("1,6-4")


@pytest.mark.parametrize("text", ["(", "(" * 5000, "a{99999999999}"])
def test_what_is_no_expression_is_a_sentence(text: str) -> None:
    uses: list[tuple[type[Exception], Callable[[], object]]] = [
        (click.UsageError, lambda: compiled(text)),
        (ArgumentError, lambda: filters_of([text], [], [], [])),
        (ArgumentError, lambda: FormatParser(parse_layout(f"%v{{re##{text}##}}"))),
        (ArgumentError, lambda: PartitionChoice(Mock(), [text], is_regex=True, partitions=None)),
    ]
    for error, use in uses:
        with pytest.raises(error, match="is not a regular expression"):
            use()


def test_a_value_with_many_brackets_is_compared_as_text() -> None:
    assert not is_chosen(RECORD, paths=f".a={'[' * 100_000}")


def test_an_expression_for_names_matches_all_characters() -> None:
    assert compiled(".*").fullmatch("a\nb")


RECORD = Record("t", 0, 0, 0, b"user-7", b'{"a":{"b":[1,"x",null]},"c d":true}', [(b"h", b"one"), (b"n", None)], BATCH)


def is_chosen(record: Record, **options: str) -> bool:
    found = {name: [text] for name, text in options.items()}
    return all(
        one(record) for one in filters_of(*(found.get(name, []) for name in ("keys", "values", "headers", "paths")))
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"keys": r"-\d$"}, True),
        ({"keys": "^7"}, False),
        ({"values": "x"}, True),
        ({"values": "y"}, False),
        ({"headers": "h"}, True),
        ({"headers": "h=^o"}, True),
        ({"headers": "h=two"}, False),
        ({"headers": "n"}, True),
        ({"headers": "n=."}, False),
        ({"paths": ".a.b[0]"}, True),
        ({"paths": "$.a.b[0]=1"}, True),
        ({"paths": ".a.b[0]=2"}, False),
        ({"paths": ".a.b[-2]=x"}, True),
        ({"paths": ".a.b[2]"}, False),
        ({"paths": ".a.b[3]"}, False),
        ({"paths": '["c d"]=true'}, True),
        ({"paths": ".a.z"}, False),
        ({"keys": "7", "values": "y"}, False),
    ],
)
def test_a_filter_chooses(options: dict[str, str], expected: bool) -> None:
    assert is_chosen(RECORD, **options) is expected
    assert not is_chosen(RECORD._replace(key=None, value=None, headers=[]), **options)


@pytest.mark.parametrize(
    "options", [{"keys": "("}, {"paths": "a.b"}, {"paths": ".a b"}, {"paths": ""}, {"paths": r'["\q"]'}]
)
def test_a_malformed_filter_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(ClientError, match="is no"):
        is_chosen(RECORD, **options)


@pytest.mark.parametrize(
    ("key", "expected"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536), (b"abc", 479470107)],
)
@pytest.mark.parametrize("partitions", [1, 7, 1000])
def test_keys_have_the_partitions_that_java_chooses(key: bytes, expected: int, partitions: int) -> None:
    """Hashes of Kafka's UtilsTest."""
    assert partition_of_key(key, partitions) == (expected & 0x7FFFFFFF) % partitions


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_lines_end_at_their_delimiter(chunk: int) -> None:
    data = b"a\r\nb\nc\r\n\r\nd"
    parser = LineParser(ParsedRecord, b"\r\n", skips_empty=False)
    found = [one for at in range(0, len(data), chunk) for one in parser.feed(data[at : at + chunk])]
    assert [one.value for one in (*found, *parser.finish())] == [b"a", b"b\nc", b"", b"d"]


def test_progress_has_share_rate_and_time_left() -> None:
    assert (
        describe("consume", 10.0, 25, 100, 5000)
        == "consume [######..................]  25% 5,000 records, 500/s, 0:30 left"
    )
    assert describe("produce", 10.0, 25, None, 5000) == "produce: 5,000 records, 500/s"
