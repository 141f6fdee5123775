"""Partitions move between log directories under a producer and a consumer."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from barnabas import Broker
from protocol.messages.admin import CreateTopicsRequest
from protocol.messages.logs import AlterReplicaLogDirsRequest, DescribeLogDirsRequest
from tests.process.acknowledged_state import AcknowledgedState, PartitionRecords, name_of
from tests.process.crash_readers import read_back
from tests.process.killed_clients import Writer
from tests.support.loading import topic
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.waiting import until

pytestmark = pytest.mark.long

PLACE = ("t", 0)
MOVES = 6
WAIT_S = 90


def move(client: RawClient, path: str) -> None:
    wanted = {"path": path, "topics": [{"name": "t", "partitions": [0]}]}
    answer = client.ask(message(AlterReplicaLogDirsRequest, dirs=[wanted]), 2)
    assert answer.results[0].partitions[0].error_code == 0


def lies_in(client: RawClient) -> list[str]:
    requested = message(DescribeLogDirsRequest, topics=[{"topic": "t", "partitions": [0]}])
    return [result.log_dir for result in client.ask(requested, 5).results for _ in result.topics]


def is_in(client: RawClient, path: str) -> bool:
    return lies_in(client) == [path]


def has_grown(records: PartitionRecords, size: int) -> bool:
    return len(records.acknowledged) > size


@pytest.mark.parametrize("end", ["stopped", "killed while it moves"])
def test_records_stay_complete_unique_and_in_order_during_moves(tmp_path: Path, end: str) -> None:
    paths = [str(tmp_path / name) for name in ("a", "b")]
    memory = AcknowledgedState()
    records = memory.ledgers[PLACE] = PartitionRecords("t-0", is_compacted=False)
    with Broker(data_dir=",".join(paths)) as broker, RawClient(broker.bootstrap) as client:
        client.ask(CreateTopicsRequest(topics=[topic("t", configs=[("segment.bytes", "1048576")])]), 7)
        (here,) = until(lambda: lies_in(client), "the topic is made")
        writer = Writer(broker.bootstrap, memory, 1, "once", [PLACE], {"enable.idempotence": True})
        writer.thread.start()
        for number in range(MOVES):
            until(partial(has_grown, records, len(records.acknowledged) + 200), "records are written")
            here = paths[1 - paths.index(here)]
            move(client, here)
            if number < MOVES - 1 or end == "stopped":
                until(partial(is_in, client, here), "it is moved")
        writer.over.set()
        writer.thread.join(WAIT_S)
        assert memory.failures == []
        check_complete(broker.bootstrap, records, writer)
        if end != "stopped":
            broker.kill()
    with Broker(data_dir=",".join(paths)) as broker:
        check_complete(broker.bootstrap, records, writer)


def check_complete(bootstrap: str, records: PartitionRecords, writer: Writer) -> None:
    """Every record of the writer is there once and in order."""
    start, stop, found = read_back(bootstrap, {PLACE: 0})[PLACE]
    records.check(0, start, stop, found, records.acknowledged)
    assert [name_of(record.value or b"")[1] for record in found] == list(range(writer.next[PLACE]))
