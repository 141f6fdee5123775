"""Random requests of any API and version.

Values are existing and unknown names, and the limits of every number's range.

NOT HERE Malformed frames (`tests/oracle/mutations.py`), sending (`tests/process/fuzzing_peer.py`).
"""

from __future__ import annotations

import random
from typing import Any

from protocol.api import APIS
from protocol.batch_builder import BatchBuilder
from protocol.schema import Field, Message, Wire, wire_of

OFFSETS_TOPIC = "__consumer_offsets"
TOPICS = ("plain", "compacted", "nowhere", "", "a" * 249, "a" * 250, ".", "no name", "é")
SETTINGS = ("retention.ms", "cleanup.policy", "max.message.bytes", "segment.bytes", "min.insync.replicas", "none.such")
TEXTS = (*SETTINGS, "", "a", "1", "-1", "compact", "delete", "gzip", "é", "a\0b", "x" * 40)
BITS = {"b": 7, "h": 15, "i": 31, "q": 63}


class Drawer:
    """Generates requests from a vocabulary that grows with the responses."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.topics: tuple[str, ...] = TOPICS
        self.topic_ids = [bytes(16)]
        self.member_ids = ["", "unknown"]
        self.session_ids = [0, 1]
        self.cluster_ids = ["unknown-cluster"]
        self.broker_epochs = [-1, 0]

    def request(self, api_key: int, version: int) -> Message:
        """A request of an API and version."""
        return self.message(APIS[api_key].request, version)

    def learn(self, answer: Message) -> None:
        """Remember the latest member and session ids."""
        if member_id := getattr(answer, "member_id", ""):
            self.member_ids[2:] = [*self.member_ids[2:], member_id][-4:]
        if session_id := getattr(answer, "session_id", 0):
            self.session_ids[2:] = [*self.session_ids[2:], session_id][-4:]

    def message(self, cls: type[Message], version: int) -> Message:
        """A message of this class; optional fields are sometimes missing."""
        return self.struct(wire_of(cls), version)

    def struct(self, struct: Wire, version: int) -> Message:
        """A message or nested struct of this type."""
        values: dict[str, Any] = {}
        for field in struct.fields:
            if not field.is_in(version) or (field.has_default and self.rng.random() < 0.25):
                continue
            may_be_none = field.is_nullable_in(version) or (field.tag is not None and field.wire.kind == "struct")
            is_none = may_be_none and self.rng.random() < 0.25
            values[field.name] = None if is_none else self.value(field, field.wire, version)
        assert struct.message is not None
        return struct.message(**values)

    def value(self, field: Field, wire: Wire, version: int) -> Any:
        """A value for a field or array element."""
        if wire.kind == "fixed":
            return self.number(field.name, wire.code)
        if wire.kind in ("string", "legacy_string"):
            return self.text(field.name)
        if wire.kind == "records":
            return self.batch()
        if wire.kind == "bytes":
            return self.rng.randbytes(self.rng.choice((0, 3, 61)))
        if wire.kind == "array":
            assert wire.element is not None
            return [self.value(field, wire.element, version) for _ in range(self.rng.choice((0, 1, 1, 1, 2, 3)))]
        return self.struct(wire, version)

    def number(self, name: str, code: str) -> Any:
        """Mostly small numbers; short timeouts."""
        if code == "16s":
            return self.rng.choice((*self.topic_ids, self.rng.randbytes(16)))
        if code == "H":
            return self.rng.choice((0, 1, 9092, 65_535))
        if code == "?":
            return self.rng.random() < 0.5
        if name == "session_id":
            return self.rng.choice(self.session_ids)
        if name == "broker_epoch":
            return self.rng.choice(self.broker_epochs)
        if "timeout" in name or "wait" in name:
            return 6000 if "session" in name else self.rng.choice((0, 1, 5))
        if name in ("count", "num_partitions"):
            return self.rng.choice((1, 2, 3, 4, 0, -1))
        end = 1 << BITS.get(code, 7)
        return self.rng.choice((0, 0, 0, 1, 1, -1, -2, 2, 3, 100, end - 1, -end if code in BITS else 0))

    def text(self, name: str) -> str:
        """Mostly a name that exists."""
        if name == "cluster_id":
            return self.rng.choice(self.cluster_ids)
        if "member" in name:
            return self.rng.choice(self.member_ids)
        if "group" in name:
            return self.rng.choice(("group0", "group1", "", "x" * 300))
        if "protocol" in name:
            return "consumer" if name == "protocol_type" else "range"
        return self.rng.choice(self.topics if name in ("name", "topic", "topics", "resource_name") else TEXTS)

    def batch(self) -> bytes:
        """A batch, sometimes corrupt."""
        rng = self.rng
        builder = BatchBuilder(
            producer_id=rng.choice((-1, 0, 1)), producer_epoch=rng.choice((-1, 0)), base_sequence=rng.choice((-1, 0, 1))
        )
        builder.append(
            rng.choice((0, -1, 1_700_000_000_000, 2**62)), rng.choice((None, b"key")), rng.choice((None, b"v"))
        )
        data = builder.build()
        if rng.random() < 0.2:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(data[: rng.randrange(len(data))] if rng.random() < 0.1 else data)
