"""The transaction coordinator: order of records and markers, retries, recovery after a crash."""

from __future__ import annotations

from typing import Any

import pytest

from broker.coordinators.group_coordinator import OFFSETS_TOPIC
from broker.coordinators.runtime.java_compat import abs_hash
from broker.coordinators.runtime.stored_records import encode_record
from broker.coordinators.transactions.transaction import (
    FENCING_EPOCH,
    LAST_EPOCH,
    ProducerIdAndEpoch,
    State,
    new_transaction,
)
from broker.coordinators.transactions.transaction_coordinator import (
    TRANSACTIONS_TOPIC,
    TransactionCoordinator,
    TransactionSettings,
)
from broker.security.authorizer import Operation, Resource
from protocol.batch_builder import BatchBuilder
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.transactions import DescribeTransactionsRequest, ListTransactionsRequest
from replication.completion import Completion
from tests.support import group_requests
from tests.support.deny import Deny
from tests.support.group_harness import FakeLog, LocalGroupHarness
from tests.support.group_requests import commit_request, error_of, fetch_request, init_request

TX = "tx"
Producer = tuple[int, int]


def harness(**settings: int) -> LocalGroupHarness:
    made = LocalGroupHarness(transaction_settings=TransactionSettings(**settings))
    for topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
        made.create_topic(topic, 5)
    made.create_topic("t", 3)
    return made


@pytest.fixture
def made() -> LocalGroupHarness:
    return harness()


@pytest.fixture
def producer(made: LocalGroupHarness) -> Producer:
    return begin(made)


def log_of(made: LocalGroupHarness, name: str = TX) -> FakeLog:
    return made.transaction_logs[abs_hash(name) % 5]


def coordinator_of(made: LocalGroupHarness) -> TransactionCoordinator:
    return made.transactions.shards[abs_hash(TX) % 5].coordinator


def at_last_epoch(made: LocalGroupHarness) -> Producer:
    """Begin with partition 0, at the producer's last epoch."""
    producer_id, _ = begin(made)
    transactions = coordinator_of(made).transactions
    transactions[TX] = transactions[TX]._replace(epoch=LAST_EPOCH)
    add(made, (producer_id, LAST_EPOCH), 0)
    return producer_id, LAST_EPOCH


def begin(made: LocalGroupHarness, producer: Producer = (-1, -1)) -> Producer:
    answer = made.ask(init_request(TX, producer=producer), 5)
    assert answer.error_code == 0, ErrorCode(answer.error_code)
    return answer.producer_id, answer.producer_epoch


def add(made: LocalGroupHarness, producer: Producer, *partitions: int) -> list[ErrorCode]:
    answer = made.ask(group_requests.add_request(TX, producer, *partitions), 5)
    (topic,) = answer.results_by_transaction[0].topic_results
    return [ErrorCode(one.partition_error_code) for one in topic.results_by_partition]


def end(made: LocalGroupHarness, producer: Producer, *, commit: bool = True) -> tuple[ErrorCode, Producer]:
    answer = made.ask(group_requests.end_request(TX, producer, commit=commit), 5)
    return ErrorCode(answer.error_code), (answer.producer_id, answer.producer_epoch)


def end_without_marker(
    made: LocalGroupHarness, producer: Producer, refusal: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER
) -> tuple[ErrorCode, Producer]:
    """Commit a transaction whose only partition refuses the marker."""
    add(made, producer, 0)
    made.data.refusals["t", 0] = refusal
    return end(made, producer)


def commit_offset(made: LocalGroupHarness, producer: Producer, offset: int, group: str = "g") -> ErrorCode:
    return error_of(made.ask(group_requests.txn_commit_request(TX, producer, offset, group), 5))


def offset(made: LocalGroupHarness, group: str = "g") -> tuple[int, ErrorCode]:
    (one,) = made.ask(fetch_request(group, is_stable=True), 8).groups[0].topics[0].partitions
    return one.committed_offset, ErrorCode(one.error_code)


def describe(made: LocalGroupHarness) -> Any:
    (described,) = made.ask(DescribeTransactionsRequest(transactional_ids=[TX]), 0).transaction_states
    return described


def state(made: LocalGroupHarness) -> tuple[str, int]:
    described = describe(made)
    return described.transaction_state, described.producer_epoch


