"""The same with aiokafka, as before KIP-447: one assigned partition per transactional id. SOURCE TARGET.

RULES    1. No other program has its partition; the next process ends the transaction that this one leaves open before it
            reads an offset.
         2. Its group has an offset before it starts, and a missing offset is an error: aiokafka treats a coordinator that is
            not ready as one without an offset.
         3. A share ABORT_RATE of the transactions is aborted; it continues at the group's committed offset.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from tests.exactly_once.client import FAILED, Client
from tests.exactly_once.processor import ABORT_RATE, transformed

STALLED_S = 12.0
METADATA_MS = 3000
"""The age limit of its metadata: a deposed leader that does not know its successor returns no redirect."""


async def process_records(client: Client) -> None:
    """Runs until SIGTERM."""
    source, target = client.arguments
    rng = random.Random(f"{client.name}-{client.incarnation}")
    note = client.history.note
    topic_partition = TopicPartition(source, 0)
    producer = AIOKafkaProducer(
        bootstrap_servers=client.bootstrap, transactional_id=client.name, request_timeout_ms=5000,
        metadata_max_age_ms=METADATA_MS,
    )  # fmt: skip
    consumer = AIOKafkaConsumer(
        bootstrap_servers=client.bootstrap, group_id=client.name, enable_auto_commit=False,
        isolation_level="read_committed", auto_offset_reset="none", request_timeout_ms=5000,
        metadata_max_age_ms=METADATA_MS,
    )  # fmt: skip
    async with asyncio.timeout(STALLED_S):
        await producer.start()
        await consumer.start()
    consumer.assign([topic_partition])
    note("assigned", "", source, 0)
    while not client.stop_requested.is_set():
        messages = (await consumer.getmany(timeout_ms=100, max_records=10)).get(topic_partition)
        if messages:
            transaction = client.next_transaction()
            async with asyncio.timeout(STALLED_S):
                await producer.begin_transaction()
                sending = []
                for message in messages:
                    value = transformed(message.value.decode())
                    note("polled", transaction, source, 0, message.offset, message.value.decode())
                    note("sends", transaction, target, 0, -1, value)
                    sending.append((value, await producer.send(target, value.encode(), partition=0)))
                for value, response in sending:
                    note("sent", transaction, target, 0, (await response).offset, value)
                await producer.send_offsets_to_transaction({topic_partition: messages[-1].offset + 1}, client.name)
                if rng.random() < ABORT_RATE:
                    await producer.abort_transaction()
                    note("aborted", transaction)
                    await seek_to_committed(consumer, topic_partition)
                    note("again", transaction, source, 0)
                    continue
                note("commits", transaction)
                await producer.commit_transaction()
            note("committed", transaction)
    await producer.stop()
    await consumer.stop()


async def seek_to_committed(consumer: AIOKafkaConsumer, topic_partition: TopicPartition) -> None:
    """aiokafka 0.14's own `seek_to_committed` does not move when the offset is 0.

    `committed` reads only the errors of partitions. If the coordinator moves or loads, OffsetFetch has its error at the top
    level since version 2, and `committed` returns None as if nothing was committed: this process ends, the next one starts
    with a new coordinator.
    """
    committed = await consumer.committed(topic_partition)
    if committed is None:
        raise KafkaError(f"the coordinator returned no offset for {topic_partition}")
    consumer.seek(topic_partition, committed)


async def run_commits(client: Client) -> None:
    """Runs the process; a failure ends it with FAILED."""
    try:
        await process_records(client)
    except (KafkaError, OSError, TimeoutError) as failure:
        print(f"{client.name}-{client.incarnation}: {failure!r}", file=sys.stderr, flush=True)
        os._exit(FAILED)  # exits without waiting for records in flight


if __name__ == "__main__":
    asyncio.run(run_commits(Client()))
