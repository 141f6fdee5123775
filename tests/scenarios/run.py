"""Runs a scenario: text with commands, each followed by the expected responses.

FORMAT   # ...                              a comment
         > ACTOR API.VERSION field=... ...   ACTOR sends a request; fields as Python literals, structs as dict(...)
         < ACTOR field=... ...               a response to ACTOR: the fields that differ from their defaults
         . ACTOR waits                       no response yet
         = advance MS                        advance the time
         = topic NAME PARTITIONS             create a topic;  = delete NAME  deletes it
         = restart                           restart the broker
         ! SETTING=VALUE ...                  first line: the differences from `SETTINGS`
RULES    1. Expected lines follow their command: the actor's own response first, then those of others by name.
         2. Member ids are shown as ACTOR-1, ACTOR-2, ... in order of appearance, and can be used so in requests.
         3. Embedded messages of the classic protocol are written as subscription(topics=[...]) and assignment(...), with
            version=1 by default.
         4. Topic ids are written and shown as id('NAME'), producer ids as pid(1), pid(2), ... in order of appearance;
            a time is shown as 1.
         5. Lists in the order of a Java hash map (members, groups, partitions) are shown sorted.
         6. A missing response is detected after a time: `OWN_MS` for the sending actor, `OTHERS_MS`
            for each other waiting actor. The timeouts in a scenario must be longer.
NOT HERE The worlds in which a scenario can run (`tests/support/group_harness.py`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any, Protocol

from protocol.api import APIS
from protocol.codec import encode
from protocol.errors import ErrorCode
from protocol.messages.groups import ConsumerProtocolAssignment, ConsumerProtocolSubscription, ListGroupsResponse
from protocol.messages.transactions import ListTransactionsResponse
from protocol.schema import EMPTY, Message, Wire, blank, fields_of, wire_of

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|^[0-9A-Za-z_][0-9A-Za-z_-]{21}$")
_CLASSES = {api.request.__name__.removesuffix("Request"): api.request for api in APIS.values()}
_EMBEDDED = {"subscription": ConsumerProtocolSubscription, "assignment": ConsumerProtocolAssignment}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "JoinGroup": {
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    },
    "SyncGroup": {"assignments": [], "protocol_type": "consumer", "protocol_name": "range"},
    "InitProducerId": {"transaction_timeout_ms": 60_000},
    "TxnOffsetCommit": {"committed_metadata": ""},
    "ListTransactions": {"state_filters": [], "producer_id_filters": []},
    "ConsumerGroupDescribe": {"include_authorized_operations": False},
    "OffsetCommit": {"generation_id_or_member_epoch": -1, "member_id": "", "committed_metadata": ""},
}
SETTINGS: dict[str, Any] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "group.consumer.assignment.interval.ms": 0,
    "offsets.topic.num.partitions": 5,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
}
"""The default settings of scenarios; all others are Kafka's defaults."""

OWN_MS = 250
OTHERS_MS = 60

_SORTED = {
    "members": "member_id",
    "groups": "group_id",
    "results": "group_id",
    "partitions": "partition_index",
    "results_by_partition": "partition_index",
    "results_by_topic_v3_and_below": "name",
    "topic_results": "name",
    "results_by_transaction": "transactional_id",
    "transaction_states": "transactional_id",
}


def settings_of(text: str) -> dict[str, Any]:
    """The settings of a scenario."""
    settings = dict(SETTINGS)
    for line in text.splitlines():
        if line.startswith("!"):
            for pair in line[1:].split():
                name, _, value = pair.partition("=")
                settings[name] = int(value) if value.isdigit() else value
    return settings


class ScenarioTarget(Protocol):
    """The broker that a scenario runs against."""

    def create_topic(self, name: str, partitions: int) -> None: ...
    def delete_topic(self, name: str) -> None: ...
    def topic_id(self, name: str) -> bytes: ...
    def send(self, actor: str, request: Message, version: int) -> None: ...
    def take(self, actor: str, patience_ms: int) -> Message | None: ...
    def advance(self, ms: int) -> None: ...
    def restart(self) -> None: ...


