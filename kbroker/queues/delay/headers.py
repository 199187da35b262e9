"""The headers that delay a record. The names are RocketMQ's.

- `DELAY`: a level, as in RocketMQ; kbroker.delay.levels has their delays.
- `TIMER_DELAY_SEC`, `TIMER_DELAY_MS`: a delay from the arrival at the broker.
- `TIMER_DELIVER_MS`: a time, in milliseconds since the epoch.

Values are decimal digits. The levels of a topic never change while it has delay, because the due time of a stored
record must follow from the log: each later leader computes it again.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kbroker.queues.record_headers import InvalidHeaderError
from protocol.records.record import Header

SECOND_MS = 1_000

LEVEL = b"DELAY"
DELAY_SEC = b"TIMER_DELAY_SEC"
DELAY_MS = b"TIMER_DELAY_MS"
DELIVER_MS = b"TIMER_DELIVER_MS"
DELAY_HEADERS = frozenset({LEVEL, DELAY_SEC, DELAY_MS, DELIVER_MS})

# No timestamp has more digits.
_MAX_DIGITS = 18


class Delay(NamedTuple):
    """The delay of a record: a time in ms since the epoch if it `is_time`, else ms after its arrival."""

    ms: int
    is_time: bool

    def due_ms(self, arrival_ms: int) -> int:
        return self.ms if self.is_time else arrival_ms + self.ms


def parse_delay(headers: Sequence[Header], levels: Sequence[int]) -> Delay | None:
    """Return the delay of a record, None without a delay header. Raises InvalidHeaderError.

    `levels`: the delays of the levels in ms. More than one delay header is an error even if they agree: the choice of
    one would be a guess.
    """
    found = [(name, value) for name, value in headers if name in DELAY_HEADERS]
    if not found:
        return None
    if len(found) > 1:
        names = ", ".join([name.decode() for name, _ in found])
        raise InvalidHeaderError(f"The record has several delay headers ({names}); it may have one.")
    name, value = found[0]
    number = _parse_number(name, value)
    if name == DELIVER_MS:
        return Delay(number, True)
    if name == LEVEL:
        if not 1 <= number <= len(levels):
            levels_text = f"1 to {len(levels)}; leave the header out for no delay"
            raise InvalidHeaderError(f"Header DELAY is {number}; the levels are {levels_text}.")
        return Delay(levels[number - 1], False)
    return Delay(number * (SECOND_MS if name == DELAY_SEC else 1), False)


def _parse_number(name: bytes, value: bytes | None) -> int:
    is_number = value is not None and value.isdigit()
    if value is not None and is_number and len(value) <= _MAX_DIGITS:
        return int(value)
    shown = "null" if value is None else repr(value[:40].decode("ascii", "backslashreplace"))
    expected = f"a number of at most {_MAX_DIGITS} decimal digits" if is_number else "a number in decimal digits"
    raise InvalidHeaderError(f"Header {name.decode()} is {shown}; it must be {expected}.")
