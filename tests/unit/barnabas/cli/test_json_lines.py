"""Records as JSON lines: nothing is lost, and what is malformed is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.cli.records.json_lines import line_of, parse_line
from barnabas.cli.records.parsed_record import MalformedInput
from barnabas.client.batch_header import BatchHeader
from barnabas.client.record_batches import Header, Record

BATCH = BatchHeader(0, 49, 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)
HOSTILE = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=20).map(str.encode),
    st.sampled_from(
        [b"", b"\n", b'"', b"\\", b"\x00", b"\xff", b"\xed\xa0\x80", "\u2028\u0085".encode(), b"null", b"{}"]
    ),
)
NULLABLE = st.none() | HOSTILE
HEADERS = st.lists(st.tuples(HOSTILE, NULLABLE), max_size=4)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(NULLABLE, NULLABLE, HEADERS, I64)
def test_a_line_gives_the_record_back(
    key: bytes | None, value: bytes | None, headers: list[Header], timestamp: int
) -> None:
    line = line_of(Record("t", 3, 7, timestamp, key, value, headers, BATCH))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    found = parse_line(line)
    assert (found.topic, found.partition, found.timestamp) == ("t", 3, timestamp)
    assert (found.key, found.value, list(found.headers)) == (key, value, headers)


def test_a_line_is_as_documented() -> None:
    batch = BATCH._replace(attributes=8)
    record = Record("t", 0, 7, 5, b"k", b"\xff", [(b"a", None)], batch)
    assert line_of(record) == (
        b'{"topic":"t","partition":0,"offset":7,"timestamp":5,"timestamp_type":"log-append",'
        b'"key":"k","value":{"base64":"/w=="},"headers":[{"key":"a","value":null}]}\n'
    )


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("hello", "not JSON"),
        ("[1]", "not a JSON object"),
        ("{}", 'no "value"'),
        ('{"value":1}', '"value" is no string'),
        ('{"value":{"base64":"?"}}', '"value" cannot be decoded'),
        ('{"value":"\\ud800"}', '"value" cannot be decoded'),
        ('{"value":null,"keys":"a"}', '"keys" is no field'),
        ('{"value":null,"partition":-1}', "no partition"),
        ('{"value":null,"partition":true}', "no partition"),
        ('{"value":null,"timestamp":9223372036854775808}', "no timestamp"),
        ('{"value":null,"headers":{"a":"b"}}', "not a list"),
        ('{"value":null,"headers":[["a","b"]]}', "a header is not"),
        ('{"value":null,"headers":[{"key":null}]}', "key of a header is null"),
    ],
)
def test_a_malformed_line_is_refused(line: str, why: str) -> None:
    with pytest.raises(MalformedInput, match=why):
        parse_line(line.encode())
