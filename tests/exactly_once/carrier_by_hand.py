"""The same with aiokafka, as before there were generations in transactions: one partition, one transactional id. SOURCE TARGET.

RULES    1. Nobody else has its partition; another life of it ends what this one leaves open before it reads an offset.
         2. Its group has an offset before it begins, and to have none is an error: aiokafka takes a coordinator that is not
            ready for one that knows of no offset.
         3. Now and then it aborts what is ready to be committed, and goes on where the group has committed.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from tests.exactly_once.carrier import ABORTED, transformed
from tests.exactly_once.client import FAILED, Client

STALLED_S = 12.0
METADATA_MS = 3000
"""So old may be what it knows of who leads: a leader that does not know of its successor tells it nothing."""


async def carry(client: Client) -> None:
    """Carry until it is asked to end."""
    source, target = client.arguments
    dice = random.Random(f"{client.name}-{client.life}")
    note = client.history.note
    place = TopicPartition(source, 0)
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
    consumer.assign([place])
    note("assigned", "", source, 0)
    while not client.over.is_set():
        messages = (await consumer.getmany(timeout_ms=100, max_records=10)).get(place)
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
                for value, told in sending:
                    note("sent", transaction, target, 0, (await told).offset, value)
                await producer.send_offsets_to_transaction({place: messages[-1].offset + 1}, client.name)
                if dice.random() < ABORTED:
                    await producer.abort_transaction()
                    note("aborted", transaction)
                    await go_back(consumer, place)
                    note("again", transaction, source, 0)
                    continue
                note("commits", transaction)
                await producer.commit_transaction()
            note("committed", transaction)
    await producer.stop()
    await consumer.stop()


async def go_back(consumer: AIOKafkaConsumer, place: TopicPartition) -> None:
    """To what the group has committed; `seek_to_committed` of aiokafka 0.14 stays where it is when that is 0."""
    committed = await consumer.committed(place)
    assert committed is not None, f"{place} has no offset any more"
    consumer.seek(place, committed)


async def live(client: Client) -> None:
    """Live once."""
    try:
        await carry(client)
    except (KafkaError, OSError, TimeoutError) as failure:
        print(f"{client.name}-{client.life}: {failure!r}", file=sys.stderr, flush=True)
        os._exit(FAILED)  # here, where nobody waits for what it has in flight


if __name__ == "__main__":
    asyncio.run(live(Client()))
