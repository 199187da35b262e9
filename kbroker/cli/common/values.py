"""What users write on the command line, read into values. A refusal is a CliError that shows what it was."""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from typing import Literal, NamedTuple

from kbroker.cli.common.errors import usage

# The largest numbers that fit into Kafka's messages.
INT16 = 2**15 - 1
INT32 = 2**31 - 1
INT64 = 2**63 - 1

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_DURATION = re.compile(r"(?:\d+(?:ms|[smhdw]))+")
_DURATION_PART = re.compile(r"(\d+)(ms|[smhdw])")
_ISO_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")


def assignments(texts: Iterable[str]) -> dict[str, str]:
    """`NAME=VALUE` each; the value may be empty and may contain `=`."""
    result = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise usage(f"expected NAME=VALUE, not {text!r}")
        result[name.strip()] = value
    return result


def config_changes(
    set_: Sequence[str], unset: Sequence[str], append: Sequence[str], subtract: Sequence[str]
) -> dict[str, tuple[str, str | None]]:
    """Changes by config name as (operation, value). A name may be changed once in one request (KIP-339)."""
    listed: list[tuple[str, str, str | None]] = [("DELETE", name, None) for name in unset]
    for operation, texts in (("SET", set_), ("APPEND", append), ("SUBTRACT", subtract)):
        listed += [(operation, name, value) for text in texts for name, value in assignments([text]).items()]
    changes: dict[str, tuple[str, str | None]] = {}
    for operation, name, value in listed:
        if name in changes:
            raise usage(f"{name} is changed twice")
        changes[name] = (operation, value)
    return changes


def integer(text: str, what: str) -> int:
    """A whole number that is not negative."""
    if not (text.isascii() and text.isdigit()):
        raise usage(f"{what} must be a whole number, not {text!r}")
    if (number := int(text.lstrip("0")[:20] or "0")) > INT64:
        raise usage(f"{what} is too large: {text}")
    return number


def duration_ms(text: str) -> int:
    """`90s`, `1h30m`, `250ms`, or ISO 8601 as Kafka's tools take it (`P1DT2H`); gives milliseconds."""
    if _DURATION.fullmatch(text):
        return sum(int(count) * _UNITS[unit] for count, unit in _DURATION_PART.findall(text))
    match = _ISO_DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise usage(f"expected a duration as 90s, 1h30m or P1DT2H, not {text!r}")
    days, hours, minutes, seconds = match.groups(default="0")
    return (
        int(days) * _UNITS["d"] + int(hours) * _UNITS["h"] + int(minutes) * _UNITS["m"] + round(float(seconds) * 1000)
    )


def span_text(span_ms: int) -> str:
    """Milliseconds as `duration_ms` takes them, the two largest units of it: `1h30m`, `2m`, `250ms`."""
    parts: list[str] = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, span_ms = divmod(span_ms, _UNITS[unit])
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
        if len(parts) == 2:
            break
    return "".join(parts) or "0ms"


def moment_ms(text: str, now_ms: int) -> int:
    """A point in time as milliseconds since the epoch.

    ISO 8601 (UTC unless it names a zone, as Kafka's tools have it), milliseconds since the epoch, or a
    duration: that long before `now_ms`.
    """
    if text.isascii() and text.isdigit():
        return integer(text, "a time in milliseconds")
    if text[:1].isdigit() and _DURATION.fullmatch(text):
        return now_ms - duration_ms(text)
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise usage(f"expected a time as 2026-01-31T12:00, in milliseconds, or 15m (ago), not {text!r}") from None
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    return round(parsed.timestamp() * 1000)


def day(text: str) -> str:
    """A date as an archive names it, 2026-01-31."""
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise usage(f"--date must be a day as 2026-01-31, not {text!r}") from None


def clock_time(timestamp_ms: int) -> str:
    """Milliseconds since the epoch as local time with milliseconds; what no calendar holds stays a number."""
    try:
        local = datetime.fromtimestamp(timestamp_ms / 1000)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return local.isoformat(sep=" ", timespec="milliseconds")


class Place(NamedTuple):
    """A place in a partition: an offset, a distance back from the end, a time in ms, or one of the ends."""

    kind: Literal["earliest", "latest", "offset", "back", "time"]
    number: int = 0


def place(text: str, now_ms: int) -> Place:
    """`earliest`, `latest`, an offset, `-N` for the last N records, `@TIME` for the first at or after it."""
    if text in ("earliest", "beginning", "start"):
        return Place("earliest")
    if text in ("latest", "end"):
        return Place("latest")
    if text.startswith("@"):
        return Place("time", moment_ms(text[1:], now_ms))
    if text.startswith("-"):
        return Place("back", integer(text[1:], "the number of last records"))
    if text.isascii() and text.isdigit():
        return Place("offset", integer(text, "an offset"))
    raise usage(f"expected earliest, latest, an offset, -N or @TIME, not {text!r}")


class TopicChoice(NamedTuple):
    """A topic, or some of its partitions; None means all of them."""

    topic: str
    partitions: tuple[int, ...] | None

    def has(self, topic: str, partition: int) -> bool:
        """Whether a partition is one of them."""
        return topic == self.topic and (self.partitions is None or partition in self.partitions)


def topic_choice(text: str) -> TopicChoice:
    """`TOPIC` or `TOPIC:0,1,2`, as Kafka's consumer group tool has it."""
    topic, colon, numbers = text.partition(":")
    if not topic:
        raise usage(f"expected TOPIC or TOPIC:PARTITION,..., not {text!r}")
    if not colon:
        return TopicChoice(topic, None)
    return TopicChoice(topic, tuple(integer(number, "a partition") for number in numbers.split(",")))


def host_port(text: str, what: str) -> tuple[str, int]:
    """`HOST:PORT`, `[IPV6]:PORT` or `:PORT`; the host comes without brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise usage(f"{what} must be HOST:PORT, not {text!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise usage(f"{what}: an IPv6 address needs brackets, as in [::1]:9092, not {text!r}")
    return host, int(port)
