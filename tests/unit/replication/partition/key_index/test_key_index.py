"""Key index and searches of a partition, compared with its committed records."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from protocol.batch_builder import BatchBuilder
from protocol.compression import Compression
from protocol.control_records import ControlType, control_type
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.stored_records import ConfigRecord
from protocol.records import Record, headers, records
from replication.metadata.image import ResourceType
from replication.partition import key_indexer, key_search
from replication.partition.key_search import SearchQuery
from storage.io.disk import Disk
from storage.io.disk_lookup import wait_for_disk
from storage.keyindex import index_directory, index_jobs
from storage.keyindex.index_file import SUFFIX
from storage.keyindex.index_jobs import IndexJobs, Job, JobFailed, RemoveRanges
from storage.log.log_validator import AppendOrigin
from tests.support.compaction import closed, compact
from tests.support.executed_instructions import executed_instructions
from tests.support.key_index import ALL_TIMES, KeyIndexRig
from tests.support.logs import bytes_of, marker, truncated
from tests.support.replica_harness import NOW_MS, ReplicaHarness
from tests.support.seeds import seed_of

FIELDS = ("key", "header:h")
ENGINES = ("segments", "commitlog")


class Topic:
    """A topic with one partition and an index, and what happens to it."""

    def __init__(self, path: Path, engine: str, rng: random.Random | None = None) -> None:
        self.rng = rng or random.Random(1)
        self.harness = ReplicaHarness(path)
        self.harness.log_manager.commit_logs.file_bytes = 1 << 16
        self.harness.create(
            replicas=(1, 2),
            isr=(1,),
            barnabas_index_keys=",".join(FIELDS),
            barnabas_storage_engine=engine,
            internal_segment_bytes=3000,
        )
        self.rig = KeyIndexRig(self.harness)
        self.transactions = 0

    @property
    def log(self) -> Any:
        return self.harness.partition().log

    def append(
        self,
        *keys: bytes | None,
        timestamp_ms: int = NOW_MS,
        header: bytes = b"x",
        compression: int = Compression.NONE,
        producer: int = -1,
    ) -> None:
        """Append a batch; with a producer, the first one of its transaction."""
        numbers = (producer, -1, -1) if producer < 0 else (producer, 0, 0)
        builder = BatchBuilder(
            compression=compression,
            producer_id=numbers[0],
            producer_epoch=numbers[1],
            base_sequence=numbers[2],
            transactional=producer >= 0,
        )
        for number, key in enumerate(keys):
            builder.append(timestamp_ms + number, key, b"value", (("h", header), ("other", None)))
        self.harness.append(records=builder.build(), acks=1)

    def begin(self, *keys: bytes | None, **options: Any) -> int:
        """Begin a transaction; returns its producer."""
        self.transactions += 1
        self.append(*keys, producer=self.transactions, **options)
        return self.transactions

    def end(self, producer: int, kind: ControlType) -> None:
        self.harness.append(records=marker(kind, producer, 0), origin=AppendOrigin.COORDINATOR, acks=1)

    def truncate(self, offset: int) -> None:
        """As follower of a leader that was elected without having all records; then this broker leads again."""
        self.harness.change(leader=2, isr=[2])
        truncated(self.harness.log_manager, self.log, offset)
        self.harness.change(leader=1, isr=[1])

    def replay(self) -> tuple[list[Record], set[int]]:
        """The records that consumers of committed records get, and the producers with open transactions."""
        wait_for_disk(self.harness.partition().open_leader_log)
        data = bytes_of(self.log, self.log.log_start_offset)
        committed: list[Record] = []
        pending: dict[int, list[Record]] = {}
        for position, header in headers(data):
            found = records(data, position, header, max_bytes=1 << 30)
            if header.is_control:
                of_transaction = pending.pop(header.producer_id, [])
                committed += of_transaction if control_type(found[0].key) == ControlType.COMMIT else []
            elif header.is_transactional:
                pending.setdefault(header.producer_id, []).extend(found)
            else:
                committed += found
        stable = self.log.open().reader.last_stable_offset
        start = self.log.log_start_offset
        return [one for one in committed if start <= one.offset < stable], set(pending)

    def index_files(self) -> list[str]:
        path = self.log.files.index_path
        return sorted(name for name in os.listdir(path) if name.endswith(SUFFIX)) if os.path.exists(path) else []


def has(record: Record, field: str, value: bytes) -> bool:
    return record.key == value if field == "key" else ("h", value) in record.headers


def expected(records: list[Record], field: str, value: bytes, times: tuple[int, int]) -> list[Record]:
    first, last = times
    found = [one for one in records if has(one, field, value) and first <= one.timestamp_ms < last]
    return sorted(found, key=lambda record: -record.offset)


class History:
    """A random history of a topic and its index."""

    def __init__(self, path: Path, engine: str, seed: int) -> None:
        self.rng = random.Random(seed)
        self.topic = Topic(path, engine)
        self.rig = self.topic.rig
        self.clock_ms = NOW_MS
        self.steps: list[tuple[int, Callable[[], None]]] = [
            (8, self.append),
            (4, self.begin),
            (4, self.end),
            (12, self.run_jobs),
            (8, self.check),
            (6, self.compare),
            (1, self.truncate),
            (1, self.delete_records),
            (1, self.damage),
            (1, self.rig.restart),
        ]

    def run(self, steps: int) -> None:
        weights, acts = zip(*self.steps, strict=True)
        for act in self.rng.choices(acts, weights, k=steps):
            act()
        self.rig.build(10)
        self.compare(is_complete=True)

    def run_jobs(self) -> None:
        for _ in range(self.rng.randrange(6)):
            self.rig.builder.run_job()

    def check(self) -> None:
        self.rig.indexer.check()

    def keys(self) -> list[bytes | None]:
        return [self.rng.choice([None, b"", b"a", b"b", b"c", b"\xff"]) for _ in range(self.rng.randrange(1, 6))]

    def options(self) -> dict[str, Any]:
        self.clock_ms += self.rng.randrange(-1500, 3000)
        header = self.rng.choice([b"x", b"y", b""])
        return {
            "timestamp_ms": self.clock_ms,
            "header": header,
            "compression": self.rng.choice(list(Compression)),
        }

    def append(self) -> None:
        self.topic.append(*self.keys(), **self.options())

    def begin(self) -> None:
        self.topic.begin(*self.keys(), **self.options())

    def end(self) -> None:
        _, pending = self.topic.replay()
        if pending:
            self.topic.end(self.rng.choice(sorted(pending)), self.rng.choice([ControlType.COMMIT, ControlType.ABORT]))

    def truncate(self) -> None:
        log = self.topic.log
        self.topic.truncate(self.rng.randint(log.log_start_offset, log.log_end_offset))

    def delete_records(self) -> None:
        wait_for_disk(self.topic.harness.partition().open_leader_log)
        log = self.topic.log
        offset = self.rng.randint(log.log_start_offset, log.high_watermark)
        self.topic.harness.replicas.delete_records("t", 0, offset, NOW_MS)

    def damage(self) -> None:
        """Lose a file, or change a byte of it."""
        names = self.topic.index_files()
        if not names:
            return
        path = os.path.join(self.topic.log.files.index_path, self.rng.choice(names))
        if self.rng.random() < 0.5:
            os.unlink(path)
        else:
            with open(path, "r+b") as file:
                file.seek(self.rng.randrange(os.path.getsize(path)))
                byte = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte[0] ^ 1]))

    def compare(self, *, is_complete: bool = False) -> None:
        """Every answer has exactly what a scan of the log finds, within its bounds."""
        committed, _ = self.topic.replay()
        failures = self.rig.indexer.failures
        for field, value in (("key", b"a"), ("key", b"\xff"), ("header:h", b"y"), ("key", b"absent")):
            first = self.rng.choice([-(1 << 62), self.clock_ms - self.rng.randrange(10_000)])
            times = first, self.rng.choice([1 << 62, first + self.rng.randrange(10_000)])
            limit = self.rng.choice([1, 3, 10_000])
            answer = self.topic.rig.search(value, field, times, limit)
            assert answer.to_offset <= answer.end_offset
            has_found_damage = self.rig.indexer.failures > failures  # the index is built again
            assert answer.to_offset == answer.end_offset or not is_complete or has_found_damage
            within = [one for one in committed if answer.from_offset <= one.offset < answer.to_offset]
            found = expected(within, field, value, times)
            assert answer.records == found[:limit]
            assert answer.is_cut == (len(found) > limit)


@pytest.mark.parametrize("engine", ENGINES)
def test_searches_find_what_a_scan_of_the_log_finds(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = seed_of("KEY_INDEX_SEED")
    print(f"KEY_INDEX_SEED={seed}")
    for module, name, value in (
        (key_indexer, "PIECE_BYTES", 500),
        (key_indexer, "TURN_BYTES", 1500),
        (key_indexer, "MAX_ENTRIES_IN_MEMORY", 20),
        (key_search, "_BATCH_BYTES", 400),
        (index_jobs, "_MERGE_STEPS", 1),
    ):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr("storage.keyindex.index_directory.FAN", 3)
    monkeypatch.setattr("storage.keyindex.index_directory.SMALL", 20)
    for number in range(6):
        History(tmp_path / str(number), engine, seed + number).run(300)
        shutil.rmtree(tmp_path / str(number))


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    return Topic(tmp_path, "segments")


def test_an_unchanged_partition_costs_no_job_and_a_topic_without_index_nothing(topic: Topic) -> None:
    topic.append(b"a")
    topic.rig.build()
    jobs = len(topic.rig.builder.submitted)
    topic.rig.build()
    assert len(topic.rig.builder.submitted) == jobs
    topic.harness.create("other")
    topic.harness.append("other")
    topic.rig.build()
    assert len(topic.rig.builder.submitted) == jobs


def test_a_restarted_indexer_continues_and_opens_no_clean_log(topic: Topic) -> None:
    topic.append(b"a")
    topic.rig.build()
    files = topic.index_files()
    topic.log.close()
    topic.rig.restart()
    topic.rig.build()
    assert topic.rig.builder.submitted == ["LoadRanges"]
    assert not topic.log.is_open
    topic.append(b"a")
    topic.rig.build()
    assert topic.index_files()[:1] == files
    assert [record.offset for record in topic.rig.search(b"a").records] == [1, 0]


def test_an_index_that_is_switched_off_is_deleted(topic: Topic) -> None:
    topic.append(b"a")
    topic.rig.build()
    assert topic.index_files()
    set_config(topic, "header:h")
    topic.rig.build()
    assert len(topic.index_files()) == 1
    assert refusal(topic, "key").code == ErrorCode.INVALID_REQUEST
    assert topic.rig.search(b"x", "header:h").records
    set_config(topic, "")
    topic.rig.build()
    assert topic.index_files() == []


def set_config(topic: Topic, keys: str) -> None:
    topic.harness.apply(
        ConfigRecord(
            resource_type=ResourceType.TOPIC, resource_name="t", name="barnabas.index.keys", value=keys or None
        )
    )


def refusal(topic: Topic, field: str = "key") -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        topic.rig.search(b"a", field)
    return caught.value


def test_an_index_of_a_deleted_topic_is_not_that_of_a_new_one_with_its_name(topic: Topic) -> None:
    topic.append(b"a")
    topic.rig.build()
    topic.harness.delete()
    topic.harness.create(barnabas_index_keys="key")
    assert topic.rig.search(b"a").records == []
    topic.append(b"b", b"a")
    topic.rig.build()
    assert [record.offset for record in topic.rig.search(b"a").records] == [1]


def test_only_the_leader_answers(topic: Topic) -> None:
    topic.harness.change(leader=2, isr=[1, 2])
    assert refusal(topic).code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_searches_beyond_the_limit_are_refused(topic: Topic) -> None:
    topic.append(b"a")
    topic.rig.build()
    query = SearchQuery("key", b"a", *ALL_TIMES, 1)
    running = [topic.rig.searches.search("t", [0], query) for _ in range(key_search.MAX_SEARCHES + 1)]
    error = running[-1].error
    assert isinstance(error, KafkaError)
    assert error.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    while topic.rig.searcher.run_job():
        pass
    assert all(done.is_done for done in running)
    assert topic.rig.search(b"a").records


def test_a_record_is_found_once_after_compaction_has_removed_others_with_its_key(topic: Topic) -> None:
    for _ in range(6):
        topic.append(b"a")
    closed(topic.log)
    topic.rig.build()
    assert compact(topic.log) is not None
    answer = topic.rig.search(b"a", limit=5)
    assert [record.offset for record in answer.records] == [5]
    assert not answer.is_cut


def test_the_cost_of_a_search_grows_little_with_the_records_that_compaction_has_removed(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.append(b"first")
    for number in range(300):
        topic.append(b"hot")
        if number == 100:
            topic.append(b"other")
    topic.append(b"last")
    closed(topic.log)
    topic.rig.build()
    assert compact(topic.log) is not None
    base_offset = Mock(side_effect=key_search._base_offset)
    monkeypatch.setattr(key_search, "_base_offset", base_offset)
    answer = topic.rig.search(b"hot", limit=1)
    assert [record.offset for record in answer.records] == [301]
    assert not answer.is_cut
    assert len(topic.rig.searcher.submitted) < 12
    assert base_offset.call_count < 100


def test_an_answer_has_a_limit_in_bytes(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_search, "MAX_ANSWER_BYTES", 20)
    for _ in range(5):
        topic.append(b"a")
    topic.rig.build()
    answer = topic.rig.search(b"a")
    assert answer.is_cut
    assert [record.offset for record in answer.records] == [4]


def test_the_partitions_of_an_answer_share_its_limit_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_search, "MAX_ANSWER_BYTES", 20)
    harness = ReplicaHarness(tmp_path)
    harness.create(partitions=3, barnabas_index_keys="key")
    rig = KeyIndexRig(harness)
    for index in range(3):
        builder = BatchBuilder()
        builder.append(NOW_MS, b"a", bytes(8))
        harness.append(index=index, records=builder.build(), acks=1)
    rig.build()
    done = rig.searches.search("t", [0, 1, 2], SearchQuery("key", b"a", *ALL_TIMES, 100))
    while not done.is_done:
        assert rig.searcher.run_job()
    answers = [answer for answer in done.result() if not isinstance(answer, KafkaError)]
    assert [(len(answer.records), answer.is_cut) for answer in answers] == [(1, False), (1, False), (0, True)]


def test_a_failed_job_delays_the_index_and_keeps_the_log_online(topic: Topic) -> None:
    topic.append(b"a")
    topic.rig.build()
    topic.append(b"a")
    topic.rig.builder.jobs.run = lambda job: JobFailed("no space left")  # type: ignore[method-assign]
    topic.rig.build()
    assert topic.rig.indexer.failures == 1
    assert topic.rig.search(b"a").to_offset == 1
    topic.rig.builder.jobs = IndexJobs(Disk())
    topic.rig.build(key_indexer.RETRY_CHECKS - 3)
    assert topic.rig.search(b"a").to_offset == 1
    topic.rig.build()
    assert topic.rig.search(b"a").to_offset == 2


def test_an_index_whose_files_cannot_be_listed_is_delayed_too(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    topic.append(b"a")
    topic.rig.builder.jobs.run = lambda job: JobFailed("Input/output error")  # type: ignore[method-assign]
    topic.rig.build(5)
    assert topic.rig.builder.submitted == ["LoadRanges"]
    assert caplog.messages == ["the key index of t-0 waits for 30 s: Input/output error"]
    topic.rig.builder.jobs = IndexJobs(Disk())
    topic.rig.build(key_indexer.RETRY_CHECKS - 5)
    assert topic.index_files() == []
    topic.rig.build(1)
    assert topic.rig.search(b"a").to_offset == 1


def test_a_stop_that_kills_the_worker_logs_no_failed_job(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    topic.append(b"a")
    topic.rig.indexer.check()
    topic.rig.indexer.stop()
    topic.rig.builder.jobs.run = lambda job: JobFailed("it was killed by SIGKILL")  # type: ignore[method-assign]
    assert topic.rig.builder.run_job()
    assert (topic.rig.indexer.failures, caplog.messages) == (0, [])


def test_a_search_does_not_use_files_that_a_killed_process_has_not_deleted(topic: Topic) -> None:
    for _ in range(4):
        topic.append(b"a")
    topic.rig.build()
    topic.truncate(2)
    topic.append(b"b")
    worker = topic.rig.builder
    run = worker.jobs.run

    def killed_once(job: Job) -> object:
        if not isinstance(job, RemoveRanges):
            return run(job)
        worker.jobs.run = run  # type: ignore[method-assign]
        return JobFailed("the key index process was killed by SIGKILL")

    worker.jobs.run = killed_once  # type: ignore[method-assign]
    for _ in range(4):
        topic.rig.build(1)
        answer = topic.rig.search(b"b")
        assert [record.offset for record in answer.records] == ([2] if answer.to_offset > 2 else [])
    assert answer.to_offset == 3


def test_an_index_ends_before_a_damaged_batch_of_an_earlier_process(tmp_path: Path) -> None:
    topic = Topic(tmp_path, "commitlog")
    for key in (b"a", b"b", b"c"):
        topic.append(key)
    engine = topic.log.open().engine
    engine.shared_log.finish_active()
    ((file, _), (_, damaged), _) = engine.view().entries_from(0)
    file.is_verified = False  # as after a start
    with Path(file.path).open("r+b") as opened:
        opened.seek(damaged.position)
        opened.write(b"\x40")
    topic.rig.build()
    answer = topic.rig.search(b"a")
    assert [record.offset for record in answer.records] == [0]
    assert answer.to_offset == 1
    jobs = len(topic.rig.builder.submitted)
    topic.rig.build()
    assert len(topic.rig.builder.submitted) == jobs


def test_a_merge_that_makes_another_one_due_is_followed_by_it_without_new_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_directory, "SMALL", 4)
    topic = Topic(tmp_path, "segments")
    for number in range(1, index_directory.FAN**2 + 1):
        topic.append(b"k")
        topic.rig.build(checks=1 if number < index_directory.FAN**2 else 20)
    names = [name for name in os.listdir(topic.log.files.index_path) if name.endswith(SUFFIX)]
    assert len(names) == 1


def test_an_append_executes_the_same_instructions_with_and_without_an_index(tmp_path: Path) -> None:
    counts = []
    for name, fields in (("plain", ""), ("indexed", "key,header:h")):
        harness = ReplicaHarness(tmp_path / name)
        harness.create(barnabas_index_keys=fields)
        _instructions_of_an_append(harness)  # opens the log
        counts.append([_instructions_of_an_append(harness) for _ in range(3)])
    assert counts[0] == counts[1]


def _instructions_of_an_append(harness: ReplicaHarness) -> int:
    builder = BatchBuilder()
    builder.append(NOW_MS, b"k", b"v", (("h", b"x"),))
    batch = builder.build()
    return executed_instructions(lambda: harness.append(records=batch, acks=1))


def test_a_topic_is_deleted_while_its_index_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(tmp_path, "commitlog")
    topic.append(b"a")
    topic.rig.build()
    path = Path(topic.log.files.index_path)
    rmdir = os.rmdir

    def beside_the_index_process(removed: str) -> None:
        with suppress(FileNotFoundError):
            (path / f"{1:020d}.keyindex.new").touch()
        rmdir(removed)

    monkeypatch.setattr(os, "rmdir", beside_the_index_process)
    topic.harness.create("other", barnabas_storage_engine="commitlog")
    topic.harness.delete()
    assert not topic.harness.partition("other").is_offline
    assert [name for name in os.listdir(path.parent) if path.name in name] == []


def test_a_topic_that_is_deleted_before_its_index_has_a_directory_leaves_none(tmp_path: Path) -> None:
    topic = Topic(tmp_path, "commitlog")
    topic.append(b"a")
    path = Path(topic.log.files.index_path)
    topic.rig.indexer.check()
    topic.harness.delete()
    topic.rig.build()
    assert not path.exists()


@pytest.mark.parametrize("suffix", ["", "-delete"])
def test_a_start_deletes_an_index_whose_deletion_a_kill_has_ended(tmp_path: Path, suffix: str) -> None:
    topic = Topic(tmp_path, "commitlog")
    topic.append(b"a")
    topic.rig.build()
    path = Path(topic.log.files.index_path)
    unused = path.with_name(f"{7:032x}-0{suffix}")
    unused.mkdir()
    (unused / f"{0:020d}-{1:020d}.keyindex").touch()
    ReplicaHarness(tmp_path)
    assert (path.exists(), unused.exists()) == (True, False)


def test_a_topic_without_records_has_no_index_that_its_deletion_would_leave(tmp_path: Path) -> None:
    topic = Topic(tmp_path, "commitlog")
    topic.rig.build()
    path = Path(topic.log.files.index_path)
    assert not path.parent.exists(), "the commit log creates its directory itself, and makes it durable"
    assert topic.rig.search(b"a").records == []
    topic.harness.delete()
    assert not path.exists()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_killed_broker_indexes_a_topic_that_nothing_uses_after_the_start(tmp_path: Path, engine: str) -> None:
    """The high watermark was not checkpointed."""
    Topic(tmp_path, engine).append(b"a")
    topic = Topic(tmp_path, engine)
    assert (topic.log.high_watermark, topic.log.is_open) == (0, False)
    topic.rig.build()
    assert len(topic.index_files()) == 1
