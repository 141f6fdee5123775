"""Searches in the key indexes of one broker: the newest records of a partition with a key or a header's value.

RULES    1. Only the leader of a partition answers. Records are committed, also in the sense of transactions.
         2. The index gives candidates, newest first; the batches there are read from the log, and every candidate is compared
            with the record's own bytes and timestamp. A worker in another process does both.
         3. An answer is complete between two offsets: all records there that match are in it, unless `is_cut`. Later records
            are not indexed yet.
         4. At most MAX_SEARCHES at a time; others are refused. The records of an answer, of all partitions together, have at
            most MAX_ANSWER_BYTES, or are one record; the worker returns hardly more.
         5. If a merge removes files during a search, it is repeated. If files are damaged or lost, only those before them are
            searched, and the indexer builds the others again.
NOT HERE Building (key_indexer.py), authorization and formats (the callers).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from operator import neg
from typing import Any, Final, NamedTuple

from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import Buffer
from protocol.records import Record, parse_header
from replication.completion import Completion, all_done, failed
from replication.partition.key_indexer import KeyIndexer, Worker, index_digest, open_log
from replication.partition.partition import Partition
from replication.partition.replica_manager import ReplicaManager
from storage.config.config_def import MAX_LONG
from storage.engine import AbortedTransaction, EngineView
from storage.io.disk_lookup import DiskLookup
from storage.keyindex.entries import size_of
from storage.keyindex.index_jobs import FindOffsets, Job, JobFailed, MatchRecords

MAX_SEARCHES: Final = 16
MAX_ANSWER_BYTES: Final = 8 << 20
MAX_RECORDS: Final = 10_000
_BATCH_BYTES: Final = 4 << 20
"""Of the batches that are read at a time."""
_ATTEMPTS: Final = 3
_MORE_CANDIDATES: Final = 4
"""How many times as many candidates are looked for when the last ones were not enough: compaction may have removed most."""
_MOST_CANDIDATES: Final = MAX_RECORDS + 1


class SearchQuery(NamedTuple):
    """What is searched in a topic."""

    field: str
    """`key` or `header:<name>`."""
    value: bytes
    from_ms: int
    to_ms: int
    """Excluded."""
    limit: int
    """Records of each partition."""


class PartitionAnswer(NamedTuple):
    """The records that were found in one partition."""

    partition: int
    from_offset: int
    to_offset: int
    """The answer is complete from `from_offset` to before `to_offset`."""
    end_offset: int
    """The last stable offset: if it is above `to_offset`, later records are not indexed yet."""
    min_timestamp_ms: int
    max_timestamp_ms: int
    """Of the indexed records; -1 for both without such."""
    is_cut: bool
    """Whether records at lower offsets match too: there are more than the limit, or the answer has MAX_ANSWER_BYTES."""
    records: list[Record]
    """The highest offset first."""


class KeySearch:
    """Searches of one broker."""

    def __init__(self, replicas: ReplicaManager, indexer: KeyIndexer, worker: Worker) -> None:
        self.replicas = replicas
        self.indexer = indexer
        self.worker = worker
        self.running = 0
        self.finished = 0

    def led_partitions(self, topic: str) -> list[int]:
        """The partitions of a topic that this broker leads, ascending.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        known = self.replicas.image.topics_by_name.get(topic)
        if known is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {topic}")
        local = (self.replicas.partitions.get((topic, index)) for index in sorted(known.partitions))
        return [partition.index for partition in local if partition is not None and partition.is_leader]

    def search(
        self, topic: str, indexes: Sequence[int], query: SearchQuery
    ) -> Completion[list[PartitionAnswer | KafkaError]]:
        """The answer of each partition, or its error.

        The errors are NOT_LEADER_OR_FOLLOWER and the like, and INVALID_REQUEST if the field is not indexed; of the completion
        THROTTLING_QUOTA_EXCEEDED (rule 4). Cancelling it ends the search.
        """
        if self.running >= MAX_SEARCHES:
            sentence = f"{MAX_SEARCHES} searches are running: try again"
            return failed(KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, sentence))
        self.running += 1
        size = _AnswerSize()
        searches = [_Search(self, topic, index, query, size) for index in indexes]
        for search in searches:
            search.begin()
        all_answers = all_done([search.answer for search in searches])
        answers = all_answers.map(lambda _: self._answers_of(searches))
        if not answers.is_done:
            answers.on_cancel = partial(self._cancel, all_answers)
        return answers

    def _cancel(self, all_answers: Completion[None]) -> None:
        self._on_end()
        all_answers.cancel()

    def _on_end(self) -> None:
        self.running -= 1
        self.finished += 1

    def _answers_of(self, searches: Sequence[_Search]) -> list[PartitionAnswer | KafkaError]:
        self._on_end()
        answers: list[PartitionAnswer | KafkaError] = []
        for search in searches:
            error = search.answer.error
            if error is None:
                answers.append(search.answer.value)
            elif isinstance(error, KafkaError):
                answers.append(error)
            else:
                raise error
        return answers


