"""Which offsets a round of the archive takes, and when it must not go on."""

from __future__ import annotations

import pytest

from barnabas.pipeline.brokers import Place, Span, Topic
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.rounds import Waiting, plan_round, where_to_start

A0, A1 = Place("a", 0), Place("a", 1)
TOPIC = Topic("a", "id-1", 2, 1)
TOPICS = {A0: TOPIC, A1: TOPIC}


def starting(archived: dict[Place, int], *, ids: str = "id-1", strict: bool = True) -> dict[Place, Waiting]:
    return where_to_start(
        TOPICS, archived, {"a": ids} if archived else {}, {A0: 10, A1: 0}, {A0: 50, A1: 50}, fail_on_data_loss=strict
    )


def test_a_round_takes_a_share_of_each_partition() -> None:
    """rounds.py rule 1: in proportion, at least one, nothing of a partition that has nothing."""
    waiting = {A0: Waiting(100), A1: Waiting(0), Place("a", 2): Waiting(7)}
    ends = {A0: 1100, A1: 1, Place("a", 2): 7}
    assert plan_round(waiting, ends, 100) == {A0: Span(100, 199), A1: Span(0, 1)}
    assert plan_round(waiting, ends, 10_000) == {A0: Span(100, 1100), A1: Span(0, 1)}
    assert plan_round({A0: Waiting(3)}, {A0: 3}, 10) == {}


def test_it_starts_where_the_manifest_ends_or_where_the_log_starts() -> None:
    """rounds.py rule 2, when nothing is lost."""
    assert starting({}) == {A0: Waiting(10), A1: Waiting(0)}
    assert starting({A0: 20}) == {A0: Waiting(20), A1: Waiting(0)}


def test_records_that_are_gone_stop_the_job_unless_it_may_go_on() -> None:
    """rounds.py rule 2: the gap is written down."""
    with pytest.raises(JobError, match="offsets 4 to 9 of a-0 are gone"):
        starting({A0: 4})
    assert starting({A0: 4}, strict=False)[A0] == Waiting(10, lost_before=4)


def test_another_topic_of_the_same_name_stops_the_job() -> None:
    """rounds.py rule 3: by its id, and by an end before what is archived."""
    with pytest.raises(JobError, match="deleted and made again"):
        starting({A0: 20}, ids="id-0", strict=False)
    with pytest.raises(JobError, match="ends at 50, and was read up to 51"):
        starting({A0: 51}, strict=False)
