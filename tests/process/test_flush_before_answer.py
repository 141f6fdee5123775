"""flush.messages: each response is sent after the sync of its records, as seen in the system calls; starts after a kill."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from barnabas.embedded import Broker
from tests.conformance.brokers import LATEST, offset_at
from tests.support.loading import append_one, append_request, create, one_record
from tests.support.raw_client import RawClient
from tests.support.system_calls import Call, needs_strace, watched

WRITES = ("pwrite64", "pwritev", "pwritev2")
SYNC, BEGIN_SYNCS, END_SYNCS = "fdatasync", "io_submit", "io_getevents"
SENDS = ("sendto", "sendmsg")
ROUNDS = 14  # a commit log writes a producer snapshot before the 17th record of a partition
_LOG = re.compile(r"\d+<([^>]+\.c?log)>")


def _is_append(call: Call) -> bool:
    """Whether the call writes records; zeros ahead in the commit log are written with pwrite64."""
    path = _LOG.search(call.arguments)
    return call.name in WRITES and path is not None and not (call.name == WRITES[0] and path[1].endswith(".clog"))


def synced_before_answered(calls: list[Call], answer_size: int) -> list[tuple[int, int]]:
    """For every send: the number of responses sent, and of appends synced before it.

    The smallest write is one append; the commit log writes those that wait for its lock together.
    """
    append_size = min(call.result for call in calls if _is_append(call))
    unsynced: list[tuple[int, str]] = []  # number of the append, and file
    covered: list[tuple[int, str]] = []  # by the syncs under way
    written = begun = ended = sent = 0
    found = []
    for call in calls:
        paths = _LOG.findall(call.arguments)
        if _is_append(call):
            for _ in range(call.result // append_size):
                written += 1
                unsynced.append((written, paths[0]))
        elif call.name == SYNC and call.result == 0:
            unsynced = [write for write in unsynced if write[1] not in paths]
        elif call.name == BEGIN_SYNCS and call.result > 0:
            assert len(paths) == call.result
            begun += call.result
            covered += [write for write in unsynced if write[1] in paths]
        elif call.name == END_SYNCS and call.result > 0:
            ended += call.result
            if ended == begun:
                unsynced = [write for write in unsynced if write not in covered]
                covered.clear()
        elif call.name in SENDS and call.is_on_socket:
            sent += call.result // answer_size
            found.append((sent, written - len(unsynced)))
    return found


@pytest.mark.parametrize("engine", ["segments", "commitlog"])
def test_after_a_kill_all_recovered_records_can_be_read_at_once(tmp_path: Path, engine: str) -> None:
    with Broker(tmp_path) as broker:
        with RawClient(broker.bootstrap) as client:
            create(client, "t", flush_messages=3, barnabas_storage_engine=engine)
            for _ in range(5):
                assert append_one(client, "t", 0, b"x") == "NONE"
        broker.kill()
        broker.start()
        with RawClient(broker.bootstrap) as client:
            found = offset_at(client, "t", LATEST)
        assert (found.error_code, found.offset) == (0, 5)


@needs_strace
@pytest.mark.parametrize("engine", ["segments", "commitlog"])
@pytest.mark.parametrize("partitions", [1, 5])
def test_every_response_is_sent_after_the_sync_of_its_records(tmp_path: Path, partitions: int, engine: str) -> None:
    with Broker(tmp_path / "data") as broker, RawClient(broker.bootstrap) as client:
        create(client, "t", partitions=partitions, flush_messages=1, barnabas_storage_engine=engine)
        requests = [append_request("t", partition, one_record(b"x" * 10)) for partition in range(partitions)]
        for one in requests:
            client.ask(one, 9)
        names = (*WRITES, SYNC, BEGIN_SYNCS, END_SYNCS, *SENDS)
        with watched(broker.pid, names, tmp_path / "trace", shown=partitions) as calls:
            for _ in range(ROUNDS):
                for one in requests:
                    client.send(one, 9)
                for one in requests:
                    assert client.receive(one, 9).responses[0].partition_responses[0].error_code == 0
    sizes = [call.result for call in calls if call.name in SENDS and call.is_on_socket]
    found = synced_before_answered(calls, sum(sizes) // (ROUNDS * partitions))  # all are equally long
    assert found[-1] == (ROUNDS * partitions, ROUNDS * partitions)
    assert all(sent <= synced for sent, synced in found)