class _AnswerSize:
    """The size of the records that were found in all partitions."""

    bytes = 0


class _Search:
    """One search in one partition."""

    def __init__(self, owner: KeySearch, topic: str, index: int, query: SearchQuery, size: _AnswerSize) -> None:
        self._owner = owner
        self._topic = topic
        self._index = index
        self._query = query
        self._attempts = 0
        self._found: list[Record] = []
        self._directory, self._digest = "", b""
        """Of the index."""
        self._candidates = 0
        """How many were looked for the last time."""
        self._size = size
        self.answer: Completion[PartitionAnswer] = Completion()

    def begin(self) -> None:
        """Find out what is indexed, then look the value up."""
        self._attempts += 1
        self._size.bytes -= sum(map(size_of, self._found))
        self._found, self._candidates = [], 0
        bounds = self._owner.replicas.lookup(self._topic, self._index, self._bounds)
        bounds.then(lambda done: self._continue(done, lambda known: self._find(known, known.to_offset)))

    def _bounds(self, partition: Partition) -> PartitionAnswer | DiskLookup:
        """The answer without records."""
        if not partition.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        log = partition.log
        if self._query.field not in log.config.barnabas_index_keys:
            fields = ", ".join(log.config.barnabas_index_keys) or "empty"
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Topic {self._topic} has no index of {self._query.field}: its barnabas.index.keys is {fields}",
            )
        self._directory, self._digest = log.files.index_path, index_digest(log)
        opened = open_log(partition)
        if isinstance(opened, DiskLookup):
            return opened
        start_offset, end_offset = log.offsets.log_start_offset, opened.reader.last_stable_offset
        index = self._owner.indexer.index_of(log)
        if index is not None and index.fields == log.config.barnabas_index_keys:
            self._owner.indexer.validate(log, opened, index)
            to_offset, ranges = index.end_offset(start_offset), index.ranges
        else:
            to_offset, ranges = start_offset, []
        timed = [known for known in ranges if known.entry_count]
        least = min((known.min_timestamp_ms for known in timed), default=-1)
        greatest = max((known.max_timestamp_ms for known in timed), default=-1)
        to_offset = min(to_offset, end_offset)
        return PartitionAnswer(self._index, start_offset, to_offset, end_offset, least, greatest, False, [])

    def _find(self, known: PartitionAnswer, before_offset: int) -> None:
        """Look for candidates below an offset."""
        query = self._query
        wanted = max(query.limit + 1 - len(self._found), min(self._candidates * _MORE_CANDIDATES, _MOST_CANDIDATES))
        if before_offset <= known.from_offset:
            self._finish(known, is_cut=False)
            return
        self._candidates = wanted
        job = FindOffsets(
            self._directory,
            self._digest,
            query.field,
            query.value,
            known.from_offset,
            before_offset,
            query.from_ms,
            query.to_ms,
            wanted,
        )
        self._submit(job, lambda offsets: self._read(known, offsets, is_last=len(offsets) < wanted))

    def _read(self, known: PartitionAnswer, offsets: list[int], *, is_last: bool) -> None:
        """Read the batches of candidates, or finish if there are none."""
        if not offsets:
            self._finish(known, is_cut=False)
            return
        candidates = tuple(offsets)

        def attempt(partition: Partition) -> _Batches | DiskLookup:
            opened = open_log(partition)
            if isinstance(opened, DiskLookup):
                return opened
            return opened.engine.lookup(("key search", candidates), partial(_read_batches, offsets=candidates))

        read = self._owner.replicas.lookup(self._topic, self._index, attempt)
        read.then(
            lambda done: self._continue(done, lambda found: self._compare(known, offsets, found, is_last=is_last))
        )

    def _compare(self, known: PartitionAnswer, offsets: list[int], found: _Batches, *, is_last: bool) -> None:
        query, read = self._query, offsets[: found.candidates]
        conditions = query.field, query.value, query.from_ms, query.to_ms, MAX_ANSWER_BYTES
        job = MatchRecords(found.batches, frozenset(read), found.aborted, *conditions)
        is_last = is_last and len(read) == len(offsets)
        self._submit(job, lambda records: self._add(known, records, read[-1], is_last=is_last))

    def _add(self, known: PartitionAnswer, records: list[Record], last_offset: int, *, is_last: bool) -> None:
        for record in records:
            size = self._size.bytes + size_of(record)
            is_first = not self._found and not self._size.bytes
            if len(self._found) == self._query.limit or (size > MAX_ANSWER_BYTES and not is_first):
                self._finish(known, is_cut=True)
                return
            self._size.bytes = size
            self._found.append(record)
        if is_last:
            self._finish(known, is_cut=False)
        else:
            self._find(known, last_offset)

    def _finish(self, known: PartitionAnswer, *, is_cut: bool) -> None:
        self.answer.complete(known._replace(is_cut=is_cut, records=self._found))

    # ------------------------------------------------------------ steps
    def _submit(self, job: Job, on_result: Callable[[Any], None]) -> None:
        def on_done(done: Completion[Any]) -> None:
            result = done.value
            if self.answer.is_done:
                return
            if isinstance(result, JobFailed):
                self._fail(result)
            else:
                on_result(result)

        submitted = self._owner.worker.submit(job)
        self.answer.on_cancel = submitted.cancel
        submitted.then(on_done)

    def _continue(self, done: Completion[Any], on_value: Callable[[Any], None]) -> None:
        if self.answer.is_done:
            return
        if done.error is not None:
            self.answer.fail(done.error)
        else:
            on_value(done.value)

    def _fail(self, failure: JobFailed) -> None:
        """Repeat the search without the damaged file, or with the merged one (rule 5)."""
        partition = self._owner.replicas.partitions.get((self._topic, self._index))
        is_lost = failure.is_missing and self._attempts == _ATTEMPTS - 1
        if partition is not None and (failure.damaged is not None or is_lost):
            self._owner.indexer.on_failed(partition.log, failure)
        if self._attempts < _ATTEMPTS:
            self.begin()
        else:
            self.answer.fail(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"The search failed: {failure.text}"))


