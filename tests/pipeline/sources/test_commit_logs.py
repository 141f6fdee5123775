"""Partitions in commit logs and in segments with the same records: the segment source reads the same from both."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from hashlib import md5
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from barnabas import Broker
from barnabas.client.batch_header import CRC_START
from barnabas.pipeline.sources import commit_log_files, commit_log_slots, planning
from barnabas.pipeline.sources.commit_log_slots import read_slots
from barnabas.pipeline.sources.damage import BadOption, DamagedLog, MissingRecords
from barnabas.pipeline.sources.planning import plan
from barnabas.pipeline.sources.segment_options import parse_options
from barnabas.pipeline.sources.segments import read_task
from protocol.control_records import ControlType
from protocol.messages.stored_records import ConfigRecord
from protocol.records import headers, records
from replication.metadata.image import ResourceType
from storage.commitlog.cleaner import Cleaner
from storage.config.log_config import STORAGE_ENGINE
from storage.directories.log_maintenance import due_deletions
from storage.io.checkpoint_file import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS, write_offsets, write_topic_id
from storage.io.deferred_file_ops import FileOp
from storage.io.disk import Disk
from storage.io.disk_lookup import wait_for_disk
from storage.log.log import Log
from storage.log.log_reader import Isolation
from storage.log.log_validator import AppendOrigin
from tests.support.librdkafka import create_topic, produce
from tests.support.logs import (
    NOW_MS,
    SMALL,
    ProducerInfo,
    append,
    append_records,
    bytes_of,
    commitlog,
    log_at,
    marker,
    segments,
)
from tests.support.replica_harness import ReplicaHarness
from tests.support.seeds import seed_of

ENGINES = {"segments": segments, "commitlog": commitlog}
PRODUCERS = 3


class Twins:
    """The same log in two directories, one for each engine."""

    def __init__(self, root: Path) -> None:
        self.roots = {name: root / name for name in ENGINES}
        for path in self.roots.values():
            path.mkdir(parents=True)
        self.logs = {name: log_at(self.roots[name], engines=ENGINES[name]) for name in ENGINES}
        write_topic_id(Disk(), str(self.roots["commitlog"] / "t-0" / "partition.metadata"), md5(b"t").digest())
        self._open: set[int] = set()
        self._sequences = dict.fromkeys(range(PRODUCERS), 0)
        self._epoch = 0
        self.now_ms = NOW_MS

    def each(self, act: Any) -> None:
        for log in self.logs.values():
            act(log)

    @property
    def end_offset(self) -> int:
        return self.logs["segments"].log_end_offset

    def step(self, random: Random) -> None:
        """A random append, marker, truncation or trim."""
        self.now_ms += random.randrange(-500, 2000)
        match random.randrange(11):
            case 0 | 1:
                self.transactional(random.randrange(PRODUCERS), random.randrange(1, 4))
            case 2 | 3 if self._open:
                self.end(random.choice(sorted(self._open)), random.choice([ControlType.ABORT, ControlType.COMMIT]))
            case 4 if not self._open and self.end_offset:
                start = self.logs["segments"].log_start_offset
                offset = random.randint(max(start, self.end_offset - 6), self.end_offset)
                self.each(lambda log: log.open().truncate(offset))
                self._sequences = dict.fromkeys(range(PRODUCERS), 0)
                self._epoch += 1
            case 5:
                self.trim(random.randint(self.logs["segments"].log_start_offset, self.end_offset))
            case _:
                values = [f"{number}" * random.choice((1, 30)) for number in range(random.randrange(1, 4))]
                self.each(lambda log: append(log, *values, timestamp_ms=self.now_ms, step_ms=700))

    def trim(self, offset: int) -> None:
        for log in self.logs.values():
            log.high_watermark = log.log_end_offset
            log.open().trim(offset, self.now_ms)

    def transactional(self, producer: int, count: int) -> None:
        info = ProducerInfo(producer, self._epoch, self._sequences[producer], transactional=True)
        self.each(lambda log: append(log, *["x" * 50] * count, timestamp_ms=self.now_ms, producer=info))
        self._sequences[producer] += count
        self._open.add(producer)

    def end(self, producer: int, kind: ControlType) -> None:
        self.each(lambda log: append_records(log, marker(kind, producer, self._epoch), origin=AppendOrigin.COORDINATOR))
        self._open.discard(producer)


def answer(root: Path, **options: Any) -> Any:
    """The rows of a query, or the kind of its refusal."""
    texts = {
        name.replace("_", "."): value if isinstance(value, str) else json.dumps({"t": {"0": value}})
        for name, value in options.items()
    }
    try:
        tasks = plan(parse_options({"path": str(root), "subscribe": "t", **texts}))
        found = [batch for task in tasks for batch in read_task(task)]
    except (MissingRecords, BadOption) as refusal:
        return type(refusal)
    return pa.Table.from_batches(found).to_pylist() if found else []


@pytest.mark.parametrize("is_closed", [True, False])
def test_both_engines_give_the_same_answers(tmp_path: Path, *, is_closed: bool) -> None:
    seed = seed_of()
    print(f"SEED={seed}")
    random = Random(seed)
    for number in range(4):
        twins = Twins(tmp_path / str(number))
        for _ in range(80):
            twins.step(random)
        if is_closed:
            twins.each(Log.close)
        end_offset = int(twins.end_offset)
        marks = {
            LOG_STARTS: random.randrange(end_offset // 3),
            HIGH_WATERMARKS: random.randint(end_offset // 2, end_offset),
        }
        for name, offset in marks.items() if number % 2 else ():
            for root in twins.roots.values():
                write_offsets(Disk(), str(root / name), {("t", 0): offset})
        for _ in range(12):
            options = _question(random, end_offset)
            expected, found = (answer(twins.roots[name], **options) for name in ENGINES)
            assert found == expected, options


@pytest.mark.parametrize("is_closed", [True, False])
def test_committed_records_are_those_that_a_broker_answers(tmp_path: Path, *, is_closed: bool) -> None:
    """Also when a trim has removed the first records of transactions, open ones or ended later."""
    seed = seed_of()
    print(f"SEED={seed}")
    random = Random(seed)
    for number in range(4):
        twins = Twins(tmp_path / str(number))
        for _ in range(60):
            twins.step(random)
        twins.trim(random.randint(twins.logs["segments"].log_start_offset, int(twins.end_offset)))
        for name, log in twins.logs.items():
            log.high_watermark = log.log_end_offset
            expected = committed(log)
            known = {LOG_STARTS: log.log_start_offset, HIGH_WATERMARKS: log.log_end_offset}
            if is_closed:
                log.close()
            for file, offset in known.items():
                write_offsets(Disk(), str(twins.roots[name] / file), {("t", 0): offset})
            assert offsets(twins.roots[name], kafka_isolation_level="read_committed") == expected, name


def committed(log: Log) -> list[int]:
    """The offsets that a consumer of committed records gets from a broker."""
    data, start = bytes_of(log, isolation=Isolation.LAST_STABLE), log.log_start_offset
    aborted = wait_for_disk(log.open().engine.aborted, start, log.log_end_offset)
    return [
        record.offset
        for position, header in headers(data)
        if not header.is_control
        and not any(
            header.is_transactional
            and header.producer_id == one.producer_id
            and one.first_offset <= header.base_offset <= one.last_offset
            for one in aborted
        )
        for record in records(data, position, header, max_bytes=1 << 20)
        if record.offset >= start
    ]


def _question(random: Random, end_offset: int) -> dict[str, Any]:
    options: dict[str, Any] = {
        "kafka_isolation_level": random.choice(["read_committed", "read_uncommitted"]),
        "failOnDataLoss": random.choice(["true", "false"]),
        "until": random.choice(["committed", "written"]),
    }
    match random.randrange(4):
        case 0:
            options["startingOffsets"] = random.randrange(end_offset)
        case 1:
            options["endingOffsets"] = random.randrange(end_offset)
        case 2:
            options["startingTimestamp"] = str(NOW_MS + random.randrange(-5000, 60_000))
            options["startingOffsetsByTimestampStrategy"] = "latest"
    return options


@pytest.mark.parametrize("has_queues", [True, False])
def test_cleaning_changes_no_answer(tmp_path: Path, *, has_queues: bool) -> None:
    """Also when the queue files of runs are missing, as after damage."""
    seed = seed_of()
    print(f"SEED={seed}")
    random = Random(seed)
    twins = Twins(tmp_path)
    while twins.end_offset < 60:
        twins.step(random)
    log = twins.logs["commitlog"]
    log.high_watermark = log.log_end_offset
    log.open().trim(20, NOW_MS)
    questions = [_question(random, int(twins.end_offset)) for _ in range(12)]
    before = [answer(twins.roots["commitlog"], **options) for options in questions]
    engine: Any = log.open().engine
    for _ in Cleaner(Disk(), engine._log).clean(NOW_MS):
        pass
    runs = list((tmp_path / "commitlog" / "commitlog").glob("*-*.queue"))
    assert runs
    for path in [] if has_queues else runs:
        path.unlink()
    for options, expected in zip(questions, before, strict=True):
        assert answer(twins.roots["commitlog"], **options) == expected, options


def written(root: Path, count: int = 60) -> Log:
    """Batches of one record in several files."""
    log = log_at(root, engines=commitlog)
    write_topic_id(Disk(), str(root / "t-0" / "partition.metadata"), md5(b"t").digest())
    for number in range(count):
        append(log, f"{number}:" + "x" * 250)
    return log


def offsets(root: Path, **options: Any) -> list[int]:
    return [row["offset"] for row in answer(root, **options)]


def test_a_partition_is_read_by_a_task_per_file(tmp_path: Path) -> None:
    written(tmp_path).close()
    tasks = plan(parse_options({"path": str(tmp_path), "subscribe": "t"}))
    assert len(tasks) == len(list((tmp_path / "commitlog").glob("*.queue"))) + 1
    assert offsets(tmp_path) == list(range(60))
    assert offsets(tmp_path / "t-0") == list(range(60))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_log_that_grows_while_the_broker_is_asked_is_read_to_its_high_watermark(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A roll and a record before the broker's response: in a segment, or a frame, that the first list of files lacks."""
    twins = Twins(tmp_path)
    twins.each(lambda log: append(log, "before"))

    def ask(*_: object) -> dict[tuple[str, int], planning.Extent]:
        log = twins.logs[engine]
        log.open().roll(NOW_MS)
        append(log, "meanwhile")
        return {("t", 0): planning.Extent(0, log.log_end_offset, log.log_end_offset)}

    monkeypatch.setattr(planning, "_brokers", lambda _: None)
    monkeypatch.setattr(planning, "_find_unused", lambda *_: set())
    monkeypatch.setattr(planning, "_ask_brokers", ask)
    rows = answer(twins.roots[engine], kafka_bootstrap_servers="127.0.0.1:1")
    assert [row["value"] for row in rows] == [b"before", b"meanwhile"]


