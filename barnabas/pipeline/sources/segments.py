"""`spark.read.format("barnabas.segments")`: a topic read straight from a broker's log directories, the broker left alone.

    from barnabas.pipeline.sources.segments import register
    register(spark)
    records = spark.read.format("barnabas.segments").option("subscribe", "flights").load("/var/lib/barnabas/data")

RULES    1. One input partition for each segment; options, columns and types are the Kafka source's (segment_options.py).
         2. The class is sent to workers by its name: `register` sends the package along, and nothing need be installed
            there but numpy and pyarrow, which Spark's own Python data sources need too.
         3. The log directories must be seen under the same path by the driver and by every worker.
NOT HERE Streams: this source is for what is there already.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from barnabas.pipeline.sources.planning import plan
from barnabas.pipeline.sources.segment_options import SegmentOptions, understand
from barnabas.pipeline.sources.segment_reading import read_part

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
    """Make the format known to a session, and its code to the session's workers."""
    from barnabas.pipeline.spark.py_files import ship

    ship(spark)
    spark.dataSource.register(SegmentSource)


class SegmentSource(DataSource):
    """The format, as Spark asks for it."""

    @classmethod
    def name(cls) -> str:
        """What follows `format`."""
        return NAME

    def schema(self) -> str:
        """The columns that are wanted."""
        return ", ".join(f"{name} {SPARK_TYPES[name]}" for name in understand(self.options).columns)

    def reader(self, schema: StructType) -> SegmentReader:
        """Plans on the driver, reads on the workers."""
        del schema
        return SegmentReader(understand(self.options))


class SegmentReader(DataSourceReader):
    """Reads what the options ask for."""

    def __init__(self, options: SegmentOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """A part of a segment each."""
        return [InputPartition(part) for part in plan(self._options)]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """The records of a part; without any part there is one empty partition."""
        if partition is not None:
            yield from read_part(*partition.value)
