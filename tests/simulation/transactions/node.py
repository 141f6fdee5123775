"""A broker without sockets, threads or clocks: real partitions, real coordinators, files that a kill may interrupt anywhere.

RULES    1. The files stay, all else begins anew with `boot`, in the next leader epoch, as after SIGKILL.
         2. A request is answered while time passes; PowerLoss comes out of it when the fuse of the disk has burnt down.
         3. Blocks of producer ids are given out by a controller that is not part of this.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker.config.broker_config import BrokerConfig
from broker.coordinators.factory import coordinators
from broker.coordinators.group_coordinator import OFFSETS_TOPIC
from broker.coordinators.runtime.coordinator_runtime import CoordinatorDecision
from broker.coordinators.transactions.producer_id_manager import ProducerIds
from broker.coordinators.transactions.transaction import State
from broker.coordinators.transactions.transaction_coordinator import TRANSACTION_VERSION, TRANSACTIONS_TOPIC
from broker.coordinators.transactions.transaction_records import transaction_record
from broker.handlers.groups.group_offsets import GroupOffsetsHandlers
from broker.handlers.records.produce import ProduceHandler
from broker.handlers.router import Pending, Router
from broker.handlers.transactions import producer_ids
from broker.handlers.transactions.producer_ids import ProducerIdsHandler
from broker.handlers.transactions.transactions import TransactionHandlers
from broker.handlers.transactions.txn_offset_commit import TransactionalOffsetsHandler
from broker.security.authorizer import AllowAll
from protocol.messages.quorum import AllocateProducerIdsResponse
from protocol.records import ControlType, control_type, headers, records
from protocol.schema import Message
from replication.metadata.image import Changes
from tests.support.crashing_disk import CrashingDisk
from tests.support.replica_harness import World

TOPIC, PARTITIONS = "t", 2
PRODUCE = 0
_STEP_MS = 5
_STEPS = 200
_PATIENCE_MS = 3000
_READ_BYTES = 1 << 24


def _nobody(broker_id: int, request: Message, answered: Callable[[Message | None], None]) -> None:
    raise AssertionError("there is no other broker")


class _Disk(CrashingDisk):
    """A kill loses nothing that was written: syncing would only take time."""

    def sync_dir(self, path: str) -> None:
        """Nothing."""


class Node:
    """One broker, boot after boot."""

    def __init__(self, path: Path, transaction_version: int) -> None:
        self._path = path
        self._transaction_version = transaction_version
        self._boots = 0
        self._next_block = 0
        self._now_ms = 0
        self.disk = _Disk()
        self.boot()

    # ---- life

    def boot(self) -> None:
        """Start on what the last one has left."""
        self._boots += 1
        self.disk.fuse = None
        world = self._world = World(self._path, disk=self.disk)
        world.pass_time(self._now_ms)
        for name, partitions in ((TOPIC, PARTITIONS), (OFFSETS_TOPIC, 1), (TRANSACTIONS_TOPIC, 1)):
            world.create(name, partitions, epoch=self._boots)
        world.image.features[TRANSACTION_VERSION] = self._transaction_version
        config = BrokerConfig({"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"})
        ids = ProducerIds(self, 1, lambda: 0)
        self.coordinators = coordinators(config, world.replicas, world.deadlines, self, ids, _nobody)
        self._route()
        changes = Changes()
        for topic in world.image.topics_by_name.values():
            changes.partitions[topic.topic_id] = set(topic.partitions)
        self.coordinators.image_changed(changes, world.image, 1)
        while self.coordinators.groups.is_loading or self.coordinators.transactions.is_loading:
            self.pass_time(_STEP_MS)

    def _route(self) -> None:
        made, world, all_may = self.coordinators, self._world, AllowAll()
        self._producing = ProduceHandler(world.replicas, world.deadlines, made.admission, all_may)
        transacting = TransactionHandlers(
            made.transactions,
            made.groups,
            lambda: world.image,
            made.producer_ids.take,
            all_may,
            made.groups.partition_count,
        )
        offsets = TransactionalOffsetsHandler(made.groups, made.admission, lambda: world.image, all_may)
        self._router = Router(
            [
                *transacting.routes(),
                *offsets.routes(),
                *GroupOffsetsHandlers(made.groups, lambda: world.image, all_may).routes(),
                *producer_ids.routes(ProducerIdsHandler(made.producer_ids, transacting.init_producer_id, all_may)),
            ]
        )

    def submit(self, _request: Message, *, wall_ms: int, reply: Any) -> None:
        """A block of producer ids."""
        self._next_block += 1000
        reply(AllocateProducerIdsResponse(error_code=0, producer_id_start=self._next_block, producer_id_len=1000))

    # ---- time

    def mono_ms(self) -> int:
        """The clock of deadlines."""
        return self._world.mono_ms

    def wall_ms(self) -> int:
        """The clock of records."""
        return self._world.wall_ms

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass in small steps, and happen what is due."""
        step = max(_STEP_MS, milliseconds // _STEPS)
        for _ in range(0, milliseconds, step):
            self._world.pass_time(step)
            self._world.settle()
        self._now_ms = self._world.mono_ms

    # ---- requests

    def ask(self, request: Message, version: int) -> Any:
        """Send a request and wait for its answer."""
        answers: list[Any] = []
        context = self._world.context(type(request).API_KEY, version)
        if type(request).API_KEY == PRODUCE:
            answer: Any = self._producing.handle(context, request)  # type: ignore[arg-type]
        else:
            answer = self._router.table[type(request).API_KEY].handler(context, request)
        if not isinstance(answer, Pending):
            return answer
        answer.deliver_to(answers.append, answers.append)
        for _ in range(0, _PATIENCE_MS, _STEP_MS):
            if answers:
                return answers[0]
            self.pass_time(_STEP_MS)
        raise AssertionError(f"{request} is not answered")

    def age(self, name: str, epoch: int) -> None:
        """Have a transactional id come to an epoch at once, as if it had lived for long."""
        (shard,) = self.coordinators.transactions.serving
        known = shard.machine.transactions[name]._replace(epoch=epoch)
        shard.execute(CoordinatorDecision([transaction_record(known, has_versions=True)], None))

    # ---- looking

    def committed(self, partition: int) -> list[tuple[int, str]]:
        """Offsets and values that a committed reader is given."""
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
            some = bytes(log.read_records(offset, _READ_BYTES))
            offset = headers(some)[-1][1].next_offset
            data += some
        return data

    def hanging(self) -> list[str]:
        """Transactions that are neither open nor at their end, and partitions where somebody is never ended."""
        states = [
            f"{known.transactional_id} is in {known.state.label}"
            for shard in self.coordinators.transactions.serving
            for known in shard.machine.transactions.values()
            if known.state in {State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT}
        ]
        for index in range(PARTITIONS):
            producers = self._world.partition(TOPIC, index).log.producers.producers
            states += [f"{TOPIC}-{index}: {known}" for known in producers.values() if known.txn_first_offset >= 0]
        return states