@pytest.mark.parametrize("engine", ENGINES)
def test_partitions_without_records_are_read_as_empty(tmp_path: Path, engine: str) -> None:
    """A commit log does not have them; the broker tells that they exist."""
    with Broker(tmp_path / "data", settings={"barnabas.log.storage.engine": engine}) as broker:
        for topic in "tu":
            create_topic(broker.bootstrap, topic, 2)
        options = {"subscribe": "t,u", "kafka_bootstrap_servers": broker.bootstrap}
        assert answer(broker.data_dir, **options) == []
        produce(broker.bootstrap, "t", [b"one"])
        named = json.dumps({"t": {"0": 0, "1": 0}, "u": {"0": -2, "1": -2}})
        for more in ({}, {"startingOffsets": named}):
            assert [row["value"] for row in answer(broker.data_dir, **options, **more)] == [b"one"]
        assert answer(broker.data_dir, **{**options, "subscribe": "t,missing"}) is BadOption
        assert answer(broker.data_dir, **{**options, "subscribe": "u"}) == []


def test_bytes_that_were_not_durable_end_the_log(tmp_path: Path) -> None:
    """At any byte of the last frame."""
    log = written(tmp_path)
    end_offset = log.log_end_offset
    active = log.open().engine._log.files[-1].path  # type: ignore[attr-defined]
    whole = Path(active).read_bytes()
    for cut in range(1, 300, 41):
        Path(active).write_bytes(whole[:-cut])
        assert offsets(tmp_path) == list(range(end_offset - 1))


