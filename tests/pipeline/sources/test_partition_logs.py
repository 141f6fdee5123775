"""Log directories written by the daemon's storage and read by the segment source."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.sources.damage import BadOption, DamagedLog, MissingRecords
from barnabas.pipeline.sources.partition_logs import find_logs, first_at, transactions_of
from barnabas.pipeline.sources.planning import plan
from barnabas.pipeline.sources.segment_options import parse_options
from barnabas.pipeline.sources.segments import read_task
from protocol.control_records import ControlType
from storage.io.checkpoint_file import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS, write_offsets
from storage.io.disk import Disk
from storage.log.log import Log
from storage.log.log_reader import Isolation
from storage.log.log_validator import AppendOrigin
from tests.support.logs import NOW_MS, ProducerInfo, append, append_records, log_at, marker, produced, values_of

Values = list[tuple[int, str]]


def read(root: Path, parts: Any = None, **options: str | int) -> Values:
    """Offset and value of the requested records."""
    chosen = parts if parts is not None else planned(root, **options)
    found = [batch for part in chosen for batch in read_task(part)]
    table = pa.Table.from_batches(found) if found else pa.table({"offset": [], "value": []})
    return [(row["offset"], (row["value"] or b"").decode()) for row in table.select(["offset", "value"]).to_pylist()]


def planned(root: Path, **options: str | int) -> Any:
    """The plan of a read; `_` in an option is replaced by a dot, and a number is the value of partition 0."""
    texts = {
        name.replace("_", "."): value if isinstance(value, str) else json.dumps({"t": {"0": value}})
        for name, value in options.items()
    }
    return plan(parse_options({"path": str(root), "subscribe": "t", **texts}))


def write_checkpoint(root: Path, name: str, offset: int, topic: str = "t") -> None:
    """Writes a checkpoint of one partition."""
    write_offsets(Disk(), str(root / name), {(topic, 0): offset})


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """Ten segments of three batches with one record each, a second apart."""
    log = log_at(tmp_path)
    for number in range(30):
        append(log, f"{number}:" + "x" * 250, timestamp_ms=NOW_MS + 1000 * number)
    assert len(segments(tmp_path)) == 10
    yield log
    log.close()


def segments(root: Path, topic: str = "t") -> list[Path]:
    return sorted((root / f"{topic}-0").glob("*.log"))


def numbers(values: Values) -> list[int]:
    assert all(value.startswith(f"{offset}:") for offset, value in values)
    return [offset for offset, _ in values]


def test_each_segment_is_read_by_its_own_task(log: Log, tmp_path: Path) -> None:
    """Without a checkpoint the log ends with its last complete batch."""
    parts = planned(tmp_path)
    assert [(part.start_offset, part.end_offset) for _, part in parts] == [(n, n + 3) for n in range(0, 30, 3)]
    assert numbers(read(tmp_path)) == list(range(30))


def test_checkpoints_give_the_start_and_the_end_of_a_log(log: Log, tmp_path: Path) -> None:
    """`until=written` reads to the end of the file."""
    write_checkpoint(tmp_path, LOG_STARTS, 4)
    write_checkpoint(tmp_path, HIGH_WATERMARKS, 20)
    assert numbers(read(tmp_path)) == list(range(4, 20))
    assert numbers(read(tmp_path, until="written")) == list(range(4, 30))
    assert [part.base for part, _ in planned(tmp_path)] == [3, 6, 9, 12, 15, 18]


def test_offsets_are_chosen_as_for_the_kafka_source(log: Log, tmp_path: Path) -> None:
    assert numbers(read(tmp_path, startingOffsets=7, endingOffsets=9)) == [7, 8]
    assert numbers(read(tmp_path, startingOffsets=-2)) == list(range(30))
    assert read(tmp_path, startingOffsets=30) == []
    write_checkpoint(tmp_path, LOG_STARTS, 4)
    with pytest.raises(MissingRecords, match="goes from offset 4 to 30, and offset 2"):
        planned(tmp_path, startingOffsets=2)
    with pytest.raises(MissingRecords, match="offset 31"):
        planned(tmp_path, endingOffsets=31)
    for start, end, found in ((2, 31, range(4, 30)), (1, 3, ()), (31, 40, ())):
        lenient = read(tmp_path, failOnDataLoss="false", startingOffsets=start, endingOffsets=end)
        assert numbers(lenient) == list(found)


@pytest.mark.parametrize("has_indexes", [True, False])
def test_a_timestamp_selects_the_first_record_at_least_as_late(log: Log, tmp_path: Path, *, has_indexes: bool) -> None:
    log.close()
    if not has_indexes:
        for path in (tmp_path / "t-0").glob("*.*index"):
            path.unlink()

    def offsets(**options: str | int) -> list[int]:
        return numbers(read(tmp_path, **options))

    assert offsets(startingTimestamp=str(NOW_MS + 7000)) == list(range(7, 30))
    assert offsets(startingTimestamp=str(NOW_MS + 7001), endingTimestamp=str(NOW_MS + 9001)) == [8, 9]
    assert offsets(startingTimestamp="0") == list(range(30))
    assert offsets(endingTimestamp=str(NOW_MS + 10**9)) == list(range(30))
    assert offsets(startingOffsetsByTimestamp=NOW_MS + 29_000) == [29]
    with pytest.raises(MissingRecords, match="no record at or after"):
        planned(tmp_path, startingTimestamp=str(NOW_MS + 29_001))
    assert offsets(startingTimestamp=str(NOW_MS + 29_001), startingOffsetsByTimestampStrategy="latest") == []


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_segments_outside_the_request_are_not_opened(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    """Except the newest one, which gives the end of the log."""
    log.close()
    opened: set[str] = set()
    really_open = Path.open

    def noting(path: Path, *words: Any, **more: Any) -> Any:
        opened.add(path.name)
        return really_open(path, *words, **more)

    monkeypatch.setattr(Path, "open", noting)
    requests: tuple[dict[str, str | int], ...] = (
        {"startingOffsets": 13, "endingOffsets": 17},
        {"startingTimestamp": str(NOW_MS + 13_000), "endingTimestamp": str(NOW_MS + 17_000)},
    )
    for request_ in requests:
        opened.clear()
        assert numbers(read(tmp_path, kafka_isolation_level=level, **request_)) == [13, 14, 15, 16]
        logs = {name for name in opened if name.endswith(".log")}
        assert logs == {f"{base:020}.log" for base in (12, 15, 27)}


def test_decreasing_timestamps_are_searched_in_offset_order(tmp_path: Path) -> None:
    log = log_at(tmp_path)
    for number, late in enumerate([5, 1, 9, 3, 9, 2, 8, 12, 4]):
        append(log, f"{number}:" + "x" * 250, timestamp_ms=NOW_MS + 1000 * late)
    log.close()
    for second, first in ((0, 0), (6, 2), (9, 2), (10, 7)):
        assert numbers(read(tmp_path, startingTimestamp=str(NOW_MS + 1000 * second)))[0] == first


def test_a_markers_timestamp_counts(tmp_path: Path) -> None:
    log = log_at(tmp_path)
    append_records(log, produced("0:", timestamp_ms=NOW_MS - 9000, producer=ProducerInfo(1, 0, 0, transactional=True)))
    end(log, 1, ControlType.COMMIT)
    append(log, "2:", timestamp_ms=NOW_MS - 8000)
    log.close()
    assert numbers(read(tmp_path, startingTimestamp=str(NOW_MS))) == [2]
    assert numbers(read(tmp_path, endingTimestamp=str(NOW_MS))) == [0]
    with pytest.raises(MissingRecords, match="no record at or after"):
        planned(tmp_path, startingTimestamp=str(NOW_MS + 1))


# ---- transactions ------------------------------------------------------------------------------------------


def transaction(log: Log, producer_id: int, name: str, sequence: int = 0) -> None:
    """Appends a transactional record that fills a segment."""
    append(log, f"{name}{'x' * 900}", producer=ProducerInfo(producer_id, 0, sequence, transactional=True))


def end(log: Log, producer_id: int, kind: ControlType) -> None:
    append_records(log, marker(kind, producer_id, 0), origin=AppendOrigin.COORDINATOR)


@pytest.mark.parametrize("is_closed", [True, False])
def test_transactions_across_segments_are_resolved(tmp_path: Path, *, is_closed: bool) -> None:
    log = log_at(tmp_path)
    transaction(log, 1, "lost")
    transaction(log, 2, "kept")
    append(log, "plain")
    transaction(log, 1, "lost", 1)
    end(log, 1, ControlType.ABORT)
    end(log, 2, ControlType.COMMIT)
    transaction(log, 1, "kept", 2)
    transaction(log, 3, "lost")
    end(log, 1, ControlType.COMMIT)
    transaction(log, 4, "open")
    append(log, "behind")
    end(log, 3, ControlType.ABORT)
    log.high_watermark = log.log_end_offset
    expected = values_of(log, isolation=Isolation.LAST_STABLE)
    uncommitted = values_of(log, isolation=Isolation.HIGH_WATERMARK)
    if is_closed:
        log.close()
    assert {value[:4] for _, value in expected} == {"lost", "kept", "plai"}, "the log itself leaves them in"
    visible = [(offset, value) for offset, value in expected if not value.startswith("lost")]
    assert read(tmp_path) == visible
    assert read(tmp_path, kafka_isolation_level="read_uncommitted") == uncommitted
    if not is_closed:
        log.close()


def test_markers_above_the_high_watermark_are_ignored(tmp_path: Path) -> None:
    log = log_at(tmp_path)
    for turn in range(4):
        transaction(log, 1, f"one{turn}", 2 * turn)
        transaction(log, 2, f"two{turn}", turn)
        transaction(log, 1, f"one{turn}", 2 * turn + 1)
        end(log, 1, ControlType.ABORT if turn % 2 else ControlType.COMMIT)
        append(log, f"plain{turn}")
        end(log, 2, ControlType.COMMIT if turn % 2 else ControlType.ABORT)
    uncommitted = values_of(log, isolation=Isolation.LOG_END)
    ends = {}
    for high_watermark in range(1, log.log_end_offset + 1):
        log.high_watermark = high_watermark
        ends[high_watermark] = log.open().reader.last_stable_offset
    log.close()
    lost = {f"one{turn}" for turn in (1, 3)} | {f"two{turn}" for turn in (0, 2)}
    for high_watermark, stable in ends.items():
        write_checkpoint(tmp_path, HIGH_WATERMARKS, high_watermark)
        wanted = [(at, value) for at, value in uncommitted if at < stable and value.rstrip("x") not in lost]
        assert read(tmp_path) == wanted, high_watermark


def test_a_log_start_inside_an_open_transaction_is_its_last_stable_offset(tmp_path: Path) -> None:
    log = log_at(tmp_path)
    for turn in range(3):
        transaction(log, 1, "open", turn)
    append(log, "behind")
    log.high_watermark = log.log_end_offset
    log.close()
    write_checkpoint(tmp_path, HIGH_WATERMARKS, 4)
    write_checkpoint(tmp_path, LOG_STARTS, 2)
    assert read(tmp_path) == []
    assert [offset for offset, _ in read(tmp_path, kafka_isolation_level="read_uncommitted")] == [2, 3]


@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_without_a_snapshot_earlier_segments_are_scanned(tmp_path: Path, harm: str) -> None:
    log = log_at(tmp_path)
    transaction(log, 1, "lost")
    transaction(log, 2, "plain")
    end(log, 2, ControlType.COMMIT)
    end(log, 1, ControlType.ABORT)
    transaction(log, 3, "open")
    log.close()
    for path in (tmp_path / "t-0").glob("*.snapshot"):
        if harm == "missing":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    assert [value.rstrip("x") for _, value in read(tmp_path)] == ["plain"]


# ---- files that change or are broken -----------------------------------------------------------------------


def test_a_torn_tail_ends_the_log(log: Log, tmp_path: Path) -> None:
    """At several bytes of the last batch; also zeros or a wrong CRC above the recovery point."""
    log.close()
    write_checkpoint(tmp_path, HIGH_WATERMARKS, 30)
    newest = segments(tmp_path)[-1]
    whole = newest.read_bytes()
    for size in range(len(whole) - 1, len(whole) - len(whole) // 3, -37):
        newest.write_bytes(whole[:size])
        assert numbers(read(tmp_path)) == list(range(29))
    for tail in (bytes(500), whole[-300:]):
        newest.write_bytes(whole[: 2 * len(whole) // 3] + tail)
        assert numbers(read(tmp_path)) == list(range(29))
    newest.write_bytes(whole[:-1] + b"!")
    assert numbers(read(tmp_path)) == list(range(29))


def test_damage_below_the_recovery_point_is_an_error(log: Log, tmp_path: Path) -> None:
    """Also in segments before the newest."""
    log.close()
    newest = segments(tmp_path)[-1]
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-1] + b"!")
    write_checkpoint(tmp_path, HIGH_WATERMARKS, 30)
    write_checkpoint(tmp_path, RECOVERY_POINTS, 30)
    with pytest.raises(DamagedLog, match=r"00000000000000000027\.log is damaged .*offset 29"):
        read(tmp_path)
    newest.write_bytes(whole)
    earlier = segments(tmp_path)[4]
    whole = earlier.read_bytes()
    for broken in (whole[:-5], whole[:-1] + b"!", whole[:-700] + bytes(700)):
        earlier.write_bytes(broken)
        with pytest.raises(DamagedLog, match=r"00000000000000000012\.log is damaged"):
            read(tmp_path)


def test_a_segment_deleted_during_planning_is_skipped(log: Log, tmp_path: Path) -> None:
    [found] = find_logs([str(tmp_path)])
    for path in (*(tmp_path / "t-0").glob("00000000000000000000.*"), *(tmp_path / "t-0").glob("*.snapshot")):
        path.unlink()
    assert first_at(found, NOW_MS, 30) == 3
    assert transactions_of(found, 30) == ((), 30)


def test_a_deleted_segment_is_an_error_or_skipped(log: Log, tmp_path: Path) -> None:
    """A renamed segment that awaits deletion is still read."""
    parts, lenient = planned(tmp_path), planned(tmp_path, failOnDataLoss="false")
    first = segments(tmp_path)[0]
    waiting = first.with_name(first.name + ".deleted")
    first.rename(waiting)
    assert numbers(read(tmp_path, parts)) == list(range(30))
    waiting.unlink()
    with pytest.raises(MissingRecords, match="is missing, and with it offsets from 0 on"):
        read(tmp_path, parts)
    assert numbers(read(tmp_path, lenient)) == list(range(3, 30))


def test_records_merged_into_the_previous_segment_are_found(log: Log, tmp_path: Path) -> None:
    parts = planned(tmp_path)
    first, second = segments(tmp_path)[:2]
    merged = first.read_bytes() + second.read_bytes()
    first.write_bytes(merged)
    second.unlink()
    assert numbers(read(tmp_path, parts)) == list(range(30))


@pytest.mark.parametrize("entry", [(1, 5), (1, 10**6), (1, 400)])
def test_a_wrong_index_entry_does_no_harm(log: Log, tmp_path: Path, entry: tuple[int, int]) -> None:
    log.close()
    index = segments(tmp_path)[0].with_suffix(".index")
    index.write_bytes(b"".join(number.to_bytes(4, "big") for number in entry))
    assert numbers(read(tmp_path, startingOffsets=2)) == list(range(2, 30))


def test_an_index_that_points_into_a_value_is_not_followed(tmp_path: Path) -> None:
    """The value contains a batch header with a wrong CRC."""
    log = log_at(tmp_path)
    disguised = produced("1:", "2:")
    disguised[70] ^= 1
    for value in (b"0:" + disguised, b"1:", b"2:"):
        append_records(log, produced(value))
    log.close()
    path = segments(tmp_path)[0]
    position = path.read_bytes().index(disguised)
    path.with_suffix(".index").write_bytes((0).to_bytes(4, "big") + position.to_bytes(4, "big"))
    assert read(tmp_path, startingOffsets=1) == [(1, "1:"), (2, "2:")]


def test_trailing_zeros_of_an_index_are_ignored(log: Log, tmp_path: Path) -> None:
    """Apache Kafka preallocates the active segment's indexes."""
    log.close()
    for path in (tmp_path / "t-0").glob("*index"):
        os.truncate(path, 10 << 20)
    for first in (10, 28):
        assert numbers(read(tmp_path, startingTimestamp=str(NOW_MS + 1000 * first))) == list(range(first, 30))
        assert numbers(read(tmp_path, startingOffsets=first)) == list(range(first, 30))


