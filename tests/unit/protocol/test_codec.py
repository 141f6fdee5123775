"""The rules of the wire format, with bytes written by hand (protocol/codec.py, encoder_compiler.py, decoder_compiler.py)."""

from __future__ import annotations

import tracemalloc

import pytest

from protocol.codec import decode, decoder, encode, encoder, request_decoder
from protocol.codegen import MAX_REQUEST_ELEMENTS
from protocol.errors import MalformedRequest
from protocol.messages.admin import CreatableTopicResult, CreateTopicsResponse, DeleteTopicsRequest
from protocol.messages.delegation_tokens import CreateDelegationTokenRequest
from protocol.messages.groups import ListGroupsRequest
from protocol.messages.metadata import (
    ApiVersionsRequest,
    Cursor,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from protocol.messages.produce_fetch import (
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ProduceRequest,
)
from protocol.messages.stored_records import BrokerRegistrationChangeRecord, FeatureLevelRecord
from protocol.primitives import uvarint
from protocol.schema import Message
from tests.support.messages import message


class Region:
    """The part of a file region that an encoder uses."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length


def produce_request(records: bytes) -> ProduceRequest:
    topics = [{"name": "t", "partition_data": [{"index": 0, "records": records}]}]
    return message(ProduceRequest, acks=1, timeout_ms=1000, topic_data=topics)


def fetch_response(*records: object) -> FetchResponse:
    partitions = [
        {"partition_index": index, "error_code": 0, "high_watermark": 0, "records": None}
        for index in range(len(records))
    ]
    response = message(FetchResponse, responses=[{"topic": "t", "partitions": partitions}])
    for partition, value in zip(response.responses[0].partitions, records, strict=True):
        partition.records = value  # type: ignore[assignment]
    return response


def test_records_are_a_writable_view_into_the_frame() -> None:
    for version in (8, 9):
        frame = bytearray(b"??" + encode(produce_request(b"batch"), version))
        records = decoder(ProduceRequest, version)(frame, 2)[0].topic_data[0].partition_data[0].records
        assert isinstance(records, memoryview)
        records[0:1] = b"B"
        assert b"Batch" in frame


@pytest.mark.parametrize("version", [11, 12])
def test_file_regions_become_parts_of_their_own(version: int) -> None:
    """The bytes before, between and after them are parts in memory."""
    regions = [Region(100), Region(200)], [Region(7)]
    parts = encoder(FetchResponse, version)(fetch_response(*regions))
    assert [type(part) for part in parts] == [
        bytearray,
        Region,
        Region,
        bytearray,
        Region,
        *[bytearray] * (version > 11),
    ]
    in_memory = {100: b"x" * 100, 200: b"x" * 200, 7: b"y" * 7}
    whole = b"".join(in_memory[len(part)] if isinstance(part, Region) else part for part in parts)  # type: ignore[misc]
    assert whole == encode(fetch_response(b"x" * 300, b"y" * 7), version)


@pytest.mark.parametrize("version", [11, 12])
@pytest.mark.parametrize("nothing", [b"", [], bytearray(), memoryview(b"")])
def test_empty_records_add_no_part(version: int, nothing: object) -> None:
    """An empty part would cost a system call. Empty is not null."""
    parts = encoder(FetchResponse, version)(fetch_response(nothing))
    assert len(parts) == 1
    read = decode(FetchResponse, version, bytes(parts[0]))  # type: ignore[arg-type]
    assert read.responses[0].partitions[0].records == b""
    null = decode(FetchResponse, version, encode(fetch_response(None), version))
    assert null.responses[0].partitions[0].records is None


def test_encoding_does_not_copy_records_in_memory() -> None:
    batch = bytearray(b"b" * 1000)
    assert encoder(ProduceRequest, 9)(produce_request(batch))[1] is batch  # type: ignore[arg-type]


def test_a_decoder_returns_the_end_position() -> None:
    frame = encode(MetadataRequest(topics=None), 9)
    assert decoder(MetadataRequest, 9)(b"ab" + frame + b"cde", 2) == (MetadataRequest(topics=None), 2 + len(frame))


def test_codecs_are_compiled_once() -> None:
    assert encoder(MetadataRequest, 9) is encoder(MetadataRequest, 9)
    assert decoder(MetadataRequest, 9) is decoder(MetadataRequest, 9)
    assert decoder(MetadataRequest, 9) is not decoder(MetadataRequest, 10)


@pytest.mark.parametrize("version", [-1, 14])
def test_an_undefined_version_raises_value_error(version: int) -> None:
    with pytest.raises(ValueError, match="MetadataRequest has versions 0 to 13"):
        decoder(MetadataRequest, version)
    with pytest.raises(ValueError, match="MetadataRequest has versions 0 to 13"):
        encoder(MetadataRequest, version)


def test_any_nonzero_byte_is_true() -> None:
    frame = bytearray(encode(MetadataRequest(topics=None, allow_auto_topic_creation=False), 4))
    assert decode(MetadataRequest, 4, frame).allow_auto_topic_creation is False
    frame[-1] = 0x80
    assert decode(MetadataRequest, 4, frame).allow_auto_topic_creation is True


def test_invalid_utf8_decodes_to_replacement_characters() -> None:
    """A client id in Latin-1 does not close the connection."""
    frame = b"\x05caf\xe9\x02x\x00"
    assert decode(ApiVersionsRequest, 3, frame).client_software_name == "caf\ufffd"


@pytest.mark.parametrize(
    ("version", "frame"),
    [
        (0, b"\xff\xff\xff\xff"),
        (1, b"\x00\x00\x00\x01\xff\xff"),
        (9, b"\x02\x00\x00\x00\x00\x00\x00"),
    ],
)
def test_null_in_a_required_field_is_malformed(version: int, frame: bytes) -> None:
    """Topics are nullable from version 1 on, their names from version 10 on."""
    with pytest.raises(MalformedRequest, match="null"):
        decode(MetadataRequest, version, frame)


def test_any_negative_array_length_is_null() -> None:
    assert decode(MetadataRequest, 1, b"\xff\xff\xff\x00").topics is None


def test_a_nullable_struct_has_a_marker_byte() -> None:
    """As in Kafka, any negative byte means null, and any other means that a struct follows."""
    cursor = Cursor(topic_name="t", partition_index=3)
    with_cursor = DescribeTopicPartitionsRequest(topics=[], cursor=cursor)
    frame = encode(with_cursor, 0)
    assert frame == b"\x01\x00\x00\x07\xd0\x01\x02t\x00\x00\x00\x03\x00\x00"
    assert decode(DescribeTopicPartitionsRequest, 0, frame) == with_cursor
    assert encode(DescribeTopicPartitionsRequest(topics=[]), 0) == b"\x01\x00\x00\x07\xd0\xff\x00"
    assert decode(DescribeTopicPartitionsRequest, 0, b"\x01\x00\x00\x07\xd0\x80\x00").cursor is None


def test_a_string_has_at_most_32767_bytes() -> None:
    for version in (2, 3):
        longest = FeatureLevelRecord(name="x" * 32_767, feature_level=version)
        assert decode(FeatureLevelRecord, 0, encode(longest, 0)) == longest
    with pytest.raises(MalformedRequest, match="name cannot have 32768"):
        decode(FeatureLevelRecord, 0, uvarint(32_769) + b"x" * 32_768 + b"\0\1\0")
    with pytest.raises(ValueError, match="name is too long"):
        encode(FeatureLevelRecord(name="x" * 32_768, feature_level=1), 0)


@pytest.mark.parametrize("version", [6, 9])
def test_a_string_that_is_too_long_when_its_invalid_bytes_are_replaced_is_malformed(version: int) -> None:
    """Each of them becomes three bytes. A coordinator could not store the string, and no response could contain it."""
    valid = [MetadataRequestTopic(name=name) for name in ("\u20ac" * 10_922, "x" * 32_767)]
    request = MetadataRequest(topics=valid)
    frame = encode(request, version)
    assert decode(MetadataRequest, version, frame) == request
    damaged = frame.replace(b"x" * 32_767, b"\xff" * 10_922 + b"x" * 21_845)
    with pytest.raises(MalformedRequest, match="name cannot have 54611"):
        decode(MetadataRequest, version, damaged)


@pytest.mark.parametrize("version", [4, 5])
def test_an_error_message_that_is_too_long_is_cut_off(version: int) -> None:
    """It may contain a long name of the request; the cut leaves no part of a character."""
    result = CreatableTopicResult(name="t", error_code=17, error_message="ab" + "\u20ac" * 10_922)
    response = decode(CreateTopicsResponse, version, encode(CreateTopicsResponse(topics=[result]), version))
    assert response.topics[0].error_message == "ab" + "\u20ac" * 10_921


def test_an_array_has_at_most_a_million_elements() -> None:
    """The limit applies even if the frame contains all elements."""
    million = uvarint(1_000_001) + b"\x01" * 1_000_000 + b"\0"
    assert len(decode(ListGroupsRequest, 4, million).states_filter) == 1_000_000
    with pytest.raises(MalformedRequest, match="states_filter cannot have 1000001"):
        decode(ListGroupsRequest, 4, uvarint(1_000_002) + b"\x01" * 1_000_001 + b"\0")
    with pytest.raises(MalformedRequest, match="topics cannot have 1000001"):
        decode(MetadataRequest, 0, (1_000_001).to_bytes(4, "big") + bytes(2_000_002))


def test_an_array_longer_than_the_frame_is_refused_at_once() -> None:
    """Nothing is allocated for elements that cannot fit."""
    frame = uvarint(900_001) + b"\x01" * 899_999
    tracemalloc.start()
    try:
        with pytest.raises(MalformedRequest, match="states_filter cannot have 900000"):
            decode(ListGroupsRequest, 4, frame)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("cls", [ApiVersionsRequest, FetchRequest])
def test_a_struct_has_at_most_ten_thousand_tagged_fields(cls: type[ApiVersionsRequest | FetchRequest]) -> None:
    """For structs with and without known tagged fields."""
    version = 12 if cls is FetchRequest else 3
    before = encode(FetchRequest(max_wait_ms=0, min_bytes=0, topics=[]), 12)[:-1] if version == 12 else b"\x01\x01"
    fields = b"".join(uvarint(100 + tag) + b"\x00" for tag in range(10_001))
    allowed = decode(cls, version, before + uvarint(10_000) + fields).unknown_tagged_fields
    assert allowed is not None
    assert len(allowed) == 10_000
    with pytest.raises(MalformedRequest, match="10001"):
        decode(cls, version, before + uvarint(10_001) + fields)


def forgotten_topics(topics: int, partitions: int) -> FetchRequest:
    one = FetchTopic(topic="t", partitions=[0] * partitions)
    return FetchRequest(max_wait_ms=0, min_bytes=0, topics=[], forgotten_topics_data=[one] * topics)


def many_topics(tags: int) -> MetadataRequest:
    topic = MetadataRequestTopic(name="t")
    topic.unknown_tagged_fields = dict.fromkeys(range(tags), b"")
    return MetadataRequest(topics=[topic] * 50)


@pytest.mark.parametrize(
    ("allowed", "refused", "version"),
    [
        (forgotten_topics(1, MAX_REQUEST_ELEMENTS - 1), forgotten_topics(1, MAX_REQUEST_ELEMENTS), 12),
        (forgotten_topics(50, 4999), forgotten_topics(50, 5000), 12),
        (forgotten_topics(50, 4999), forgotten_topics(50, 5000), 11),
        (forgotten_topics(31_250, 7), forgotten_topics(31_251, 7), 11),  # short arrays are decoded otherwise
        (forgotten_topics(31_250, 7), forgotten_topics(31_251, 7), 12),
        (many_topics(4999), many_topics(5000), 12),
    ],
)
def test_the_arrays_and_tagged_sections_of_a_request_have_a_limit_together(
    allowed: Message, refused: Message, version: int
) -> None:
    cls = type(allowed)
    assert request_decoder(cls, version)(encode(allowed, version), 0)[0] == allowed
    with pytest.raises(MalformedRequest, match="the arrays of the request have more than 250000 elements"):
        request_decoder(cls, version)(encode(refused, version), 0)
    assert decode(cls, version, encode(refused, version)) == refused, "other messages have no such limit"


def test_a_null_that_the_version_lacks_is_refused_if_the_default_is_an_empty_string() -> None:
    """As in Apache Kafka."""
    request = CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=0)
    assert decode(CreateDelegationTokenRequest, 1, encode(request, 1)) == request
    request.owner_principal_name = None
    with pytest.raises(ValueError, match="version 1 cannot carry owner_principal_name"):
        encode(request, 1)


def test_unknown_tagged_fields_are_preserved_in_tag_order() -> None:
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[], cluster_id="c")
    request.unknown_tagged_fields = {77: b"later", 5: b""}
    frame = encode(request, 12)
    assert frame.endswith(b"\x03\x00\x02\x02c\x05\x00\x4d\x05later")
    assert decode(FetchRequest, 12, frame) == request


def test_a_known_tagged_field_must_have_its_declared_size() -> None:
    """The field `fenced` has one byte."""
    head = bytes(12) + b"\x01\x00"
    assert decode(BrokerRegistrationChangeRecord, 0, head + b"\x01\x05").fenced == 5
    for size in (0, 2):
        with pytest.raises(MalformedRequest, match="does not fill its size"):
            decode(BrokerRegistrationChangeRecord, 0, head + bytes((size, 5, 0)))


def test_a_tag_of_another_version_is_refused() -> None:
    """The field in_controlled_shutdown has tag 1 from version 1 on."""
    frame = bytes(12) + b"\x01\x01\x01\x01"
    assert decode(BrokerRegistrationChangeRecord, 1, frame).in_controlled_shutdown == 1
    with pytest.raises(MalformedRequest, match="tag 1 does not belong to version 0"):
        decode(BrokerRegistrationChangeRecord, 0, frame)


@pytest.mark.parametrize("count", [0, 1, 8, 9, 126, 127, 128, 20_000])
def test_arrays_of_any_length_survive_a_round_trip(count: int) -> None:
    """Few numbers are read by a struct of their own, many by another; the count takes one byte or more."""
    names = DeleteTopicsRequest(topic_names=[str(index) for index in range(count)], timeout_ms=1)
    for version in (1, 5):
        assert decode(DeleteTopicsRequest, version, encode(names, version)) == names
    numbers = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[])
    topics = [MetadataRequestTopic(name=str(index)) for index in range(count)]
    for version in (1, 9):
        request = MetadataRequest(topics=topics)
        assert decode(MetadataRequest, version, encode(request, version)) == request
    assert decode(FetchRequest, 12, encode(numbers, 12)) == numbers
