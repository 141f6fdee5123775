"""Controller decisions step by step: our functions, and Apache Kafka's classes (java/Decisions.java)."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from broker.config.broker_config import BrokerConfig
from broker.config.dynamic_configs import DynamicBrokerConfig
from protocol.api import APIS
from protocol.codec import decode, encode
from protocol.errors import ErrorCode, KafkaError
from protocol.messages import admin, cluster, quorum, stored_records
from protocol.schema import Message
from replication.controller.brokers.broker_heartbeat_tracker import BrokerHeartbeatTracker
from replication.controller.brokers.broker_heartbeats import BrokerControlState, fence, heartbeat
from replication.controller.brokers.registration import register, unregister
from replication.controller.configs.config_changes import incremental_alter_configs
from replication.controller.decision_context import DecisionContext
from replication.controller.partitions.alter_partition import alter_partitions
from replication.controller.partitions.assign_replicas_to_dirs import assign_replicas
from replication.controller.partitions.elect_leaders import elect_leaders
from replication.controller.partitions.reassignments import alter_reassignments, list_reassignments
from replication.controller.partitions.topics import create_partitions, create_topics
from replication.controller.periodic_tasks import balance_leaders, elect_unclean
from replication.metadata.image import MetadataImage
from replication.metadata.metadata_records import Versioned, decode_record, encode_record
from replication.state_machine import Decision
from replication.timer_queue import TimerQueue
from tests.support.kafka import compile_java, tool_command
from tests.support.line_process import LineProcess

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
SOURCE = Path(__file__).parents[1] / "conformance" / "java" / "Decisions.java"

Step = Message | str
"""A request, or an event: `silent 2` (session of broker 2 expired), `balance`, `unclean`."""


class Decided(NamedTuple):
    """The result of one step."""

    code: int
    answer: Message | None
    records: list[Versioned]


_DECISIONS: dict[type[Message], Callable[[DecisionContext, Any], Decision[Any]]] = {
    admin.CreateTopicsRequest: create_topics,
    admin.CreatePartitionsRequest: create_partitions,
    quorum.AlterPartitionRequest: alter_partitions,
    cluster.AlterPartitionReassignmentsRequest: alter_reassignments,
    cluster.ElectLeadersRequest: elect_leaders,
    quorum.AssignReplicasToDirsRequest: assign_replicas,
    cluster.UnregisterBrokerRequest: unregister,
    admin.IncrementalAlterConfigsRequest: incremental_alter_configs,
}


class OurDecisions:
    """Our decisions, on node 1, which is not a broker."""

    def __init__(self, min_isr: int, levels: Mapping[str, int]) -> None:
        settings = {"min.insync.replicas": str(min_isr)}
        self.topic_ids: deque[bytes] = deque()
        self.image = MetadataImage(CLUSTER_ID)
        self.image.features = dict(levels)
        rules = DynamicBrokerConfig(BrokerConfig(settings))
        self._decision_context = DecisionContext(
            self.image, 1, settings, rules, 1, 3, self.topic_ids.popleft, lambda below: 0
        )
        self._heartbeat_tracker = BrokerHeartbeatTracker(TimerQueue(), 9_000)
        self.offset = 100

    def decide(self, step: Step) -> Decided:
        """Decide and apply the records."""
        try:
            decision = self._act(step) if isinstance(step, str) else self._decide(step)
        except KafkaError as refusal:
            return Decided(refusal.code, None, [])
        records = [_read(encode_record(record, version)) for record, version in decision.records]
        self.offset += len(records)
        self.image, _ = self.image.apply([record for record, _ in records], offset=self.offset - 1, epoch=1)
        code = getattr(decision.reply, "error_code", ErrorCode.NONE)
        if code or decision.reply is None:
            return Decided(code, None, records)
        version = type(decision.reply).MAX_VERSION
        return Decided(code, decode(type(decision.reply), version, encode(decision.reply, version)), records)

    def _act(self, event: str) -> Decision[Any]:
        context = self._decision_context._replace(image=self.image)
        word, _, broker = event.partition(" ")
        if word == "silent":
            known = self.image.brokers[int(broker)]
            self._heartbeat_tracker.state_of(known.broker_id, known.epoch).cancel_shutdown()
            return Decision(fence(context, known), None)
        return Decision((balance_leaders if word == "balance" else elect_unclean)(context), None)

    def _decide(self, request: Message) -> Decision[Any]:
        context = self._decision_context._replace(image=self.image)
        if isinstance(request, quorum.BrokerRegistrationRequest):
            made = register(context, request, next_offset=self.offset)
            last_offset = self.offset + len(made.records) - 1
            self._heartbeat_tracker.register(request.broker_id, made.reply.broker_epoch, last_offset)
            return made
        if isinstance(request, quorum.BrokerHeartbeatRequest):
            return self._heard(request)
        if isinstance(request, cluster.ListPartitionReassignmentsRequest):
            return Decision([], list_reassignments(self.image, request))
        return _DECISIONS[type(request)](context, request)

    def _heard(self, request: quorum.BrokerHeartbeatRequest) -> Decision[Any]:
        broker = self.image.brokers.get(request.broker_id)
        if broker is None or broker.epoch != request.broker_epoch:
            raise KafkaError(ErrorCode.STALE_BROKER_EPOCH)
        heartbeat_state = self._heartbeat_tracker.state_of(broker.broker_id, broker.epoch)
        context = self._decision_context._replace(image=self.image)
        state, decision = heartbeat(context, self._heartbeat_tracker, heartbeat_state, request)
        heartbeat_state.metadata_offset = request.current_metadata_offset
        if any(isinstance(record, stored_records.BrokerRegistrationChangeRecord) for record, _ in decision.records):
            heartbeat_state.metadata_offset = (
                -1
            )  # Kafka forgets what the heartbeat said when the change comes back from the log
        if state is BrokerControlState.CONTROLLED_SHUTDOWN:
            heartbeat_state.begin_shutdown(self.offset + len(decision.records) - 1)
        elif state is not BrokerControlState.UNFENCED:
            heartbeat_state.cancel_shutdown()
        return decision


class KafkaDecisions:
    """Apache Kafka's decisions, while the `with` block lasts; `begin` starts a new cluster."""

    def __enter__(self) -> Self:
        classes = compile_java(SOURCE)
        self._process = LineProcess(tool_command("org.apache.kafka.controller.Decisions", classes=classes))
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()

    def begin(self, min_isr: int, levels: Mapping[str, int]) -> None:
        """Start a new cluster."""
        self._tell(f"begin {CLUSTER_ID} {min_isr} " + " ".join(f"{name}={level}" for name, level in levels.items()))

    def decide(self, step: Step, offset: int) -> Decided:
        """Decide and apply the records from that offset on."""
        if isinstance(step, str):
            words = self._tell(f"{offset} {step}")
        else:
            version = step.MAX_VERSION
            request = base64.b64encode(encode(step, version)).decode()
            words = self._tell(f"{offset} {step.API_KEY} {version} {request}")
        if words[0] == "no":
            return Decided(int(words[1]), None, [])
        records = [_read(base64.b64decode(record)) for record in words[2:]]
        if isinstance(step, str) or words[1] == "-":
            return Decided(ErrorCode.NONE, None, records)
        answer = decode(APIS[step.API_KEY].response, step.MAX_VERSION, base64.b64decode(words[1]))
        code = getattr(answer, "error_code", ErrorCode.NONE)
        return Decided(code, None if code else answer, records)

    def _tell(self, line: str) -> list[str]:
        return self._process.ask(line).split()


def _read(value: bytes) -> Versioned:
    """A record and its version, the third byte of the encoding."""
    return decode_record(value), value[2]


def topic_ids(records: list[Versioned]) -> list[bytes]:
    """The ids of the topics that records create."""
    return [record.topic_id for record, _ in records if isinstance(record, stored_records.TopicRecord)]