# ---- which logs --------------------------------------------------------------------------------------------


def test_topics_are_chosen_by_name_pattern_or_partition(tmp_path: Path) -> None:
    for topic in ("a-1", "ab", "__mine", "__consumer_offsets"):
        log = log_at(tmp_path, topic=topic)
        append(log, topic)
        log.close()
    (tmp_path / "ab-0.0123456789abcdef-delete").mkdir()

    def topics(**options: str) -> list[str]:
        return sorted({request.tp.topic for _, request in plan(parse_options({"path": str(tmp_path), **options}))})

    assert topics(subscribe="ab, a-1") == ["a-1", "ab"]
    assert topics(subscribe="__consumer_offsets") == ["__consumer_offsets"]
    assert topics(subscribePattern="a|_m") == ["__mine", "a-1", "ab"]
    assert topics(subscribePattern="^a[^-]*$") == ["ab"]
    assert topics(subscribePattern=".*") == ["__mine", "a-1", "ab"]
    assert topics(assign='{"a-1": [0]}') == ["a-1"]
    partition = {"path": str(tmp_path / "ab-0"), "subscribePattern": ".*"}
    assert [request.tp.topic for _, request in plan(parse_options(partition))] == ["ab"]


def test_of_several_replicas_the_most_advanced_is_read(tmp_path: Path) -> None:
    for name, count in (("one", 2), ("two", 4), ("three", 3)):
        (tmp_path / name).mkdir()
        log = log_at(tmp_path / name)
        for number in range(count):
            append(log, f"{number}:")
        log.close()
        write_checkpoint(tmp_path / name, HIGH_WATERMARKS, count)
    paths = ",".join(str(tmp_path / name) for name in ("one", "two", "three"))
    assert numbers(read(tmp_path, path=paths)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "u"}, "u: not in"),
        ({"assign": '{"t": [0, 1]}', "subscribe": ""}, "t-1: not in"),
        ({"subscribePattern": "u.*", "subscribe": ""}, "No topic in .* matches"),
        ({"subscribePattern": "(", "subscribe": ""}, "not a regular expression"),
        ({"assign": '{"t": [0]}'}, "exactly one of the options"),
        ({"path": ""}, "Give the option path"),
        ({"path": "/nowhere"}, "There is no log directory /nowhere"),
        ({"startingOffset": "earliest"}, "There is no option startingOffset"),
        ({"startingOffsets": "latest"}, "cannot be latest"),
        ({"startingOffsets": '{"t": {"1": 0}}'}, "name t-1, and what is read is t-0"),
        ({"startingOffsets": "soon"}, "is not JSON"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, "of t-0 is -1, the latest offset: that cannot be"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, "of t-0 is -2, the earliest offset: that cannot be"),
        ({"endingOffsets": '{"t": {"0": -3}}'}, "of t-0 is -3, no offset"),
        (
            {"startingOffsets": '{"t": {"0": 9}}', "endingOffsets": '{"t": {"0": 8}}'},
            "offset 9 of t-0 is above its ending offset 8",
        ),
        (
            {"startingOffsets": '{"t": {"0": 31}}', "failOnDataLoss": "false"},
            "offset 31 of t-0 is above its ending offset 30",
        ),
        ({"startingOffsets": "earliest", "startingTimestamp": "1"}, "exclude each other"),
        ({"endingOffsets": "earliest"}, "cannot be earliest"),
        ({"columns": "key,colour"}, "no column colour"),
        ({"kafka.isolation.level": "read_all"}, "read_committed or read_uncommitted"),
        ({"includeHeaders": "maybe"}, "includeHeaders is true or false"),
    ],
)
def test_invalid_options_are_refused(log: Log, tmp_path: Path, options: dict[str, str], sentence: str) -> None:
    with pytest.raises((BadOption, DamagedLog), match=sentence):
        plan(parse_options({"path": str(tmp_path), "subscribe": "t", **options}))


def test_an_assigned_partition_is_found_without_comparing_it_with_the_others() -> None:
    class Compared(TopicPartition):
        comparisons = 0
        __hash__ = TopicPartition.__hash__

        def __eq__(self, other: object) -> bool:
            Compared.comparisons += 1
            return super().__eq__(other)

    options = parse_options({"path": "p", "assign": json.dumps({"t": list(range(1000))})})
    assert options.selects(Compared("t", 999))
    assert Compared.comparisons < 10
