"""Decoding of literal rows: valid, malformed and null values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.dead_letters import dead_letters_of
from barnabas.pipeline.spark.value_decoding import Decoding, check_decoding, choose_decoding, decode, decoded_fields

pytestmark = pytest.mark.long

RECORD = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": "carrier", "type": "string"}, {"name": "delay", "type": ["null", "int"]}],
}
COLUMNS = (
    "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)


def records(spark: Any, *values: bytes | None) -> Any:
    rows = [("t", 0, number, None, b"k", value, [("h", b"1")]) for number, value in enumerate(values)]
    return spark.createDataFrame(rows, COLUMNS).withColumn("timestamp", f.timestamp_millis(f.lit(5)))


def test_json_is_decoded_by_an_inferred_schema(spark: Any) -> None:
    """A tombstone is not malformed; a value of another type is."""
    rows = records(spark, b'{"a": 1, "b": "x"}', b"{broken", None, b'{"a": "one"}', b'{"b": "y", "c": 3}', b"[]")
    decoding = choose_decoding(spark, "json", None, "plain", rows.limit(1))
    found = decode(rows, decoding).orderBy("offset").collect()
    assert [None if row.data is None else (row.data.a, row.data.b) for row in found] == [
        (1, "x"),
        None,
        None,
        None,
        (None, "y"),
        None,
    ]
    assert [row.error is not None for row in found] == [False, True, False, True, False, True]
    assert found[1].value == b"{broken"
    assert decoded_fields(spark, decoding) == ", data struct<`a`:bigint,`b`:string>, error string"


def test_names_of_json_fields_may_have_any_characters(spark: Any) -> None:
    """Files are read with these columns for a compaction and for an audit."""
    value = {"dep-delay": 1, "a b": 2, "c.d": [{"x-y": 3}], "order": {"e`f": 4}}
    rows = records(spark, json.dumps(value).encode())
    decoding = choose_decoding(spark, "json", None, "plain", rows)
    [found] = decode(rows, decoding).collect()
    assert found.data.asDict(recursive=True) == value
    columns: Any = StructType.fromDDL(f"value binary{decoded_fields(spark, decoding)}")
    assert columns["data"].dataType == StructType.fromJson(json.loads(decoding.schema))


def test_a_dead_letter_has_reason_and_origin(spark: Any) -> None:
    decoded = decode(records(spark, b"{broken", b'{"a": 1}'), Decoding("json", StructType.fromDDL("a int").json()))
    [letter] = dead_letters_of(decoded, "dlq", 1).collect()
    assert (letter.to_topic, letter.to_partition, letter.key, letter.value, letter.ms) == (
        "dlq",
        0,
        b"k",
        b"{broken",
        5,
    )
    assert [(header.key, bytes(header.value)) for header in letter.headers] == [
        ("h", b"1"),
        ("dead-letter.reason", b"the value is not JSON of the schema"),
        ("dead-letter.topic", b"t"),
        ("dead-letter.partition", b"0"),
        ("dead-letter.offset", b"0"),
    ]


@pytest.mark.parametrize("framing", ["plain", "confluent"])
def test_avro_is_decoded_by_sparks_reader(spark: Any, tmp_path: Path, framing: str) -> None:
    """With `confluent` framing a record without the five bytes is malformed."""
    from pyspark.sql.avro.functions import to_avro

    schema = tmp_path / "flight.avsc"
    schema.write_text(json.dumps(RECORD))
    try:
        flights = spark.createDataFrame([("UA", 5), ("AA", None)], "carrier string not null, delay int")
        plain = [bytes(row[0]) for row in flights.select(to_avro(f.struct("*"), schema.read_text())).collect()]
    except (PySparkException, TypeError) as missing:
        if "avro" not in str(missing).lower():
            raise
        pytest.skip("the jar spark-avro is not here")
    head = b"\0\0\0\0\7" if framing == "confluent" else b""
    rows = records(spark, *(head + value for value in plain), None, b"\xff\xff\xff\xff", b"")
    found = decode(rows, choose_decoding(spark, "avro", schema, framing, rows)).orderBy("offset").collect()
    assert [None if row.data is None else tuple(row.data) for row in found] == [
        ("UA", 5),
        ("AA", None),
        None,
        None,
        None,
    ]
    assert [row.error is not None for row in found] == [False, False, False, True, True]


def test_settings_that_contradict_a_stored_decoding_are_refused(tmp_path: Path) -> None:
    """Settings that are not given, and those of another format, contradict nothing."""
    stored = Decoding("avro", json.dumps(RECORD), "confluent")
    same, other = tmp_path / "same.avsc", tmp_path / "other.avsc"
    same.write_text(json.dumps(RECORD, indent=2))
    other.write_text('"string"')
    check_decoding("/a", stored, None, None, None)
    check_decoding("/a", stored, "avro", same, "confluent")
    check_decoding("/a", Decoding("raw", ""), "raw", other, "confluent")
    with pytest.raises(JobError, match="/a was created with --decode avro: use another folder for json"):
        check_decoding("/a", stored, "json", None, None)
    with pytest.raises(JobError, match="/a was created with --framing confluent: use another folder for plain"):
        check_decoding("/a", stored, None, None, "plain")
    with pytest.raises(JobError, match=r"/a was created with another schema than .*other\.avsc"):
        check_decoding("/a", stored, None, other, None)


def test_invalid_decoding_settings_are_refused(spark: Any, tmp_path: Path) -> None:
    for settings, schema, message in (
        ("xml", None, "not as 'xml'"),
        ("avro", None, "Avro needs --schema"),
        ("json", tmp_path / "nothing", "cannot be read"),
    ):
        with pytest.raises(JobError, match=message):
            choose_decoding(spark, settings, schema, "plain", records(spark))
    (tmp_path / "bad").write_text("carrier strin")
    with pytest.raises(JobError, match="is not DDL"):
        choose_decoding(spark, "json", tmp_path / "bad", "plain", records(spark))
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(JobError, match="binary cannot be read: it is not UTF-8 text"):
        choose_decoding(spark, "avro", tmp_path / "binary", "plain", records(spark))
    (tmp_path / "similar").write_text("a struct<b: int, B: int>")
    similar = "the fields b and B, which are the same to Spark|the fields B and b, which are the same to Spark"
    with pytest.raises(JobError, match=similar):
        choose_decoding(spark, "json", tmp_path / "similar", "plain", records(spark))
    with pytest.raises(JobError, match=similar):
        choose_decoding(spark, "json", None, "plain", records(spark, b'{"a": [{"b": 1, "B": 2}]}'))
    with pytest.raises(JobError, match="No schema can be inferred"):
        choose_decoding(spark, "json", None, "plain", records(spark, None))
