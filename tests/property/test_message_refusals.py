"""Damaged frames: Kafka and our decoder accept and refuse the same ones."""

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

# Intentionally stricter (decoder_compiler.py rules 2 and 3, primitives.py): Kafka interprets such a number as
# negative, or continues at the end of a tagged field's value instead of its declared size.
STRICTER = ("does not fill its size", "more than 31 bits", "tagged fields", "elements or bytes")
# Kafka reads tags in any order, repeated, and the largest one, and then cannot write them.
CANNOT_WRITE = ("Invalid raw tag field list", "as an undefined tag")
# Java and Python may insert different numbers of these for invalid UTF-8.
BROKEN_TEXT = "\ufffd"


def has_null_marker_value(message: Message) -> bool:
    """Whether a tagged struct with a null marker is None here; Kafka decodes an absent one as a default struct."""
    return any(field.has_null_marker and getattr(message, field.name) is None for field in fields_of(type(message)))


@needs_kafka
def test_damaged_frames_are_accepted_or_refused_as_by_kafka() -> None:
    """Invalid nulls, odd booleans, invalid UTF-8, bytes after the message."""
    print(REPLAY)
    rng = random.Random(SEED)
    both = neither = 0
    for _ in range(FRAMES):
        cls, version = rng.choice(VERSIONS)
        frame = damaged(valid_frame(cls, version, rng), rng)
        ours, theirs = our_result(cls, version, frame), kafka_result(cls, version, frame)
        where = f"{cls.__name__} v{version} on {frame.hex()}: we {ours}, Kafka {theirs}; {REPLAY}"
        if isinstance(ours, str):
            assert isinstance(theirs, str) or any(reason in ours for reason in STRICTER), where
            neither += 1
        elif isinstance(theirs, str):
            assert any(reason in theirs for reason in CANNOT_WRITE), where
        else:
            message, end = ours
            assert theirs.left_over == len(frame) - end, where
            if BROKEN_TEXT not in repr(message) and not has_null_marker_value(message):
                assert theirs.written == encode(message, version), where
            both += 1
    assert FRAMES < 100 or (both and neither)


def our_result(cls: type[Message], version: int, frame: bytes) -> tuple[Message, int] | str:
    try:
        return decoder(cls, version)(frame, 0)
    except MalformedRequest as refusal:
        return f"refuse: {refusal}"


def kafka_result(cls: type[Message], version: int, frame: bytes) -> Reading | str:
    try:
        return kafka_messages().read(cls, version, frame)
    except KafkaRefuses as refusal:
        return f"refuses: {refusal}"
