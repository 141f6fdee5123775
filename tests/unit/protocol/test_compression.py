"""The four codecs: round trips, data of other implementations, decompression bombs, corrupt data."""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress

import cramjam
import pytest

from protocol.compression import (
    MIN_OUTPUT_BYTES,
    XERIAL_CHUNK_BYTES,
    Compression,
    compress,
    decompress,
    lz4_frame_bytes,
)
from protocol.errors import ErrorCode, KafkaError

CODECS = list(Compression)[1:]
MIB = 1 << 20


def refusal_code(kind: int, data: bytes, max_bytes: int = MIB) -> ErrorCode:
    """The error code of a refused decompression."""
    with pytest.raises(KafkaError) as caught:
        decompress(kind, data, max_bytes)
    assert caught.value.message
    return caught.value.code


@pytest.mark.parametrize("kind", list(Compression))
@pytest.mark.parametrize(
    "size", [0, 1, 100, MIN_OUTPUT_BYTES, MIN_OUTPUT_BYTES + 1, 3 * XERIAL_CHUNK_BYTES + 5, 400_000]
)
def test_compressed_data_survive_a_round_trip(kind: Compression, size: int) -> None:
    """Compressible and random data, at and around the sizes where buffers grow and chunks end."""
    dice = random.Random(size)
    for data in (bytes(size), dice.randbytes(size), b"barnabas " * (size // 9)):
        for given in (data, bytearray(data), memoryview(data)):
            packed = compress(kind, given)
            assert decompress(kind, packed, max(size, 1)) == data
            assert decompress(kind, memoryview(bytes(packed)), size + 10) == data


@pytest.mark.parametrize("kind", CODECS)
def test_compression_levels_change_the_size(kind: Compression) -> None:
    """Snappy has no levels."""
    data = b"".join(b'{"carrier": "UA", "flight": %d}' % (n * n % 7919) for n in range(4000))
    low, high = len(compress(kind, data, 1)), len(compress(kind, data, 8))
    assert low == high if kind == Compression.SNAPPY else low > high
    assert decompress(kind, compress(kind, data, 8), len(data)) == data


def test_concatenated_gzip_members_are_read() -> None:
    assert decompress(Compression.GZIP, gzip.compress(b"one ") + gzip.compress(b"two"), 100) == b"one two"


@pytest.mark.parametrize("has_checksum", [False, True])
@pytest.mark.parametrize("data", [b"", b"x", b"x" * 300_000, random.Random(1).randbytes(200_000)])
def test_the_size_of_the_first_lz4_frame_is_found(data: bytes, *, has_checksum: bool) -> None:
    """Compressed and stored blocks, with and without a checksum of the content, which is behind the blocks."""
    compressor = cramjam.lz4.Compressor(level=1, content_checksum=has_checksum, block_linked=False)
    compressor.compress(data)
    frame = bytes(compressor.finish())
    assert lz4_frame_bytes(frame) == lz4_frame_bytes(frame + frame) == lz4_frame_bytes(frame + b"more") == len(frame)
    assert lz4_frame_bytes(frame[:-1]) >= len(frame)


def test_lz4_frames_suit_kafkas_java_reader() -> None:
    """Version 01, independent blocks of 64 KiB; the Java reader supports nothing else."""
    frame = bytes(compress(Compression.LZ4, b"x" * 300_000))
    magic, flags, block = struct.unpack_from("<IBB", frame)
    assert magic == 0x184D2204
    assert flags & 0b1110_0000 == 0b0110_0000
    assert block >> 4 == 4


def test_lz4_uses_high_compression_except_at_its_default_level() -> None:
    """As in Kafka's Lz4BlockOutputStream: level 1 compresses better than level 9."""
    data = b"".join(b"%d-%d," % (i * 7919 % 1000, i) for i in range(2000))
    size = {level: len(compress(Compression.LZ4, data, level)) for level in (None, 1, 9, 17)}
    assert size[None] == size[9] > size[1] >= size[17]


def test_lz4_linked_blocks_are_read() -> None:
    """Kafka's broker and our validation refuse them in produced batches, but an old log may contain them."""
    assert decompress(Compression.LZ4, bytes(cramjam.lz4.compress(b"y" * 200_000)), MIB) == b"y" * 200_000


def test_snappy_is_read_with_and_without_xerials_frame() -> None:
    """librdkafka and the Java client write the frame, some clients write one raw block."""
    data = b"snap " * 30_000
    framed = bytes(compress(Compression.SNAPPY, data))
    assert framed[:16] == b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(data)), MIB) == data
    assert decompress(Compression.SNAPPY, framed + framed, MIB) == data + data


