"""Fetch, on real logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.security.authorizer import Operation, Resource
from protocol.control_records import ControlType, end_txn_marker
from protocol.errors import ErrorCode
from protocol.file_region import FileRegion
from storage.log.log_validator import AppendOrigin
from tests.support.deny import Deny
from tests.support.replica_harness import NOW_MS, Answer, ReplicaHarness, batch, fetched, named, note_looks, offsets

ONE = len(batch())


@pytest.fixture
def harness(tmp_path: Path) -> ReplicaHarness:
    made = ReplicaHarness(tmp_path)
    made.create("t", partitions=3)
    return made


def code(answer: Answer, topic: int = 0, partition: int = 0) -> Any:
    return fetched(answer, topic, partition).error_code


# ---------------------------------------------------------------- describing


def test_records_are_regions_of_files_never_bytes(harness: ReplicaHarness) -> None:
    harness.load("t", batches=2)
    request = harness.fetch_request({("t", 0): 0})
    answer: Any = harness.fetching.handle(harness.context(1, 12), request)
    records = answer.responses[0].partitions[0].records
    assert all(isinstance(region, FileRegion) for region in records)
    assert sum(region.length for region in records) == 2 * ONE


def test_a_fetch_inside_a_batch_returns_the_whole_batch(harness: ReplicaHarness) -> None:
    harness.produce("t", 0, batch(count=10))
    assert offsets(fetched(harness.fetch("t", 0, 7))) == [0]


# ---------------------------------------------------------------- replica ids


def test_an_unauthorized_topic_fails_and_others_are_read(tmp_path: Path) -> None:
    harness = ReplicaHarness(tmp_path, authorizer=Deny((Operation.READ, Resource.TOPIC, "secret")))
    for name in ("open", "secret"):
        harness.create(name)
        harness.load(name)
    answer = harness.fetch_all({("secret", 0): 0, ("open", 0): 0})
    assert code(answer, 0) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert offsets(fetched(answer, 1)) == [0]
    follower = harness.fetch_all({("secret", 0): 0}, replica=2, version=16)
    assert code(follower) == ErrorCode.NOT_LEADER_OR_FOLLOWER  # for it is none, not for want of a right


@pytest.mark.parametrize("version", [12, 16])
def test_a_follower_fetch_requires_cluster_action(tmp_path: Path, version: int) -> None:
    harness = ReplicaHarness(tmp_path, authorizer=Deny((Operation.CLUSTER_ACTION, Resource.CLUSTER, None)))
    harness.create("t", replicas=(1, 2))
    harness.load("t")
    assert code(harness.fetch("t", replica=2, version=version)) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert code(harness.fetch("t", version=version, max_wait_ms=0)) == ErrorCode.NONE


def test_a_debugging_consumer_reads_a_follower_to_the_high_watermark(harness: ReplicaHarness) -> None:
    harness.create("r", replicas=(1, 2))
    harness.load("r", batches=3)
    harness.fetch("r", 0, 2, replica=2)
    harness.change("r", leader=2)
    assert offsets(fetched(harness.fetch("r", replica=-2))) == [0, 1]
    assert code(harness.fetch("r", version=10)) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_future_replica_reads_to_the_log_end(harness: ReplicaHarness) -> None:
    harness.create("r", replicas=(1, 2))
    harness.load("r", batches=3)
    assert offsets(fetched(harness.fetch("r", replica=-3))) == [0, 1, 2]
    assert harness.partition("r").high_watermark == 0


# ---------------------------------------------------------------- isolation


def test_readable_records_depend_on_the_replica_id(harness: ReplicaHarness) -> None:
    harness.create("r", replicas=(1, 2))
    harness.load("r", batches=4)
    assert offsets(fetched(harness.fetch("r", replica=2, offset=2))) == [2, 3]
    assert offsets(fetched(harness.fetch("r"))) == [0, 1]
    behind = fetched(harness.fetch("r", offset=3, max_wait_ms=0))
    assert (behind.error_code, behind.records) == (0, b"")


# ---------------------------------------------------------------- waiting


def test_a_fetch_waits_for_min_bytes(harness: ReplicaHarness) -> None:
    answer = harness.fetch_all({("t", 0): 0, ("t", 1): 0}, min_bytes=2 * ONE)
    harness.load("t", 0)
    harness.drain_purgatory()
    assert not answer.is_done
    harness.load("t", 1)
    assert not answer.is_done
    harness.drain_purgatory()
    assert [offsets(fetched(answer, 0, index)) for index in (0, 1)] == [[0], [0]]
    assert len(harness.purgatory) == len(harness.purgatory._watchers) == 0


def test_min_bytes_of_zero_is_answered_at_once(harness: ReplicaHarness) -> None:
    assert harness.fetch("t", min_bytes=0).is_done


def test_min_bytes_is_capped_at_max_bytes(harness: ReplicaHarness) -> None:
    harness.load("t", batches=3)
    assert offsets(fetched(harness.fetch("t", min_bytes=10**6, max_bytes=ONE))) == [0]


def test_a_timeout_completes_with_the_available_records(harness: ReplicaHarness) -> None:
    answer = harness.fetch("t", min_bytes=1000, max_wait_ms=500)
    harness.load("t")
    harness.drain_purgatory()
    harness.pass_time(499)
    assert not answer.is_done
    harness.pass_time(1)
    assert offsets(fetched(answer)) == [0]
    assert len(harness.purgatory) == len(harness.purgatory._watchers) == len(harness.timers) == 0


def test_lost_leadership_completes_a_waiting_fetch(harness: ReplicaHarness) -> None:
    harness.create("r", replicas=(1, 2))
    old, knows_epoch, knows_racks = (
        harness.fetch("r", version=10),
        harness.fetch("r", leader_epoch=0),
        harness.fetch("r"),
    )
    harness.change("r", leader=2)
    harness.drain_purgatory()
    assert code(old) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code(knows_epoch) == ErrorCode.FENCED_LEADER_EPOCH
    assert not knows_racks.is_done
    harness.change("r", leader=2, replicas=[2], isr=[2])
    harness.drain_purgatory()
    assert code(knows_racks) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_deleted_topic_completes_a_waiting_fetch(harness: ReplicaHarness) -> None:
    by_name, by_id = harness.fetch("t", version=12), harness.fetch("t", version=16)
    harness.delete("t")
    harness.drain_purgatory()
    assert code(by_name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code(by_id) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_completed_transaction_wakes_a_read_committed_fetch(harness: ReplicaHarness) -> None:

    def append(records: Any, origin: Any = AppendOrigin.CLIENT) -> None:
        append = harness.append(records=records, acks=1, origin=origin)
        harness.drain_purgatory()
        assert (append.is_done, append.error) == (True, None)

    answer = harness.fetch("t", isolation=1)
    append(batch(producer_id=5, producer_epoch=0, base_sequence=0, transactional=True))
    append(batch())
    assert not answer.is_done
    assert offsets(fetched(harness.fetch("t"))) == [0, 1]
    append(
        end_txn_marker(ControlType.ABORT, producer_id=5, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW_MS),
        AppendOrigin.COORDINATOR,
    )
    data = fetched(answer)
    assert (offsets(data), data.last_stable_offset) == ([0, 1, 2], 3)
    assert [(aborted.producer_id, aborted.first_offset) for aborted in data.aborted_transactions] == [(5, 0)]


def test_closed_connection_leaves_nothing_behind(harness: ReplicaHarness) -> None:
    answer = harness.fetch_all({("t", 0): 0, ("t", 1): 0})
    assert (len(harness.purgatory), len(harness.purgatory._watchers)) == (1, 2)
    answer.pending.cancel()
    assert len(harness.purgatory) == len(harness.purgatory._watchers) == len(harness.timers) == 0
    harness.load("t")
    harness.drain_purgatory()
    assert not answer.is_done


@pytest.mark.pure_python("replaces a method of a compiled class")
def test_a_wakeup_reads_only_changed_partitions(harness: ReplicaHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.create("many", partitions=50)
    answer = harness.fetch_all({("many", index): 0 for index in range(50)}, min_bytes=2 * ONE)
    looked = note_looks(harness, monkeypatch)
    harness.load("many", 17)
    harness.drain_purgatory()
    harness.load("many", 3)
    harness.drain_purgatory()
    assert looked == [17, 3]
    assert named(answer) == [("many", index) for index in range(50)]
    assert [index for index in range(50) if fetched(answer, 0, index).records] == [3, 17]


# ---------------------------------------------------------------- followers


def test_followers_fetch_moves_the_high_watermark_and_wakes_consumers(harness: ReplicaHarness) -> None:
    harness.create("r", replicas=(1, 2))
    produce = harness.produce("r", acks=-1)
    consumer = harness.fetch("r")
    assert not produce.is_done
    first = harness.fetch("r", replica=2, version=17)
    assert offsets(fetched(first)) == [0]
    harness.drain_purgatory()
    assert not consumer.is_done
    second = harness.fetch("r", offset=1, replica=2, version=17)
    assert produce.message.responses[0].partition_responses[0].error_code == 0
    assert not second.is_done
    harness.drain_purgatory()
    assert offsets(fetched(consumer)) == [0]
    assert not second.is_done


def test_an_append_wakes_a_follower_before_its_commit(harness: ReplicaHarness) -> None:
    harness.create("r", replicas=(1, 2))
    follower, consumer = harness.fetch("r", replica=2), harness.fetch("r")
    harness.produce("r", acks=1)
    harness.drain_purgatory()
    assert offsets(fetched(follower)) == [0]
    assert not consumer.is_done


def test_a_diverging_follower_is_answered_at_once(harness: ReplicaHarness) -> None:
    harness.create("r", replicas=(1, 2), epoch=1)
    harness.load("r", batches=3)
    harness.change("r", leader=1)
    harness.change("r", leader=1)
    harness.load("r", batches=1)
    data = fetched(harness.fetch("r", offset=5, replica=2, last_fetched_epoch=2, leader_epoch=3))
    assert data.error_code == 0
    assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (1, 3)
    assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (0, 0, 0)
    assert data.records == b""
    assert harness.partition("r").followers[2].end_offset == -1


# ---------------------------------------------------------------- leader checks


def test_a_fetch_with_another_leader_epoch_fails(harness: ReplicaHarness) -> None:
    harness.create("e", epoch=5)
    answers = {epoch: code(harness.fetch("e", leader_epoch=epoch, max_wait_ms=0)) for epoch in (4, 5, 6, -1, -2)}
    assert answers == {
        4: ErrorCode.FENCED_LEADER_EPOCH,
        5: ErrorCode.NONE,
        6: ErrorCode.UNKNOWN_LEADER_EPOCH,
        -1: ErrorCode.NONE,
        -2: ErrorCode.NONE,  # every negative one is none
    }


@pytest.mark.parametrize("version", [11, 12, 16])
def test_not_leader_error_contains_the_current_leader(harness: ReplicaHarness, version: int) -> None:
    harness.create("r", replicas=(2, 3), leader=2, epoch=7)
    answer = harness.fetch("r", version=version)
    data = fetched(answer)
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    if version < 16:
        assert data.current_leader is None
    else:
        assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (2, 7)
    endpoints = [(node.node_id, node.host, node.port, node.rack) for node in answer.message.node_endpoints]
    assert endpoints == ([(2, "host2", 9002, "rack2")] if version >= 16 else [])


# ---------------------------------------------------------------- limits


def test_only_the_first_partition_with_records_may_exceed_the_limits(harness: ReplicaHarness) -> None:
    for index in (1, 2):
        harness.produce("t", index, batch(size=5000))
    answer = harness.fetch_all({("t", 0): 0, ("t", 1): 0, ("t", 2): 0}, partition_max_bytes=100)
    assert [offsets(fetched(answer, 0, index)) for index in range(3)] == [[], [0], []]
    assert fetched(answer, 0, 2).high_watermark == 1


# ---------------------------------------------------------------- rack


def test_a_preferred_read_replica_is_returned(harness: ReplicaHarness) -> None:
    harness.create("r", replicas=(1, 2))
    harness.load("r")
    harness.fetch("r", offset=1, replica=2)
    harness.fetching.services.select_replica = lambda topic, index, offset, rack, listener: (
        2 if rack == "rack2" else None
    )
    data = fetched(harness.fetch("r", rack="rack2", min_bytes=10**6))
    assert (data.preferred_read_replica, data.records, data.high_watermark) == (2, b"", 1)
    assert offsets(fetched(harness.fetch("r", rack="rack1"))) == [0]
    assert offsets(fetched(harness.fetch("r", version=10))) == [0]


# ---------------------------------------------------------------- open-file limit

WIDTH, MOST_FILES = 40, 24


@pytest.fixture
def crowded(tmp_path: Path) -> ReplicaHarness:
    """Forty partitions with a record each, all closed, and a lower open-file limit."""
    made = ReplicaHarness(tmp_path)
    made.create("t", partitions=WIDTH)
    for index in range(WIDTH):
        made.load("t", index)
    files = made.log_manager.file_handles
    for _ in range(3):
        list(files.close_idle())
    files.limit, files._target = MOST_FILES, 4
    files.on_eviction_needed = lambda: None  # nothing is closed before this turn of the loop is over
    return made


def given(response: Any) -> list[int]:
    """The partitions with records."""
    return [data.partition_index for data in response.responses[0].partitions if data.records]


def turn(harness: ReplicaHarness) -> None:
    """Send the responses; run the loop."""
    harness.drain_purgatory()
    harness.log_manager.file_handles.close_surplus()


def test_a_wide_fetch_respects_the_open_file_limit(crowded: ReplicaHarness) -> None:
    positions = {("t", index): 0 for index in range(WIDTH)}
    response: Any = crowded.fetching.handle(crowded.context(1, 12), crowded.fetch_request(positions))
    assert given(response) == list(range(MOST_FILES))
    assert [data.high_watermark for data in response.responses[0].partitions] == [1] * WIDTH
    other = crowded.fetching.handle(crowded.context(1, 12), crowded.fetch_request({("t", 39): 0, ("t", 38): 0}))
    assert given(other) == [39], "everybody gets something"
    del response, other
    turn(crowded)
    rest = {("t", index): 0 for index in range(MOST_FILES, WIDTH)}
    response = crowded.fetching.handle(crowded.context(1, 12), crowded.fetch_request(rest))
    assert given(response) == list(range(MOST_FILES, WIDTH))


def test_a_session_returns_skipped_partitions_later(crowded: ReplicaHarness) -> None:
    request = crowded.fetch_request({("t", index): 0 for index in range(WIDTH)}, session=(0, 0), max_wait_ms=0)
    response: Any = crowded.fetching.handle(crowded.context(1, 12), request)
    assert given(response) == list(range(MOST_FILES))
    session = response.session_id
    del response
    turn(crowded)
    moved = {("t", index): 1 for index in range(MOST_FILES)}
    request = crowded.fetch_request(moved, session=(session, 1), max_wait_ms=0)
    response = crowded.fetching.handle(crowded.context(1, 12), request)
    assert given(response) == list(range(MOST_FILES, WIDTH))
