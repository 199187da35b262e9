"""Formats counts, sizes, durations and timestamps for people."""

from datetime import datetime

from kbroker.cli.common.parsing import DURATION_UNITS_MS


def count_text(count: int, noun: str, plural: str | None = None) -> str:
    """Return `1 partition`, `2 partitions`; pass `plural` if it is not the noun plus s."""
    return f"{count} {noun}" if count == 1 else f"{count} {plural or noun + 's'}"


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
