"""Decisions on brokers: registration, becoming active, leaving, blocks of producer ids.

RULES    1. A broker's epoch is the offset of the first record of the batch that registers it; every request that
            names an older one is refused.
         2. A broker registers fenced and is unfenced when it has caught up; leaders are elected then.
         3. Checks and sentences are Apache Kafka 4.3's (ClusterControlManager, ProducerIdControlManager).
NOT HERE Sessions and heartbeats of other brokers; elections (`elections.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.quorum import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from protocol.messages.stored import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
)
from protocol.primitives import uuid_text
from replication.controller.elections import elect_leaders, restart
from replication.controller.environment import Environment
from replication.image import Endpoint, MetadataImage
from replication.metadata_records import Versioned
from replication.state_machine import Decision

PRODUCER_ID_BLOCK = 1000
MAX_PRODUCER_ID = 2**63 - 1
FIRST_WITH_CORDONS = 30
"""The metadata.version from which directories can be cordoned, and RegisterBroker has version 4."""

SUPPORTED_FEATURES: dict[str, tuple[int, int]] = {
    "group.version": (0, 1),
    "transaction.version": (0, 2),
    "kraft.version": (0, 1),
    "metadata.version": (7, 30),
    "share.version": (0, 1),
    "streams.version": (0, 1),
    "eligible.leader.replicas.version": (0, 1),
}
"""What Apache Kafka 4.3.1 registers, for its nodes must be able to take part in a cluster that we began."""

_RESERVED_IDS = 100


class Registration(NamedTuple):
    """What a broker says when its process begins."""

    broker_id: int
    cluster_id: str
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    directories: tuple[bytes, ...]
    rack: str | None = None
    features: dict[str, tuple[int, int]] = SUPPORTED_FEATURES
    previous_epoch: int = -1
    """The epoch under which its last process ended cleanly; -1: it did not."""


def register(image: MetadataImage, registration: Registration, *, next_offset: int) -> Decision[int]:
    """Decide on a registration; the reply is the broker's epoch.

    Raises:
        KafkaError: the broker does not fit into this cluster.
    """
    _check(image, registration)
    broker_id = registration.broker_id
    before = image.brokers.get(broker_id)
    records: list[Versioned] = []
    epoch = next_offset
    if before is not None:
        if before.incarnation_id == registration.incarnation_id:
            epoch = before.epoch
        else:
            records += restart(image, broker_id, was_clean=before.epoch == registration.previous_epoch)
    version = 4 if image.metadata_version >= FIRST_WITH_CORDONS else 3
    records.append((_registration_record(registration, epoch), version))
    return Decision(records, epoch)


def _check(image: MetadataImage, registration: Registration) -> None:
    if registration.cluster_id != image.cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Expected cluster ID {image.cluster_id}, but got cluster ID {registration.cluster_id}",
        )
    directories = registration.directories
    problem = None
    if not directories:
        problem = "No directories specified in request"
    elif any(int.from_bytes(directory, "big") < _RESERVED_IDS for directory in directories):
        problem = "Reserved directory ID in request"
    elif len(set(directories)) < len(directories):
        problem = "Duplicate directory ID in request"
    else:
        for other in image.brokers.values():
            shared = set(other.directories) & set(directories) if other.broker_id != registration.broker_id else set()
            if shared:
                problem = f"Broker {other.broker_id} is already registered with directory {uuid_text(min(shared))}"
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, problem)
    for name, level in image.features.items():
        lowest, highest = registration.features.get(name, (0, 0))
        if not lowest <= level <= highest:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Unable to register because the broker does not support finalized version {level} of {name}. "
                f"The broker wants a version between {lowest} and {highest}, inclusive.",
            )


def _registration_record(registration: Registration, epoch: int) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=registration.broker_id,
        incarnation_id=registration.incarnation_id,
        broker_epoch=epoch,
        end_points=_endpoints(registration.endpoints),
        features=_features(registration.features),
        rack=registration.rack,
        fenced=True,
        log_dirs=sorted(registration.directories),
    )


def _endpoints(endpoints: tuple[Endpoint, ...]) -> list[BrokerEndpoint]:
    return [
        BrokerEndpoint(name=e.listener, host=e.host, port=e.port, security_protocol=e.security_protocol)
        for e in endpoints
    ]


def _features(features: dict[str, tuple[int, int]]) -> list[BrokerFeature]:
    return [
        BrokerFeature(name=name, min_supported_version=lowest, max_supported_version=highest)
        for name, (lowest, highest) in features.items()
    ]


def controller_record(node_id: int, incarnation_id: bytes, endpoints: tuple[Endpoint, ...]) -> Versioned:
    """The record of a controller's new process."""
    record = RegisterControllerRecord(
        controller_id=node_id,
        incarnation_id=incarnation_id,
        end_points=_endpoints(endpoints),
        features=_features(SUPPORTED_FEATURES),
    )
    return record, 0


def unfence(image: MetadataImage, broker_id: int) -> Decision[None]:
    """Make a registered broker active: clients see it, and it leads where nobody else does."""
    broker = image.brokers[broker_id]
    records: list[Versioned] = []
    if broker.is_fenced:
        change = BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker.epoch, fenced=-1)
        records.append((change, 0))
        records += elect_leaders(image, broker_id)
    if broker.cordoned_directories is None and image.metadata_version >= FIRST_WITH_CORDONS:
        told = BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker.epoch, cordoned_log_dirs=[])
        records.append((told, 3))
    return Decision(records, None)


def fence_at_end(image: MetadataImage, broker_id: int) -> Decision[None]:
    """Note that a broker's process ends in peace, so that nobody waits for its session to run out.

    Its partitions stay as they are: nobody else holds them, and it begins again where it ended.
    """
    broker = image.brokers.get(broker_id)
    if broker is None or broker.is_fenced:
        return Decision([], None)
    return Decision(
        [(BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker.epoch, fenced=1), 0)], None
    )


def allocate_producer_ids(
    image: MetadataImage, environment: Environment, request: AllocateProducerIdsRequest
) -> Decision[AllocateProducerIdsResponse]:
    """Decide on a block of producer ids."""
    del environment
    broker = image.brokers.get(request.broker_id)
    code = ErrorCode.NONE
    if broker is None:
        code = ErrorCode.BROKER_ID_NOT_REGISTERED
    elif broker.epoch != request.broker_epoch:
        code = ErrorCode.STALE_BROKER_EPOCH
    first = image.next_producer_id
    if code == ErrorCode.NONE and first > MAX_PRODUCER_ID - PRODUCER_ID_BLOCK:
        code = ErrorCode.UNKNOWN_SERVER_ERROR
    if code != ErrorCode.NONE:
        return Decision([], AllocateProducerIdsResponse(error_code=code, producer_id_start=0, producer_id_len=0))
    record = ProducerIdsRecord(
        broker_id=request.broker_id, broker_epoch=request.broker_epoch, next_producer_id=first + PRODUCER_ID_BLOCK
    )
    reply = AllocateProducerIdsResponse(
        error_code=ErrorCode.NONE, producer_id_start=first, producer_id_len=PRODUCER_ID_BLOCK
    )
    return Decision([(record, 0)], reply)
