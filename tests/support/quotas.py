"""Client quotas of a running node, requests that use them up, and threads that do nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from protocol.messages.produce_fetch import FetchResponse
from protocol.messages.quotas_scram import AlterClientQuotasRequest, DescribeClientQuotasRequest
from replication.io_executor import Run
from tests.support.cluster_cases import altered
from tests.support.loading import fetch_request, one_record, produce_request
from tests.support.raw_client import RawClient
from tests.support.waiting import until

Quota = tuple[dict[str, str | None], str, float | None]
"""Entity, key and value; None deletes it."""
FETCH_VERSION = 12
PRODUCE_VERSION = 9
SETTLING_S = 0.3
"""After a quota or setting is described, Apache Kafka may need this long to enforce it."""


class NoThreads:
    """All work is on the loop (`broker.quotas.request_meter.MeteredThreads`)."""

    metered: Callable[[Run], Run] | None = None


def set_quotas(bootstrap: str, *quotas: Quota) -> None:
    """Changes quotas, and waits until the broker knows them."""
    entries = [altered(entity, (key, value)) for entity, key, value in quotas]
    described = DescribeClientQuotasRequest(components=[], strict=False)
    with RawClient(bootstrap, client_id="quota admin") as client:
        response = client.ask(AlterClientQuotasRequest(entries=entries, validate_only=False), 1)
        assert [entry.error_code for entry in response.entries] == [0] * len(quotas)

        def is_known() -> bool:
            found = {
                (*sorted((part.entity_type, part.entity_name or "") for part in entry.entity), value.key): value.value
                for entry in client.ask(described, 1).entries
                for value in entry.values
            }
            return all(
                found.get((*sorted((kind, name or "") for kind, name in entity.items()), key)) == value
                for entity, key, value in quotas
            )

        until(is_known, "the quotas are known")
    settle()


def settle() -> None:
    """Waits until a change that the broker knows is enforced."""
    time.sleep(SETTLING_S)


def produce(client: RawClient, topic: str, size: int) -> int:
    """Produces one record of some bytes; its throttle time."""
    response = client.ask(produce_request({topic: [one_record(bytes(size))]}), PRODUCE_VERSION)
    assert [row.error_code for answer in response.responses for row in answer.partition_responses] == [0]
    return int(response.throttle_time_ms)


def fetch(
    client: RawClient, topic: str, offset: int = 0, session: tuple[int, int] = (0, -1), **limits: Any
) -> FetchResponse:
    """Fetches partition 0 of a topic; `session` is its id and epoch."""
    fields = {
        "max_wait_ms": 100,
        "max_bytes": 50_000_000,
        "session_id": session[0],
        "session_epoch": session[1],
        **limits,
    }
    wanted = {} if session[1] > 0 else {(topic, b"", 0): offset}
    answer: FetchResponse = client.ask(fetch_request(FETCH_VERSION, wanted, **fields), FETCH_VERSION)
    return answer


def fetched_bytes(response: FetchResponse) -> int:
    """The bytes of records in a response."""
    return sum(len(data.records or b"") for answer in response.responses for data in answer.partitions)
