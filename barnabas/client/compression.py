"""The codecs of record batches: none, gzip, snappy, lz4, zstd.

FORMAT   snappy is xerial's stream (82 "SNAPPY" 00, two i32, then chunks of an i32 length and a raw block), or one raw block;
         lz4 has independent blocks, as Java's reader wants.
RULES    1. Corrupt data raises ValueError.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""By their numbers."""
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL + b"\0\0\0\1\0\0\0\1"
_BLOCK_BYTES = 32 * 1024
_GZIP_WINDOW_BITS = 31


def compress(codec: int, data: bytes) -> bytes:
    """Compresses the records of a batch."""
    if codec == 0:
        return data
    import cramjam

    if codec == 1:
        stream = zlib.compressobj(wbits=_GZIP_WINDOW_BITS)
        return stream.compress(data) + stream.flush()
    if codec == 2:
        blocks = (data[at : at + _BLOCK_BYTES] for at in range(0, len(data), _BLOCK_BYTES))
        packed = (bytes(cramjam.snappy.compress_raw(block)) for block in blocks)
        return _XERIAL_HEADER + b"".join(len(block).to_bytes(4, "big") + block for block in packed)
    if codec == 3:
        frame = cramjam.lz4.Compressor(level=1, content_checksum=False, block_linked=False)
        frame.compress(data)
        return bytes(frame.finish())
    return bytes(cramjam.zstd.compress(data, 3))


def decompress(codec: int, data: memoryview) -> Any:
    """Decompresses the records of a batch. Raises ValueError."""
    if codec == 0:
        return data
    import cramjam

    decoders: dict[int, Callable[[Any], Any]] = {
        1: cramjam.gzip.decompress,
        2: _snappy,
        3: cramjam.lz4.decompress,
        4: cramjam.zstd.decompress,
    }
    if codec not in decoders:
        raise ValueError(f"its compression {codec} is unknown")
    try:
        return decoders[codec](data)
    except cramjam.DecompressionError as failure:
        raise ValueError(f"it cannot be decompressed: {failure}") from failure


def _snappy(data: memoryview) -> bytes:
    from cramjam import snappy

    return b"".join([bytes(snappy.decompress_raw(block)) for block in snappy_blocks(data)])


def snappy_blocks(data: memoryview) -> Iterator[memoryview]:
    """The raw blocks of snappy's data. Raises ValueError."""
    if bytes(data[:8]) != _XERIAL:
        yield data
        return
    at = len(_XERIAL_HEADER)
    while at < len(data):
        if bytes(data[at : at + 8]) == _XERIAL:  # streams may be concatenated
            at += len(_XERIAL_HEADER)
            continue
        size = int.from_bytes(data[at : at + 4], "big")
        at += 4
        if size > len(data) - at:
            raise ValueError("a snappy block is longer than its batch")
        yield data[at : at + size]
        at += size