class Names:
    """Stable names for generated ids."""

    def __init__(self, harness: ScenarioTarget) -> None:
        self._world = harness
        self._shown: dict[str, str] = {}
        self._real: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._topics: dict[bytes, str] = {}
        self._producers: dict[int, int] = {}

    def show(self, value: str) -> str:
        """A string as the transcript shows it."""
        if value in self._shown:
            return self._shown[value]
        match = _UUID.search(value)
        if match is None:
            return value
        prefix = value[: match.start()].rstrip("-") or "member"
        self._counts[prefix] = self._counts.get(prefix, 0) + 1
        shown = f"{prefix}-{self._counts[prefix]}"
        self._shown[value] = shown
        self._real[shown] = value
        return shown

    def real(self, value: str) -> str:
        """A string as the broker knows it."""
        return self._real.get(value, value)

    def show_producer(self, producer_id: int) -> str:
        """A producer id as the transcript shows it."""
        return f"pid({self._producers.setdefault(producer_id, len(self._producers) + 1)})"

    def producer(self, number: int) -> int:
        """The producer id with this number; an unused id for an unknown number."""
        return next((known for known, shown in self._producers.items() if shown == number), 2**62 + number)

    def topic(self, name: str) -> bytes:
        """The id of a topic."""
        topic_id = self._world.topic_id(name)
        self._topics[topic_id] = name
        return topic_id

    def show_bytes(self, value: bytes) -> str:
        """Bytes as the transcript shows them."""
        value = bytes(value)
        return f"id({self._topics[value]!r})" if value in self._topics else repr(value)


