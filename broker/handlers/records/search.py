"""SearchRecords: searches in the key indexes of the partitions that this broker leads.

RULES    1. A client needs Read on the topic.
         2. A search takes at most TIMEOUT_MS; then it ends, and the request gets REQUEST_TIMED_OUT.
NOT HERE The search (replication/partition/key_search.py), the same over HTTP (`search_page.py`).
"""

from __future__ import annotations

from typing import Final

from broker.handlers.authorization import AuthorizingHandlers
from broker.handlers.router import RequestContext, Route
from broker.security.authorizer import Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.search import (
    FoundHeader,
    FoundRecord,
    SearchedPartition,
    SearchRecordsRequest,
    SearchRecordsResponse,
)
from protocol.records import Record
from replication.completion import Completion, completed
from replication.partition.key_search import MAX_RECORDS, KeySearch, PartitionAnswer, SearchQuery
from replication.timer_queue import TimerQueue

TIMEOUT_MS: Final = 5_000
_DENIED: Final = "Topic authorization failed."


class SearchHandler(AuthorizingHandlers):
    """Answers SearchRecords requests."""

    def __init__(self, search: KeySearch, timers: TimerQueue, authorizer: Authorizer) -> None:
        super().__init__(authorizer)
        self._search = search
        self._timers = timers

    def routes(self) -> list[Route]:
        """The rows of this module."""
        return [Route(ApiKey.SEARCH_RECORDS, 0, 0, self.handle, is_advertised=False)]

    def handle(self, ctx: RequestContext, request: SearchRecordsRequest) -> Completion[SearchRecordsResponse]:
        """Handle SearchRecords."""
        if not self._is_authorized(ctx, Operation.READ, Resource.TOPIC, request.topic):
            return completed(_refusal(KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, _DENIED)))
        query = SearchQuery(request.field, request.value, request.from_ms, request.to_ms, request.max_records)
        try:
            partitions = self._partitions(request)
        except KafkaError as error:
            return completed(_refusal(error))
        found = self._search.search(request.topic, partitions, query)
        response = found.handle(lambda done: _answer(partitions, done))
        late = KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"The search took more than {TIMEOUT_MS // 1000} s")

        def expire() -> None:
            response.complete(_refusal(late))
            found.cancel()

        response.expire_at(self._timers, ctx.mono_ms + TIMEOUT_MS, expire)
        return response

    def _partitions(self, request: SearchRecordsRequest) -> list[int]:
        if not 1 <= request.max_records <= MAX_RECORDS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"max_records is from 1 to {MAX_RECORDS}")
        wanted = request.partitions
        return self._search.led_partitions(request.topic) if wanted is None else list(dict.fromkeys(wanted))


def _refusal(error: KafkaError) -> SearchRecordsResponse:
    return SearchRecordsResponse(error_code=error.code, error_message=error.message, partitions=[])


def _answer(indexes: list[int], done: Completion[list[PartitionAnswer | KafkaError]]) -> SearchRecordsResponse:
    if isinstance(done.error, KafkaError):
        return _refusal(done.error)
    answers = [_partition(index, answer) for index, answer in zip(indexes, done.result(), strict=True)]
    return SearchRecordsResponse(error_code=ErrorCode.NONE, partitions=answers)


def _partition(index: int, answer: PartitionAnswer | KafkaError) -> SearchedPartition:
    if isinstance(answer, KafkaError):
        return SearchedPartition(
            partition_index=index,
            error_code=answer.code,
            error_message=answer.message,
            from_offset=-1,
            to_offset=-1,
            end_offset=-1,
            min_timestamp_ms=-1,
            max_timestamp_ms=-1,
            is_cut=False,
            records=[],
        )
    return SearchedPartition(
        partition_index=index,
        error_code=ErrorCode.NONE,
        from_offset=answer.from_offset,
        to_offset=answer.to_offset,
        end_offset=answer.end_offset,
        min_timestamp_ms=answer.min_timestamp_ms,
        max_timestamp_ms=answer.max_timestamp_ms,
        is_cut=answer.is_cut,
        records=[_record(record) for record in answer.records],
    )


def _record(record: Record) -> FoundRecord:
    headers = [FoundHeader(name=name.encode("utf-8", "surrogateescape"), value=value) for name, value in record.headers]
    return FoundRecord(
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        key=record.key,
        value=record.value,
        headers=headers,
    )
