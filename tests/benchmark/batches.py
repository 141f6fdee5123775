"""CPU time of checking a produced batch and its producer: make bench ARGS=batches.

Every figure is the best of several rounds, in microseconds per batch. Decision 0003 is based on them.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from protocol.batch_builder import BatchBuilder
from protocol.compression import Compression
from protocol.records import BatchHeader, crc_is_valid, parse_header
from storage.config.log_config import LogConfig
from storage.log.log_validator import BatchRules, validate
from storage.log.producer_state import ProducerState
from tests.benchmark.interpreters import this_interpreter

NOW_MS = 1000
ROUNDS = 7
SHAPES = ((1, 100), (8, 100), (16, 1000), (160, 100), (1000, 1000), (10_000, 84))
TOPICS: dict[str, dict[str, object]] = {
    "plain": {},
    "LogAppendTime": {"message_timestamp_type": "LogAppendTime"},
    "compacted": {"cleanup_policy": frozenset({"compact"})},
    "stored in lz4": {"compression_type": "lz4"},
}


def batch(count: int, size: int, codec: Compression = Compression.NONE) -> bytearray:
    """A batch of `count` values of `size` bytes."""
    builder = BatchBuilder(compression=codec)
    for index in range(count):
        builder.append(NOW_MS + index, b"k%d" % index, b"v" * size)
    return builder.build()


def cost(work: Callable[[], object], times: int) -> float:
    return min(timeit.repeat(work, timer=time.process_time, number=times, repeat=ROUNDS)) / times * 1e6


def measure_validation() -> None:
    """One line per topic and shape; a copy is validated, since stamping changes the batch."""
    for name, fields in TOPICS.items():
        rules = BatchRules(replace(LogConfig(), **fields), "t-0")  # type: ignore[arg-type]
        for count, size in SHAPES:
            print_cost(name, count, size, batch(count, size), rules)
    for codec in list(Compression)[1:]:
        for count, size in ((1, 100), (100, 30), (1000, 1000)):
            print_cost(codec.name, count, size, batch(count, size, codec), BatchRules(LogConfig(), "t-0"))
    data = batch(1000, 1000)
    us = cost(partial(crc_is_valid, data, 0, parse_header(data)), 100)
    print(f"the CRC alone of {len(data)} bytes {us:26.1f} us")


def print_cost(name: str, count: int, size: int, data: bytearray, rules: BatchRules) -> None:
    times = max(2, 200_000 // len(data))
    us = cost(lambda: validate(bytearray(data), rules, wall_ms=NOW_MS), times) - cost(lambda: bytearray(data), times)
    print(f"{name:14} {count:6} x {size:<5} {len(data):8} bytes {us:10.1f} us")


def measure_producer_state() -> None:
    """A producer's batches in sequence, without and with 16 batches in flight."""
    for in_flight in (0, 16):
        state = ProducerState("t-0")
        made = [BatchHeader(n, 100, 0, 2, 0, 0, 0, NOW_MS, NOW_MS, 5000, 0, n, 1) for n in range(60_000)]
        for header in made[:in_flight]:
            state.reserve(header)
        started = time.process_time()
        for index in range(in_flight, len(made)):
            header = made[index]
            state.check(header, index)
            state.reserve(header)
            state.update(made[index - in_flight])
        us = (time.process_time() - started) / len(made) * 1e6
        print(f"check, reserve and update with {in_flight:2} batches in flight {us:18.2f} us")


def main() -> int:
    print(f"in this process: {this_interpreter()}")
    measure_validation()
    measure_producer_state()
    return 0
