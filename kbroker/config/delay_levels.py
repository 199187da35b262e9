"""kbroker.delay.levels: the delays that the levels of the header DELAY mean, as in RocketMQ's messageDelayLevel."""

import re
from functools import lru_cache

from kbroker.config.values import Value, invalid_value

DELAY_LEVELS = "kbroker.delay.levels"
# RocketMQ's.
DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
MAX_LEVELS = 100

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)", re.ASCII)


@lru_cache(maxsize=64)
def levels_ms(text: str) -> tuple[int, ...]:
    """Return the delays of the levels from 1 on, in ms. Raises ValueError."""
    parts = text.split(" ")
    matches = [_LEVEL.fullmatch(part) for part in parts]
    if len(parts) > MAX_LEVELS or not all(matches):
        raise ValueError(f"Value must be 1 to {MAX_LEVELS} delays like 500ms, 10s, 5m, 2h or 1d, separated by spaces")
    return tuple(int(match[1]) * _UNITS_MS[match[2]] for match in matches if match)


def delay_levels(name: str, value: Value) -> None:
    """The validator of the config."""
    try:
        levels_ms(str(value))
    except ValueError as error:
        raise invalid_value(name, value, str(error)) from None
