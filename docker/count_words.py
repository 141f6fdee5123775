"""Counts the words of topic `lines` into topic `words`; docker/spark.yml runs it as its service `words`.

KAFKA_BOOTSTRAP is the brokers' address, CHECKPOINT the folder of Spark's checkpoint. With ONCE the program ends when it has
counted all current records.
"""

from __future__ import annotations

import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as f


def main() -> None:
    """Runs the program."""
    brokers = {"kafka.bootstrap.servers": os.environ["KAFKA_BOOTSTRAP"]}
    spark = SparkSession.builder.appName("count-words").config("spark.sql.shuffle.partitions", "3").getOrCreate()
    # A pattern may match no topic yet; with `subscribe` the topic must exist.
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
