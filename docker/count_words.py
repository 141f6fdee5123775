"""Counts the words of topic `lines` into topic `words`, as they come; docker/spark.yml runs it as its service `words`.

KAFKA_BOOTSTRAP says where the brokers are, CHECKPOINT where Spark remembers how far it is. With ONCE it ends when all that was
there is counted.
"""

from __future__ import annotations

import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as f


def main() -> None:
    """Run until the end."""
    brokers = {"kafka.bootstrap.servers": os.environ["KAFKA_BOOTSTRAP"]}
    spark = SparkSession.builder.appName("count-words").config("spark.sql.shuffle.partitions", "3").getOrCreate()
    # A pattern may match nothing yet; a topic that is subscribed to must be there.
    source = {**brokers, "subscribePattern": "^lines$", "startingOffsets": "earliest"}
    lines = spark.readStream.format("kafka").options(**source).load()
    word = f.explode(f.split(f.lower(f.col("value").cast("string")), r"\W+")).alias("word")
    counts = lines.select(word).where("word != ''").groupBy("word").count()
    sink = {**brokers, "topic": "words", "checkpointLocation": os.environ["CHECKPOINT"]}
    stream = (
        counts.select(f.col("word").alias("key"), f.col("count").cast("string").alias("value"))
        .writeStream.format("kafka")
        .options(**sink)
        .outputMode("update")
    )
    stream = stream.trigger(availableNow=True) if "ONCE" in os.environ else stream.trigger(processingTime="1 second")
    stream.start().awaitTermination()


if __name__ == "__main__":
    main()
