"""Transactions compared with Apache Kafka: the same responses to the same bytes, each other's records."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from barnabas import Broker
from broker.tools.commands import dump_log
from protocol.batch_builder import BatchBuilder
from protocol.codec import decode
from protocol.errors import ErrorCode
from protocol.messages import transactions
from protocol.messages.metadata import FindCoordinatorRequest
from protocol.messages.produce_fetch import ProduceRequest
from protocol.messages.stored_records import TransactionLogKey, TransactionLogValue
from protocol.records import headers
from protocol.schema import Message
from tests.conformance.brokers import LATEST, alter_configs, fetched, new_producer, offset_at
from tests.conformance.test_groups import keys_and_values, log_of
from tests.support.config_cases import BROKER, SET
from tests.support.group_harness import LocalGroupHarness
from tests.support.group_requests import add_request_v3, end_request
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.kafka_tools import run_in_own_jvm
from tests.support.loading import create
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.timestamps import RECENT_MS
from tests.support.waiting import until

SETTINGS = {"transaction.state.log.num.partitions": 1, "auto.create.topics.enable": "false"}
UNKNOWN_PRODUCER_ID = 2**40  # never allocated


class Script:
    """Sends requests to one broker and records its responses; both brokers assign producer ids from 0 on."""

    def __init__(self, bootstrap: str) -> None:
        self.client = RawClient(bootstrap)
        self.lines: list[str] = []

    def note(self, what: str, *responses: object) -> None:
        self.lines.append(f"{what}: {', '.join(map(str, responses))}")

    def prepare(self) -> None:
        create(self.client, "t", partitions=3)
        query = FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"])
        until(lambda: not self.client.ask(query, 4).coordinators[0].error_code, "a coordinator")
        until(lambda: self.producers(2)[0] == "NONE", "a partition")

    def init(self, name: str, version: int = 5) -> tuple[int, int]:
        producer = until(lambda: new_producer(self.client, name, version), "a producer id")
        self.note(f"init {name}", *producer)
        return producer

    def produce(self, what: str, name: str | None, batches: list[tuple[str, int, bytes]], version: int = 12) -> None:
        """Send Produce and note what each partition says."""
        topics = [
            {"name": topic, "partition_data": [{"index": index, "records": data}]} for topic, index, data in batches
        ]
        request = message(ProduceRequest, transactional_id=name, acks=-1, timeout_ms=5000, topic_data=topics)
        answer = self.client.ask(request, version)
        responses = [
            (topic.name, one.index, ErrorCode(one.error_code).name, one.base_offset)
            for topic in answer.responses
            for one in topic.partition_responses
        ]
        self.note(f"produce {what}", *sorted(responses))

    def add(self, name: str, producer: tuple[int, int], index: int) -> None:
        (topic,) = self.client.ask(add_request_v3(name, producer, index), 3).results_by_topic_v3_and_below
        self.note("add", ErrorCode(topic.results_by_partition[0].partition_error_code).name)

    def end(self, name: str, producer: tuple[int, int], *, commit: bool, version: int = 5) -> tuple[int, int]:
        """Ends a transaction and waits until all markers are written."""
        answer = self.client.ask(end_request(name, producer, commit=commit), version)
        self.note("end", ErrorCode(answer.error_code).name, answer.producer_id, answer.producer_epoch)
        describe = transactions.DescribeTransactionsRequest(transactional_ids=[name])
        until(
            lambda: "Prepare" not in self.client.ask(describe, 0).transaction_states[0].transaction_state,
            "the end of a transaction",
        )
        return answer.producer_id, answer.producer_epoch

    def marker(
        self, what: str, producer: tuple[int, int], index: int, *, commit: bool, version: int = 0, epoch: int = 0
    ) -> None:
        marker = {
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "transaction_result": commit,
            "coordinator_epoch": epoch,
            "transaction_version": version,
            "topics": [{"name": "t", "partition_indexes": [index]}],
        }
        answer = self.client.ask(message(transactions.WriteTxnMarkersRequest, markers=[marker]), 2)
        self.note(f"marker {what}", ErrorCode(answer.markers[0].topics[0].partitions[0].error_code).name)

    def producers(self, index: int, topic: str = "t") -> tuple[str, str | None, list[Any]]:
        query = message(transactions.DescribeProducersRequest, topics=[{"name": topic, "partition_indexes": [index]}])
        one = self.client.ask(query, 0).topics[0].partitions[0]
        names = ("producer_id", "producer_epoch", "last_sequence", "coordinator_epoch", "current_txn_start_offset")
        known = [attrgetter(*names)(sender) for sender in one.active_producers]
        return ErrorCode(one.error_code).name, one.error_message, sorted(known)

    def visible(self, index: int) -> None:
        """The end offsets, and the aborted transactions of a read_committed fetch."""
        ends = [offset_at(self.client, "t", LATEST, index, isolation_level=level).offset for level in (0, 1)]
        found = fetched(self.client, "t", 0, index, isolation_level=1)
        aborted = [(one.producer_id, one.first_offset) for one in found.aborted_transactions or ()]
        stable = (found.high_watermark, found.last_stable_offset)
        offsets = [header.base_offset for _, header in headers(bytes(found.records or b""))]
        self.note(f"visible in {index}", ends, stable, sorted(aborted), offsets)


def batch(producer: tuple[int, int], sequence: int, *, transactional: bool = True) -> bytes:
    builder = BatchBuilder(
        producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequence, transactional=transactional
    )
    builder.append(RECENT_MS, b"k", b"v")
    return bytes(builder.build())


def new_producers(script: Script) -> None:
    """Produce adds partitions to the transaction (version 2); its end increments the epoch."""
    one = script.init("new")
    script.produce("the first", "new", [("t", 0, batch(one, 0)), ("t", 1, batch(one, 0)), ("u", 0, batch(one, 0))])
    script.note("producers", script.producers(0))
    script.visible(0)
    script.produce("without a transaction", "new", [("t", 0, batch(one, 1, transactional=False))])
    following = script.end("new", one, commit=True)
    script.visible(0)
    script.produce("of the last epoch", "new", [("t", 0, batch(one, 1))])
    script.produce("that goes on", "new", [("t", 0, batch(following, 1))])
    script.produce("that begins", "new", [("t", 0, batch(following, 0)), ("t", 2, batch(following, 0))])
    script.produce("again", "new", [("t", 2, batch(following, 0))])
    script.produce("of another id", "old", [("t", 2, batch(following, 1))])
    script.produce("without an id", None, [("t", 2, batch(following, 1))])
    other = script.init("other")
    script.produce("of two", "new", [("t", 0, batch(following, 1)), ("t", 1, batch(other, 0))])
    script.end("new", following, commit=False)
    script.visible(0)
    script.visible(2)
    script.note("producers", script.producers(0), script.producers(2), script.producers(9))
    script.note("producers elsewhere", script.producers(0, "u"), script.producers(0, "no topic"))


def old_producers(script: Script) -> None:
    """Partitions must be added first; the error depends on the Produce version."""
    one = script.init("old", 4)
    for version in (9, 11):
        script.produce("that was not added", "old", [("t", 1, batch(one, 0))], version)
    script.add("old", one, 1)
    script.produce("that was added", "old", [("t", 1, batch(one, 0))], 11)
    script.produce("that goes on", "old", [("t", 1, batch(one, 1))], 9)
    script.visible(1)
    script.end("old", one, commit=False, version=4)
    script.produce("too late", "old", [("t", 1, batch(one, 2))], 11)
    script.add("old", one, 1)
    script.produce("in the next", "old", [("t", 1, batch(one, 2))], 11)
    script.end("old", one, commit=True, version=4)
    script.visible(1)


def markers_by_hand(script: Script) -> None:
    """Which markers of an old coordinator, or of an administrator, are accepted."""
    unknown_producer = (UNKNOWN_PRODUCER_ID, 3)
    script.marker("where there is nothing", unknown_producer, 0, commit=True)
    script.marker("again", unknown_producer, 0, commit=True)
    script.marker("of before", (UNKNOWN_PRODUCER_ID, 2), 0, commit=True)
    script.marker("again, of version 2", unknown_producer, 0, commit=True, version=2)
    script.marker("of a later epoch", (UNKNOWN_PRODUCER_ID, 4), 0, commit=False, version=2)
    script.marker("of before, of version 2", unknown_producer, 0, commit=False, version=2)
    script.marker("of a later coordinator", (UNKNOWN_PRODUCER_ID, 4), 0, commit=False, epoch=5)
    script.marker("of an earlier coordinator", (UNKNOWN_PRODUCER_ID, 4), 0, commit=False, epoch=4)
    script.marker("where nothing is", unknown_producer, 9, commit=True)
    script.marker("of nobody", (-1, 0), 0, commit=True)
    script.marker("without an epoch", (UNKNOWN_PRODUCER_ID, -1), 0, commit=True)
    one = script.init("hand")
    script.produce("that is open", "hand", [("t", 2, batch(one, 0))])
    script.marker("of the same epoch, of version 2", one, 2, commit=True, version=2)
    script.note("producers", [known for known in script.producers(2)[2] if known[0] == one[0]])
    script.marker("of the same epoch", one, 2, commit=False)
    script.note("producers", [known for known in script.producers(2)[2] if known[0] == one[0]])
    script.end("hand", one, commit=True)
    script.visible(2)


def records_out_of_order(script: Script) -> None:
    """Sequence numbers and epochs that are too low or too high."""
    one = script.init("order")
    script.produce("not its first", "order", [("t", 1, batch(one, 2))])
    script.produce("its first", "order", [("t", 1, batch(one, 0))])
    script.produce("not its next", "order", [("t", 1, batch(one, 5))])
    two = script.end("order", one, commit=True)
    script.produce("of the transaction before", "order", [("t", 1, batch(one, 1))])
    script.produce("not the first of this one", "order", [("t", 1, batch(two, 1))])
    script.produce("the first of this one", "order", [("t", 1, batch(two, 0))])
    script.produce("of the transaction before, to an older broker", "order", [("t", 1, batch(one, 1))], 11)
    script.produce("of the transaction before, as somebody else", "nobody", [("t", 1, batch(one, 1))])
    script.produce("of this one, as somebody else, elsewhere", "nobody", [("t", 2, batch(two, 0))])
    script.end("order", two, commit=False)


def no_verification(script: Script) -> None:
    """transaction.partition.verification.enable takes effect at once."""
    one = script.init("unseen")
    script.produce("that nobody has added", "unseen", [("t", 0, batch(one, 0))], 11)
    alter_configs(script.client, BROKER, "", ("transaction.partition.verification.enable", SET, "false"))
    before = len(script.lines)

    def is_believed() -> bool:
        del script.lines[before:]
        script.produce("that nobody looks for", "unseen", [("t", 0, batch(one, 0))], 11)
        return "NONE" in script.lines[-1]

    until(is_believed, "another setting")
    script.marker("of what nobody has added", one, 0, commit=False, version=0)
    script.visible(0)


def transaction_log_records(directory: Path) -> list[Any]:
    """The records of a partition of `__transaction_state`, without times."""
    found: list[Any] = []
    for key, data in keys_and_values(log_of(directory)):
        assert data is not None
        version = data[1]
        value = decode(TransactionLogValue, version, data, 2)
        value.transaction_last_update_timestamp_ms = 0
        value.transaction_start_timestamp_ms = min(value.transaction_start_timestamp_ms, 0)
        for topic in value.transaction_partitions or ():
            topic.partition_ids.sort()
        found.append((decode(TransactionLogKey, 0, key, 2).transactional_id, version, repr(value)))
    return found


@needs_kafka
def test_the_same_requests_get_the_same_answers_and_leave_the_same_records(tmp_path: Path) -> None:
    """Responses field by field, records one by one; and Barnabas loads Kafka's records."""
    scripts = []
    dumps = []
    ours = Broker(data_dir=tmp_path / "ours", settings=SETTINGS)
    theirs = ApacheKafka(SETTINGS, data_dir=tmp_path / "theirs")
    for broker in (theirs, ours):
        with broker as running:
            script = Script(running.bootstrap)
            script.prepare()
            for step in (new_producers, old_producers, markers_by_hand, records_out_of_order, no_verification):
                step(script)
            describe: Message = transactions.DescribeTransactionsRequest(
                transactional_ids=["new", "old", "hand", "other"]
            )
            states = script.client.ask(describe, 0).transaction_states
            scripts.append(script.lines)
        dumps.append(transaction_log_records(broker.data_dir / "__transaction_state-0"))
    assert "\n".join(scripts[1]) == "\n".join(scripts[0])
    assert "\n".join(map(str, dumps[1])) == "\n".join(map(str, dumps[0]))
    reader = LocalGroupHarness()
    reader.create_topic("__transaction_state", 1)
    reader.transaction_logs = [log_of(tmp_path / "theirs" / "__transaction_state-0")]
    reader.restart()
    found = reader.ask(describe, 0).transaction_states
    assert [(one.transaction_state, one.producer_id, one.producer_epoch) for one in found] == [
        (one.transaction_state, one.producer_id, one.producer_epoch) for one in states
    ]
    for name in ("ours", "theirs"):
        log = tmp_path / name / "__transaction_state-0" / "00000000000000000000.log"
        dump = run_in_own_jvm(
            "org.apache.kafka.tools.DumpLogSegments", "--transaction-log-decoder", "--files", log
        ).stdout
        assert dump.count('"transactionalId":"new"') == len([one for one in dumps[1] if one[0] == "new"])
        shown = CliRunner().invoke(dump_log, ["--transaction-log-decoder", str(log)])
        assert shown.exit_code == 0, shown.output
        assert shown.output.splitlines() == dump.splitlines()
