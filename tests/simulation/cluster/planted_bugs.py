"""Planted bugs of replication and controller: the simulator must find each.

NOT HERE The number of seeds (tests/simulation/test_planted_bugs.py).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

from pytest import MonkeyPatch  # noqa: PT013

import replication.controller.brokers.broker_heartbeats
import replication.controller.brokers.registration
import replication.controller.controller
import replication.controller.partitions.alter_partition
import replication.controller.partitions.elections
from replication.completion import Completion, completed
from replication.controller.partitions.alter_partition import _validate_members
from replication.controller.partitions.partition_changes import TopicRules
from replication.metadata.image import MetadataImage
from replication.metadata_log.metadata_loader import MetadataLoader
from replication.metadata_log.metadata_log import MetadataLog
from replication.metadata_log.metadata_snapshots import MetadataSnapshots
from replication.partition.follower_log import FollowerLog
from replication.partition.partition import Partition
from replication.partition.replica_manager import ReplicaManager
from tests.support.logs import truncated

# ---- leaders of partitions -------------------------------------------------------------------------------


def the_high_watermark_ignores_followers(patch: MonkeyPatch) -> None:
    """The leader's log end counts as committed."""
    move = Partition.move_high_watermark

    def planted(self: Partition) -> None:
        followers, self.followers = self.followers, {}
        move(self)
        self.followers = followers

    patch.setattr(Partition, "move_high_watermark", planted)


def the_high_watermark_ignores_joining_replicas(patch: MonkeyPatch) -> None:
    """A requested ISR counts only after the response; until then, joining replicas are not waited for."""
    move = Partition.move_high_watermark

    def planted(self: Partition) -> None:
        wanted, self.pending_isr = self.pending_isr, None
        joining = [follower for follower in self.followers.values() if follower.is_joining]
        for follower in joining:
            follower.is_joining = False
        move(self)
        for follower in joining:
            follower.is_joining = True
        self.pending_isr = wanted

    patch.setattr(Partition, "move_high_watermark", planted)


def an_isr_shrink_applies_before_the_commit(patch: MonkeyPatch) -> None:
    """An isolated leader removes the others from its ISR and continues alone."""
    want = ReplicaManager._propose_isr

    def planted(self: ReplicaManager, partition: Partition, isr: tuple[int, ...]) -> None:
        want(self, partition, isr)
        if len(isr) < len(partition.isr):
            partition.isr, partition.min_isr = isr, 1
            partition.pending_isr = None
            partition.move_high_watermark()

    patch.setattr(ReplicaManager, "_propose_isr", planted)


def replicas_join_the_isr_too_early(patch: MonkeyPatch) -> None:
    """Any fetching replica may join the ISR."""

    def planted(self: Partition, replica_id: int) -> tuple[int, ...] | None:
        is_free = self.is_leader and self.pending_isr is None and replica_id in self.followers
        return (*self.isr, replica_id) if is_free and replica_id not in self.isr else None

    patch.setattr(Partition, "expanded_isr", planted)


def records_count_before_they_are_durable(patch: MonkeyPatch) -> None:
    """With flush.messages=1, unflushed records count."""
    patch.setattr(Partition, "needs_sync", property(lambda _: False))


def fetch_epochs_are_not_compared(patch: MonkeyPatch) -> None:
    """The epoch of a follower's last record is ignored."""
    patch.setattr(Partition, "_check_divergence", lambda *_: None)


# ---- followers -------------------------------------------------------------------------------------------


def followers_truncate_to_the_high_watermark(patch: MonkeyPatch) -> None:
    """A new follower truncates to its high watermark, as before KIP-101."""
    follow = FollowerLog.open

    def planted(self: FollowerLog, partition: Partition) -> Completion[bool]:
        def truncate(can_fetch: bool) -> bool:
            if can_fetch and partition.log.log_end_offset > partition.high_watermark:
                truncated(self._log_manager, partition.log, partition.high_watermark)
            return can_fetch

        return follow(self, partition).map(truncate)

    patch.setattr(FollowerLog, "open", planted)


def followers_ignore_divergence(patch: MonkeyPatch) -> None:
    """A follower continues at the divergence without truncating."""

    patch.setattr(FollowerLog, "truncate_to_epoch", lambda *_: completed(True))


# ---- controllers -----------------------------------------------------------------------------------------


def alter_partition_ignores_epochs(patch: MonkeyPatch) -> None:
    """AlterPartition of a former leader, or with a stale partition epoch, is accepted."""

    def planted(image: MetadataImage, _broker_id: int, _state: Any, wanted: Any) -> Any:
        return _validate_members(image, wanted.new_isr_with_epochs)

    patch.setattr(replication.controller.partitions.alter_partition, "_validate", planted)


def fenced_brokers_keep_leaderships(patch: MonkeyPatch) -> None:
    """Fencing a broker does not change its partitions."""
    patch.setattr(replication.controller.brokers.broker_heartbeats, "broker_fenced", lambda *_: [])


def an_unclean_restart_changes_nothing(patch: MonkeyPatch) -> None:
    """A broker that restarts after a crash stays in the ISR."""
    patch.setattr(replication.controller.brokers.registration, "broker_restarted", lambda *_args, **_given: [])


def all_elections_are_unclean(patch: MonkeyPatch) -> None:
    """Any replica is elected if none in the ISR is available."""
    topic_rules = replication.controller.partitions.elections.topic_rules

    def planted(*common: Any) -> TopicRules:
        return topic_rules(*common)._replace(allows_unclean=True)

    patch.setattr(replication.controller.partitions.elections, "topic_rules", planted)


def a_new_controller_ignores_uncommitted_records(patch: MonkeyPatch) -> None:
    """The first image of a new leader lacks the uncommitted records."""
    lead = MetadataLoader.load_uncommitted

    def planted(self: Any) -> Iterator[Any]:
        list(lead(self))
        return iter(())

    patch.setattr(MetadataLoader, "load_uncommitted", planted)


def a_controller_leads_before_its_earlier_appends_are_written(patch: MonkeyPatch) -> None:
    """Appends of an earlier epoch may wait for disk space: the new leader loads records that are not written."""
    run_when_idle = MetadataLog.run_when_idle

    def planted(self: MetadataLog, action: Any) -> None:
        if isinstance(action, partial) and action.func.__name__ == "_become_leader":
            action()
        else:
            run_when_idle(self, action)

    patch.setattr(MetadataLog, "run_when_idle", planted)


# ---- the quorum ------------------------------------------------------------------------------------------


def metadata_counts_before_it_is_durable(patch: MonkeyPatch) -> None:
    """Unflushed metadata records count as flushed."""

    def planted(self: MetadataLog) -> None:
        end = self._log.log_end_offset
        if not self._is_flushing and self._flush_waiters and self._flush_waiters[0][0] <= end:
            self._is_flushing = True
            flush = self._log.open().flush
            flush.begin()
            self._executor.sync(self.directory, lambda: lambda: None).then(partial(self._on_flushed, flush, end))

    patch.setattr(MetadataLog, "_start_flush", planted)


def snapshots_miss_the_last_record(patch: MonkeyPatch) -> None:
    """A snapshot claims one record more than it contains."""
    take = MetadataSnapshots.take

    def planted(self: MetadataSnapshots, image: MetadataImage, wall_ms: int) -> Iterator[None]:
        further = copy.copy(image)
        further.offset += 1
        return take(self, further, wall_ms)

    patch.setattr(MetadataSnapshots, "take", planted)
