"""Checks across several broker configs: those that Kafka makes when a broker starts or is reconfigured."""

from collections.abc import Iterator, Mapping

from kbroker.config.values import ConfigError, Value

Values = Mapping[str, Value]

# What brokers allow groups to set, as group.<kind>.min.<what> and group.<kind>.max.<what>.
_GROUP_RANGES = {
    "consumer": ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms"),
    "share": (
        "heartbeat.interval.ms",
        "session.timeout.ms",
        "assignment.interval.ms",
        "record.lock.duration.ms",
        "delivery.count.limit",
        "partition.max.record.locks",
    ),
    "streams": ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms"),
}

# (smaller, larger): the first may not exceed the second.
_ORDERED = (
    ("replica.fetch.wait.max.ms", "replica.socket.timeout.ms"),
    ("replica.fetch.wait.max.ms", "replica.lag.time.max.ms"),
    ("group.streams.num.standby.replicas", "group.streams.max.standby.replicas"),
    ("group.share.max.size", "group.share.max.share.sessions"),
    # Kafka takes this and then refuses every topic.
    ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
)
_UNLIMITED_OR_POSITIVE = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
_LOWEST = {"log.roll.ms": 1, "log.roll.jitter.ms": 0}


def ordered_pairs() -> Iterator[tuple[str, str, str]]:
    """(smaller, larger, what to say when they are not)."""
    for small, large in _ORDERED:
        yield small, large, f"{small} must be less than or equal to {large}"
    for kind, ranges in _GROUP_RANGES.items():
        for what in ranges:
            low, value, high = f"group.{kind}.min.{what}", f"group.{kind}.{what}", f"group.{kind}.max.{what}"
            yield low, high, f"{high} must be greater than or equal to {low}"
            yield low, value, f"{value} must be greater than or equal to {low}"
            yield value, high, f"{value} must be less than or equal to {high}"


def check_broker(values: Values) -> None:
    """Raises ConfigError."""
    for small, large, message in ordered_pairs():
        if _number(values, small) > _number(values, large):
            raise ConfigError(message)
    for kind in _GROUP_RANGES:
        beat, session = f"group.{kind}.heartbeat.interval.ms", f"group.{kind}.session.timeout.ms"
        if _number(values, beat) >= _number(values, session):
            raise ConfigError(f"{beat} must be less than {session}")
    for name in _UNLIMITED_OR_POSITIVE:
        if values[name] == 0:
            raise ConfigError(f"{name} must be unlimited (-1) or, greater than or equal to 1")
    for name, lowest in _LOWEST.items():
        if values[name] is not None and _number(values, name) < lowest:
            raise ConfigError(f"{name} must be greater than or equal to {lowest}")
    _check_sizes(values)


def _check_sizes(values: Values) -> None:
    queued = _number(values, "queued.max.request.bytes")
    if 0 < queued < _number(values, "socket.request.max.bytes"):
        raise ConfigError("queued.max.request.bytes must be larger or equal to socket.request.max.bytes")
    threads = _number(values, "log.cleaner.threads")
    if _number(values, "log.cleaner.dedupe.buffer.size") < threads * (1 << 20):
        raise ConfigError("log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.")
    cordoned = values["cordoned.log.dirs"]
    if isinstance(cordoned, tuple) and "*" in cordoned and len(cordoned) > 1:
        raise ConfigError("When cordoned.log.dirs is set to *, it must not contain other values")


def _number(values: Values, name: str) -> float:
    value = values[name]
    return value if isinstance(value, int | float) else 0
