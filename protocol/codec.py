"""Encodes and decodes messages. A codec is compiled for each message and version at its first use and then cached.

RULES    1. Bytes from a peer decode to a message or raise MalformedRequest; a declared size never causes a large
            allocation.
         2. A decoder returns the end position of the message. The caller handles the bytes after it.
         3. A decoded `records` field is a view into the buffer. An encoded one is a part of its own: of a file
            region only the length is used.
NOT HERE The compiled functions (`decoder_compiler.py`, `encoder_compiler.py`), headers and frames (`framing.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from protocol.codegen import MAX_REQUEST_ELEMENTS
from protocol.decoder_compiler import compile_decoder
from protocol.encoder_compiler import compile_encoder
from protocol.primitives import Buffer
from protocol.schema import Message

if TYPE_CHECKING:
    from protocol.file_region import Region

M = TypeVar("M", bound=Message)
Part: TypeAlias = "bytes | bytearray | memoryview | Region"
Encoder: TypeAlias = "Callable[[Message], list[Part]]"
Decoder: TypeAlias = Callable[[Buffer, int], tuple[M, int]]

_encoders: dict[tuple[type[Message], int], Encoder] = {}
_decoders: dict[tuple[type[Message], int, int | None], Decoder[Message]] = {}


def encoder(cls: type[Message], version: int) -> Encoder:
    """Returns the function that encodes a message into parts, in order; only `records` fields are parts of their own."""
    function = _encoders.get((cls, version))
    if function is None:
        _check_version(cls, version)
        function = _encoders[cls, version] = compile_encoder(cls, version)
    return function


def decoder(cls: type[M], version: int, max_elements: int | None = None) -> Decoder[M]:
    """Returns the function (buffer, position) -> (message, end position).

    `max_elements` limits the elements of all arrays together.
    """
    function = _decoders.get((cls, version, max_elements))
    if function is None:
        _check_version(cls, version)
        function = _decoders[cls, version, max_elements] = compile_decoder(cls, version, max_elements)
    return function  # type: ignore[return-value]


def request_decoder(cls: type[M], version: int) -> Decoder[M]:
    """As `decoder`, for a request of a peer: it has at most MAX_REQUEST_ELEMENTS."""
    return decoder(cls, version, MAX_REQUEST_ELEMENTS)


def encode(message: Message, version: int) -> bytes:
    """Encodes a message whose records, if any, are in memory."""
    parts = encoder(type(message), version)(message)
    return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)  # type: ignore[arg-type]


def decode(cls: type[M], version: int, buffer: Buffer, position: int = 0) -> M:
    """Decodes the message at `position`; ignores the bytes after it."""
    return decoder(cls, version)(buffer, position)[0]


def _check_version(cls: type[Message], version: int) -> None:
    if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
        raise ValueError(f"{cls.__name__} has versions {cls.MIN_VERSION} to {cls.MAX_VERSION}, not {version}")
