"""A program that carries records from one topic to another, exactly once: consume, transform, produce, commit together.

RULES    1. It begins at the committed offset, ends when so many records are carried, and can be killed at any moment before.
         2. Whatever goes wrong ends it at once, as a kill would: another one with the same transactional id goes on.
NOT HERE Who kills it (`test_exactly_once.py`).
"""

from __future__ import annotations

import asyncio
import os
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

SOURCE, TARGET, GROUP = "source", "target", "carriers"
FAILED = 3
PARTITION = TopicPartition(SOURCE, 0)


async def carry(bootstrap: str, count: int) -> None:
    """Carry until `count` records of the source are committed as carried."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=GROUP,
        enable_auto_commit=False,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="carrier", request_timeout_ms=5000)
    await producer.start()  # which ends what another one has left open
    await consumer.start()
    consumer.assign([PARTITION])
    while await consumer.position(PARTITION) < count:
        messages = (await consumer.getmany(timeout_ms=200, max_records=5)).get(PARTITION)
        if messages:
            async with producer.transaction():
                for message in messages:
                    value: bytes = message.value
                    await producer.send(TARGET, b"<" + value + b">", partition=value[-1] % 3)
                await producer.send_offsets_to_transaction({PARTITION: messages[-1].offset + 1}, GROUP)
            print("committed", flush=True)
    await producer.stop()
    await consumer.stop()


async def main(bootstrap: str, count: int) -> None:
    """Carry, or end at the first thing that goes wrong."""
    try:
        await asyncio.wait_for(carry(bootstrap, count), 30)
    except (KafkaError, OSError, TimeoutError):
        os._exit(FAILED)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
