"""The consumer group protocol (KIP-848): heartbeats that join, keep or remove members, and timeouts.

RULES    1. A heartbeat has up to three steps, each with records: update the member, which may bump the group
            epoch; compute the target assignment; reconcile the member's assignment (`target_assignment_updater.py`).
         2. Responses, order of checks and error messages are Apache Kafka's.
         3. Durable state is in records. A timeout checks whether its condition still holds.
         4. A join or leave may upgrade or downgrade the group (`group_upgrade.py`).
NOT HERE Data of a group (`consumer_group.py`), classic members (`classic_protocol_adapter.py`), descriptions
         (`describe.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import partial
from typing import Final, TypeVar

from broker.coordinators.classic.classic_group import State
from broker.coordinators.classic.classic_protocol import ClientInfo
from broker.coordinators.classic.group_records import group_tombstone
from broker.coordinators.consumer import consumer_group_records as stored
from broker.coordinators.consumer.consumer_group import (
    JOIN_GROUP_MEMBER_EPOCH,
    LEAVE_GROUP_MEMBER_EPOCH,
    LEAVE_GROUP_STATIC_MEMBER_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    MemberUpdate,
    metadata_hash,
)
from broker.coordinators.consumer.consumer_requests import check_epoch, check_heartbeat, owned_by
from broker.coordinators.consumer.dependencies import GroupDependencies
from broker.coordinators.consumer.group_upgrade import GroupUpgrade
from broker.coordinators.consumer.member_timeouts import MemberTimeouts
from broker.coordinators.consumer.target_assignment_updater import TargetAssignmentUpdater, invalidate_metadata_check
from broker.coordinators.consumer.topic_regexes import MayDescribe
from broker.coordinators.runtime.coordinator_runtime import CoordinatorDecision, Replies
from broker.coordinators.runtime.stored_records import StoredRecord
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.common import TopicById
from protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseAssignment,
)

_log = logging.getLogger("barnabas.groups")

RETRY_MS: Final = 500
"""Delay after the records of a timeout failed."""

Decision = CoordinatorDecision[ConsumerGroupHeartbeatResponse]
Reply = TypeVar("Reply")


class ConsumerProtocol:
    """The consumer protocol for the groups of one shard."""

    def __init__(
        self, deps: GroupDependencies, target_updater: TargetAssignmentUpdater, group_upgrade: GroupUpgrade
    ) -> None:
        context = deps.context
        self._deps = deps
        self._target_updater = target_updater
        self._group_upgrade = group_upgrade
        self.session_timeouts = MemberTimeouts(context, partial(self.fence, reason="its session has expired"))
        late = "it did not revoke its partitions in time"
        self._revocation_timeouts = MemberTimeouts(context, partial(self.fence, reason=late))
        self.join_timeouts = MemberTimeouts(context, partial(self.fence, reason="it did not rejoin in time"))
        """Of classic members that must rejoin."""
        self.sync_timeouts = MemberTimeouts(context, partial(self.fence, reason="it did not sync in time"))
        """Of classic members that must send SyncGroup."""

    # ---- heartbeat

    def heartbeat(
        self, client: ClientInfo, request: ConsumerGroupHeartbeatRequest, may_describe: MayDescribe
    ) -> Decision:
        """Handle ConsumerGroupHeartbeat with valid ids."""
        try:
            check_heartbeat(request, self._deps.settings.consumer.assignors)
            if request.member_epoch in {LEAVE_GROUP_MEMBER_EPOCH, LEAVE_GROUP_STATIC_MEMBER_EPOCH}:
                return self._leave(request)
            return self._handle_heartbeat(client, request, may_describe)
        except KafkaError as error:
            return CoordinatorDecision(
                (), ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
            )

    def _handle_heartbeat(
        self, client: ClientInfo, request: ConsumerGroupHeartbeatRequest, may_describe: MayDescribe
    ) -> Decision:
        group, records = self._find_group(request)
        self.check_max_size(group, request.member_id)
        old, replaced = self._find_member(group, request)
        new = old.with_request(
            client,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            assignor=request.server_assignor,
            topics=request.subscribed_topic_names,
            regex=request.subscribed_topic_regex,
        )
        update = MemberUpdate(group, old, replaced, new, owned_by(request), records)
        self._target_updater.update_member(update, may_describe)
        reconciled = self._target_updater.reconcile(update)
        replies = self._close_classic_group(group.group_id)
        if reconciled != new:
            self.update_revocation_timeout(group, reconciled)
        self.session_timeouts.start(
            group.group_id, reconciled.member_id, self._deps.configs.session_timeout_ms(group.group_id)
        )
        response = self._response(request, old, reconciled)
        on_commit = partial(invalidate_metadata_check, group)
        return CoordinatorDecision(records, response, replies, on_commit=on_commit)

    def _close_classic_group(self, group_id: str) -> Replies:
        """The classic group is upgraded: its waiting members must rejoin."""
        classic = self._deps.classic_groups.get(group_id)
        if classic is None:
            return ()
        _log.info("group %s is upgraded to a consumer group", group_id)
        for member_id, member in classic.members.items():
            self.session_timeouts.start(group_id, member_id, member.session_timeout_ms)
            self.join_timeouts.cancel(group_id, member_id)  # may still run from an earlier upgrade
            self.sync_timeouts.cancel(group_id, member_id)
        return classic.reply_error_to_all(ErrorCode.REBALANCE_IN_PROGRESS)

    def _response(
        self, request: ConsumerGroupHeartbeatRequest, old: ConsumerMember, reconciled: ConsumerMember
    ) -> ConsumerGroupHeartbeatResponse:
        response = ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.NONE,
            member_id=reconciled.member_id,
            member_epoch=reconciled.epoch,
            heartbeat_interval_ms=self._deps.configs.heartbeat_interval_ms(request.group_id),
        )
        has_topics = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        is_full = request.rebalance_timeout_ms != -1 and has_topics and request.topic_partitions is not None
        if request.member_epoch == JOIN_GROUP_MEMBER_EPOCH or is_full or reconciled.assigned != old.assigned:
            response.assignment = ConsumerGroupHeartbeatResponseAssignment(
                topic_partitions=[
                    TopicById(topic_id=topic_id, partitions=sorted(partitions))
                    for topic_id, partitions in reconciled.assigned.items()
                ]
            )
        return response

    # ---- finding groups and members

    def _find_group(self, request: ConsumerGroupHeartbeatRequest) -> tuple[ConsumerGroup, list[StoredRecord]]:
        """The group, or a new one, and the records to write before those of the first member."""
        group_id = request.group_id
        group = self._deps.consumer_groups.get(group_id)
        if group is not None:
            return group, []
        if request.member_epoch != JOIN_GROUP_MEMBER_EPOCH or group_id in self._deps.other_groups:
            raise self._not_found(group_id, f"Consumer group {group_id} not found.")
        classic = self._deps.classic_groups.get(group_id)
        if classic is None:
            return ConsumerGroup(group_id), []
        if classic.state is State.EMPTY:
            return ConsumerGroup(group_id), [group_tombstone(group_id)]
        return self._group_upgrade.upgrade(classic)

    def _not_found(self, group_id: str, message: str) -> KafkaError:
        if group_id in self._deps.classic_groups or group_id in self._deps.other_groups:
            message = f"Group {group_id} is not a consumer group."
        return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)

    def check_max_size(self, group: ConsumerGroup, member_id: str) -> None:
        """Check the group's size before a join; raises KafkaError: GROUP_MAX_SIZE_REACHED."""
        limit = self._deps.settings.consumer.max_size
        if len(group.members) >= limit and member_id not in group.members:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {limit} members.",
            )

    def _find_member(
        self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest
    ) -> tuple[ConsumerMember, ConsumerMember | None]:
        """The member of a request, and the static member that it replaces."""
        member_id, instance_id = request.member_id or self._deps.new_uuid(), request.instance_id
        if request.member_epoch != JOIN_GROUP_MEMBER_EPOCH:
            known = find_member(group, member_id, instance_id)
            check_epoch(known, request)
            return known, None
        joining, replaced = group.joining_member(member_id, instance_id)
        if replaced and replaced.classic is None and replaced.epoch != LEAVE_GROUP_STATIC_MEMBER_EPOCH:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance "
                f"id is owned by {replaced.member_id} member.",
            )
        return joining, replaced

    # ---- leave

    def _leave(self, request: ConsumerGroupHeartbeatRequest) -> Decision:
        group_id = request.group_id
        group = self._deps.consumer_groups.get(group_id)
        if group is None:
            raise self._not_found(group_id, f"Group {group_id} not found.")
        member = find_member(group, request.member_id, request.instance_id)
        response = ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.NONE, member_id=request.member_id, member_epoch=request.member_epoch
        )
        if request.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
            _log.info("group %s: static member %s leaves temporarily", group_id, member.member_id)
            self._revocation_timeouts.cancel(group_id, member.member_id)
            return CoordinatorDecision([stored.current_record(group_id, member.left_temporarily())], response)
        _log.info("group %s: member %s leaves", group_id, member.member_id)
        return self.remove(group, [member], response)

    def remove(self, group: ConsumerGroup, leaving: list[ConsumerMember], reply: Reply) -> CoordinatorDecision[Reply]:
        """Remove members; a group with only classic members left is downgraded."""
        leaving_ids = [member.member_id for member in leaving]
        if self._group_upgrade.may_downgrade(group, leaving_ids):
            try:
                classic, records = self._group_upgrade.downgrade(group, leaving_ids)
            except KafkaError as error:
                _log.warning("%s", error.message)
            else:
                self._group_upgrade.rebalance(classic, "the group was downgraded to a classic group")
                return CoordinatorDecision(
                    records, reply, on_commit=partial(self._group_upgrade.on_downgrade_committed, classic)
                )
        return CoordinatorDecision(self._removal_records(group, leaving_ids), reply)

    def _removal_records(self, group: ConsumerGroup, leaving_ids: Collection[str]) -> list[StoredRecord]:
        remaining = {member_id: member for member_id, member in group.members.items() if member_id not in leaving_ids}
        used = {member.regex for member in remaining.values()}
        return [
            *(record for member_id in leaving_ids for record in stored.member_tombstones(group.group_id, member_id)),
            *(stored.regex_tombstone(group.group_id, regex) for regex in group.regexes if regex not in used),
            stored.epoch_record(group.group_id, group.epoch + 1, metadata_hash(group, remaining, self._deps.image())),
        ]

    # ---- deadlines

    def start_timeouts(self, group: ConsumerGroup) -> None:
        """Start the timeouts of all members after loading."""
        for member in group.members.values():
            classic = member.classic
            session_timeout_ms = self._deps.configs.session_timeout_ms(group.group_id)
            timeout_ms = session_timeout_ms if classic is None else classic.session_timeout_ms
            self.session_timeouts.start(group.group_id, member.member_id, timeout_ms)
            self.update_revocation_timeout(group, member)

    def update_revocation_timeout(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Start or cancel the rebalance timeout of a member that must revoke partitions (consumer protocol only)."""
        if member.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None:
            self._revocation_timeouts.start(group.group_id, member.member_id, member.rebalance_timeout_ms)
        else:
            self._revocation_timeouts.cancel(group.group_id, member.member_id)

    def fence(self, group_id: str, member_id: str, reason: str) -> CoordinatorDecision[None] | None:
        """Remove a member after a timeout."""
        group = self._deps.consumer_groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None:
            return None
        _log.info("group %s: member %s is fenced: %s", group_id, member_id, reason)
        decision = self.remove(group, [member], None)
        inner = decision.on_commit

        def on_commit(error: ErrorCode) -> CoordinatorDecision[None] | None:
            if error is not ErrorCode.NONE:
                self.session_timeouts.start(group_id, member_id, RETRY_MS)
            return None if inner is None else inner(error)

        decision.on_commit = on_commit
        return decision

    def close(self) -> None:
        """Another broker is the coordinator now."""
        for timers in (self.session_timeouts, self._revocation_timeouts, self.join_timeouts, self.sync_timeouts):
            timers.close()


def find_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    """The member with these ids, which must belong together; raises KafkaError: UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
    if instance_id is None:
        member = group.members.get(member_id)
        if member is None:
            what = f"Member {member_id} is not a member of group {group.group_id}."
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, what)
        return member
    member = group.static_member(instance_id)
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}.",
        )
    return member
