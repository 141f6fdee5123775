"""OffsetFetch across broker kills: `python -m tests.exactly_once.offset_fetch_check [COUNT] [SEED]`.

RULES    1. Three transactional ids commit offsets 1, 2, 3, ... for the partitions of one group each, and abort some of them,
            until the broker is killed (SIGKILL), COUNT times.
         2. Meanwhile OffsetFetch is sent continuously. Every response is an error, UNSTABLE_OFFSET_COMMIT, or a committed
            offset: never an aborted one, and never one before the last acknowledged commit.
NOT HERE The behaviour of clients (`loop.py`), every possible point of a crash (`tests/simulation/coordinators`).
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from barnabas import Broker
from protocol.errors import ErrorCode
from protocol.messages.groups import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from protocol.messages.metadata import FindCoordinatorRequest
from protocol.messages.transactions import (
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.exactly_once.loop import PARTITIONS, SETTINGS, SOURCE, make_topics
from tests.support.raw_client import RawClient
from tests.support.waiting import until

GROUPS = 3
ABORT_RATE = 0.2
PASSING = {
    ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
}  # fmt: skip


class Committer:
    """One transactional id with its group, and the offsets that OffsetFetch may return for it."""

    def __init__(self, bootstrap: str, number: int, seed: int) -> None:
        self.group = f"group-{number}"
        self.answered = self.asked_for = 0
        """The last offset whose commit was acknowledged, and the last one that the client asked to commit."""
        self.aborted: set[int] = set()
        self.transactions = 0
        self._bootstrap = bootstrap
        self._name = f"id-{number}"
        self._last = 0
        self._dice = random.Random(f"{seed}-{number}")
        self._producer = (-1, -1)

    def run_commits(self, is_over: threading.Event) -> None:
        """Commits until the broker is down."""
        with contextlib.suppress(OSError, EOFError), RawClient(self._bootstrap) as client:
            begin = InitProducerIdRequest(transactional_id=self._name, transaction_timeout_ms=60_000)
            self._become(_insist(client, begin, 5, lambda answer: int(answer.error_code), is_over))
            while not is_over.is_set():
                self._commit(client, is_over)

    def _become(self, answer: Any) -> None:
        self._producer = answer.producer_id, answer.producer_epoch

    def _commit(self, client: RawClient, is_over: threading.Event) -> None:
        self._last += 1
        offset, commits = self._last, self._dice.random() >= ABORT_RATE
        topic_partitions = [
            TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
            for index in range(PARTITIONS)
        ]
        (producer_id, epoch), topics = (
            self._producer,
            [TxnOffsetCommitRequestTopic(name=SOURCE, partitions=topic_partitions)],
        )
        offsets = TxnOffsetCommitRequest(
            transactional_id=self._name,
            group_id=self.group,
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=topics,
        )
        _insist(client, offsets, 5, lambda answer: int(answer.topics[0].partitions[0].error_code), is_over)
        if commits:
            self.asked_for = offset
        else:
            self.aborted.add(offset)
        end = EndTxnRequest(
            transactional_id=self._name, producer_id=producer_id, producer_epoch=epoch, committed=commits
        )
        self._become(_insist(client, end, 5, lambda answer: int(answer.error_code), is_over))
        self.transactions += 1
        if commits:
            self.answered = offset


def _insist(
    client: RawClient, request: Any, version: int, error: Callable[[Any], int], is_over: threading.Event
) -> Any:
    """The response without a retriable error; raises EOFError once `is_over` is set."""
    while not is_over.is_set():
        answer = client.ask(request, version)
        code = ErrorCode(error(answer))
        if code is ErrorCode.NONE:
            return answer
        assert code in PASSING, code
    raise EOFError


def check_offsets(committer: Committer, client: RawClient, response: Counter[str]) -> None:
    """Sends one OffsetFetch and checks rule 2."""
    at_least = committer.answered or -1
    topics = [OffsetFetchRequestTopics(name=SOURCE, partition_indexes=list(range(PARTITIONS)))]
    query = OffsetFetchRequestGroup(group_id=committer.group, topics=topics)
    answer = client.ask(OffsetFetchRequest(groups=[query], require_stable=True), 9).groups[0]
    if answer.error_code:
        assert answer.error_code in PASSING, answer
        response[ErrorCode(answer.error_code).name] += 1
        return
    for one in answer.topics[0].partitions:
        response[ErrorCode(one.error_code).name] += 1
        if one.error_code:
            assert one.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT, one
        else:
            assert at_least <= one.committed_offset <= committer.asked_for or one.committed_offset < 0 > at_least, one
            assert one.committed_offset not in committer.aborted, one


def watch(committers: list[Committer], bootstrap: str, is_over: threading.Event, found: list[Any]) -> None:
    """Checks continuously; appends the counts of error codes, or the first violation, to `found`."""
    response: Counter[str] = Counter()
    try:
        while not is_over.is_set():
            with contextlib.suppress(OSError, EOFError), RawClient(bootstrap) as client:
                while not is_over.is_set():
                    for committer in committers:
                        check_offsets(committer, client, response)
    except AssertionError as error:
        found.append(error)
    found.append(response)


def play(broker: Broker, count: int, seed: int) -> dict[str, int]:
    """Kills the broker `count` times; the counts of transactions and of error codes."""
    rng = random.Random(seed)
    make_topics(broker.bootstrap, {SOURCE: PARTITIONS})
    with RawClient(broker.bootstrap) as client:
        for key_type in (0, 1):
            query = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["any"])
            until(lambda query=query: not client.ask(query, 4).coordinators[0].error_code, "a coordinator")  # type: ignore[misc]
    committers = [Committer(broker.bootstrap, number, seed) for number in range(GROUPS)]

    def done() -> int:
        return sum(one.transactions for one in committers)

    found: list[Any] = []
    at_the_end = threading.Event()
    watching = threading.Thread(target=watch, args=(committers, broker.bootstrap, at_the_end, found))
    watching.start()
    try:
        for _ in range(count):
            is_over = threading.Event()
            threads = [threading.Thread(target=one.run_commits, args=(is_over,)) for one in committers]
            for thread in threads:
                thread.start()
            enough = done() + rng.randint(1, 60)
            until(lambda enough=enough: done() >= enough, "some transactions", 60, every_s=0.001)  # type: ignore[misc]
            broker.kill()
            is_over.set()
            for thread in threads:
                thread.join()
            broker.start()
    finally:
        at_the_end.set()
        watching.join()
    for one in found:
        if isinstance(one, AssertionError):
            raise one
    return {"transactions": done(), **found[-1]}


def main() -> None:
    count, seed = int((sys.argv[1:] or ["10"])[0]), int((sys.argv[2:] or [str(random.randrange(2**32))])[0])
    print(f"seed {seed}", flush=True)
    began_s = time.monotonic()
    with Broker(settings=SETTINGS) as broker:
        print(play(broker, count, seed), f"{time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    main()
