"""One thread receives, handles and answers a request, as seen in its system calls."""

from __future__ import annotations

from pathlib import Path

from barnabas.embedded import Broker
from protocol.messages.metadata import MetadataRequest
from tests.support.loading import create, fetch_request, one_record, produce_request
from tests.support.raw_client import RawClient
from tests.support.system_calls import needs_strace, watched

ACCEPTED, RECEIVED, SENT, WAITED = "accept4", "recvfrom", ("sendto", "sendmsg"), ("epoll_wait", "epoll_pwait")
REQUESTS = 50


@needs_strace
def test_one_thread_handles_a_request_without_blocking(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        with RawClient(broker.bootstrap) as client:
            create(client, "t")
            produce = produce_request({"t": [one_record(b"x" * 10)]})
            client.ask(produce, 9)
        requests = [(produce, 9), (fetch_request(12, {("t", b"", 0): 0}), 12), (MetadataRequest(topics=None), 12)]
        names = (ACCEPTED, RECEIVED, *SENT, *WAITED)
        with watched(broker.pid, names, tmp_path / "trace") as calls, RawClient(broker.bootstrap) as client:
            for request, version in requests * REQUESTS:
                client.ask(request, version)
    flow = [call for call in calls if call.result >= 0]
    assert len({call.thread for call in flow}) == 1
    assert flow[0].name in (ACCEPTED, *WAITED)
    assert [call.name for call in flow].count(ACCEPTED) == 1
    received = [number for number, call in enumerate(flow[:-1]) if call.name == RECEIVED and call.result]
    assert len(received) >= len(requests) * REQUESTS - 1
    reads = [number for position, number in enumerate(reversed(received)) if position % 3 != 2]
    assert {flow[number + 1].name for number in reads} <= set(SENT), "a Produce may wait for a slow disk"