def test_a_roll_that_is_written_after_later_appends_begins_its_segment(tmp_path: Path) -> None:
    """Without its segment, the records between it and the next one would not be found."""
    log = log_at(tmp_path, engines=commitlog, config=replace(SMALL, segment_bytes=300))
    write_topic_id(Disk(), str(tmp_path / "t-0" / "partition.metadata"), md5(b"t").digest())
    engine, held = log.open().engine, list[FileOp]()
    append(log, "deleted")
    engine.submit = held.append
    engine.roll(NOW_MS)
    engine.trim(1)
    for _ in range(5):
        append(log, "x" * 50)
    assert [segment.base_offset for segment in engine.segments()] == [1, 3, 5]
    for op in held:
        op()
    assert offsets(tmp_path) == [1, 2, 3, 4, 5]


def test_damage_costs_the_damaged_partition_and_says_so(tmp_path: Path) -> None:
    log = written(tmp_path)
    [slot] = read_slots(tmp_path).values()
    sealed, active = ([*slot.entries(0, 60)][number] for number in (0, -1))
    end_offset = log.log_end_offset
    write_offsets(Disk(), str(tmp_path / HIGH_WATERMARKS), {("t", 0): end_offset})
    write_offsets(Disk(), str(tmp_path / RECOVERY_POINTS), {("t", 0): end_offset})
    lost = "records from offset 5. on are lost"
    for where, number, match in (
        (active, 0, lost),
        (active, -1, lost),
        (sealed, 1, "clog is damaged: the batch of offset 1 "),
    ):
        path = Path(where.file.path)
        whole = path.read_bytes()
        position = int(where.found["position"][number]) + 100
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(DamagedLog, match=match):
            answer(tmp_path)
        path.write_bytes(whole)
    assert offsets(tmp_path) == list(range(end_offset))


