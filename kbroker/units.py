"""Durations and sizes with units, and configs whose values may have one.

On the wire and in the metadata, configs are plain numbers in the unit that the config's name says. The command line and
config files accept `retention.ms=7d` and `segment.bytes=64MiB`, and convert them.
"""

import re

DURATION_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}

_DURATION = re.compile(r"(?:[0-9]{1,18}(?:ms|[smhdw]))+")
_DURATION_PART = re.compile(r"([0-9]+)(ms|[smhdw])")
_ISO_DURATION = re.compile(
    r"P(?:([0-9]{1,18})D)?(?:T(?:([0-9]{1,18})H)?(?:([0-9]{1,18})M)?(?:([0-9]{1,18}(?:\.[0-9]+)?)S)?)?"
)
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]+)?)\s*(?:([kmgt])i?b?|b)?", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9.]+(?:[eE][+-]?[0-9]+)?")

# The last parts of the names of configs with a time, and their unit.
_TIME_UNITS = {
    "ms": ("milliseconds", 1),
    "secs": ("seconds", 1000),
    "seconds": ("seconds", 1000),
    "minutes": ("minutes", 60_000),
    "hours": ("hours", 3_600_000),
}
# The ends of the names of configs with a size that does not say bytes.
_SIZE_ENDS = (".buffer.size", ".receive.size", ".throttled.rate")


def duration_ms(text: str) -> int | None:
    """Return a duration such as `90s`, `1h30m` or ISO 8601 (`P1DT2H`) in milliseconds; None for another text."""
    if _DURATION.fullmatch(text):
        return sum(int(count) * DURATION_UNITS_MS[unit] for count, unit in _DURATION_PART.findall(text))
    match = _ISO_DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        return None
    days, hours, minutes, seconds = match.groups(default="0")
    whole = zip((days, hours, minutes), "dhm", strict=True)
    return sum(int(count) * DURATION_UNITS_MS[unit] for count, unit in whole) + round(float(seconds) * 1000)


def size_bytes(text: str) -> int | None:
    """Return a size such as `64MiB`, `1.5g` or `4096` in bytes; None for another text. All units are powers of 1024."""
    match = _SIZE.fullmatch(text)
    return None if match is None else int(float(match[1]) * 1024 ** " kmgt".index((match[2] or " ").lower()))


def config_number(name: str, text: str) -> str:
    """Return a config's text with its duration or size as a plain number. Other texts are returned unchanged.

    Raises ValueError for a unit that the config does not have.
    """
    last = name.rpartition(".")[2]
    is_size = "bytes" in name.split(".") or name.endswith(_SIZE_ENDS)
    if not is_size and last not in _TIME_UNITS:
        return text
    # Delays are lists.
    return ",".join(_number(name, part, None if is_size else last) for part in text.split(","))


def _number(name: str, text: str, time_unit: str | None) -> str:
    stripped = text.strip()
    if _NUMBER.fullmatch(stripped):
        return text
    kind, factor = ("bytes", 1) if time_unit is None else _TIME_UNITS[time_unit]
    amount = size_bytes(stripped) if time_unit is None else duration_ms(stripped)
    if amount is not None and amount % factor == 0:
        return str(amount // factor)
    if not stripped[:1].isdigit():
        return text
    what, example = ("size", "64MiB") if time_unit is None else ("time", "7d")
    raise ValueError(f"{name} is a {what} in {kind}: expected a whole number or, for example, {example}, not {text!r}")
