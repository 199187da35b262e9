"""Parses values of the command line, and formats values for people: sizes, durations, times, offsets, partitions.

Parsers raise CliError with the text that they could not parse.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from typing import Literal, NamedTuple

from kbroker.cli.common.errors import usage_error
from kbroker.units import DURATION_UNITS_MS, config_number, duration_ms, size_bytes

# The largest values of integer fields in Kafka's messages.
INT16 = 2**15 - 1
INT32 = 2**31 - 1
INT64 = 2**63 - 1


def parse_assignments(texts: Iterable[str]) -> dict[str, str]:
    """Parse `NAME=VALUE` texts; a value may be empty and may contain `=`."""
    result = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise usage_error(f"expected NAME=VALUE, not {text!r}")
        result[name.strip()] = value
    return result


def parse_configs(texts: Iterable[str]) -> dict[str, str]:
    """Parse `NAME=VALUE` texts of configs. Durations and sizes with units become plain numbers."""
    return {name: _config_value(name, value) for name, value in parse_assignments(texts).items()}


def _config_value(name: str, text: str) -> str:
    try:
        return config_number(name, text)
    except ValueError as error:
        raise usage_error(str(error)) from None


def parse_config_changes(
    set_: Sequence[str], unset: Sequence[str], append: Sequence[str], subtract: Sequence[str]
) -> dict[str, tuple[str, str | None]]:
    """Return (operation, value) by config name. One request changes a config at most once (KIP-339)."""
    listed: list[tuple[str, str, str | None]] = [("DELETE", name, None) for name in unset]
    for operation, texts in (("SET", set_), ("APPEND", append), ("SUBTRACT", subtract)):
        listed += [(operation, name, value) for text in texts for name, value in parse_configs([text]).items()]
    changes: dict[str, tuple[str, str | None]] = {}
    for operation, name, value in listed:
        if name in changes:
            raise usage_error(f"{name} is changed twice")
        changes[name] = (operation, value)
    return changes


def parse_choices(values: Iterable[str], allowed: Sequence[str], what: str) -> list[str]:
    """Return the allowed values that are given, in any case. `what`: the option in error messages."""
    by_text = {value.lower(): value for value in allowed}
    for value in values:
        if value.lower() not in by_text:
            raise usage_error(f"{what} must be one of {', '.join(allowed)}, not {value!r}")
    return [by_text[value.lower()] for value in values]


def parse_integer(text: str, what: str) -> int:
    """Parse an integer that is not negative and fits into 64 bits; `what` is its name in error messages."""
    if not (text.isascii() and text.isdigit()):
        raise usage_error(f"{what} must be a whole number, not {text!r}")
    if (number := int(text.lstrip("0")[:20] or "0")) > INT64:
        raise usage_error(f"{what} is too large: {text}")
    return number


def parse_size(text: str) -> int:
    """Parse a size such as 128MiB, 1.5g or 4096 into bytes; all units are powers of 1024."""
    size = size_bytes(text)
    if size is None:
        raise usage_error(f"expected a size such as 128MiB or 1GiB, not {text!r}")
    return size


def parse_rate(text: str) -> int:
    """Parse a rate such as 20MiB or 20MiB/s into bytes per second, at least 1."""
    rate = parse_size(text.removesuffix("/s"))
    if not 1 <= rate <= INT64:
        raise usage_error(f"expected a rate such as 20MiB for bytes per second, not {text!r}")
    return rate


def parse_duration_ms(text: str) -> int:
    """Parse `90s`, `1h30m`, `250ms`, or ISO 8601 as Kafka's tools accept it (`P1DT2H`), into milliseconds."""
    milliseconds = duration_ms(text)
    if milliseconds is None:
        raise usage_error(f"expected a duration such as 90s, 1h30m or P1DT2H, not {text!r}")
    return milliseconds


