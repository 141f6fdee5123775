"""The format dialects, printed and read, against written expectations."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.cli.records.format_parser import FormatParser
from barnabas.cli.records.format_printer import FormatPrinter
from barnabas.cli.records.input_parser import InputParser, LineParser
from barnabas.cli.records.kcat_dialect import kcat_line, parse_kcat_layout, parse_kcat_line
from barnabas.cli.records.layout import parse_layout
from barnabas.cli.records.parsed_record import MalformedInput, ParsedRecord
from barnabas.client.errors import ClientError
from barnabas.client.record_batches import Header, Record
from barnabas.client.record_reader import Page
from barnabas.client.topic_partition import TopicPartition
from tests.unit.barnabas.cli.test_json_lines import BATCH, HEADERS, NULLABLE

FULL = Record(
    "top", 3, 70, 1_767_225_600_123, b"k\xff", b"value", [(b"a", b"b"), (b"a", None)], BATCH._replace(attributes=4)
)
NULLS = Record("top", 3, 71, -1, None, None, [], BATCH)
EMPTY = Record("top", 3, 71, 0, b"", b"", [], BATCH)


def printed(layout: str, *records: Record, null: str = "", kcat: bool = False) -> bytes:
    parts = parse_kcat_layout(layout) if kcat else parse_layout(layout)
    page = Page(TopicPartition("top", 3), list(records), 5, 90, 91, 72)
    return FormatPrinter(parts, null).print_page(page, list(records))


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (r"%t/%p/%o %k=%v\n", b"top/3/70 k\xff=value\n"),
        ("%T %K %V %H", b"3 2 5 2"),
        ("%d %e %x %y %i", b"1767225600123 0 -1 -1 1"),
        ("%[ %| %]", b"5 90 91"),
        (r"%%%{%}\t\r\\\x41", b"%{}\t\r\\A"),
        ("%k{hex} %k{base64} %k{base64raw} %v{json}", b'6bff a/8= a/8 "value"'),
        ("%o{hex} %o{hex64} %o{hex8} %o{bool} %o{ascii}", b"46 0000000000000046 46 true 70"),
        ("%V{big32}%V{little16}%V{byte}%V{big64}", b"\0\0\0\5\5\0\5\0\0\0\0\0\0\0\5"),
        ("%h{ %k=%v(%V)}", b" a=b(1) a=(-1)"),
        ("%h{%k%{%v%}}", b"a{b}a{}"),
        ("%d{strftime[%F %T]} %d{go[2006-01-02T15:04:05.000Z07:00]}", b"2026-01-01 00:00:00 2026-01-01T00:00:00.123Z"),
        ("%a{compression} %a{timestamp-type} %a{transactional-bit} %a{control-bit}", b"zstd CreateTime 0 0"),
        ("%v{unpack[>H]}", str(int.from_bytes(b"va", "big")).encode()),
        ("%v{unpack[cxs]}", b"vlue"),
    ],
)
def test_a_format_prints(layout: str, expected: bytes) -> None:
    assert printed(layout, FULL) == expected


def test_seconds_since_1970_are_the_same_in_each_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """strftime took the UTC time for one of the machine's zone."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert printed("%d{strftime[%s %%s%H %s]}", FULL) == b"1767225600 %s00 1767225600"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(("field", "largest"), [("byte", 254), ("little16", 65_534)])
def test_a_binary_size_has_no_sign_and_must_fit(field: str, largest: int) -> None:
    """A size of 200 was read as -56: as null, and the value as the next records."""
    layout = f"%V{{{field}}}%v"
    values = [b"x" * largest, None, b"x" * (largest // 2 + 1), b""]
    found = printed(layout, *(NULLS._replace(value=value) for value in values))
    assert [record.value for record in read(layout, found, chunk=100)] == values
    with pytest.raises(ClientError, match=rf"The size {largest + 1:,} does not fit into %V\{{{field}\}}"):
        printed(layout, NULLS._replace(value=b"x" * (largest + 1)))


def test_nulls_are_told_from_empty_texts() -> None:
    assert printed("%K %V|%k %v;", NULLS, EMPTY, null="NULL") == b"-1 -1|NULL NULL;0 0| ;"
    assert printed("%S %R %s|", NULLS, EMPTY, kcat=True) == b"-1 \xff\xff\xff\xff |0 \0\0\0\0 |"


def test_kcats_formats_print_and_parse_records() -> None:
    assert printed(r"%t %p %o %T %k:%K %s:%S %h %%{}\n", FULL, kcat=True) == (
        b"top 3 70 1767225600123 k\xff:2 value:5 a=b,a=NULL %{}\n"
    )
    line = kcat_line(FULL._replace(key=b"k"))
    assert line == (
        b'{"topic":"top","partition":3,"offset":70,"tstype":"create","ts":1767225600123,'
        b'"headers":["a","b","a",null],"key":"k","payload":"value"}\n'
    )
    headers = [(b"a", b"b"), (b"a", None)]
    assert parse_kcat_line(line) == ParsedRecord(b"value", b"k", headers, "top", 3, 1_767_225_600_123)


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        ("%z", "%z at character 1"),
        ("%", "% at character 1"),
        (r"\q", r"has \\q"),
        ("%h", "%h without braces"),
        ("%k{hex", "not closed"),
        ("%k{rot13}", "hex, base64"),
        ("%o{big128}", "a number takes"),
        ("%v{unpack[Z]}", "unpack"),
        ("%v{re#a}", "without #}"),
        ("%a{size}", "compression"),
    ],
)
def test_an_unknown_format_is_refused(layout: str, why: str) -> None:
    with pytest.raises(ClientError, match=why):
        printed(layout, FULL)


