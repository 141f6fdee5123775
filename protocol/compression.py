"""The four compression codecs of record batches, behind two functions.

FORMAT   gzip    RFC 1952; several members may be concatenated
         snappy  xerial's stream: 82 "SNAPPY" 00, i32 version 1, i32 compatible 1, then per chunk
                 i32 length and one raw snappy block of at most 32 KiB; a bare raw block is read too
         lz4     LZ4 frame with independent blocks of 64 KiB (Kafka's Java reader does not support linked blocks). As in
                 Kafka, the default level 9 is the fast compressor, and any other level is the high compressor
         zstd    RFC 8878
RULES    1. Decompression returns at most `max_bytes` and allocates little more than it returns: a declared size is
            checked before it is used.
         2. Corrupt data raises KafkaError(CORRUPT_MESSAGE), too much data KafkaError(MESSAGE_TOO_LARGE), and nothing
            else.
NOT HERE The data that is compressed (records.py).
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import Final

from cramjam import DecompressionError, gzip, lz4, snappy, zstd

from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import Buffer

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
XERIAL_HEADER: Final = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
XERIAL_CHUNK_BYTES: Final = 32 * 1024
GZIP_WINDOW_BITS: Final = 31
GZIP_DEFAULT_LEVEL: Final = -1
LZ4_DEFAULT_LEVEL: Final = 9
LZ4_FAST: Final = 1
LZ4_HC_MIN_LEVEL: Final = 3
ZSTD_DEFAULT_LEVEL: Final = 3
_LZ4_HEADER_BYTES: Final = 7  # magic, flags, block size, checksum
_LZ4_CONTENT_SIZE, _LZ4_BLOCK_CHECKSUM, _LZ4_CONTENT_CHECKSUM = 0x08, 0x10, 0x04  # flags
MIN_OUTPUT_BYTES: Final = 8 * 1024
OUTPUT_IS_FULL: Final = "failed to write whole buffer"


class Compression(IntEnum):
    """The codec id in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(kind: int, data: Buffer, level: int | None = None) -> Buffer:
    """Compresses `data` with the codec of a batch; returns `data` itself for NONE."""
    if kind == Compression.NONE:
        return data
    if kind == Compression.GZIP:
        stream = zlib.compressobj(GZIP_DEFAULT_LEVEL if level is None else level, wbits=GZIP_WINDOW_BITS)
        return stream.compress(data) + stream.flush()
    if kind == Compression.SNAPPY:
        return _compress_xerial(data)
    if kind == Compression.LZ4:
        frame = lz4.Compressor(
            level=LZ4_FAST if level in (None, LZ4_DEFAULT_LEVEL) else max(level, LZ4_HC_MIN_LEVEL),
            content_checksum=False,
            block_linked=False,
        )
        frame.compress(bytes(data))
        return bytes(frame.finish())
    if kind == Compression.ZSTD:
        return bytes(zstd.compress(data, ZSTD_DEFAULT_LEVEL if level is None else level))
    raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"Unknown compression type id: {kind}")


def decompress(kind: int, data: Buffer, max_bytes: int) -> Buffer:
    """Returns the decompressed bytes, at most `max_bytes`; `data` itself for NONE.

    Raises:
        KafkaError: CORRUPT_MESSAGE or MESSAGE_TOO_LARGE.
    """
    if kind == Compression.NONE:
        if len(data) > max_bytes:
            raise _too_large(max_bytes)
        return data
    if kind == Compression.SNAPPY:
        return _decompress_snappy(data, max_bytes)
    if kind == Compression.GZIP:
        into = gzip.decompress_into
    elif kind == Compression.LZ4:
        into = lz4.decompress_into
    elif kind == Compression.ZSTD:
        into = zstd.decompress_into
    else:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Unknown compression type id: {kind}")
    # The output buffer grows from an estimate. A new bytearray consists of untouched zero pages, so unused capacity
    # is cheap, and a decompression bomb stops at the first size above the limit.
    capacity = min(max_bytes, max(MIN_OUTPUT_BYTES, 4 * len(data)))
    while True:
        output = bytearray(capacity)
        try:
            size = into(data, output)
        except DecompressionError as error:
            if OUTPUT_IS_FULL not in str(error):
                raise _corrupt(error) from None
            if capacity >= max_bytes:
                raise _too_large(max_bytes) from None
            capacity = min(max_bytes, capacity * 4)
            continue
        del output[size:]
        return output


def lz4_frame_bytes(data: Buffer) -> int:
    """The size of the LZ4 frame at the beginning of `data`, without a dictionary; above that of `data` if it is cut off."""
    view = memoryview(data)
    flags = view[4] if len(view) > 4 else 0
    checksum_bytes = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
    position = _LZ4_HEADER_BYTES + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    while size := int.from_bytes(view[position : position + 4], "little"):
        position += 4 + (size & 0x7FFFFFFF) + checksum_bytes  # the highest bit: it is not compressed
    return position + (8 if flags & _LZ4_CONTENT_CHECKSUM else 4)


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [XERIAL_HEADER]
    for start in range(0, len(view), XERIAL_CHUNK_BYTES):
        block = bytes(snappy.compress_raw(view[start : start + XERIAL_CHUNK_BYTES]))
        parts.append(len(block).to_bytes(4, "big"))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, max_bytes: int) -> Buffer:
    view = memoryview(data)
    if bytes(view[:8]) != XERIAL_MAGIC:
        return _decompress_raw(view, max_bytes)
    end = len(view)
    if end < len(XERIAL_HEADER):
        raise _corrupt("the snappy stream's header is truncated")
    position = len(XERIAL_HEADER)
    output = bytearray()
    while position < end:
        if bytes(view[position : position + 8]) == XERIAL_MAGIC:  # streams may be concatenated
            position += len(XERIAL_HEADER)
            continue
        size = int.from_bytes(view[position : position + 4], "big")
        position += 4
        if size > end - position:
            raise _corrupt("a snappy chunk is longer than its batch")
        output += _decompress_raw(view[position : position + size], max_bytes - len(output))
        position += size
    return output


def _decompress_raw(block: memoryview, max_bytes: int) -> bytearray:
    if not block:
        raise _corrupt("a snappy block is missing")
    try:
        # The block starts with its decompressed length; snappy expands 3 bytes to at most 64.
        size = snappy.decompress_raw_len(block)
        if size > 64 * len(block):
            raise _corrupt("a snappy block declares more than it can hold")
        if size > max_bytes:
            raise _too_large(max_bytes)
        output = bytearray(size)
        if size:
            snappy.decompress_raw_into(block, output)
    except DecompressionError as error:
        raise _corrupt(error) from None
    return output


def _corrupt(why: object) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"The records cannot be decompressed: {why}")


def _too_large(max_bytes: int) -> KafkaError:
    return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"The records are larger than {max_bytes} bytes when decompressed")
