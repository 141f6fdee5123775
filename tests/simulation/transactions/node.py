"""A broker without sockets, threads and clocks: real partitions and coordinators, and files that a kill can interrupt.

RULES    1. The files survive; everything else starts again with `start`, in the next leader epoch, as after SIGKILL.
         2. A request is answered while time advances. It raises PowerLoss when the fuse of the disk runs out.
         3. Producer id blocks come from outside.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from broker.config.broker_config import BrokerConfig
from broker.coordinators.factory import DeliverySupport, coordinators
from broker.coordinators.group_coordinator import OFFSETS_TOPIC
from broker.coordinators.runtime.coordinator_runtime import CoordinatorDecision
from broker.coordinators.transactions.producer_id_manager import ProducerIdManager
from broker.coordinators.transactions.transaction import State
from broker.coordinators.transactions.transaction_coordinator import TRANSACTION_VERSION, TRANSACTIONS_TOPIC
from broker.coordinators.transactions.transaction_records import transaction_record
from broker.handlers.groups.group_offsets import GroupOffsetsHandlers
from broker.handlers.records.produce import ProduceHandler
from broker.handlers.records.produce_services import ProduceServices
from broker.handlers.router import Router
from broker.handlers.transactions.transactions import TransactionHandlers
from broker.security.authorizer import AllowAll
from protocol.control_records import ControlType, control_type
from protocol.messages.quorum import AllocateProducerIdsResponse
from protocol.records import headers, records
from protocol.schema import Message
from replication.completion import Completion, completed
from replication.controller.controller_client import Client
from replication.cooperative_tasks import no_op
from replication.metadata.image import MetadataDelta, MetadataImage
from storage.io.disk_lookup import wait_for_disk
from tests.support.crashing_disk import CrashingDisk
from tests.support.group_harness import no_other_broker
from tests.support.replica_harness import ReplicaHarness

NO_DELIVERY = DeliverySupport(no_op, no_other_broker)
TOPIC, PARTITIONS = "t", 2
PRODUCE = 0
_STEP_MS = 5
_STEPS = 200
_RESPONSE_TIMEOUT_MS = 3000
_READ_BYTES = 1 << 24


class _Disk(CrashingDisk):
    """A kill loses nothing that was written, so syncs are skipped."""

    def sync_dir(self, path: str) -> None:
        """Do nothing."""


class Node:
    """One broker over several starts."""

    def __init__(self, path: Path, transaction_version: int) -> None:
        self._path = path
        self._transaction_version = transaction_version
        self._starts = 0
        self._next_block = 0
        self._now_ms = 0
        self.disk = _Disk()
        self.start()

    # ---- lifecycle

    def start(self) -> None:
        """Start with the existing files."""
        self._starts += 1
        self.disk.fuse = None
        harness = self._world = ReplicaHarness(self._path, disk=self.disk)
        harness.pass_time(self._now_ms)
        for name, partitions in ((TOPIC, PARTITIONS), (OFFSETS_TOPIC, 1), (TRANSACTIONS_TOPIC, 1)):
            harness.create(name, partitions, epoch=self._starts)
        harness.image.features[TRANSACTION_VERSION] = self._transaction_version
        config = BrokerConfig({"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"})
        ids = ProducerIdManager(self, 1, lambda: 0)
        self.coordinators = coordinators(
            config, harness.replicas, harness.timers, self, ids, no_other_broker, NO_DELIVERY
        )
        self._route()
        file_operations = MetadataDelta()
        for topic in harness.image.topics_by_name.values():
            file_operations.partitions[topic.topic_id] = set(topic.partitions)
        self.coordinators.on_metadata_update(file_operations, harness.image, 1)
        while self.coordinators.groups.is_loading or self.coordinators.transactions.is_loading:
            self.pass_time(_STEP_MS)

    def _route(self) -> None:
        parts, harness, authorizer = self.coordinators, self._world, AllowAll()
        self._producing = ProduceHandler(
            ProduceServices(harness.replicas, harness.timers, parts.verification, authorizer)
        )
        transacting = TransactionHandlers(
            parts.transactions,
            parts.groups,
            parts.producer_ids,
            lambda: harness.image,
            authorizer,
            parts.groups.partition_count,
        )
        offsets = GroupOffsetsHandlers(parts.groups, parts.verification, lambda: harness.image, authorizer)
        self._router = Router(
            [
                *transacting.routes(),
                *offsets.routes(),
            ]
        )

    @property
    def image(self) -> MetadataImage:
        return self._world.image

    def submit(self, request: Message, client: Client | None = None) -> Completion[Any]:
        del request, client
        self._next_block += 1000
        block = AllocateProducerIdsResponse(error_code=0, producer_id_start=self._next_block, producer_id_len=1000)
        return completed(block)

    # ---- time

    def mono_ms(self) -> int:
        return self._world.mono_ms

    def wall_ms(self) -> int:
        return self._world.wall_ms

    def pass_time(self, milliseconds: int) -> None:
        step = max(_STEP_MS, milliseconds // _STEPS)
        for _ in range(0, milliseconds, step):
            self._world.pass_time(step)
            self._world.drain_purgatory()
        self._now_ms = self._world.mono_ms

    # ---- requests

    def ask(self, request: Message, version: int) -> Any:
        context = self._world.context(type(request).API_KEY, version)
        if type(request).API_KEY == PRODUCE:
            answer: Any = self._producing.handle(context, request)  # type: ignore[arg-type]
        else:
            answer = self._router.table[type(request).API_KEY].handler(context, request)
        if not isinstance(answer, Completion):
            return answer
        for _ in range(0, _RESPONSE_TIMEOUT_MS, _STEP_MS):
            if answer.is_done:
                return answer.result()
            self.pass_time(_STEP_MS)
        raise AssertionError(f"{request} has no response")

    def set_epoch(self, name: str, epoch: int) -> None:
        (shard,) = self.coordinators.transactions.shards.values()
        known = shard.coordinator.transactions[name]._replace(epoch=epoch)
        shard.execute(CoordinatorDecision([transaction_record(known, has_versions=True)], None))

    # ---- observation

    def committed(self, partition: int) -> list[tuple[int, str]]:
        """The offsets and values that a read_committed consumer returns."""
        data = self._batches(partition)
        pending: dict[int, list[tuple[int, str]]] = {}
        found: list[tuple[int, str]] = []
        for at, header in headers(data):
            own = records(data, at, header, max_bytes=_READ_BYTES)
            if not header.is_control:
                values = [(record.offset, (record.value or b"").decode()) for record in own]
                pending.setdefault(header.producer_id, []).extend(values)
                continue
            ended = pending.pop(header.producer_id, [])
            if control_type(own[0].key) == ControlType.COMMIT:
                found += ended
        return sorted(found)

    def _batches(self, partition: int) -> bytes:
        log = self._world.partition(TOPIC, partition).log
        data, offset = b"", 0
        log.open()
        while offset < log.log_end_offset:
            some = bytes(wait_for_disk(log.open().reader.read_records, offset, _READ_BYTES))
            offset = headers(some)[-1][1].next_offset
            data += some
        return data

    def incomplete_transactions(self) -> list[str]:
        """Transactions that are open or incomplete, and partitions with an open transaction."""
        states = [
            f"{known.transactional_id} is in {known.state.label}"
            for shard in self.coordinators.transactions.shards.values()
            for known in shard.coordinator.transactions.values()
            if known.state in {State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT}
        ]
        for index in range(PARTITIONS):
            producers = self._world.partition(TOPIC, index).log.open().producers.producers
            states += [f"{TOPIC}-{index}: {known}" for known in producers.values() if known.txn_first_offset >= 0]
        return states