def markers(made: LocalGroupHarness) -> list[tuple[str, int, int, bool]]:
    return [(topic, index, marker.epoch, marker.is_commit) for marker, (topic, index) in made.data.markers]


# ---- order of records and markers


def test_markers_follow_the_prepare_record_and_precede_the_complete_record(
    made: LocalGroupHarness, producer: Producer
) -> None:
    add(made, producer, 0, 1)
    made.data.refusals["t", 1] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    log = log_of(made)
    log.is_holding = True
    made.send("client", group_requests.end_request(TX, producer), 5)
    assert made.take("client") is None
    assert coordinator_of(made).transactions[TX].state is State.PREPARE_COMMIT
    assert markers(made) == []
    log.is_holding = False
    log.release()
    answer: Any = made.take("client")
    assert (answer.error_code, answer.producer_epoch) == (0, 1)
    assert (state(made), markers(made)) == (("PrepareCommit", 1), [("t", 0, 1, True)])
    described = describe(made)
    assert [(topic.topic, topic.partitions) for topic in described.topics] == [("t", [1])]
    made.data.refusals.clear()
    made.advance(100)
    assert state(made) == ("CompleteCommit", 1)
    assert markers(made) == [("t", 0, 1, True), ("t", 1, 1, True)]


def test_requests_get_concurrent_transactions_until_all_markers_are_written(
    made: LocalGroupHarness, producer: Producer
) -> None:
    assert end_without_marker(made, producer) == (ErrorCode.NONE, (producer[0], 1))
    busy = ErrorCode.CONCURRENT_TRANSACTIONS
    assert add(made, (producer[0], 1), 0) == [busy]
    verified = made.ask(
        group_requests.add_request(TX, (producer[0], 1), 0, verify_only=True), 5
    ).results_by_transaction[0]
    assert verified.topic_results[0].results_by_partition[0].partition_error_code == busy
    for candidate in (producer, (producer[0], 1), (producer[0], 9), (producer[0] + 1, 0)):
        assert add(made, candidate, 0) == [busy]
        assert end(made, candidate)[0] is busy
        assert end(made, candidate, commit=False)[0] is busy
        assert made.ask(init_request(TX, producer=candidate), 5).error_code == busy


