"""What may happen to a topic between the plan of a round and its commit: Spark reads by the topic's name and by offsets.

RULES    1. If the broker deletes records of the round, Spark's query fails and nothing is committed. If the job may continue
            without them, the next round is planned behind them.
         2. If the topic is deleted and created again, the read records may be those of the new topic: nothing is committed.
NOT HERE The same changes before the plan (`rounds.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.brokers import Brokers, Span, Topic
from barnabas.pipeline.errors import JobError, tells_of_deleted_records
from barnabas.pipeline.jobs.rounds import RoundSettings


@contextlib.contextmanager
def skipping_deleted_records(
    settings: RoundSettings,
    spans: Mapping[TopicPartition, Span],
    beginning_offsets: Callable[[], Mapping[TopicPartition, int]],
    clean_up: Callable[[], object],
) -> Iterator[None]:
    """Ends a round whose records were deleted meanwhile, if the settings allow it (rule 1). Other errors are raised."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as failure:
        if settings.fail_on_data_loss or not tells_of_deleted_records(failure):
            raise
        starts = beginning_offsets()
        if all(starts[tp] <= span.start for tp, span in spans.items()):
            raise
        clean_up()


def check_not_replaced(brokers: Brokers, topics: Iterable[Topic]) -> None:
    """Raises JobError if one of these topics was created again since it was described (rule 2)."""
    described = {topic.name: topic for topic in topics}
    for name, topic in brokers.find_topics(described).items():
        if topic.id != described[name].id:
            raise JobError(
                f"The topic {name} was deleted and created again while it was read: start in another folder."
            )