def test_an_undefined_codec_is_refused() -> None:
    assert refusal_code(5, b"x") == ErrorCode.CORRUPT_MESSAGE
    with pytest.raises(KafkaError) as caught:
        compress(7, b"x")
    assert caught.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("kind", CODECS)
def test_corrupt_data_raise_only_kafka_errors(kind: Compression) -> None:
    """Truncated anywhere, overwritten anywhere; some damaged data can still be decompressed."""
    data = b"some text that is worth compressing, compressing, compressing " * 20
    packed = bytes(compress(kind, data))
    for size in range(len(packed)):
        if packed[:size] != compress(Compression.SNAPPY, b""):  # the header alone is an empty stream
            assert refusal_code(kind, packed[:size]) == ErrorCode.CORRUPT_MESSAGE
    dice = random.Random(20261121)
    for _ in range(3000):
        changed = bytearray(packed)
        for _ in range(dice.randrange(1, 4)):
            changed[dice.randrange(len(changed))] = dice.randrange(256)
        with suppress(KafkaError):
            decompress(kind, bytes(changed), MIB)


def bombs() -> dict[Compression, bytes]:
    """256 MiB of zeros in each codec."""
    blank, count = bytes(MIB), 256
    lz4 = cramjam.lz4.Compressor(level=1, content_checksum=False, block_linked=False)
    zstd = cramjam.zstd.Compressor(3)
    gz = zlib.compressobj(9, wbits=31)
    packed = b""
    for _ in range(count):
        lz4.compress(blank)
        zstd.compress(blank)
        packed += gz.compress(blank)
    chunk = bytes(cramjam.snappy.compress_raw(blank))
    return {
        Compression.GZIP: packed + gz.flush(),
        Compression.SNAPPY: bytes(compress(Compression.SNAPPY, b"")) + (struct.pack(">i", len(chunk)) + chunk) * count,
        Compression.LZ4: bytes(lz4.finish()),
        Compression.ZSTD: bytes(zstd.finish()),
    }


def peak_of(work: Callable[[], object]) -> int:
    """The peak of Python's allocator, which includes the codecs' output."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_decompression_bomb_stops_at_the_limit() -> None:
    for kind, bomb in bombs().items():
        peak = peak_of(lambda kind=kind, bomb=bomb: refusal_code(kind, bomb))  # type: ignore[misc]
        assert peak < 4 * MIB, f"{kind.name} took {peak} bytes"
        assert refusal_code(kind, bomb) == ErrorCode.MESSAGE_TOO_LARGE


def test_a_declared_size_is_checked_before_allocation() -> None:
    """A raw snappy block of 10 bytes that declares 4 GiB, and a chunk that is longer than the data."""
    block = b"\xff\xff\xff\xff\x0f" + b"\0" * 5
    chunk = bytes(compress(Compression.SNAPPY, b"")) + struct.pack(">I", 0xFFFFFFF0) + b"x"
    for data in (block, chunk, bytes(compress(Compression.SNAPPY, b"")) + struct.pack(">i", 10) + block):
        assert peak_of(lambda data=data: refusal_code(Compression.SNAPPY, data, 1 << 33)) < MIB  # type: ignore[misc]
        assert refusal_code(Compression.SNAPPY, data, 1 << 33) == ErrorCode.CORRUPT_MESSAGE


def test_the_limit_applies_to_uncompressed_data() -> None:
    assert decompress(Compression.NONE, b"12345", 5) == b"12345"
    assert refusal_code(Compression.NONE, b"123456", 5) == ErrorCode.MESSAGE_TOO_LARGE
