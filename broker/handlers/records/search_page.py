"""Searches over HTTP, for clients without our API: `GET /search` of the metrics listener.

FORMAT   /search?topic=T&key=K or &header=NAME=VALUE, and optionally from=MS, to=MS (excluded), max=N; percent-encoded bytes
             {"topic":…, "records":[{"partition","offset","timestamp","key","value","headers":[{"key","value"}]}],
              "partitions":[{"partition","from_offset","to_offset","end_offset","from_timestamp","to_timestamp","is_cut"}],
              "led_elsewhere":[{"partition","leader"}]}
             bytes that are UTF-8 are a string, others {"base64":…}; an error is {"error":…}
RULES    1. Searched are the partitions that this node leads; `led_elsewhere` names the nodes to ask for the others.
         2. Records are the newest of all partitions by timestamp, at most `max`. An answer is complete from `from_offset` to
            before `to_offset` of each partition, unless `is_cut`.
         3. The listener has no authentication, so a request is User:ANONYMOUS at its address: with an authorizer, that
            principal needs Read on the topic.
NOT HERE Sockets (`broker/telemetry/page.py`), the search (replication/partition/key_search.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

from broker.handlers.records.search import TIMEOUT_MS
from broker.security.authorizer import ANONYMOUS, Authorizer, Operation, Requester, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import json_value
from protocol.records import Record
from replication.completion import Completion, completed
from replication.partition.key_search import MAX_RECORDS, KeySearch, PartitionAnswer, SearchQuery
from replication.timer_queue import Clock, TimerQueue

DEFAULT_RECORDS: Final = 64
_ALL_TIMES: Final = (-(1 << 63), (1 << 63) - 1)
_PARAMETERS: Final = {"topic", "key", "header", "from", "to", "max"}
_STATUS: Final = {
    ErrorCode.INVALID_REQUEST: 400,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: 403,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 404,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: 429,
}
"""Of errors; others are 503: the client may try again."""

HttpAnswer = tuple[int, Iterator[str]]
"""Status and the parts of the body: one for each record, whose JSON may need some milliseconds."""


@dataclass(slots=True)
class _HttpConnection:
    peer_host: str
    principal: str = ANONYMOUS


class _HttpRequest(NamedTuple):
    """A request as authorizers see it (rule 3)."""

    connection: Requester
    api_key: int = ApiKey.SEARCH_RECORDS


class SearchPage:
    """Answers `GET /search`."""

    def __init__(self, search: KeySearch, authorizer: Authorizer, timers: TimerQueue, clock: Clock) -> None:
        self._search = search
        self._authorizer = authorizer
        self._timers = timers
        self._clock = clock

    def answer(self, query: str, peer_host: str) -> Completion[HttpAnswer]:
        """The answer to a query string."""
        try:
            topic, wanted = parse_query(query)
            self._authorize(topic, peer_host)
            partitions = self._search.led_partitions(topic)
        except KafkaError as error:
            return completed(_error(error))
        found = self._search.search(topic, partitions, wanted)
        response = found.handle(lambda done: self._page(topic, wanted.limit, done))
        late = KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"the search took more than {TIMEOUT_MS // 1000} s")
        at_mono_ms = self._clock.mono_ms() + TIMEOUT_MS

        def expire() -> None:
            response.complete(_error(late))
            found.cancel()

        response.expire_at(self._timers, at_mono_ms, expire)
        return response

    def _authorize(self, topic: str, peer_host: str) -> None:
        request = _HttpRequest(_HttpConnection(peer_host))
        if not self._authorizer.authorize(request, Operation.READ, Resource.TOPIC, topic):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{ANONYMOUS} has no Read on topic {topic}")

    def _page(self, topic: str, limit: int, done: Completion[list[PartitionAnswer | KafkaError]]) -> HttpAnswer:
        if isinstance(done.error, KafkaError):
            return _error(done.error)
        answers: list[PartitionAnswer] = []
        for answer in done.result():
            if isinstance(answer, KafkaError):
                return _error(answer)
            answers.append(answer)
        records = [(answer.partition, record) for answer in answers for record in answer.records]
        records.sort(key=lambda found: (-found[1].timestamp_ms, found[0], -found[1].offset))
        rest = {
            "partitions": [_bounds(answer, records[limit:]) for answer in answers],
            "led_elsewhere": self._led_elsewhere(topic, {answer.partition for answer in answers}),
        }
        return 200, _body(topic, records[:limit], rest)

    def _led_elsewhere(self, topic: str, searched: set[int]) -> list[dict[str, int]]:
        known = self._search.replicas.image.topics_by_name.get(topic)
        states = {} if known is None else known.partitions
        return [
            {"partition": index, "leader": state.leader}
            for index, state in sorted(states.items())
            if index not in searched
        ]


def parse_query(query: str) -> tuple[str, SearchQuery]:
    """The topic and the query.

    Raises:
        KafkaError: INVALID_REQUEST.
    """
    text = query.encode("latin-1").decode("utf-8", "surrogateescape")
    given = parse_qsl(text, keep_blank_values=True, errors="surrogateescape")
    values = {name: value.encode("utf-8", "surrogateescape") for name, value in given}
    unknown = sorted(values.keys() - _PARAMETERS)
    if unknown or len(values) < len(given):
        raise _invalid(f"there is no parameter {unknown[0]}" if unknown else "a parameter is repeated")
    if not values.get("topic") or ("key" in values) == ("header" in values):
        raise _invalid("name a topic, and either a key or a header, such as /search?topic=orders&key=42")
    field, value = "key", values.get("key", b"")
    if "header" in values:
        name, equals, value = values["header"].partition(b"=")
        if not name or not equals:
            raise _invalid("a header is NAME=VALUE")
        field = "header:" + name.decode("utf-8", "surrogateescape")
    times = _number(values, "from", _ALL_TIMES[0]), _number(values, "to", _ALL_TIMES[1])
    limit = _number(values, "max", DEFAULT_RECORDS)
    if not 1 <= limit <= MAX_RECORDS:
        raise _invalid(f"max is from 1 to {MAX_RECORDS}")
    return values["topic"].decode("utf-8", "replace"), SearchQuery(field, value, *times, limit)


def _number(values: dict[str, bytes], name: str, default: int) -> int:
    text = values.get(name)
    if text is None:
        return default
    if not text.removeprefix(b"-").isdigit() or len(text) > 18:
        raise _invalid(f"{name} is a number; times are milliseconds since 1970")
    return int(text)


def _body(topic: str, records: Sequence[tuple[int, Record]], rest: dict[str, Any]) -> Iterator[str]:
    yield f'{{"topic": {_json(topic)}, "records": ['
    for number, (partition, record) in enumerate(records):
        yield f"{', ' if number else ''}{_json(_record(partition, record))}"
    yield f"], {_json(rest)[1:]}\n"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _invalid(sentence: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, sentence)


def _error(error: KafkaError) -> HttpAnswer:
    text = (error.message or error.code.name).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return _STATUS.get(error.code, 503), iter([_json({"error": text}) + "\n"])


def _bounds(answer: PartitionAnswer, left_out: Sequence[tuple[int, Record]]) -> dict[str, Any]:
    return {
        "partition": answer.partition,
        "from_offset": answer.from_offset,
        "to_offset": answer.to_offset,
        "end_offset": answer.end_offset,
        "from_timestamp": answer.min_timestamp_ms,
        "to_timestamp": answer.max_timestamp_ms,
        "is_cut": answer.is_cut or any(partition == answer.partition for partition, _ in left_out),
    }


def _record(partition: int, record: Record) -> dict[str, Any]:
    return {
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": json_value(record.key),
        "value": json_value(record.value),
        "headers": [
            {"key": json_value(name.encode("utf-8", "surrogateescape")), "value": json_value(value)}
            for name, value in record.headers
        ],
    }