def parse_time_ms(text: str, now_ms: int) -> int:
    """Parse a point in time into milliseconds since the epoch.

    Accepts ISO 8601 (UTC unless it has a zone, as in Kafka's tools), milliseconds since the epoch, or a duration
    before `now_ms`.
    """
    if text.isascii() and text.isdigit():
        return parse_integer(text, "a time in milliseconds")
    if is_relative_time(text):
        return now_ms - parse_duration_ms(text)
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise usage_error(
            f"expected a time such as 2026-01-31T12:00, milliseconds since the epoch, or 15m (15 minutes ago), "
            f"not {text!r}"
        ) from None
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    return round(parsed.timestamp() * 1000)


def is_relative_time(text: str) -> bool:
    """Return whether `parse_time_ms` reads this text as a duration before now."""
    return text[:1].isdigit() and duration_ms(text) is not None


def parse_date(text: str) -> str:
    """Parse a date, and return it in the form of archives, 2026-01-31."""
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise usage_error(f"--date must be a date such as 2026-01-31, not {text!r}") from None


class PartitionPosition(NamedTuple):
    """A position in a partition. `value` is an offset, a number of records before the end, or milliseconds."""

    kind: Literal["earliest", "latest", "offset", "last", "time"]
    value: int = 0


def parse_position(text: str, now_ms: int) -> PartitionPosition:
    """Parse `earliest`, `latest`, an offset, `-N` (the last N records) or `@TIME` (the first record from then on)."""
    if text in ("earliest", "beginning", "start"):
        return PartitionPosition("earliest")
    if text in ("latest", "end"):
        return PartitionPosition("latest")
    if text.startswith("@"):
        return PartitionPosition("time", parse_time_ms(text[1:], now_ms))
    if text.startswith("-"):
        return PartitionPosition("last", parse_integer(text[1:], "the number of last records"))
    if text.isascii() and text.isdigit():
        return PartitionPosition("offset", parse_integer(text, "an offset"))
    raise usage_error(f"expected earliest, latest, an offset, -N or @TIME, not {text!r}")


class TopicPartitions(NamedTuple):
    """A topic with some of its partitions; None means all of them."""

    topic: str
    partitions: tuple[int, ...] | None

    def includes(self, topic: str, partition: int) -> bool:
        return topic == self.topic and (self.partitions is None or partition in self.partitions)


def parse_topic_partitions(text: str) -> TopicPartitions:
    """Parse `TOPIC` or `TOPIC:0,1,2`, the form of kafka-consumer-groups."""
    topic, colon, numbers = text.partition(":")
    if not topic:
        raise usage_error(f"expected TOPIC or TOPIC:PARTITION,..., not {text!r}")
    if not colon:
        return TopicPartitions(topic, None)
    return TopicPartitions(topic, tuple(parse_integer(number, "a partition") for number in numbers.split(",")))


def parse_host_port(text: str, what: str) -> tuple[str, int]:
    """Parse `HOST:PORT`, `[IPV6]:PORT` or `:PORT`; the host is returned without brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise usage_error(f"{what} must be HOST:PORT, not {text!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise usage_error(f"{what}: an IPv6 address needs brackets, as in [::1]:9092, not {text!r}")
    return host, int(port)


def count_text(count: int, noun: str, plural: str | None = None) -> str:
    """Return `1 partition`, `2 partitions`; pass `plural` if it is not the noun plus s."""
    return f"{count} {noun}" if count == 1 else f"{count} {plural or noun + 's'}"


def if_known(format: Callable[[int], str], value: int | None) -> str | None:
    """Return the text of a value, None if it is None."""
    return None if value is None else format(value)


def format_size(size_bytes: float) -> str:
    """Return a size in bytes, KiB, MiB, GiB or TiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return count_text(round(size_bytes), "byte") if unit == "bytes" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def format_duration(duration_ms: int) -> str:
    """Return the two largest units of a duration, as parse_duration_ms reads them: `1h30m`, `2m`, `250ms`."""
    parts: list[str] = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, duration_ms = divmod(duration_ms, DURATION_UNITS_MS[unit])
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
        if len(parts) == 2:
            break
    return "".join(parts) or "0ms"


def format_timestamp(timestamp_ms: int) -> str:
    """Return milliseconds since the epoch as local time with milliseconds; a number out of range unchanged."""
    try:
        local = datetime.fromtimestamp(timestamp_ms / 1000)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return local.isoformat(sep=" ", timespec="milliseconds")
