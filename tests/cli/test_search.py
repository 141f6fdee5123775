"""`barnabas search`, and the Python call, in a cluster of several nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

import barnabas
from barnabas.client.errors import ClientError
from barnabas.client.search import open_cluster, search
from tests.cli.running import Verbs
from tests.support.waiting import until

RECORDS, KEYS, FIRST_MS = 60, 10, 1_700_000_000_000


@pytest.fixture(scope="module")
def verbs() -> Iterator[Verbs]:
    """A cluster of two nodes with an indexed topic, whose partitions both lead."""
    with barnabas.Cluster(2, settings={"offsets.topic.num.partitions": 1}) as cluster:
        made = Verbs(cluster.bootstrap)
        made.rows("topics create orders -p 4 -r 1 -c barnabas.index.keys=key,header:id")
        made.rows("topics create plain")
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        for number in range(RECORDS):
            producer.produce(
                "orders",
                b"v%d" % number,
                key=b"k%d" % (number % KEYS),
                partition=number % 4,
                timestamp=FIRST_MS + number * 1000,
                headers=[("id", b"%d" % number), ("raw", b"\xff"), ("none", None)],
            )
        assert producer.flush(30) == 0
        bounds = "search -t orders -k any --bounds"
        until(lambda: sum(row["to_offset"] for row in made.rows(bounds)) == RECORDS, "a complete index")
        yield made


def test_records_of_all_leaders_are_found_the_newest_first(verbs: Verbs) -> None:
    ended = verbs.run("search -t orders -k k3 --json")
    assert [row["value"] for row in ended.rows()] == ["v53", "v43", "v33", "v23", "v13", "v3"]
    assert ended.err == ""
    first = ended.rows()[0]
    id_and_raw = {"key": "id", "value": "53"}, {"key": "raw", "value": {"base64": "/w=="}}
    assert first["headers"] == [*id_and_raw, {"key": "none", "value": None}]
    assert (first["topic"], first["timestamp"]) == ("orders", FIRST_MS + 53_000)
    assert {row["partition"] for row in ended.rows()} == {1, 3}


def test_headers_times_and_a_limit_choose_records(verbs: Verbs) -> None:
    assert [row["value"] for row in verbs.rows("search -t orders -H id=17")] == ["v17"]
    assert verbs.rows("search -t orders -H id=99") == []
    times = f"--from {FIRST_MS + 13_000} --to {FIRST_MS + 43_000}"
    assert [row["value"] for row in verbs.rows(f"search -t orders -k k3 {times}")] == ["v33", "v23", "v13"]
    ended = verbs.run("search -t orders -k k3 --max 2 --json")
    assert [row["value"] for row in ended.rows()] == ["v53", "v43"]
    assert "Older records match too" in ended.err


def test_a_table_is_for_people(verbs: Verbs) -> None:
    lines = verbs.run("search -t orders -H id=17").out.splitlines()
    assert lines[0].split() == ["PARTITION", "OFFSET", "TIME", "KEY", "VALUE", "HEADERS"]
    assert lines[1].split()[3:] == ["k7", "v17", "id=17,raw=\\xff,none=null"]


def test_a_time_after_the_year_9999_is_found_and_shown_as_a_number(verbs: Verbs) -> None:
    last_ms = (1 << 63) - 2
    verbs.rows(f"topics create far -c barnabas.index.keys=key -c message.timestamp.after.max.ms={last_ms}")
    producer = Producer({"bootstrap.servers": verbs.bootstrap})
    producer.produce("far", b"value", key=b"k", timestamp=last_ms)
    assert producer.flush(30) == 0
    [row] = until(lambda: verbs.rows("search -t far -k k"), "the record is indexed")
    assert row["timestamp"] == last_ms
    assert verbs.run("search -t far -k k").out.splitlines()[1].split()[2] == str(last_ms)
    assert verbs.rows("search -t far -k k --bounds")[0]["to_time"] == str(last_ms)


def test_bounds_say_from_where_to_where_an_answer_is_complete(verbs: Verbs) -> None:
    rows = verbs.rows("search -t orders -k any --bounds")
    assert [(row["partition"], row["from_offset"], row["to_offset"]) for row in rows] == [(n, 0, 15) for n in range(4)]
    assert rows[0]["from_time"] == "2023-11-14T22:13:20.000+00:00"


def test_what_cannot_be_searched_is_said(verbs: Verbs) -> None:
    no_index = verbs.refused("search -t plain -k 1")
    assert "has no index of key: its barnabas.index.keys is empty" in no_index
    assert "barnabas configs set topic TOPIC barnabas.index.keys=FIELDS sets it" in no_index
    assert "its barnabas.index.keys is key, header:id" in verbs.refused("search -t orders -H raw=1")
    assert "There is no topic absent" in verbs.refused("search -t absent -k 1")
    for misuse in ("-t orders", "-t orders -k 1 -H a=b", "-t orders -H a", "-t orders -k 1 --from soon"):
        assert verbs.run(f"search {misuse}").code == 2


def test_the_python_call_answers_the_same(verbs: Verbs) -> None:
    cluster = open_cluster(verbs.bootstrap)
    answer = search(cluster, "orders", "key", b"k3", limit=2)
    cluster.close()
    assert [record.value for record in answer.records] == [b"v53", b"v43"]
    assert all(part.to_offset == part.end_offset == 15 for part in answer.partitions)
    assert json.dumps([part.is_cut for part in answer.partitions]) == "[false, true, false, true]"
    with pytest.raises(ClientError, match="has no index"):
        search(open_cluster(verbs.bootstrap), "plain", "key", b"1")
