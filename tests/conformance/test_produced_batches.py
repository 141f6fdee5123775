"""The batches of tests/support/batches.py, produced to Apache Kafka and to Barnabas: both answer as the table says."""

from __future__ import annotations

import time

import pytest

from protocol.errors import ErrorCode
from tests.conformance.brokers import KAFKA, append_when_ready, running
from tests.support.batches import TOPICS, cases
from tests.support.follower_harness import BOTH
from tests.support.loading import create
from tests.support.raw_client import RawClient


@pytest.mark.parametrize("kind", BOTH)
def test_a_broker_answers_batches_as_the_table_says(kind: str) -> None:
    """The error and the blamed records; in our log accepted batches leave no gap."""
    wrong: list[str] = []
    ends = dict.fromkeys(TOPICS, 0)
    with running(kind) as broker, RawClient(broker.bootstrap) as client:
        for name, settings in TOPICS.items():
            create(client, name, partitions=1, **settings)
        for case in cases(int(time.time() * 1000)):
            expected = case.kafka if kind == KAFKA else case.ours
            if expected is None:
                continue  # Kafka does not answer: its handler throws
            answer = append_when_ready(client, case.topic, case.data)
            code, blamed = ErrorCode(answer.error_code), tuple(error.batch_index for error in answer.record_errors)
            is_only_ours = kind == KAFKA and ErrorCode.NONE in {case.ours, case.kafka}
            if code != expected or (blamed != (case.rejected if expected else ()) and not is_only_ours):
                wrong.append(f"{case.topic}: {case.name}: {code.name} {blamed}, not {expected.name} {case.rejected}")
            if kind == KAFKA:
                continue
            has_message = case.ours not in {ErrorCode.NONE, ErrorCode.MESSAGE_TOO_LARGE}
            assert bool(answer.error_message) == has_message, case
            if not code:
                assert case.data is not None
                if answer.base_offset != ends[case.topic]:
                    wrong.append(f"{case.topic}: {case.name}: offset {answer.base_offset}, not {ends[case.topic]}")
                ends[case.topic] = answer.base_offset + int.from_bytes(case.data[57:61], "big")
    assert not wrong, "\n".join(wrong)
