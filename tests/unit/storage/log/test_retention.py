"""Retention, on both engines (storage/log/retention.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage.io.deferred_file_ops import DiskSpace
from storage.io.disk_lookup import wait_for_disk
from storage.log.log import Log
from storage.log.retention import is_retention_due, retain
from tests.support.logs import NOW_MS, SMALL, MakeLog, append, fill, flush, produced, values_of


@pytest.fixture
def log(make: MakeLog) -> Log:
    """Three replicated segments of two records."""
    log = make()
    fill(log, 6)
    log.high_watermark = 6
    return log


def kept(log: Log, wall_ms: int, **settings: object) -> list[int]:
    """The offsets left by a retention pass with these settings."""
    log.update_config(replace(log.config, **settings))  # type: ignore[arg-type]
    wait_for_disk(retain, log, wall_ms)
    return [offset for offset, _ in values_of(log)]


def test_segments_expire_by_the_age_of_their_latest_record(make: MakeLog) -> None:
    log = make()
    fill(log, 6, step_ms=100)
    log.high_watermark = 6
    assert kept(log, NOW_MS + 1100, retention_ms=1000) == [0, 1, 2, 3, 4, 5]
    assert kept(log, NOW_MS + 1101) == [2, 3, 4, 5]
    assert kept(log, NOW_MS + 1301) == [4, 5]
    assert kept(log, NOW_MS + 1501) == []
    assert (log.log_start_offset, log.log_end_offset) == (6, 6)
    assert append(log, "x") == 6


def test_segments_expire_while_the_rest_exceeds_retention_bytes(log: Log) -> None:
    size = log.open().engine.size_bytes
    third = size // 3
    assert kept(log, NOW_MS, retention_bytes=size - third + 1) == [0, 1, 2, 3, 4, 5]
    assert kept(log, NOW_MS, retention_bytes=size - third) == [2, 3, 4, 5]
    assert kept(log, NOW_MS, retention_bytes=0) == []


def test_the_active_segment_is_rolled_only_when_all_of_it_has_expired(log: Log) -> None:
    engine = log.open().engine
    size = engine.size_bytes
    kept(log, NOW_MS, retention_bytes=size - size // 3)
    assert [segment.base_offset for segment in engine.segments()] == [2, 4]
    kept(log, NOW_MS, retention_bytes=0)
    assert ([segment.base_offset for segment in engine.segments()], engine.size_bytes) == ([6], 0)


def test_segments_deleted_by_time_count_for_retention_bytes(make: MakeLog) -> None:
    log = make()
    for size, timestamp_ms in ((900, NOW_MS), (500, NOW_MS + 5000), (500, NOW_MS + 5000), (500, NOW_MS + 5000)):
        append(log, "x" * size, timestamp_ms=timestamp_ms)
    log.high_watermark = 4
    sizes = [segment.size for segment in log.open().engine.segments()]
    assert sizes[0] > sizes[1]
    retention_bytes = sum(sizes) - sizes[1]
    assert kept(log, NOW_MS + 2000, retention_ms=1000, retention_bytes=retention_bytes) == [1, 2, 3]


@pytest.mark.parametrize(
    ("retention_ms", "retention_bytes", "policy", "first"),
    [
        (-1, -1, "delete", 0),
        (1, -1, "delete", 6),
        (-1, 0, "delete", 6),
        (1, -1, "compact,delete", 6),
        (-1, 0, "compact,delete", 6),
        (1, 0, "compact", 0),
        (10**12, 10**12, "delete", 0),
        (1, 10**12, "delete", 6),
        (10**12, 0, "delete", 6),
    ],
)
def test_time_and_size_each_suffice_and_minus_one_means_no_limit(
    log: Log, retention_ms: int, retention_bytes: int, policy: str, first: int
) -> None:
    settings = {"retention_ms": retention_ms, "retention_bytes": retention_bytes}
    left = kept(log, NOW_MS + 10**9, **settings, cleanup_policy=frozenset(policy.split(",")))
    assert left == list(range(first, 6))


def test_no_segment_at_or_above_the_high_watermark_expires(make: MakeLog) -> None:
    log = make()
    fill(log, 6)
    log.high_watermark = 3
    assert kept(log, NOW_MS * 2, retention_ms=1) == [2, 3, 4, 5]


def test_while_appends_are_pending_all_but_the_last_segment_expire(log: Log) -> None:
    """On a slow disk an append to a busy partition is nearly always pending."""
    prepared = wait_for_disk(log.open().appends.prepare, produced("x"), leader_epoch=0, wall_ms=NOW_MS)
    assert kept(log, NOW_MS * 2, retention_ms=1) == [4, 5]
    prepared.write()
    prepared.commit(NOW_MS)
    assert kept(log, NOW_MS * 2) == [4, 5, 6]


def test_a_segment_expires_while_the_first_append_to_the_next_one_is_pending(log: Log) -> None:
    log.open().roll(NOW_MS)
    prepared = wait_for_disk(log.open().appends.prepare, produced("x"), leader_epoch=0, wall_ms=NOW_MS)
    assert kept(log, NOW_MS, retention_bytes=0) == []
    prepared.write()
    prepared.commit(NOW_MS)
    assert values_of(log) == [(6, "x")]


def test_a_closed_log_is_not_opened_before_a_segment_can_expire(make: MakeLog) -> None:
    log = make(config=replace(SMALL, retention_ms=1000))
    fill(log, 6, step_ms=100)
    flush(log)
    log.high_watermark = 6
    assert is_retention_due(log, 0)
    wait_for_disk(retain, log, NOW_MS)
    assert log.release()
    assert not is_retention_due(log, NOW_MS + 1000)
    wait_for_disk(retain, log, NOW_MS + 1050)
    assert log.release()
    assert not is_retention_due(log, NOW_MS + 1100)
    assert is_retention_due(log, NOW_MS + 1101)
    log.update_config(replace(SMALL, retention_ms=10))
    assert is_retention_due(log, NOW_MS)


def test_a_schedule_topic_keeps_what_is_not_delivered_yet(log: Log) -> None:
    schedule = {"barnabas_deliver_to": "target", "retention_ms": 1}
    assert kept(log, NOW_MS * 2, **schedule) == [0, 1, 2, 3, 4, 5]
    log.keep_from = 3
    assert kept(log, NOW_MS * 2) == [2, 3, 4, 5]
    log.keep_from = 6
    assert kept(log, NOW_MS * 2) == []


def test_a_follower_of_a_schedule_topic_deletes_what_its_leader_has_deleted(log: Log) -> None:
    log.open().trim(3, NOW_MS)
    assert kept(log, NOW_MS * 2, barnabas_deliver_to="target", retention_ms=1) == [3, 4, 5]


def test_on_a_full_disk_all_expires_while_an_append_to_the_next_segment_waits(log: Log) -> None:
    log.open().roll(NOW_MS)
    prepared = wait_for_disk(log.open().appends.prepare, produced("x"), leader_epoch=0, wall_ms=NOW_MS)
    log.files.disk_space = DiskSpace(is_full=True)
    assert kept(log, NOW_MS, retention_bytes=0) == []
    prepared.write()
    prepared.commit(NOW_MS)
    assert values_of(log) == [(6, "x")]


def test_on_a_full_disk_appends_that_wait_in_two_new_segments_do_not_expire(log: Log) -> None:
    """The first of the two has no file yet: asking for its age took the log directory offline."""
    log.files.disk_space = DiskSpace(is_full=True)
    log.open().set_submit(lambda _: None)  # no file can be created
    log.open().roll(NOW_MS)
    log.update_config(replace(log.config, segment_bytes=100))
    for _ in range(2):
        wait_for_disk(log.open().appends.prepare, produced("x"), leader_epoch=0, wall_ms=NOW_MS)
    assert kept(log, NOW_MS * 2, retention_ms=1) == []
