"""Headers with a null value for kafka-python's producer: it encodes them, but `send` refuses them.

Empty values instead would change records when they pass through retry and dead-letter topics.
"""

from collections.abc import Sequence
from typing import Any


class _NullHeader(tuple[str, None]):
    """A header that unpacks to its null value, while `header[1]`, which `send` checks, is empty."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        return b"" if index == 1 else super().__getitem__(index)


class _Headers(list[Any]):
    """A list that is false even with headers. Otherwise the producer would add up the lengths of their values."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False


def producer_headers(headers: Sequence[tuple[str, bytes | None]]) -> list[Any]:
    """Return headers as KafkaProducer.send accepts them."""
    if all(value is not None for _, value in headers):
        return list(headers)
    return _Headers([(name, value) if value is not None else _NullHeader((name, None)) for name, value in headers])
