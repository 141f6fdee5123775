"""The segment source in Spark, compared with Spark's Kafka source on the same topic."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pyspark")

from barnabas import Broker
from barnabas.pipeline.errors import describe_failure
from barnabas.pipeline.sources.segments import NAME, register
from tests.pipeline.sources.test_live_logs import TOPIC, TOPICS, fill

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def topic() -> Any:
    """A broker with varied topics, without a cleaner that would change them between two reads."""
    with Broker(settings={"log.cleaner.enable": "false"}) as broker:
        fill(broker.bootstrap)
        yield broker


def rows(frame: Any) -> list[Any]:
    columns = ("topic", "partition", "offset", "key", "value", "timestamp", "timestampType", "headers")
    return sorted(frame.select(*columns).collect(), key=lambda row: (row.topic, row.partition, row.offset))


def test_both_sources_return_the_same_frame(spark: Any, topic: Any) -> None:
    register(spark)
    starts = {name: {"0": 100, "1": -2} for name in TOPICS}
    ends = {name: {"0": -1, "1": 1000} for name in TOPICS}
    options = {
        "kafka.bootstrap.servers": topic.bootstrap,
        "subscribe": ",".join(TOPICS),
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
    }
    through = spark.read.format("kafka").options(**options).load()
    straight = spark.read.format(NAME).options(**options).load(str(topic.data_dir))
    assert straight.dtypes == through.dtypes
    assert rows(straight) == rows(through)
    assert straight.rdd.getNumPartitions() > 2, "a part for each segment"
    few = spark.read.format(NAME).options(**options, columns="offset,key").load(str(topic.data_dir))
    assert few.columns == ["offset", "key", "headers"]


def test_errors_are_found_in_sparks_exception(spark: Any, topic: Any) -> None:
    """An empty result is not an error."""
    register(spark)
    with pytest.raises(Exception, match="There is no option colour") as caught:
        spark.read.format(NAME).options(subscribe=TOPIC, colour="red").load(str(topic.data_dir)).count()
    assert describe_failure(caught.value).endswith("until.")
    nothing = {"subscribe": TOPIC, "kafka.bootstrap.servers": topic.bootstrap, "startingTimestamp": str(1 << 42)}
    nothing["startingOffsetsByTimestampStrategy"] = "latest"
    assert spark.read.format(NAME).options(**nothing).load(str(topic.data_dir)).count() == 0
