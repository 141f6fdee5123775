"""Requests and responses between brokers and the controller."""

from __future__ import annotations

from typing import Annotated

from protocol.messages.common import ErrorMessageResponse, ErrorResponse, PartitionError, PartitionIndex, TopicById
from protocol.messages.stored_records import BrokerEndpoint, BrokerFeature
from protocol.schema import EMPTY, Ignorable, Int8, Int32, Int64, Message, Since, Tag, Until, Uuid


class BrokerRegistrationRequest(Message, api_key=62, versions=(0, 4), flexible=0):
    """Register a broker process. Before version 4, features whose minimum level is 0 are left out."""

    broker_id: Int32
    cluster_id: str
    incarnation_id: Uuid
    listeners: list[BrokerEndpoint]
    features: list[BrokerFeature]
    rack: str | None
    is_migrating_zk_broker: Annotated[bool, Since(1)] = False
    log_dirs: Annotated[list[Uuid], Since(2), Ignorable] = EMPTY
    previous_broker_epoch: Annotated[Int64, Since(3), Ignorable] = -1


class BrokerRegistrationResponse(ErrorResponse, request=BrokerRegistrationRequest):
    """The broker epoch; -1 with an error."""

    broker_epoch: Int64 = -1


class ControllerRegistrationRequest(Message, api_key=70, versions=(0, 0), flexible=0):
    """Register a controller process."""

    controller_id: Int32
    incarnation_id: Uuid
    zk_migration_ready: bool = False
    listeners: list[BrokerEndpoint]
    features: list[BrokerFeature]


class ControllerRegistrationResponse(ErrorMessageResponse, request=ControllerRegistrationRequest):
    pass


class BrokerHeartbeatRequest(Message, api_key=63, versions=(0, 2), flexible=0):
    """A broker's heartbeat: its metadata offset and the state it wants."""

    broker_id: Int32
    broker_epoch: Int64 = -1
    current_metadata_offset: Int64
    want_fence: bool
    want_shut_down: bool
    offline_log_dirs: Annotated[list[Uuid], Since(1), Tag(0)] = EMPTY
    cordoned_log_dirs: Annotated[list[Uuid] | None, Since(2), Tag(1)] = None


class BrokerHeartbeatResponse(ErrorResponse, request=BrokerHeartbeatRequest):
    """The broker's state according to the controller."""

    is_caught_up: bool = False
    is_fenced: bool = True
    should_shut_down: bool = False


class BrokerState(Message):
    """A member of an ISR and its broker epoch; -1: unknown."""

    broker_id: Int32
    broker_epoch: Int64 = -1


class AlterPartitionRequestPartition(Message):
    """The new ISR that the partition's leader proposes, with its leader and partition epochs."""

    partition_index: Int32
    leader_epoch: Int32
    new_isr: Annotated[list[Int32], Until(2)] = EMPTY
    new_isr_with_epochs: Annotated[list[BrokerState], Since(3)] = EMPTY
    leader_recovery_state: Int8 = 0
    partition_epoch: Int32


class AlterPartitionRequest(Message, api_key=56, versions=(2, 3), flexible=0):
    """A leader proposes new ISRs for its partitions."""

    broker_id: Int32
    broker_epoch: Int64 = -1
    topics: list[TopicById[AlterPartitionRequestPartition]]


class AlterPartitionResponsePartition(PartitionError):
    """The partition's current state; all zero with an error."""

    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    isr: list[Int32] = EMPTY
    leader_recovery_state: Int8 = 0
    partition_epoch: Int32 = 0


class AlterPartitionResponse(ErrorResponse, request=AlterPartitionRequest):
    topics: list[TopicById[AlterPartitionResponsePartition]] = EMPTY


class AllocateProducerIdsRequest(Message, api_key=67, versions=(0, 0), flexible=0):
    """Allocate a block of producer ids for a broker."""

    broker_id: Int32
    broker_epoch: Int64 = -1


class AllocateProducerIdsResponse(ErrorResponse, request=AllocateProducerIdsRequest):
    """The allocated block of producer ids."""

    producer_id_start: Int64
    producer_id_len: Int32


class AssignReplicasToDirsDirectory(Message):
    """The replicas in one log directory."""

    id: Uuid
    topics: list[TopicById[PartitionIndex]]


class AssignReplicasToDirsRequest(Message, api_key=73, versions=(0, 0), flexible=0):
    """A broker reports the log directories of its replicas."""

    broker_id: Int32
    broker_epoch: Int64 = -1
    directories: list[AssignReplicasToDirsDirectory]


class AssignReplicasToDirsDirectoryResponse(Message):
    """The results for one log directory."""

    id: Uuid
    topics: list[TopicById[PartitionError]]


class AssignReplicasToDirsResponse(ErrorResponse, request=AssignReplicasToDirsRequest):
    directories: list[AssignReplicasToDirsDirectoryResponse] = EMPTY