class _Batches(NamedTuple):
    """The batches of the first candidates."""

    batches: tuple[Buffer, ...]
    candidates: int
    """How many candidates were read for."""
    aborted: tuple[AbortedTransaction, ...]
    """With records between these candidates."""


def _read_batches(view: EngineView, offsets: tuple[int, ...]) -> _Batches:
    """Read the batches of descending offsets, each once, up to _BATCH_BYTES; on a reader thread.

    Compaction may have removed a batch: the log returns the next one, which has none of the lower offsets.
    """
    batches: list[Buffer] = []
    size = number = 0
    while number < len(offsets) and size < _BATCH_BYTES:
        offset = offsets[number]
        data = bytes(view.read_batches(offset, 0))
        base_offset = _base_offset(data)
        if base_offset <= offset:
            batches.append(data)
            size += len(data)
            number = bisect_left(offsets, -base_offset + 1, number, key=neg)
        else:
            number = _after_gap(view, offsets, number, base_offset)
    aborted = view.aborted(offsets[number - 1], offsets[0] + 1)
    return _Batches(tuple(batches), number, tuple(aborted))


def _base_offset(data: bytes) -> int:
    return parse_header(data).base_offset if data else MAX_LONG


def _after_gap(view: EngineView, offsets: tuple[int, ...], number: int, base_offset: int) -> int:
    """The number of the first offset that is below the gap in which the log has no batch; `base_offset` is after the gap."""

    def is_in_gap(at: int) -> bool:
        return at < len(offsets) and _base_offset(bytes(view.read_batches(offsets[at], 0))) == base_offset

    step = 1
    while is_in_gap(number + step):
        number, step = number + step, step * 2
    others = range(number + 1, min(number + step, len(offsets)))
    return others.start + bisect_left(others, True, key=lambda at: not is_in_gap(at))