def test_end_txn_before_version_5_rejects_a_fenced_producer_also_while_markers_are_missing(
    made: LocalGroupHarness, producer: Producer
) -> None:
    """As in Kafka; a marker can be missing for as long as a partition has no leader."""
    add(made, producer, 0)
    made.data.refusals["t", 0] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    producer_id, epoch = producer
    begun = made.ask(init_request(TX), 5)
    assert begun.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert state(made) == ("PrepareAbort", epoch + 1)

    def answer(candidate: Producer, version: int) -> ErrorCode:
        return ErrorCode(made.ask(group_requests.end_request(TX, candidate), version).error_code)

    assert answer((producer_id, epoch), 4) is ErrorCode.PRODUCER_FENCED
    assert answer((producer_id, epoch), 1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert answer((producer_id + 1, epoch), 4) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert answer((producer_id, epoch + 1), 4) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_a_verification_waits_for_the_end_of_the_previous_transaction(
    made: LocalGroupHarness, producer: Producer
) -> None:
    _, next_producer = end_without_marker(made, producer)
    request = group_requests.txn_commit_request(TX, next_producer, 1)
    made.send("patient", request, 5)
    assert made.take("patient") is None
    made.data.refusals.clear()
    answer: Any = made.take("patient", 200)
    assert answer.topics[0].partitions[0].error_code == 0
    made.data.refusals[OFFSETS_TOPIC, abs_hash("g") % 5] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    _, next_producer = end(made, next_producer)
    request.producer_epoch = next_producer[1]
    made.send("impatient", request, 5)
    answer = made.take("impatient", 200)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.CONCURRENT_TRANSACTIONS


# ---- recovery


def test_transactional_offsets_are_pending_until_their_marker(made: LocalGroupHarness, producer: Producer) -> None:
    commit_offset(made, producer, 41)
    assert offset(made) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    made.restart()
    assert offset(made) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    end(made, producer)
    assert offset(made) == (41, ErrorCode.NONE)
    made.restart()
    assert offset(made) == (41, ErrorCode.NONE)


def test_a_later_commit_supersedes_a_pending_one() -> None:
    for restarts in (False, True):
        made = harness()
        producer = begin(made)
        commit_offset(made, producer, 41)
        made.ask(commit_request(50), 8)
        if restarts:
            made.restart()
        assert offset(made)[1] is ErrorCode.UNSTABLE_OFFSET_COMMIT
        end(made, producer)
        assert offset(made) == (50, ErrorCode.NONE)
        made.restart()
        assert offset(made) == (50, ErrorCode.NONE)


def test_the_last_offset_of_two_transactions_wins_whichever_ends_last() -> None:
    def end_other(made: LocalGroupHarness, producer: Producer) -> None:
        made.ask(group_requests.end_request("other", producer), 5)

    for restarts in (False, True):
        for first_ends_last in (False, True):
            made = harness()
            producer = begin(made)
            answer = made.ask(init_request("other"), 5)
            other = answer.producer_id, answer.producer_epoch
            commit_offset(made, producer, 41)
            made.ask(group_requests.txn_commit_request("other", other, 45), 5)
            if not first_ends_last:
                end(made, producer)
                assert offset(made)[1] is ErrorCode.UNSTABLE_OFFSET_COMMIT
            end_other(made, other)
            if restarts:
                made.restart()
            if first_ends_last:
                assert offset(made)[1] is ErrorCode.UNSTABLE_OFFSET_COMMIT
                end(made, producer)
            assert offset(made) == (45, ErrorCode.NONE)
            made.restart()
            assert offset(made) == (45, ErrorCode.NONE)


def test_an_uncommitted_prepare_record_is_retried(made: LocalGroupHarness, producer: Producer) -> None:
    add(made, producer, 0)
    log = log_of(made)
    log.is_holding = True
    made.send("client", group_requests.end_request(TX, producer), 5)
    answer: Any = made.take("client", 5_000)
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert markers(made) == []
    log.is_holding = False
    log.release()
    assert markers(made) == []
    made.advance(100)
    assert (state(made), markers(made)) == (("CompleteCommit", 1), [("t", 0, 1, True)])
    assert end(made, producer) == (ErrorCode.NONE, (producer[0], 1))


def test_a_failed_append_changes_no_transaction(made: LocalGroupHarness, producer: Producer) -> None:
    add(made, producer, 0)
    log = log_of(made)
    log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    assert end(made, producer)[0] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert add(made, producer, 1) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert (state(made), markers(made)) == (("Ongoing", 0), [])
    log.refusal = None
    assert end(made, producer)[0] is ErrorCode.NONE


def test_the_complete_record_is_retried(made: LocalGroupHarness, producer: Producer) -> None:
    end_without_marker(made, producer)
    log = log_of(made)
    log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
    made.data.refusals.clear()
    made.advance(300)
    assert state(made) == ("PrepareCommit", 1)
    log.refusal = None
    made.advance(100)
    assert state(made) == ("CompleteCommit", 1)
    assert markers(made) == [("t", 0, 1, True)]


@pytest.mark.parametrize(
    ("refusal", "name"),
    [(ErrorCode.INVALID_PRODUCER_EPOCH, "CompleteCommit"), (ErrorCode.TRANSACTION_COORDINATOR_FENCED, "PrepareCommit")],
)
def test_fenced_markers_are_not_retried(
    made: LocalGroupHarness, producer: Producer, refusal: ErrorCode, name: str
) -> None:
    end_without_marker(made, producer, refusal)
    made.advance(1_000)
    assert state(made)[0] == name


def test_a_resigned_coordinator_writes_no_markers(made: LocalGroupHarness, producer: Producer) -> None:
    end_without_marker(made, producer)
    made.transactions.close()
    made.data.refusals.clear()
    made.advance(60_000)
    assert markers(made) == []
    assert end(made, producer)[0] is ErrorCode.NOT_COORDINATOR


# ---- epochs


def test_ending_at_the_last_epoch_switches_the_producer_id(made: LocalGroupHarness) -> None:
    producer = at_last_epoch(made)
    error, next_producer = end(made, producer)
    assert (error, next_producer[1]) == (ErrorCode.NONE, 0)
    assert next_producer[0] != producer[0]
    assert [(marker.producer_id, marker.epoch) for marker, _ in made.data.markers] == [(producer[0], 32767)]
    assert end(made, producer) == (ErrorCode.NONE, next_producer)
    assert end(made, producer, commit=False)[0] is ErrorCode.INVALID_TXN_STATE
    assert add(made, next_producer, 1) == [ErrorCode.NONE]
    assert end(made, producer)[0] is not ErrorCode.NONE


def test_fencing_at_the_last_epoch_switches_the_producer_id(made: LocalGroupHarness) -> None:
    old = at_last_epoch(made)
    assert made.ask(init_request(TX), 5).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert state(made) == ("CompleteAbort", 0)
    assert [(marker.producer_id, marker.epoch) for marker, _ in made.data.markers] == [(old[0], 32767)]
    producer_id, epoch = begin(made)
    assert (producer_id != old[0], epoch) == (True, 1)


@pytest.mark.parametrize("asks", ["end", "init"])
def test_a_timed_out_producer_of_the_last_epoch_gets_a_new_id(made: LocalGroupHarness, asks: str) -> None:
    old = at_last_epoch(made)
    made.advance(80_000)
    assert state(made) == ("CompleteAbort", 0)
    if asks == "end":
        error, next_producer = end(made, old, commit=False)
        assert error is ErrorCode.NONE
        assert end(made, old, commit=False) == (ErrorCode.NONE, next_producer), "told again"
    else:
        next_producer = begin(made, old)
    assert (next_producer[0] != old[0], next_producer[1]) == (True, 0)
    assert add(made, next_producer, 1) == [ErrorCode.NONE]
    assert end(made, next_producer) == (ErrorCode.NONE, (next_producer[0], 1))


def test_a_timeout_at_the_last_epoch_waits_for_a_new_producer_id(made: LocalGroupHarness) -> None:
    old = at_last_epoch(made)
    given: list[Completion[int]] = []

    def generate() -> Completion[int]:
        given.append(Completion())
        return given[-1]

    coordinator = coordinator_of(made)
    original, coordinator._generate_producer_id = coordinator._generate_producer_id, generate
    made.advance(80_000)
    given.pop(0).fail(KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    assert state(made) == ("Ongoing", LAST_EPOCH)
    made.advance(10_000)
    assert len(given) == 2
    coordinator._generate_producer_id = original
    error, next_producer = end(made, old)
    assert error is ErrorCode.NONE
    given[1].complete(next_producer[0] + 7)
    assert state(made) == ("CompleteCommit", 0)


def test_before_version_2_an_abort_increments_the_epoch(made: LocalGroupHarness) -> None:
    made.transaction_version = 0
    producer = begin(made)
    add(made, producer, 0)
    assert made.ask(init_request(TX), 5).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert (state(made), markers(made)) == (("CompleteAbort", 1), [("t", 0, 1, False)])
    assert begin(made) == (producer[0], 2)
    assert made.ask(init_request(TX, producer=producer), 5).error_code == ErrorCode.PRODUCER_FENCED
    assert log_of(made).batches[-1].count(b"\0\0\0\0")  # and its records are of version 0


def test_before_version_2_a_transaction_of_the_fencing_epoch_is_aborted_after_its_timeout(
    made: LocalGroupHarness,
) -> None:
    """The epoch that only fences is given to no producer; a client that uses it anyway must not end the node."""
    made.transaction_version = 0
    producer_id, _ = at_last_epoch(made)
    made.advance(80_000)
    assert state(made) == ("CompleteAbort", FENCING_EPOCH)
    assert add(made, (producer_id, FENCING_EPOCH), 0) == [ErrorCode.NONE]
    made.advance(80_000)
    assert state(made) == ("CompleteAbort", FENCING_EPOCH)
    assert begin(made)[0] != producer_id


# ---- timeouts


def test_idle_transactional_ids_expire() -> None:
    made = harness(expiration_ms=10_000, expiry_interval_ms=1_000)
    begin(made)
    made.advance(9_000)
    assert state(made)[0] == "Empty"
    made.advance(2_500)
    assert describe(made).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    made.restart()
    assert coordinator_of(made).transactions == {}
    producer = begin(made)
    add(made, producer, 0)
    made.advance(40_000)
    assert state(made)[0] == "Ongoing"


def test_timeouts_are_checked_after_a_restart(made: LocalGroupHarness, producer: Producer) -> None:
    add(made, producer, 0)
    made.advance(30_000)
    made.restart()
    made.advance(45_000)
    assert state(made) == ("CompleteAbort", 1)


# ---- checks of the handlers


@pytest.mark.parametrize(
    ("timeout_ms", "error"),
    [
        (-1, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (0, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (1, ErrorCode.NOT_COORDINATOR),
        (900_000, ErrorCode.NOT_COORDINATOR),
        (900_001, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ],
)
def test_invalid_transaction_timeouts_fail_on_every_broker(timeout_ms: int, error: ErrorCode) -> None:
    assert LocalGroupHarness().ask(init_request(TX, timeout_ms), 5).error_code == error


def test_authorization_is_checked_as_in_kafka(made: LocalGroupHarness, producer: Producer) -> None:
    add(made, producer, 0)
    made.authorize_by(Deny((Operation.WRITE, Resource.TRANSACTIONAL_ID, TX)))
    denied = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert end(made, producer)[0] is denied
    assert commit_offset(made, producer, 1) is denied
    offsets = group_requests.add_offsets_request(TX, producer)
    assert made.ask(offsets, 3).error_code == denied
    old = group_requests.add_request_v3(TX, producer, 0, 1)
    (topic,) = made.ask(old, 3).results_by_topic_v3_and_below
    assert [one.partition_error_code for one in topic.results_by_partition] == [denied] * 2
    assert made.ask(init_request(TX), 5).error_code == denied
    made.authorize_by(Deny((Operation.READ, Resource.GROUP, "g")))
    assert commit_offset(made, producer, 1) is ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert made.ask(offsets, 3).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    made.authorize_by(Deny((Operation.WRITE, Resource.TOPIC, "t"), (Operation.READ, Resource.TOPIC, "t")))
    (topic,) = made.ask(old, 3).results_by_topic_v3_and_below
    assert {one.partition_error_code for one in topic.results_by_partition} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert commit_offset(made, producer, 1) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    made.authorize_by(Deny((Operation.CLUSTER_ACTION, Resource.CLUSTER, "kafka-cluster")))
    assert made.ask(group_requests.add_request(TX, producer, 0), 5).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    made.authorize_by(
        Deny((Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, TX), (Operation.DESCRIBE, Resource.TOPIC, "t"))
    )
    described = describe(made)
    assert described.error_code == denied
    listing = ListTransactionsRequest(state_filters=[], producer_id_filters=[])
    assert made.ask(listing, 2).transaction_states == []
    made.authorize_by(Deny((Operation.DESCRIBE, Resource.TOPIC, "t")))
    described = describe(made)
    assert (described.error_code, described.topics) == (0, [])


def test_a_value_of_an_unknown_version_is_skipped(
    made: LocalGroupHarness, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    later = BatchBuilder()
    key, value = encode_record(coordinator_of(made)._record(new_transaction(TX, 99, 1000, 5)))
    assert value is not None
    later.append(5, key, b"\0\x09" + value[2:])
    log_of(made).append(later.build())
    made.restart()
    assert add(made, producer, 0) == [ErrorCode.NONE]
    assert "skipping a value of unknown version 0009 in __transaction_state" in caplog.text


def test_requests_to_a_loading_shard_get_load_in_progress(made: LocalGroupHarness, producer: Producer) -> None:
    index = abs_hash(TX) % 5
    made.transactions.on_resignation(index)
    made.transactions.on_election(index, 7)
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    listing = ListTransactionsRequest(state_filters=[], producer_id_filters=[])
    assert made.transactions.is_loading
    made.send("early", group_requests.end_request(TX, producer), 5)
    assert made.answers["early"].pop().error_code == loading  # type: ignore[attr-defined]
    made.send("early", listing, 2)
    assert made.answers["early"].pop().error_code == loading  # type: ignore[attr-defined]
    made.advance(5)
    assert state(made) == ("Empty", 0)


def test_offsets_can_be_added_before_the_offsets_topic_exists() -> None:
    made = LocalGroupHarness()
    made.create_topic(TRANSACTIONS_TOPIC, 5)
    producer = begin(made)
    offsets = group_requests.add_offsets_request(TX, producer)
    assert made.ask(offsets, 3).error_code == 0
    coordinator = coordinator_of(made)
    transaction = coordinator.transactions[TX]
    assert transaction.state is State.ONGOING
    assert list(transaction.partitions) == [(OFFSETS_TOPIC, abs_hash("g") % 5)]
    assert coordinator.verify(TX, ProducerIdAndEpoch(*producer), [("t", 0)]) == {
        ("t", 0): ErrorCode.TRANSACTION_ABORTABLE
    }