@pytest.mark.parametrize("engine", ENGINES)
def test_damage_that_the_plan_finds_is_that_of_a_file_or_the_end_of_the_log(tmp_path: Path, engine: str) -> None:
    """A record that is searched by time, and the type of a marker: it would commit the aborted transaction."""
    twins = Twins(tmp_path)
    twins.transactional(0, 1)
    twins.end(0, ControlType.ABORT)
    twins.each(lambda log: append(log, "late", timestamp_ms=NOW_MS + 5000))
    twins.logs["commitlog"].open().engine._log.close()  # type: ignore[attr-defined]
    root, end_offset = twins.roots[engine], int(twins.end_offset)
    late = {"startingTimestamp": str(NOW_MS + 5000), "startingOffsetsByTimestampStrategy": "latest"}
    [path] = [one for one in root.rglob("*log") if one.is_file() and b"late" in one.read_bytes()]
    whole = path.read_bytes()
    aborting = bytes(marker(ControlType.ABORT, 0, 0))[CRC_START:]
    for position, options in ((whole.index(b"late"), late), (whole.index(aborting) + 48, {})):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        for recovery_point in (end_offset, 0):
            write_offsets(Disk(), str(root / HIGH_WATERMARKS), {("t", 0): recovery_point})
            write_offsets(Disk(), str(root / RECOVERY_POINTS), {("t", 0): recovery_point})
            if recovery_point or engine == "commitlog":  # whose sealed files are durable
                with pytest.raises(DamagedLog, match=rf"{path.name} is damaged"):
                    answer(root, until="written", **options)
            else:
                assert answer(root, until="written", **options) == []


def test_a_file_that_is_gone_is_an_error_or_skipped(tmp_path: Path) -> None:
    written(tmp_path).close()
    strict, lenient = (
        plan(parse_options({"path": str(tmp_path), "subscribe": "t", "failOnDataLoss": fail}))
        for fail in ("true", "false")
    )
    min((tmp_path / "commitlog").glob("*.clog")).unlink()
    with pytest.raises(MissingRecords, match="is missing, and with it offsets from 0 on"):
        list(read_task(strict[0]))
    assert list(read_task(lenient[0])) == []


def clean(root: Path, log: Log, *, trimmed_to: int) -> list[int]:
    """Replaces files by runs without the segments before an offset; returns the remaining offsets."""
    engine: Any = log.open().engine
    log.open().roll(NOW_MS)
    log.high_watermark = trimmed_to
    log.open().trim(trimmed_to, NOW_MS)
    engine._log.close()
    cleaner = Cleaner(Disk(), engine._log)
    cleaner.begin_pass(NOW_MS)
    assert list(cleaner.clean(NOW_MS))
    assert list((root / "commitlog").glob("*-*.clog"))
    return list(range(engine.start_offset, log.log_end_offset))


