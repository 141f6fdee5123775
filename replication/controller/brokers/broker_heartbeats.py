"""Broker heartbeats: fencing, unfencing and controlled shutdown.

RULES    1. The states and transitions are Apache Kafka 4.3's (BrokerHeartbeatManager):
                fenced   -> unfenced             it has read its own registration and does not request fencing
                unfenced -> fenced               it requests fencing, and another broker is unfenced
                unfenced -> controlled shutdown  it requests shutdown and leads partitions
                controlled shutdown -> shutdown  other brokers lead them, and all unfenced brokers have read the change
                any      -> shutdown             it requests shutdown and leads no partition
            (Apache Kafka also fences the last unfenced broker. Here a broker requests fencing while its disk is full, and its
            partitions stay readable.)
         2. A broker that is fenced or shuts down is removed from all ISRs, and leaders are elected.
         3. Offline and cordoned log directories are stored.
NOT HERE Sessions (`broker_heartbeat_tracker.py`), registration (`registration.py`), elections (`elections.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

from protocol.errors import ErrorCode
from protocol.messages.quorum import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from protocol.messages.stored_records import BrokerRegistrationChangeRecord
from replication.controller.brokers.broker_heartbeat_tracker import BrokerHeartbeatState, BrokerHeartbeatTracker
from replication.controller.decision_context import DecisionContext
from replication.controller.partitions.elections import (
    broker_fenced,
    broker_unfenced,
    controlled_shutdown,
    directory_offline,
    has_leaderships,
)
from replication.metadata.feature_levels import WITH_CORDONS
from replication.metadata.image import BrokerImage, MetadataImage
from replication.metadata.metadata_records import Versioned
from replication.state_machine import Decision


class BrokerControlState(Enum):
    """The state of a broker (Kafka: BrokerControlState)."""

    FENCED = auto()
    UNFENCED = auto()
    CONTROLLED_SHUTDOWN = auto()
    SHUTDOWN_NOW = auto()


def heartbeat(
    context: DecisionContext,
    tracker: BrokerHeartbeatTracker,
    state: BrokerHeartbeatState,
    request: BrokerHeartbeatRequest,
) -> tuple[BrokerControlState, Decision[BrokerHeartbeatResponse]]:
    """Decide on the heartbeat of a registered broker."""
    broker = context.image.brokers[request.broker_id]
    is_caught_up = request.current_metadata_offset >= state.registration_offset
    before = _current_state(broker, state)
    after = _next_state(context, tracker, state, request, before, is_caught_up=is_caught_up)
    records: list[Versioned] = []
    if after is not before:
        records += _transition_records(context, broker, after)
    records += offline_directories(context, broker, request.offline_log_dirs)
    cordoned = request.cordoned_log_dirs
    if cordoned is not None and context.image.metadata_version >= WITH_CORDONS:
        records += cordoned_directories(broker, cordoned)
    response = BrokerHeartbeatResponse(
        error_code=ErrorCode.NONE,
        is_caught_up=is_caught_up,
        is_fenced=after in (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW),
        should_shut_down=after is BrokerControlState.SHUTDOWN_NOW,
    )
    return after, Decision(records, response, is_atomic=False)


def _current_state(broker: BrokerImage, state: BrokerHeartbeatState) -> BrokerControlState:
    if state.is_shutting_down:
        return BrokerControlState.CONTROLLED_SHUTDOWN
    return BrokerControlState.FENCED if broker.is_fenced else BrokerControlState.UNFENCED


def _next_state(
    context: DecisionContext,
    tracker: BrokerHeartbeatTracker,
    state: BrokerHeartbeatState,
    request: BrokerHeartbeatRequest,
    before: BrokerControlState,
    *,
    is_caught_up: bool,
) -> BrokerControlState:
    if before is BrokerControlState.CONTROLLED_SHUTDOWN:
        return _next_shutdown_state(context, tracker, state, request.broker_id)
    wants_fence = request.want_fence and _has_others(context.image, request.broker_id)
    if before is BrokerControlState.FENCED:
        if request.want_shut_down:
            return BrokerControlState.SHUTDOWN_NOW
        return BrokerControlState.UNFENCED if is_caught_up and not wants_fence else BrokerControlState.FENCED
    if wants_fence:
        return BrokerControlState.SHUTDOWN_NOW if request.want_shut_down else BrokerControlState.FENCED
    if request.want_shut_down:
        return (
            BrokerControlState.CONTROLLED_SHUTDOWN
            if has_leaderships(context, request.broker_id)
            else BrokerControlState.SHUTDOWN_NOW
        )
    return BrokerControlState.UNFENCED


def _has_others(image: MetadataImage, broker_id: int) -> bool:
    return any(broker.is_active for other, broker in image.brokers.items() if other != broker_id)


def _next_shutdown_state(
    context: DecisionContext, tracker: BrokerHeartbeatTracker, state: BrokerHeartbeatState, broker_id: int
) -> BrokerControlState:
    if has_leaderships(context, broker_id):
        return BrokerControlState.CONTROLLED_SHUTDOWN
    other_ids = [
        other for other, broker in context.image.brokers.items() if broker.is_active and other != context.node_id
    ]
    lowest = tracker.lowest_metadata_offset(other_ids)  # the local broker reads records when they are appended
    return (
        BrokerControlState.SHUTDOWN_NOW
        if lowest is None or state.shutdown_offset <= lowest
        else BrokerControlState.CONTROLLED_SHUTDOWN
    )


def _transition_records(context: DecisionContext, broker: BrokerImage, after: BrokerControlState) -> list[Versioned]:
    if after is BrokerControlState.UNFENCED:
        return [_change(broker, fenced=-1), *broker_unfenced(context, broker.broker_id)]
    if after is BrokerControlState.CONTROLLED_SHUTDOWN:
        return _begin_controlled_shutdown(context, broker)
    if after is BrokerControlState.SHUTDOWN_NOW:
        return [*controlled_shutdown(context, broker.broker_id), _change(broker, fenced=1)]
    return fence(context, broker)


def fence(context: DecisionContext, broker: BrokerImage) -> list[Versioned]:
    """Fence a broker: it loses its leaderships and is hidden from clients."""
    return [*broker_fenced(context, broker.broker_id), _change(broker, fenced=1)]


def _change(broker: BrokerImage, version: int = 0, **changed: Any) -> Versioned:
    """The record, in this version, that changes fields of a registration."""
    return BrokerRegistrationChangeRecord(broker_id=broker.broker_id, broker_epoch=broker.epoch, **changed), version


def _begin_controlled_shutdown(context: DecisionContext, broker: BrokerImage) -> list[Versioned]:
    change = [] if broker.is_shutting_down else [_change(broker, 1, in_controlled_shutdown=1)]
    return change + controlled_shutdown(context, broker.broker_id)


def offline_directories(context: DecisionContext, broker: BrokerImage, offline: Sequence[bytes]) -> list[Versioned]:
    """Store failed log directories and remove the broker from the ISRs of their partitions."""
    newly_offline = [directory for directory in broker.directories if directory in offline]
    if not newly_offline:
        return []
    records: list[Versioned] = []
    for directory in newly_offline:
        records += directory_offline(context, broker.broker_id, directory)
    online = [directory for directory in broker.directories if directory not in offline]
    return [*records, _change(broker, 2, log_dirs=online)]


def cordoned_directories(broker: BrokerImage, directories: list[bytes]) -> list[Versioned]:
    """Store the cordoned log directories, if they changed."""
    known = broker.cordoned_directories
    if known is not None and set(known) == set(directories):
        return []
    return [_change(broker, 3, cordoned_log_dirs=directories)]
