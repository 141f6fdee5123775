"""What a broker's heartbeat makes of it: fenced, active, leaving, gone.

RULES    1. The states and the way between them are Apache Kafka 4.3's (BrokerHeartbeatManager):
                fenced   -> active   it has read its own registration and does not want to be fenced
                active   -> fenced   it wants to be, and is not the last one that is active
                active   -> leaving  it wants to shut down and leads partitions
                leaving  -> gone     others lead them, and every active broker has read so
                any      -> gone     it wants to shut down and leads nothing
            (The last one that is active is fenced there too; here a broker wants that while its disk is full, and may be read.)
         2. Who leaves or is fenced is taken out of all ISRs; leaders are elected then.
         3. Log directories that it names as failed, or as cordoned off, are noted.
NOT HERE Who is silent (`broker_heartbeat_tracker.py`), registering (`registration.py`), elections (`elections.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from protocol.errors import ErrorCode
from protocol.messages.quorum import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from protocol.messages.stored_records import BrokerRegistrationChangeRecord
from replication.controller.brokers.broker_heartbeat_tracker import Session, Sessions
from replication.controller.decision_context import Environment
from replication.controller.partitions.elections import (
    broker_arrived,
    broker_left,
    directory_left,
    leads_any,
    leave_in_peace,
)
from replication.metadata.feature_levels import WITH_CORDONS
from replication.metadata.image import BrokerImage, MetadataImage
from replication.metadata.metadata_records import Versioned
from replication.state_machine import Decision


class Standing(Enum):
    """What a broker is to the controller."""

    FENCED = "fenced"
    ACTIVE = "active"
    LEAVING = "leaving"
    GONE = "gone"


def heartbeat(
    image: MetadataImage,
    environment: Environment,
    sessions: Sessions,
    session: Session,
    request: BrokerHeartbeatRequest,
) -> tuple[Standing, Decision[BrokerHeartbeatResponse]]:
    """Decide on a heartbeat of a registration that counts; `session` is its own."""
    broker = image.brokers[request.broker_id]
    has_caught_up = request.current_metadata_offset >= session.registered_at
    now = _standing(broker, session)
    after = _next(image, environment, sessions, session, request, now, has_caught_up=has_caught_up)
    records: list[Versioned] = []
    if after is not now:
        records += _move(image, environment, broker, after)
    records += directories_failed(image, environment, broker, request.offline_log_dirs)
    cordoned = request.cordoned_log_dirs
    if cordoned is not None and image.metadata_version >= WITH_CORDONS:
        records += cordon(broker, cordoned)
    answer = BrokerHeartbeatResponse(
        error_code=ErrorCode.NONE,
        is_caught_up=has_caught_up,
        is_fenced=after in (Standing.FENCED, Standing.GONE),
        should_shut_down=after is Standing.GONE,
    )
    return after, Decision(records, answer, is_atomic=False)


def _standing(broker: BrokerImage, session: Session) -> Standing:
    if session.is_leaving:
        return Standing.LEAVING
    return Standing.FENCED if broker.is_fenced else Standing.ACTIVE


def _next(
    image: MetadataImage,
    environment: Environment,
    sessions: Sessions,
    session: Session,
    request: BrokerHeartbeatRequest,
    now: Standing,
    *,
    has_caught_up: bool,
) -> Standing:
    if now is Standing.LEAVING:
        return _next_of_leaving(image, environment, sessions, session, request.broker_id)
    wants_fence = request.want_fence and _has_others(image, request.broker_id)
    if now is Standing.FENCED:
        if request.want_shut_down:
            return Standing.GONE
        return Standing.ACTIVE if has_caught_up and not wants_fence else Standing.FENCED
    if wants_fence:
        return Standing.GONE if request.want_shut_down else Standing.FENCED
    if request.want_shut_down:
        return Standing.LEAVING if leads_any(image, environment, request.broker_id) else Standing.GONE
    return Standing.ACTIVE


def _has_others(image: MetadataImage, broker_id: int) -> bool:
    return any(broker.is_active for other, broker in image.brokers.items() if other != broker_id)


def _next_of_leaving(
    image: MetadataImage, environment: Environment, sessions: Sessions, session: Session, broker_id: int
) -> Standing:
    if leads_any(image, environment, broker_id):
        return Standing.LEAVING
    others = [other for other, broker in image.brokers.items() if broker.is_active and other != environment.node_id]
    lowest = sessions.lowest_offset(others)  # this node's own reads what it writes
    return Standing.GONE if lowest is None or session.leaves_at <= lowest else Standing.LEAVING


def _move(image: MetadataImage, environment: Environment, broker: BrokerImage, after: Standing) -> list[Versioned]:
    if after is Standing.ACTIVE:
        return unfence(image, environment, broker)
    if after is Standing.LEAVING:
        return _begin_to_leave(image, environment, broker)
    if after is Standing.GONE:
        return [*leave_in_peace(image, environment, broker.broker_id), (_fenced(broker), 0)]
    return fence(image, environment, broker)


def fence(image: MetadataImage, environment: Environment, broker: BrokerImage) -> list[Versioned]:
    """A broker leaves its partitions and is shown to nobody any more."""
    return [*broker_left(image, environment, broker.broker_id), (_fenced(broker), 0)]


def _fenced(broker: BrokerImage) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(broker_id=broker.broker_id, broker_epoch=broker.epoch, fenced=1)


def unfence(image: MetadataImage, environment: Environment, broker: BrokerImage) -> list[Versioned]:
    """A broker becomes active: clients see it, and it leads where nobody else does."""
    change = BrokerRegistrationChangeRecord(broker_id=broker.broker_id, broker_epoch=broker.epoch, fenced=-1)
    return [(change, 0), *broker_arrived(image, environment, broker.broker_id)]


def _begin_to_leave(image: MetadataImage, environment: Environment, broker: BrokerImage) -> list[Versioned]:
    records: list[Versioned] = []
    if not broker.is_shutting_down:
        change = BrokerRegistrationChangeRecord(
            broker_id=broker.broker_id, broker_epoch=broker.epoch, in_controlled_shutdown=1
        )
        records.append((change, 1))
    return records + leave_in_peace(image, environment, broker.broker_id)


def directories_failed(
    image: MetadataImage, environment: Environment, broker: BrokerImage, failed: Sequence[bytes]
) -> list[Versioned]:
    """A broker has lost log directories, and with them its partitions there."""
    news = [directory for directory in broker.directories if directory in failed]
    if not news:
        return []
    records: list[Versioned] = []
    for directory in news:
        records += directory_left(image, environment, broker.broker_id, directory)
    change = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.epoch,
        log_dirs=[directory for directory in broker.directories if directory not in failed],
    )
    return [*records, (change, 2)]


def cordon(broker: BrokerImage, directories: list[bytes]) -> list[Versioned]:
    """Note which log directories take no new replicas, where that is news."""
    known = broker.cordoned_directories
    if known is not None and set(known) == set(directories):
        return []
    change = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.epoch, cordoned_log_dirs=directories
    )
    return [(change, 3)]
