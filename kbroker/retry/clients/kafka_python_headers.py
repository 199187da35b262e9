"""Headers with a null value for kafka-python's producer: it encodes them, but `send` refuses them.

Empty values instead would change records on their way through retry and dead-letter topics.
"""

from collections.abc import Sequence
from typing import Any


class _NullHeader(tuple[str, None]):
    """A header that is unpacked with its null, while `header[1]`, which `send` checks, is an empty value."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        return b"" if index == 1 else super().__getitem__(index)


class _Headers(list[Any]):
    """Headers that are false: of others the producer adds up the lengths of the values, which a null does not have."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False


def producer_headers(headers: Sequence[tuple[str, bytes | None]]) -> list[Any]:
    """Return headers as KafkaProducer.send accepts them."""
    if all(value is not None for _, value in headers):
        return list(headers)
    return _Headers([(name, value) if value is not None else _NullHeader((name, None)) for name, value in headers])