def test_a_run_is_read_instead_of_the_files_that_it_replaces(tmp_path: Path) -> None:
    log = written(tmp_path)
    expected = clean(tmp_path, log, trimmed_to=40)
    assert offsets(tmp_path) == expected


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_files_that_are_replaced_after_the_plan_are_read_in_their_run(tmp_path: Path, fail_on_data_loss: str) -> None:
    log = written(tmp_path, 150)
    tasks = plan(parse_options({"path": str(tmp_path), "subscribe": "t", "failOnDataLoss": fail_on_data_loss}))
    commit_log = log.open().engine._log  # type: ignore[attr-defined]
    commit_log.close()
    assert list(Cleaner(Disk(), commit_log).settle(NOW_MS))
    assert not Path(tasks[0][0].path).exists()  # type: ignore[union-attr]
    found = pa.Table.from_batches([batch for task in tasks for batch in read_task(task)])
    assert found["offset"].to_pylist() == list(range(150))


def test_records_that_are_deleted_after_the_plan_are_an_error_or_skipped(tmp_path: Path) -> None:
    log = written(tmp_path)
    strict, lenient = (
        plan(parse_options({"path": str(tmp_path), "subscribe": "t", "failOnDataLoss": fail}))
        for fail in ("true", "false")
    )
    remaining = clean(tmp_path, log, trimmed_to=40)
    with pytest.raises(MissingRecords, match="is missing, and with it offsets from 0 on"):
        list(read_task(strict[0]))
    found = pa.Table.from_batches([batch for task in lenient for batch in read_task(task)])["offset"].to_pylist()
    assert found == remaining


@pytest.mark.parametrize("reads", [1, 2, 5])
def test_files_that_are_replaced_during_the_plan_are_no_error(
    tmp_path: Path, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cleaner replaces them before the plan has read the entries of one or more queue files."""
    log = written(tmp_path)
    expected: list[int] = []
    count = iter(range(1, 1000))
    original = commit_log_files.read_entries

    def read_entries(*arguments: Any) -> Any:
        if next(count) == reads:
            expected.extend(clean(tmp_path, log, trimmed_to=40))
        return original(*arguments)

    monkeypatch.setattr(commit_log_slots, "read_entries", read_entries)
    assert offsets(tmp_path) == expected


def test_a_deleted_partition_is_not_found(tmp_path: Path) -> None:
    log = written(tmp_path)
    engine: Any = log.open().engine
    engine._log.drop(engine._slot)
    with pytest.raises(BadOption, match="not in"):
        plan(parse_options({"path": str(tmp_path), "subscribe": "t"}))


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
@pytest.mark.parametrize(("before", "after"), [("segments", "commitlog"), ("commitlog", "segments")])
def test_a_partition_that_changes_its_engine_after_the_plan_is_read_where_it_is(
    tmp_path: Path, before: str, after: str, fail_on_data_loss: str
) -> None:
    harness = ReplicaHarness(tmp_path)
    harness.create("t", barnabas_storage_engine=before, internal_segment_bytes=4000)
    harness.load("t", batches=150, size=250)
    root = harness.partition("t").log.directory
    tasks = plan(parse_options({"path": root, "subscribe": "t", "failOnDataLoss": fail_on_data_loss}))
    setting = ConfigRecord(resource_type=ResourceType.TOPIC, resource_name="t", name=STORAGE_ENGINE, value=after)
    harness.apply(setting)
    delete_what_is_due(harness)
    if before == "commitlog":
        shutil.rmtree(Path(root) / commit_log_files.DIRECTORY)  # later it is cleaned
    found = pa.Table.from_batches([batch for task in tasks for batch in read_task(task)])
    assert found["offset"].to_pylist() == list(range(150))


@pytest.mark.parametrize("after", ["segments", "commitlog"])
def test_another_topic_of_the_same_name_is_not_read_instead(tmp_path: Path, after: str) -> None:
    harness = ReplicaHarness(tmp_path)
    harness.create("t", barnabas_storage_engine="segments")
    harness.load("t", batches=3)
    tasks = plan(parse_options({"path": harness.partition("t").log.directory, "subscribe": "t"}))
    harness.delete("t")
    harness.create("t", barnabas_storage_engine=after)
    harness.load("t", batches=3)
    delete_what_is_due(harness)
    with pytest.raises(MissingRecords):
        list(read_task(tasks[0]))


def delete_what_is_due(harness: ReplicaHarness) -> None:
    for _, delete in due_deletions(harness.log_manager, harness.wall_ms + 100_000):
        delete()
