"""Whatever a well-formed request asks for, it is answered with a code or refused; nothing is a fault of the broker.

The values are drawn from what is there (topics, groups, members), what is not, and the ends of every number's range.
"""

from __future__ import annotations

import os
import random
from typing import Any

from barnabas.embedded import Broker
from protocol.api import APIS, ApiKey
from protocol.messages.admin import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from protocol.messages.metadata import ApiVersionsRequest, MetadataRequest
from protocol.records import BatchBuilder
from protocol.schema import Field, Message, Wire, fields_of
from tests.support.raw_client import RawClient

REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "3000"))
SEED = int(os.environ.get("FUZZ_SEED") or random.randrange(2**32))
TOPICS = ("plain", "compacted", "__consumer_offsets", "nowhere", "", "a" * 249, "a" * 250, ".", "no name", "é")
SETTINGS = ("retention.ms", "cleanup.policy", "max.message.bytes", "segment.bytes", "min.insync.replicas", "none.such")
TEXTS = (*SETTINGS, "", "a", "1", "-1", "compact", "delete", "gzip", "é", "a\0b", "x" * 40)
BITS = {"b": 7, "h": 15, "i": 31, "q": 63}


class Drawer:
    """Draws requests from a vocabulary that grows with the answers."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.topic_ids = [bytes(16)]
        self.member_ids = ["", "nobody"]

    def message(self, cls: type[Message], version: int) -> Message:
        """A message of this class; a field that may be missing sometimes is."""
        values: dict[str, Any] = {}
        for field in fields_of(cls):
            if not field.is_in(version) or (field.has_default and self.rng.random() < 0.25):
                continue
            may_be_none = field.is_nullable_in(version) or (field.tag is not None and field.wire.kind == "struct")
            is_none = may_be_none and self.rng.random() < 0.25
            values[field.name] = None if is_none else self.value(field, field.wire, version)
        return cls(**values)

    def value(self, field: Field, wire: Wire, version: int) -> Any:
        """A value for a field, or for an element of it."""
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
        assert wire.message is not None
        return self.message(wire.message, version)

    def number(self, name: str, code: str) -> Any:
        """Small ones mostly; no wait is longer than the test's patience."""
        if code == "16s":
            return self.rng.choice((*self.topic_ids, self.rng.randbytes(16)))
        if code == "?":
            return self.rng.random() < 0.5
        if "timeout" in name or "wait" in name:
            return 6000 if "session" in name else self.rng.choice((0, 1, 5))
        if name in ("count", "num_partitions"):
            return self.rng.choice((1, 2, 3, 4, 0, -1))
        end = 1 << BITS.get(code, 7)
        return self.rng.choice((0, 0, 0, 1, 1, -1, -2, 2, 3, 100, end - 1, -end if code in BITS else 0))

    def text(self, name: str) -> str:
        """A name of something that is there, most of the time."""
        if "member" in name:
            return self.rng.choice(self.member_ids)
        if "group" in name:
            return self.rng.choice(("group0", "group1", "", "x" * 300))
        if "protocol" in name:
            return "consumer" if name == "protocol_type" else "range"
        return self.rng.choice(TOPICS if name in ("name", "topic", "topics", "resource_name") else TEXTS)

    def batch(self) -> bytes:
        """A batch that may be whole."""
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


def test_no_request_is_a_fault() -> None:
    """The log tells of peers that were hung up on, and of no fault; the broker still answers at the end."""
    print(f"replay with FUZZ_SEED={SEED} FUZZ_REQUESTS={REQUESTS}")
    drawer = Drawer(random.Random(SEED))
    with Broker(settings={"group.initial.rebalance.delay.ms": 0}) as broker:
        client = RawClient(broker.bootstrap)
        served = client.ask(ApiVersionsRequest(), 0).api_keys
        for name, policy in (("plain", "delete"), ("compacted", "compact")):
            config = CreatableTopicConfig(name="cleanup.policy", value=policy)
            topic = CreatableTopic(name=name, num_partitions=2, replication_factor=1, configs=[config])
            client.ask(CreateTopicsRequest(topics=[topic]), 5)
        drawer.topic_ids += [topic.topic_id for topic in client.ask(MetadataRequest(topics=None), 12).topics]
        for _ in range(REQUESTS):
            row = drawer.rng.choice(served)
            cls = APIS[row.api_key].request
            version = drawer.rng.randint(max(row.min_version, cls.MIN_VERSION), row.max_version)
            request: Any = drawer.message(cls, version)
            try:
                client.send(request, version)
                if row.api_key == ApiKey.PRODUCE and request.acks == 0:
                    continue
                drawer.member_ids[2:] = [*drawer.member_ids[2:], *_member_id(client.receive(request, version))][-4:]
            except (EOFError, OSError):  # hung up on, which the log tells why; or longer than our patience
                client.close()
                client = RawClient(broker.bootstrap)
            client.socket.settimeout(1)
        client.close()
        assert broker.is_running
        with RawClient(broker.bootstrap) as client:
            assert client.ask(ApiVersionsRequest(), 0).error_code == 0
        assert "fault" not in broker.log(), broker.log()


def _member_id(answer: Any) -> list[str]:
    found = getattr(answer, "member_id", "")
    return [found] if found else []