class Runner:
    """Runs commands against a target and writes the transcript."""

    def __init__(self, harness: ScenarioTarget) -> None:
        self._world = harness
        self._names = Names(harness)
        self.waiting: set[str] = set()
        """Actors that wait for a response."""
        self.named: set[str] = set()
        """All names in the scenario: a shared broker has groups of other scenarios."""

    def run(self, text: str) -> str:
        """The transcript: comments and commands of the scenario, with the actual responses."""
        self.named = set(re.findall(r"'([^']*)'", text))
        steps = (self.step(line) for line in text.splitlines() if not line.startswith(("<", ".")))
        return "\n".join(line for step in steps for line in step) + "\n"

    def step(self, line: str) -> list[str]:
        """One line of a scenario, and its responses."""
        if line.startswith(">"):
            return [line, *self._send(line[1:].strip())]
        if line.startswith("="):
            return [line, *self._do(*line[1:].split())]
        return [line]

    def _do(self, verb: str, *args: str) -> Iterator[str]:
        if verb == "advance":
            self._world.advance(int(args[0]))
        elif verb == "topic":
            self._world.create_topic(args[0], int(args[1]))
            self._names.topic(args[0])
        elif verb == "delete":
            self._world.delete_topic(args[0])
        else:
            assert verb == "restart", f"no such command: {verb}"
            self._world.restart()
            self.waiting.clear()
        yield from self._others("")

    def _send(self, command: str) -> Iterator[str]:
        actor, rest = command.split(" ", 1)
        api, _, fields = rest.partition(" ")
        name, version = api.split(".")
        request = self._request(name, int(version), fields)
        self._world.send(actor, request, int(version))
        self.waiting.add(actor)
        answer = self._world.take(actor, OWN_MS)
        if answer is None:
            yield f". {actor} waits"
        else:
            yield self._show(actor, answer)
        yield from self._others(actor)

    def _others(self, actor: str) -> Iterator[str]:
        for other in sorted(self.waiting - {actor}):
            answer = self._world.take(other, OTHERS_MS)
            if answer is not None:
                yield self._show(other, answer)

    # ---- requests

    def _request(self, name: str, version: int, fields: str) -> Message:
        call = ast.parse(f"f({', '.join(_split(fields))})", mode="eval").body
        assert isinstance(call, ast.Call)
        values = {str(keyword.arg): self._value(keyword.value) for keyword in call.keywords}
        cls = _CLASSES[name]
        for key, default in _DEFAULTS.get(name, {}).items():
            field = next((field for field in fields_of(cls) if field.name == key), None)
            if field is not None and field.is_in(version):
                values.setdefault(key, default)
        return _build(wire_of(cls), values)

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return self._names.real(node.value) if isinstance(node.value, str) else node.value
        if isinstance(node, ast.List):
            return [self._value(element) for element in node.elts]
        if isinstance(node, ast.UnaryOp):
            return ast.literal_eval(node)
        if isinstance(node, ast.BinOp):
            return self._value(node.left) * self._value(node.right)
        assert isinstance(node, ast.Call)
        assert isinstance(node.func, ast.Name)
        if node.func.id == "id":
            return self._names.topic(self._value(node.args[0]))
        if node.func.id == "pid":
            return self._names.producer(self._value(node.args[0]))
        values = {str(keyword.arg): self._value(keyword.value) for keyword in node.keywords}
        if node.func.id in _EMBEDDED:
            version = values.pop("version", 1)
            return version.to_bytes(2, "big") + encode(_build(wire_of(_EMBEDDED[node.func.id]), values), version)
        return values

    # ---- answers

    def _show(self, actor: str, answer: Message) -> str:
        self.waiting.discard(actor)
        if isinstance(answer, ListGroupsResponse):
            answer.groups = [group for group in answer.groups if group.group_id in self.named]
        if isinstance(answer, ListTransactionsResponse):
            answer.transaction_states = [
                known for known in answer.transaction_states if known.transactional_id in self.named
            ]
        return f"< {actor} {self._fields(answer)}".rstrip()

    def _fields(self, message: Message) -> str:
        shown = []
        for field in fields_of(type(message)):
            value = getattr(message, field.name)
            if field.name.endswith("error_code"):
                if value or not _has_error_below(message):
                    shown.append(f"error={ErrorCode(value).name}")
            elif field.name == "producer_id" and value >= 0:
                if not getattr(message, "error_code", 0):
                    shown.append(f"producer_id={self._names.show_producer(value)}")
            elif field.name == "transaction_start_time_ms" and value > 0:
                shown.append("transaction_start_time_ms=1")
            elif value != (field.default if field.default is not EMPTY else []):
                shown.append(f"{field.name}={self._show_value(field.name, value)}")
        return " ".join(shown)

    def _show_value(self, name: str, value: Any) -> str:
        if isinstance(value, str):
            return repr(self._names.show(value))
        if isinstance(value, bytes | bytearray | memoryview):
            return self._names.show_bytes(bytes(value))
        if isinstance(value, list):
            items = sorted(value) if name == "partitions" and value and isinstance(value[0], int) else value
            if name in _SORTED and value and isinstance(value[0], Message):
                items = sorted(value, key=lambda item: self._sort_key(getattr(item, _SORTED[name])))
            return f"[{', '.join(self._show_value('', item) for item in items)}]"
        return f"({self._fields(value)})" if isinstance(value, Message) else repr(value)

    def _sort_key(self, value: str | int) -> tuple[int, str]:
        return (value, "") if isinstance(value, int) else (0, self._names.show(value))


def _has_error_below(message: Message) -> bool:
    return type(message).__name__.endswith(("DescribedGroup", "DeletableGroupResult"))


def _split(fields: str) -> list[str]:
    """Split fields at spaces outside of brackets and quotes."""
    found, depth, quote, start = [], 0, "", 0
    for at, char in enumerate(fields):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([":
            depth += 1
        elif char in ")]":
            depth -= 1
        elif char == " " and not depth:
            found.append(fields[start:at])
            start = at + 1
    found.append(fields[start:])
    return [field for field in found if field]


def _build(struct: Wire, values: dict[str, Any]) -> Message:
    """A message from plain values."""
    built: dict[str, Any] = {}
    for field in struct.fields:
        if field.name in values:
            value = values[field.name]
            nested = field.wire.element
            if nested is not None and nested.kind == "struct" and value is not None:
                value = [_build(nested, item) for item in value]
            built[field.name] = value
    assert struct.message is not None
    return blank(struct.message, **built)
