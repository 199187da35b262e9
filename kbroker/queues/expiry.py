"""Expiry: consumers do not see records after the end of their time to live. The header TTL_MS, and the read filter.

The header's value, in decimal digits, is the time in milliseconds from the record's timestamp. The filter drops records
whose timestamp + TTL is not after the current time. A batch whose newest record has expired is dropped as a whole if it
does not contain the bytes of the header. In other batches each record is checked, since timestamps need not ascend
within a batch.
"""

from collections.abc import Sequence

from kbroker.common import Buffer
from kbroker.queues.record_headers import InvalidHeaderError
from kbroker.queues.record_selection import Body, decompressed_body, headers_start, select_records
from protocol.records.batch import BatchHeader
from protocol.records.record import Header, decode_headers, decode_varint, encode_varint

TTL_MS = b"TTL_MS"
# The largest long of Kafka's clients.
MAX_TTL_MS = (1 << 63) - 1
_MAX_DIGITS = 19


def parse_ttl(headers: Sequence[Header]) -> int | None:
    """Return the TTL of a record in ms, None without the header. Raises InvalidHeaderError."""
    values = [value for name, value in headers if name == TTL_MS]
    if not values:
        return None
    if len(values) > 1:
        raise InvalidHeaderError(f"the header TTL_MS occurs {len(values)} times; at most one is allowed")
    value = values[0]
    if value is not None and value.isdigit() and len(value) <= _MAX_DIGITS and int(value) <= MAX_TTL_MS:
        return int(value)
    shown = "null" if value is None else repr(value[:40].decode("ascii", "backslashreplace"))
    raise InvalidHeaderError(f"the header TTL_MS is {shown}; it must be a number of ms in decimal digits, below 2^63")


# The name of the header as it is encoded, with its length.
_NEEDLE = encode_varint(len(TTL_MS)) + TTL_MS


class ExpiryFilter:
    """A ReadFilter. `ttl_ms`: the TTL of records without a valid header, 0 for none."""

    __slots__ = ("_reads_headers", "_ttl_ms")

    def __init__(self, reads_headers: bool, ttl_ms: int) -> None:
        self._reads_headers = reads_headers
        self._ttl_ms = ttl_ms

    def filter_batch(self, batch: memoryview, header: BatchHeader, now_ms: int, max_bytes: int) -> Buffer | None:
        newest, ttl_ms = header.max_timestamp, self._ttl_ms
        if header.is_control or not header.count or newest < 0:
            # The age of records without a timestamp is not known.
            return batch
        is_over = 0 < ttl_ms <= now_ms - newest
        if not self._reads_headers and (is_over or header.is_log_append_time):
            return None if is_over else batch
        body = decompressed_body(batch, header, max_bytes)
        at = body.find(_NEEDLE) if self._reads_headers else -1
        if at < 0 and (is_over or header.is_log_append_time or not ttl_ms):
            return None if is_over else batch
        base, is_same = header.base_timestamp, header.is_log_append_time

        def next_candidate(pos: int) -> int:
            found = body.find(_NEEDLE, pos)
            return len(body) if found < 0 else found

        def is_alive(body: Body, start: int, end: int) -> bool:
            """Return whether a record has not expired. Called for the records in order."""
            nonlocal at
            if 0 <= at < start:
                at = body.find(_NEEDLE, start)
            own = _own_ttl(body, start, end) if 0 <= at < end else None
            ttl = ttl_ms if own is None else own
            if not ttl and own is None:
                return True
            timestamp = newest if is_same else base + decode_varint(body, start + 1, 10)[0]
            # A record without a timestamp in a batch with others is as old as the newest of them.
            return (newest if timestamp < 0 else timestamp) + ttl > now_ms

        # Without a TTL of the topic, records without the header never expire and are not parsed.
        return select_records(batch, header, body, is_alive, None if ttl_ms else next_candidate, keeps_others=True)


def _own_ttl(body: Body, start: int, end: int) -> int | None:
    """Return the TTL in ms in a record's header, None without one.

    A malformed header is ignored: it was stored before the topic had kbroker.ttl.enable.
    """
    headers, _ = decode_headers(body, headers_start(body, start), end)
    try:
        return parse_ttl(headers)
    except InvalidHeaderError:
        return None
