"""Checks across several broker configs: those that Kafka makes when a broker starts or is reconfigured."""

from collections.abc import Iterator, Mapping

from kbroker.config.values import ConfigError, Value, format_value

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

# (smaller, larger, what Kafka says): the first may not exceed the second.
_ORDERED = (
    ("replica.fetch.wait.max.ms", "replica.socket.timeout.ms",
     "replica.socket.timeout.ms should always be at least replica.fetch.wait.max.ms to prevent unnecessary socket "
     "timeouts"),
    ("replica.fetch.wait.max.ms", "replica.lag.time.max.ms",
     "replica.fetch.wait.max.ms should always be less than or equal to replica.lag.time.max.ms to prevent frequent "
     "changes in ISR"),
    ("group.streams.num.standby.replicas", "group.streams.max.standby.replicas",
     "group.streams.num.standby.replicas must be less than or equal to group.streams.max.standby.replicas"),
    ("group.share.max.size", "group.share.max.share.sessions",
     "group.share.max.share.sessions must be greater than or equal to group.share.max.size"),
    # Kafka takes this and then refuses every topic.
    ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms",
     "log.cleaner.min.compaction.lag.ms must be less than or equal to log.cleaner.max.compaction.lag.ms"),
)  # fmt: skip
# Of these Kafka names the upper limit first.
_LIMIT_FIRST = ("group.share.record.lock.duration.ms", "group.share.partition.max.record.locks")
_RETENTION = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
_LOWEST = {"log.roll.ms": 1, "log.roll.jitter.ms": 0}


def ordered_pairs() -> Iterator[tuple[str, str, str]]:
    """(smaller, larger, what to say when they are not)."""
    yield from _ORDERED
    for kind, ranges in _GROUP_RANGES.items():
        for what in ranges:
            low, value, high = f"group.{kind}.min.{what}", f"group.{kind}.{what}", f"group.{kind}.max.{what}"
            yield low, high, f"{high} must be greater than or equal to {low}"
            yield low, value, f"{value} must be greater than or equal to {low}"
            if value in _LIMIT_FIRST:
                yield value, high, f"{high} must be greater than or equal to {value}"
            else:
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
    if next((values[name] for name in _RETENTION if values[name] is not None), None) == 0:
        raise ConfigError("log.retention.ms must be unlimited (-1) or, greater than or equal to 1")
    for name, lowest in _LOWEST.items():
        if values[name] is not None and _number(values, name) < lowest:
            raise ConfigError(f"{name} must be greater than or equal to {lowest}")
    _check_sizes(values)
    _check_names(values)


def _check_sizes(values: Values) -> None:
    queued = _number(values, "queued.max.request.bytes")
    if 0 < queued < _number(values, "socket.request.max.bytes"):
        raise ConfigError("queued.max.request.bytes must be larger or equal to socket.request.max.bytes")
    threads = _number(values, "log.cleaner.threads")
    if _number(values, "log.cleaner.dedupe.buffer.size") < threads * (1 << 20):
        raise ConfigError("log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.")
    delay, idle = "connection.failed.authentication.delay.ms", "connections.max.idle.ms"
    if 0 <= _number(values, idle) <= _number(values, delay):
        raise ConfigError(
            f"{delay}={format_value(values[delay])} should always be less than {idle}={format_value(values[idle])} "
            "to prevent failed authentication responses from timing out"
        )
    if values["max.connections.per.ip"] == 0 and not values["max.connections.per.ip.overrides"]:
        raise ConfigError(
            "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property is set."
        )


def _check_names(values: Values) -> None:
    """Configs that name what others declare."""
    cordoned, directories = _parts(values, "cordoned.log.dirs"), _parts(values, "log.dirs") or _parts(values, "log.dir")
    if "*" in cordoned and len(cordoned) > 1:
        raise ConfigError("When cordoned.log.dirs is set to *, it must not contain other values")
    missing = [one for one in cordoned if one not in (*directories, "*")]
    if missing:
        raise ConfigError(
            "All entries in cordoned.log.dirs must be present in log.dirs or log.dir. "
            f"Missing entries : {', '.join(missing)}"
        )
    controllers = _parts(values, "controller.listener.names")
    known = {name.partition(":")[0].upper() for name in (*_parts(values, "listeners"), *controllers)}
    for name in _parts(values, "early.start.listeners"):
        if name.upper() not in known:
            raise ConfigError(
                f"early.start.listeners contains listener {name}, "
                "but this is not contained in listeners or controller.listener.names"
            )
    inter_broker = values["inter.broker.listener.name"]
    if inter_broker == "":
        raise ConfigError("The provided listener name is null or empty string")
    protocols = str(values["listener.security.protocol.map"]).upper().split(",")
    if isinstance(inter_broker, str) and inter_broker.upper() not in {
        one.partition(":")[0].strip() for one in protocols
    }:
        raise ConfigError(
            f"Listener with name {inter_broker.upper()} defined in inter.broker.listener.name not found in "
            "listener.security.protocol.map."
        )


def _parts(values: Values, name: str) -> tuple[str, ...]:
    value = values[name]
    return value if isinstance(value, tuple) else ()


def _number(values: Values, name: str) -> float:
    value = values[name]
    return value if isinstance(value, int | float) else 0
