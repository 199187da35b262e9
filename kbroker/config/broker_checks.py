"""Checks across several broker configs, those that Kafka makes when a broker starts or is reconfigured."""

from collections.abc import Mapping

from kbroker.config.values import ConfigError, Value

Values = Mapping[str, Value]

# (smaller, larger): the first may not exceed the second.
_ORDERED = (
    ("replica.fetch.wait.max.ms", "replica.socket.timeout.ms"),
    ("replica.fetch.wait.max.ms", "replica.lag.time.max.ms"),
    ("group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    ("group.consumer.min.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms"),
    ("group.consumer.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    ("group.consumer.min.session.timeout.ms", "group.consumer.session.timeout.ms"),
    ("group.consumer.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    ("group.share.min.heartbeat.interval.ms", "group.share.max.heartbeat.interval.ms"),
    ("group.share.min.heartbeat.interval.ms", "group.share.heartbeat.interval.ms"),
    ("group.share.heartbeat.interval.ms", "group.share.max.heartbeat.interval.ms"),
    ("group.share.min.session.timeout.ms", "group.share.max.session.timeout.ms"),
    ("group.share.min.session.timeout.ms", "group.share.session.timeout.ms"),
    ("group.share.session.timeout.ms", "group.share.max.session.timeout.ms"),
    ("group.streams.min.heartbeat.interval.ms", "group.streams.heartbeat.interval.ms"),
    ("group.streams.heartbeat.interval.ms", "group.streams.max.heartbeat.interval.ms"),
    ("group.streams.min.session.timeout.ms", "group.streams.session.timeout.ms"),
    ("group.streams.session.timeout.ms", "group.streams.max.session.timeout.ms"),
    ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
)

# (name, lowest): time limits that must be positive where they are given.
_UNLIMITED_OR_POSITIVE = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")


def check_broker(values: Values) -> None:
    """Raises ConfigError."""
    for small, large in _ORDERED:
        if _number(values, small) > _number(values, large):
            raise ConfigError(
                f"{small} ({values[small]}) must be less than or equal to {large} ({values[large]})"
            )
    for name in _UNLIMITED_OR_POSITIVE:
        if values[name] == 0:
            raise ConfigError(f"{name} must be unlimited (-1) or, equal or greater than 1")
    if values["log.roll.ms"] is not None and _number(values, "log.roll.ms") < 1:
        raise ConfigError("log.roll.ms must be greater than or equal to 1")
    if values["log.roll.jitter.ms"] is not None and _number(values, "log.roll.jitter.ms") < 0:
        raise ConfigError("log.roll.jitter.ms must be greater than or equal to 0")
    queued = _number(values, "queued.max.request.bytes")
    if 0 < queued < _number(values, "socket.request.max.bytes"):
        raise ConfigError(
            "queued.max.request.bytes must be larger or equal to socket.request.max.bytes"
        )
    if values["log.dirs"] == ():
        raise ConfigError("At least one log directory must be defined via log.dirs or log.dir.")


def _number(values: Values, name: str) -> float:
    value = values[name]
    return value if isinstance(value, int | float) else 0
