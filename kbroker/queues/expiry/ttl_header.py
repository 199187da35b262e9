"""The header TTL_MS: the time in milliseconds, from a record's timestamp, after which consumers do not see it.

The value is decimal digits.
"""

from collections.abc import Sequence

from kbroker.queues.record_headers import InvalidHeaderError
from protocol.records.record import Header

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
