"""`spark.read.format("barnabas.segments")`: reads a topic from a broker's log directories, without the broker.

    from barnabas.pipeline.sources.segments import register
    register(spark)
    records = spark.read.format("barnabas.segments").option("subscribe", "flights").load("/var/lib/barnabas/data")

RULES    1. Each segment is one input partition. Options, columns and types are the Kafka source's (segment_options.py).
         2. `register` sends the package to the workers, which need only numpy and pyarrow, as for every Python data source.
         3. The driver and all workers must see the log directories under the same path.
NOT HERE Streams: the source reads existing records only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from barnabas.pipeline.sources.commit_log_reading import CommitLogRead, read_commit_log
from barnabas.pipeline.sources.damage import MissingFile, MissingRecords
from barnabas.pipeline.sources.partition_logs import Task, tasks_after_move
from barnabas.pipeline.sources.planning import plan
from barnabas.pipeline.sources.segment_options import SegmentOptions, parse_options
from barnabas.pipeline.sources.segment_reading import read_segment

log = logging.getLogger(__name__)

NAME = "barnabas.segments"
SPARK_TYPES = {
    "key": "BINARY",
    "value": "BINARY",
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "timestampType": "INT",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}


def register(spark: SparkSession) -> None:
    """Registers the format in a session and sends the code to its workers."""
    from barnabas.pipeline.spark.py_files import ship

    ship(spark)
    spark.dataSource.register(SegmentSource)


def read_segments(
    spark: SparkSession, log_dir: Path, topics: Iterable[str], options: Mapping[str, str] | None = None
) -> DataFrame:
    """Returns the records of topics in a log directory."""
    register(spark)
    return spark.read.format(NAME).options(subscribe=",".join(topics), **(options or {})).load(str(log_dir))


class SegmentSource(DataSource):
    """The data source."""

    @classmethod
    def name(cls) -> str:
        """Returns the name of the format."""
        return NAME

    def schema(self) -> str:
        """Returns the schema as DDL."""
        return ", ".join(f"{name} {SPARK_TYPES[name]}" for name in parse_options(self.options).columns)

    def reader(self, schema: StructType) -> SegmentReader:
        """Returns a reader, which plans on the driver and reads on the workers."""
        del schema
        return SegmentReader(parse_options(self.options))


class SegmentReader(DataSourceReader):
    """Reads the requested records."""

    def __init__(self, options: SegmentOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Returns one partition per segment, or per file of a commit log."""
        return [InputPartition(segment) for segment in plan(self._options)]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """Yields the records of a segment; without segments Spark passes None."""
        if partition is not None:
            yield from read_task(partition.value)


def read_task(task: Task) -> Iterator[Any]:
    """Yields the records of a task as Arrow batches. Raises DamagedLog or MissingRecords."""
    part, request = task
    try:
        if isinstance(part, CommitLogRead):
            yield from read_commit_log(part, request)
        else:
            yield from read_segment(part, request)
    except MissingFile as missing:
        moved = tasks_after_move(part, request)
        if not moved or moved[0][1].start_offset > request.start_offset:
            message = f"{missing} is missing, and with it offsets from {request.start_offset} on"
            if part.fail_on_data_loss:
                raise MissingRecords(f"{message}; failOnDataLoss=false skips them.") from missing
            log.warning("%s.", message)
        for other in moved:
            yield from read_task(other)
