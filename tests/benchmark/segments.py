"""The reader of segment files without Spark: make bench ARGS="segments [--records N] [--rounds N]"

Records of 200 B in batches of 16 KiB and 1 MiB, with every codec, written to a file and read as Spark's tasks read it:
CRC checked, all columns, one process. Records per second of CPU time, which other processes disturb little.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.sources.decoding import ReadRequest
from barnabas.pipeline.sources.segment_files import path_of
from barnabas.pipeline.sources.segment_reading import SegmentRead, read_segment
from protocol.batch_builder import BatchBuilder
from protocol.compression import Compression
from tests.benchmark.interpreters import this_interpreter
from tests.benchmark.report.rows import Quartiles

VALUE_BYTES = 200
NOW_MS = 1_700_000_000_000
BATCHES = {"16 KiB": 75, "1 MiB": 4800}
"""Records in a batch."""


def written(directory: Path, count: int, per_batch: int, codec: Compression) -> tuple[SegmentRead, ReadRequest]:
    """A segment of about this number of records; values compress to about half."""
    rng = random.Random(per_batch)
    words = [rng.randbytes(10).hex().encode() for _ in range(200)]
    offset = 0
    with path_of(str(directory), 0, ".log").open("wb") as file:
        while offset < count:
            builder = BatchBuilder(offset, compression=codec)
            for number in range(per_batch):
                value = b" ".join(rng.choices(words, k=10))[:VALUE_BYTES].ljust(VALUE_BYTES)
                builder.append(NOW_MS + number, b"key-%d" % rng.randrange(1000), value)
            file.write(builder.build())
            offset = builder.next_offset
    return SegmentRead(str(directory), "", 0, True, 0, False, True), ReadRequest(TopicPartition("bench", 0), 0, offset)


def read(segment: SegmentRead, request: ReadRequest) -> float:
    """Records per second of CPU time."""
    started = time.process_time()
    rows: int = sum(batch.num_rows for batch in read_segment(segment, request))
    assert rows == request.end_offset, f"{rows} of {request.end_offset} records came"
    return rows / (time.process_time() - started)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="segments", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--records", type=int, default=600_000)
    parser.add_argument("--rounds", type=int, default=5)
    wanted = parser.parse_args()
    print(f"in this process: {this_interpreter()}")
    table = Table("batches", "codec", "M records per CPU s: lower quartile", "median", "upper quartile")
    for name, per_batch in BATCHES.items():
        for codec in Compression:
            with tempfile.TemporaryDirectory() as folder:
                segment = written(Path(folder), wanted.records, per_batch, codec)
                rates = Quartiles.of([read(*segment) for _ in range(wanted.rounds)])
                table.add_row(name, codec.name.lower(), *(f"{rate / 1e6:.2f}" for rate in rates))
    Console().print(table)
    return 0
