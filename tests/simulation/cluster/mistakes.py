"""Mistakes that a cluster's protocols invite, to be planted: the simulation has to find each.

NOT HERE How many histories that may take (test_mistakes.py).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pytest import MonkeyPatch  # noqa: PT013

import replication.controller.brokers.broker_heartbeats
import replication.controller.brokers.registration
import replication.controller.controller
import replication.controller.partitions.alter_partition
import replication.controller.partitions.elections
from replication.controller.partitions.alter_partition import _why_ineligible
from replication.controller.partitions.partition_changes import TopicRules
from replication.metadata.image import MetadataImage
from replication.metadata_log.metadata_log import MetadataLog
from replication.metadata_log.metadata_snapshots import MetadataSnapshots
from replication.partition.follower_log import Done as Followed
from replication.partition.follower_log import Following
from replication.partition.partition import Partition
from replication.partition.replica_manager import ReplicaManager

Plant = Callable[[MonkeyPatch], None]


# ---- leaders of partitions -------------------------------------------------------------------------------


def a_high_watermark_that_waits_for_nobody(patch: MonkeyPatch) -> None:
    """What the leader has counts as committed."""
    move = Partition.move_high_watermark

    def hasty(self: Partition) -> None:
        followers, self.followers = self.followers, {}
        move(self)
        self.followers = followers

    patch.setattr(Partition, "move_high_watermark", hasty)


def a_high_watermark_that_does_not_wait_for_who_joins(patch: MonkeyPatch) -> None:
    """The ISR that was asked for counts only when it is granted; until the leader hears of that, others do not wait."""
    move = Partition.move_high_watermark

    def forgetful(self: Partition) -> None:
        wanted, self.wanted_isr = self.wanted_isr, None
        joining = [follower for follower in self.followers.values() if follower.is_joining]
        for follower in joining:
            follower.is_joining = False
        move(self)
        for follower in joining:
            follower.is_joining = True
        self.wanted_isr = wanted

    patch.setattr(Partition, "move_high_watermark", forgetful)


def a_shrink_that_counts_before_it_is_granted(patch: MonkeyPatch) -> None:
    """A leader that is cut off takes the others out of its ISR by itself, and goes on alone."""
    want = ReplicaManager._want_isr

    def at_once(self: ReplicaManager, partition: Partition, isr: tuple[int, ...]) -> None:
        want(self, partition, isr)
        if len(isr) < len(partition.isr):
            partition.isr, partition.min_isr = isr, 1
            partition.wanted_isr = None
            partition.move_high_watermark()

    patch.setattr(ReplicaManager, "_want_isr", at_once)


def a_join_before_all_is_there(patch: MonkeyPatch) -> None:
    """Whoever fetches may join the ISR."""

    def any_fetch(self: Partition, replica_id: int) -> tuple[int, ...] | None:
        is_free = self.is_leader and self.wanted_isr is None and replica_id in self.followers
        return (*self.isr, replica_id) if is_free and replica_id not in self.isr else None

    patch.setattr(Partition, "isr_with", any_fetch)


def records_that_count_before_they_are_durable(patch: MonkeyPatch) -> None:
    """With flush.messages=1: leader and followers count what is written."""
    patch.setattr(Partition, "needs_sync", property(lambda _: False))


def fetches_that_nobody_compares(patch: MonkeyPatch) -> None:
    """The epoch of a follower's last record is not looked at."""
    patch.setattr(Partition, "_check_divergence", lambda _self, _position: None)


# ---- followers -------------------------------------------------------------------------------------------


def a_cut_at_the_high_watermark(patch: MonkeyPatch) -> None:
    """As before KIP-101: who begins to follow drops what it does not know to be committed."""
    follow = Following.open

    def cut(self: Following, partition: Partition, opened: Callable[[], None]) -> None:
        def then() -> None:
            if partition.log.log_end_offset > partition.high_watermark:
                self._log_manager.truncate(partition.log, partition.high_watermark)
            opened()

        follow(self, partition, then)

    patch.setattr(Following, "open", cut)


