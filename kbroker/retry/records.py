"""Builds the record for the retry topic or the dead-letter topic from a record whose processing failed.

The new record keeps the key, value and headers. In both kinds of topics it has the headers of KIP-1191, which say in
UTF-8 where, how often and why the record failed, and two of Spring for Apache Kafka. Its timestamp is the time of the
failure, as in KIP-1191, because retention depends on it; the original timestamp is in a header.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from kbroker.config.dead_letter_headers import (
    DELIVERY_COUNT,
    ERROR_CLASS,
    FAILURE_HEADERS,
    GROUP,
    MESSAGE,
    OFFSET,
    OMITTED,
    ORIGINAL_TIMESTAMP,
    PARTITION,
    TOPIC,
)
from kbroker.retry.policy import RetryPolicy

DELAY = "TIMER_DELAY_MS"

# Those that delay a record, and those that a delayed record has after its delivery.
DELAY_HEADERS = frozenset(
    {
        "DELAY",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_DELIVER_MS",
        "kbroker.delayed.from",
        "kbroker.delayed.due.ms",
        "kbroker.delayed.timestamp.ms",
    }
)
MAX_MESSAGE_CHARACTERS = 1000
# A pointer has to fit everywhere.
MAX_POINTER_TEXT_CHARACTERS = 100
MAX_POINTER_KEY_BYTES = 256

Headers = tuple[tuple[str, bytes | None], ...]


class ReceivedRecord(NamedTuple):
    """A record as a consumer received it. `timestamp_ms`: milliseconds since the epoch, -1 if it has none."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


class OutgoingRecord(NamedTuple):
    """A record to produce.

    If `partition` is None, the producer chooses it. If `timestamp_ms` is None, it is the current time.
    """

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


def sendable_value(record: OutgoingRecord) -> bytes | None:
    """Return the value for producers that refuse records with neither key nor value: empty for such a record.

    Otherwise such a record would block the records behind it when it fails.
    """
    return b"" if record.key is None and record.value is None else record.value


def last_headers(headers: Iterable[tuple[str, bytes | None]]) -> dict[str, bytes]:
    """Return header values by name. If a name occurs several times, the last one counts, as in Kafka's clients."""
    return {name: value for name, value in headers if value is not None}


def failed_attempts(policy: RetryPolicy, record: ReceivedRecord) -> int:
    """Return how often a record has failed before this delivery; 0 for a record of the original topic."""
    if record.topic != policy.retry_topic:
        return 0
    count = last_headers(record.headers).get(DELIVERY_COUNT, b"")
    return int(count) if count.isdigit() and len(count) <= 9 else 0


def after_failure(
    policy: RetryPolicy, record: ReceivedRecord, error: BaseException, *, is_retryable: bool = True
) -> OutgoingRecord:
    """Return the record to produce after a failure, for the retry topic or else for the dead-letter topic."""
    attempts = failed_attempts(policy, record) + 1
    headers = [header for header in record.headers if header[0] not in FAILURE_HEADERS | DELAY_HEADERS]
    headers += _failure_headers(policy, record, error, MAX_MESSAGE_CHARACTERS)
    if record.timestamp_ms >= 0 and ORIGINAL_TIMESTAMP not in last_headers(headers):
        headers.append((ORIGINAL_TIMESTAMP, struct.pack(">q", record.timestamp_ms)))
    if attempts >= policy.attempts or not is_retryable:
        return OutgoingRecord(policy.dead_letter_topic, record.value, record.key, tuple(headers))
    headers.append((DELAY, str(policy.delay_ms(attempts)).encode()))
    return OutgoingRecord(policy.retry_topic, record.value, record.key, tuple(headers))


def pointer_to(policy: RetryPolicy, record: ReceivedRecord, error: BaseException) -> OutgoingRecord:
    """Return a dead letter for a record that is too large, or otherwise refused: it says only where the record is."""
    key = record.key if record.key is None or len(record.key) <= MAX_POINTER_KEY_BYTES else None
    omitted = "value,headers" if key == record.key else "key,value,headers"
    headers = _failure_headers(policy, record, error, MAX_POINTER_TEXT_CHARACTERS)
    packed = last_headers(record.headers).get(ORIGINAL_TIMESTAMP, b"")
    if record.topic == policy.retry_topic and len(packed) == 8:
        headers.append((ORIGINAL_TIMESTAMP, packed))
    elif record.timestamp_ms >= 0:
        headers.append((ORIGINAL_TIMESTAMP, struct.pack(">q", record.timestamp_ms)))
    headers.append((OMITTED, omitted.encode()))
    return OutgoingRecord(policy.dead_letter_topic, None, key, tuple(headers))


def is_pointer(headers: Iterable[tuple[str, bytes | None]]) -> bool:
    return OMITTED in last_headers(headers)


def failure_records(
    policy: RetryPolicy, record: ReceivedRecord, error: BaseException, *, is_retryable: bool = True
) -> Iterator[OutgoingRecord]:
    """Iterate over the records to try after a failure, until one is not refused.

    A record that is too large for the retry topic becomes a dead letter at once, and if necessary a pointer.
    """
    first = after_failure(policy, record, error, is_retryable=is_retryable)
    yield first
    if first.topic != policy.dead_letter_topic:
        yield after_failure(policy, record, error, is_retryable=False)
    yield pointer_to(policy, record, error)


def _failure_headers(
    policy: RetryPolicy, record: ReceivedRecord, error: BaseException, max_characters: int
) -> list[tuple[str, bytes | None]]:
    values = {
        **_origin(policy, record),
        GROUP: policy.group,
        DELIVERY_COUNT: str(failed_attempts(policy, record) + 1),
        MESSAGE: str(error)[:max_characters],
        ERROR_CLASS: class_name(error)[:max_characters],
    }
    return [(name, value.encode("utf-8", "backslashreplace")) for name, value in values.items()]


def _origin(policy: RetryPolicy, record: ReceivedRecord) -> Mapping[str, str]:
    """Return where a record was before its first failure."""
    if record.topic == policy.retry_topic:
        headers = last_headers(record.headers)
        if headers.keys() >= {TOPIC, PARTITION, OFFSET}:
            return {name: headers[name].decode("utf-8", "replace") for name in (TOPIC, PARTITION, OFFSET)}
    return {TOPIC: record.topic, PARTITION: str(record.partition), OFFSET: str(record.offset)}


def class_name(error: BaseException) -> str:
    """Return the name of an exception's class with its module, without `builtins`."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def redriven_headers(headers: Headers) -> Headers:
    """Return the headers of a redriven dead letter: its attempts are counted from 0, and it is not delayed."""
    return tuple(header for header in headers if header[0] not in FAILURE_HEADERS | DELAY_HEADERS)


def original_timestamp_ms(headers: Headers) -> int | None:
    """Return the timestamp in milliseconds that a failed record had at first, None if it is unknown."""
    packed = last_headers(headers).get(ORIGINAL_TIMESTAMP, b"")
    return int(struct.unpack(">q", packed)[0]) if len(packed) == 8 else None
