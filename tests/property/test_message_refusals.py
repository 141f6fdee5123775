"""What Kafka reads in a damaged frame, we read; what it refuses, we refuse."""

from __future__ import annotations

import os
import random

from protocol.codec import decoder, encode
from protocol.errors import MalformedRequest
from protocol.schema import Message, fields_of
from tests.oracle.kafka_messages import KafkaRefuses, Reading, kafka_messages
from tests.oracle.mutations import damaged, valid_frame
from tests.oracle.values import VERSIONS
from tests.support.kafka import needs_kafka
from tests.support.seeds import seed_of

FRAMES = int(os.environ.get("FUZZ_REFUSALS", "5000"))
SEED = seed_of("FUZZ_SEED")
REPLAY = f"replay with FUZZ_SEED={SEED} FUZZ_REFUSALS={FRAMES}"

# Where we are stricter on purpose (decoders.py rules 2 and 3, primitives.py): Kafka takes such a number for a
# negative one, or goes on where a tagged field's value ended instead of where its size says.
STRICTER = ("does not fill its size", "more than 32 bits", "tagged fields", "elements or bytes")
# Kafka reads tags in any order, twice, and the largest, and then cannot write what it has read.
CANNOT_WRITE = ("Invalid raw tag field list", "as an undefined tag")
# Java and Python do not always put the same number of these in the place of bytes that are no UTF-8.
BROKEN_TEXT = "\ufffd"


def takes_for_null(message: Message) -> bool:
    """Whether a tagged struct that may be null is null here; one that is not there at all Kafka takes for a blank one."""
    return any(field.says_whether_null and getattr(message, field.name) is None for field in fields_of(type(message)))


@needs_kafka
def test_kafka_and_we_agree_on_damaged_frames() -> None:
    """Null where it is not allowed, odd booleans, broken UTF-8, bytes behind the message: as Kafka takes them."""
    print(REPLAY)
    rng = random.Random(SEED)
    both = neither = 0
    for _ in range(FRAMES):
        cls, version = rng.choice(VERSIONS)
        frame = damaged(valid_frame(cls, version, rng), rng)
        ours, theirs = our_verdict(cls, version, frame), kafka_verdict(cls, version, frame)
        where = f"{cls.__name__} v{version} on {frame.hex()}: we {ours}, Kafka {theirs}; {REPLAY}"
        if isinstance(ours, str):
            assert isinstance(theirs, str) or any(reason in ours for reason in STRICTER), where
            neither += 1
        elif isinstance(theirs, str):
            assert any(reason in theirs for reason in CANNOT_WRITE), where
        else:
            message, end = ours
            assert theirs.left_over == len(frame) - end, where
            if BROKEN_TEXT not in repr(message) and not takes_for_null(message):
                assert theirs.written == encode(message, version), where
            both += 1
    assert FRAMES < 100 or (both and neither)


def our_verdict(cls: type[Message], version: int, frame: bytes) -> tuple[Message, int] | str:
    try:
        return decoder(cls, version)(frame, 0)
    except MalformedRequest as refusal:
        return f"refuse: {refusal}"


def kafka_verdict(cls: type[Message], version: int, frame: bytes) -> Reading | str:
    try:
        return kafka_messages().read(cls, version, frame)
    except KafkaRefuses as refusal:
        return f"refuses: {refusal}"