def read(layout: str, data: bytes, chunk: int = 1) -> list[ParsedRecord]:
    parser = FormatParser(parse_layout(layout))
    found = [one for at in range(0, len(data), chunk) for one in parser.feed(data[at : at + chunk])]
    return [*found, *parser.finish()]


@pytest.mark.parametrize(
    ("layout", "data", "expected"),
    [
        (r"%k\t%v\n", b"a\tb\nc\td", [ParsedRecord(b"b", b"a"), ParsedRecord(b"d", b"c")]),
        (r"%v\n", b"a\n\nb\n", [ParsedRecord(b"a"), ParsedRecord(b""), ParsedRecord(b"b")]),
        ("%v", b"a\nb", [ParsedRecord(b"a\nb")]),
        ("%V{3}%v", b"abcdef", [ParsedRecord(b"abc"), ParsedRecord(b"def")]),
        ("%K{big16}%k%V{little32}%v", b"\0\1k\2\0\0\0vv\xff\xff\0\0\0\0", [ParsedRecord(b"vv", b"k"), ParsedRecord(b"", None)]),
        ("%V %v,", b"3 a,b,-1 ,", [ParsedRecord(b"a,b"), ParsedRecord(None)]),
        ("%k{hex} %v{base64}\\n", b"ff /w==\n", [ParsedRecord(b"\xff", b"\xff")]),
        ("%v{base64raw};", b"/w;", [ParsedRecord(b"\xff")]),
        ("%v{json}%k;", b'{"a": [1, "}"]}x;7y;', [ParsedRecord(b'{"a": [1, "}"]}', b"x"), ParsedRecord(b"7", b"y")]),
        ("%v{re#[0-9]+#}%k\\n", b"12ab\n3c\n", [ParsedRecord(b"12", b"ab"), ParsedRecord(b"3", b"c")]),
        ("%t %p %o %d %v\\n", b"t 1 99 -5 x\n", [ParsedRecord(b"x", topic="t", partition=1, timestamp=-5)]),
        ("%H %h{%k=%v,}%v\\n", b"2 a=b,c=,x\n", [ParsedRecord(b"x", headers=[(b"a", b"b"), (b"c", b"")])]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_a_format_reads(layout: str, data: bytes, expected: list[ParsedRecord], chunk: int) -> None:
    assert [one._replace(headers=tuple(one.headers)) for one in read(layout, data, chunk)] == [
        one._replace(headers=tuple(one.headers)) for one in expected
    ]


BINARY = "%p %d %K{big32}%k%V{big32}%v%H{big16}%h{%K{big32}%k%V{big32}%v}"


@given(NULLABLE, NULLABLE, HEADERS, st.integers(-5, 5), st.integers(1, 30))
def test_a_format_with_sizes_loses_nothing(
    key: bytes | None, value: bytes | None, headers: list[Header], timestamp: int, chunk: int
) -> None:
    records = [Record("t", 1, at, timestamp, key, value, headers, BATCH) for at in range(3)]
    found = read(BINARY, printed(BINARY, *records), chunk)
    assert [(one.key, one.value, list(one.headers), one.partition, one.timestamp) for one in found] == [
        (key, value, headers, 1, timestamp)
    ] * 3


@pytest.mark.parametrize(
    ("layout", "data", "why"),
    [
        ("%k,%v\\n", b"ab\n", "middle"),
        ("%V{3}%v", b"abcd", "middle"),
        ("%V %v\\n", b"x a\n", "no number"),
        ("%v{hex}\\n", b"zz\n", "not hex"),
        ("%v{re#[0-9]+#}\\n", b"a\n", "does not match"),
        ("%V{1}%v;", b"ab", "not where"),
        ("%v{json}\\n", b"[" * 100_000, "brackets"),
    ],
)
def test_an_input_of_another_format_is_refused(layout: str, data: bytes, why: str) -> None:
    with pytest.raises(MalformedInput, match=why):
        read(layout, data)


def test_a_line_of_kcat_with_many_brackets_is_malformed() -> None:
    with pytest.raises(MalformedInput, match="no line of kcat"):
        parse_kcat_line(b"[" * 100_000)


@pytest.mark.parametrize("layout", ["%p\\n", "%k%v", "%i %v\\n", "%h{%k=%v,}%v", "%v{json8}\\n", "%v{re#(#}"])
def test_a_format_that_cannot_be_read_is_refused(layout: str) -> None:
    with pytest.raises(ClientError, match="The format"):
        read(layout, b"x")


@pytest.mark.parametrize("is_sized", [False, True])
def test_a_large_record_takes_time_in_proportion_to_its_size(is_sized: bool) -> None:
    """It arrives in 16,384 pieces; reading it from its start with each of them would take minutes."""
    piece, count = b"x" * 4096, 1 << 14
    parser: InputParser = LineParser(ParsedRecord)
    found: list[ParsedRecord] = []
    if is_sized:
        parser = FormatParser(parse_layout("%V{big32}%v"))
        found += parser.feed((len(piece) * count).to_bytes(4, "big"))
    began_s = time.process_time()
    for _ in range(count):
        found += parser.feed(piece)
    found += parser.feed(b"" if is_sized else b"\n")
    assert [one.value for one in found] == [piece * count]
    assert time.process_time() - began_s < 10
