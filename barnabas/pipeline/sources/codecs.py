"""Decompresses the records of a batch.

FORMAT   0 none; 1 gzip; 2 snappy, in xerial's stream or as one raw block; 3 an LZ4 frame; 4 zstd
RULES    1. pyarrow is enough: a worker needs no other package.
         2. The output is at most MAX_BYTES. Invalid data raises `DamagedBatch`.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from barnabas.client.compression import snappy_blocks
from barnabas.pipeline.sources.damage import DamagedBatch

MAX_BYTES = 1 << 30
MAX_SNAPPY_RATIO = 64
"""A raw block starts with its uncompressed size, which is at most this many times its compressed size."""
_MIN_READ_BYTES = 1 << 16
_STREAMS = {1: "gzip", 3: "lz4", 4: "zstd"}


def decompress(codec: int, data: Any) -> Any:
    """Decompresses data with a batch's codec. Raises DamagedBatch."""
    try:
        if codec == 0:
            return data
        if codec == 2:
            return _decompress_snappy(data)
        if codec in _STREAMS:
            return _decompress_stream(_STREAMS[codec], data)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DamagedBatch(f"its records cannot be decompressed: {error}") from error
    raise DamagedBatch(f"there is no codec {codec}")


def _decompress_stream(name: str, data: Any) -> Any:
    # A single read of everything would make Arrow allocate and clear memory for the maximum size.
    stream = pa.CompressedInputStream(pa.BufferReader(data), name)
    parts: list[bytes] = []
    size = 0
    while part := stream.read(max(_MIN_READ_BYTES, 4 * len(data), size)):
        parts.append(part)
        size += len(part)
        if size > MAX_BYTES:
            raise DamagedBatch(f"its records are larger than {MAX_BYTES} bytes when decompressed")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_snappy(data: Any) -> bytes:
    parts: list[bytes] = []
    left = MAX_BYTES
    for block in snappy_blocks(memoryview(data)):
        parts.append(_raw_block(block, left))
        left -= len(parts[-1])
    return b"".join(parts)


def _raw_block(block: memoryview, max_bytes: int) -> bytes:
    """Decompresses a raw snappy block to at most `max_bytes`."""
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise DamagedBatch("a snappy block has no valid size")
    if size > MAX_SNAPPY_RATIO * len(block) or size > max_bytes:
        raise DamagedBatch("the size in a snappy block is too large")
    if size == 0:
        return b""
    return bytes(pa.decompress(block, decompressed_size=size, codec="snappy", asbytes=True))