def a_follower_that_keeps_what_the_leader_has_not(patch: MonkeyPatch) -> None:
    """It is told where the logs part, and goes on from there without a cut."""

    def keep(_self: Following, _partition: Partition, _epoch: int, _end_offset: int, done: Followed) -> None:
        done(True)

    patch.setattr(Following, "truncate", keep)


# ---- controllers -----------------------------------------------------------------------------------------


def wishes_whose_epochs_nobody_compares(patch: MonkeyPatch) -> None:
    """AlterPartition of a leader that is none any more, or that knows an older ISR."""

    def why_not(image: MetadataImage, _broker_id: int, _state: Any, wanted: Any) -> Any:
        return _why_ineligible(image, wanted.new_isr_with_epochs)

    patch.setattr(replication.controller.partitions.alter_partition, "_why_not", why_not)


def a_fenced_broker_that_keeps_its_partitions(patch: MonkeyPatch) -> None:
    """Fencing is noted, and nothing follows from it."""
    patch.setattr(replication.controller.brokers.broker_heartbeats, "broker_left", lambda *_: [])


def a_crash_that_changes_nothing(patch: MonkeyPatch) -> None:
    """A process that begins after a crash is taken for the one that was in sync."""
    patch.setattr(replication.controller.brokers.registration, "restart", lambda *_args, **_given: [])


def elections_that_are_unclean(patch: MonkeyPatch) -> None:
    """Anybody leads where nobody in sync can."""
    rules_of = replication.controller.partitions.elections.rules_of

    def allowing(*given: Any) -> TopicRules:
        return rules_of(*given)._replace(allows_unclean=True)

    patch.setattr(replication.controller.partitions.elections, "rules_of", allowing)


def a_controller_that_decides_on_what_is_committed_only(patch: MonkeyPatch) -> None:
    """Who begins to lead forgets what the log holds besides."""
    lead = replication.controller.controller.CommittedMetadata.rest

    def nothing(self: Any) -> Iterator[Any]:
        list(lead(self))
        return iter(())

    patch.setattr(replication.controller.controller.CommittedMetadata, "rest", nothing)


# ---- the quorum ------------------------------------------------------------------------------------------


def metadata_that_count_before_they_are_durable(patch: MonkeyPatch) -> None:
    """What is written is taken for synced."""

    def hasty(self: MetadataLog) -> None:
        end = self._log.log_end_offset
        if not self._is_syncing and self._awaiting_flush and self._awaiting_flush[0][0] <= end:
            self._is_syncing = True
            self._log.sync_work()
            self._worker.sync(self.directory, lambda: lambda: None, partial(self._synced, end))

    patch.setattr(MetadataLog, "_sync_what_is_whole", hasty)


def snapshots_without_the_last_record(patch: MonkeyPatch) -> None:
    """They say that they go one record further than they do."""
    take = MetadataSnapshots.take

    def too_far(self: MetadataSnapshots, image: MetadataImage, wall_ms: int) -> Iterator[None]:
        further = copy.copy(image)
        further.offset += 1
        return take(self, further, wall_ms)

    patch.setattr(MetadataSnapshots, "take", too_far)


MISTAKES: tuple[Plant, ...] = (
    a_high_watermark_that_waits_for_nobody,
    a_high_watermark_that_does_not_wait_for_who_joins,
    a_shrink_that_counts_before_it_is_granted,
    a_join_before_all_is_there,
    records_that_count_before_they_are_durable,
    fetches_that_nobody_compares,
    a_cut_at_the_high_watermark,
    a_follower_that_keeps_what_the_leader_has_not,
    wishes_whose_epochs_nobody_compares,
    a_fenced_broker_that_keeps_its_partitions,
    a_crash_that_changes_nothing,
    elections_that_are_unclean,
    a_controller_that_decides_on_what_is_committed_only,
    metadata_that_count_before_they_are_durable,
    snapshots_without_the_last_record,
)
