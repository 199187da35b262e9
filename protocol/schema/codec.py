"""Encodes and decodes messages. The code for a message in one version is generated at its first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from protocol.schema.message import Message

if TYPE_CHECKING:
    from protocol.schema.primitives import Buffer

M = TypeVar("M", bound=Message)

_encoders: dict[tuple[type[Message], int], Callable[..., None]] = {}
_decoders: dict[tuple[type[Message], int], Callable[..., tuple[Any, int]]] = {}


def encoder(cls: type[M], version: int) -> Callable[..., None]:
    """Return the function that appends a message's encoding to a list of buffers. Values of bytes are not copied.

    Its parameters are the message, the list, and optionally a function that is called after each part of a long array,
    which may remove what the list has. It raises ValueError for a value that the version cannot carry: a field that it
    does not have, a null where it allows none, a number or string that is too large.
    """
    function = _encoders.get((cls, version))
    if function is None:
        from protocol.schema.encoder_source import encoder_source

        title = f"encode {cls.__name__} v{version}"
        function = _encoders[cls, version] = encoder_source(cls, version).compile(title)
    return function


def decoder(cls: type[M], version: int) -> Callable[..., tuple[M, int]]:
    """Return the function that decodes a message at a position of a buffer and returns (message, next position).

    Its parameters are the buffer, the position, and optionally how many elements the arrays may have together, and a
    function that is called after each part of a long array. It raises MalformedError and nothing else (ManyElements if
    there are more elements). Records are slices of the buffer; bytes are copies.
    """
    function = _decoders.get((cls, version))
    if function is None:
        from protocol.schema.decoder_source import decoder_source

        title = f"decode {cls.__name__} v{version}"
        function = _decoders[cls, version] = decoder_source(cls, version).compile(title)
    return function


def encode(message: Message, version: int) -> bytes:
    """Encode a message. Raises ValueError for a value that the version cannot carry."""
    out: list[Buffer] = []
    encoder(message.__class__, version)(message, out)
    return b"".join(out)


def decode(cls: type[M], buf: Buffer, version: int, pos: int = 0) -> M:
    """Decode the message at a position of a buffer; bytes after it are ignored. Raises MalformedError."""
    return decoder(cls, version)(buf, pos)[0]
