"""Checks whether broker configs contradict each other, as Kafka does when a broker starts or is reconfigured."""

from collections.abc import Iterable, Iterator, Mapping

from kbroker.config.definitions.broker import strip_listener_prefix
from kbroker.config.definitions.group import KINDS, LIMITED
from kbroker.config.values import ConfigError, Value, format_value

Values = Mapping[str, Value]

# (smaller, larger, error message): the value of the first must not exceed that of the second.
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
    # Kafka accepts this and then rejects every topic.
    ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms",
     "log.cleaner.min.compaction.lag.ms must be less than or equal to log.cleaner.max.compaction.lag.ms"),
)  # fmt: skip
# For these, Kafka's error message names the upper limit first.
_LIMIT_FIRST = ("group.share.record.lock.duration.ms", "group.share.partition.max.record.locks")
_RETENTION = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
_MINIMUMS = {"log.roll.ms": 1, "log.roll.jitter.ms": 0}

# Kafka at most halves or doubles a thread pool at a time. kbroker has no such pools, but makes the same check.
_THREAD_COUNTS = (
    "background.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "remote.log.manager.copier.thread.pool.size",
    "remote.log.manager.expiration.thread.pool.size",
    "remote.log.manager.follower.thread.pool.size",
    "remote.log.reader.threads",
)
_NEVER_ZERO = ("max.connections", "max.connection.creation.rate")


def _ordered_pairs() -> Iterator[tuple[str, str, str]]:
    """Return (smaller, larger, error message) for each pair, as in _ORDERED."""
    yield from _ORDERED
    for row in LIMITED:
        low, value, high = (f"group.{row.kind}{part}.{row.suffix}" for part in (".min", "", ".max"))
        yield low, high, f"{high} must be greater than or equal to {low}"
        yield low, value, f"{value} must be greater than or equal to {low}"
        if value in _LIMIT_FIRST:
            yield value, high, f"{high} must be greater than or equal to {value}"
        else:
            yield value, high, f"{value} must be less than or equal to {high}"


def validate_broker_configs(values: Values) -> None:
    """Raise ConfigError if values contradict each other."""
    for smaller, larger, message in _ordered_pairs():
        if _number(values, smaller) > _number(values, larger):
            raise ConfigError(message)
    for kind in KINDS:
        heartbeat, session = f"group.{kind}.heartbeat.interval.ms", f"group.{kind}.session.timeout.ms"
        if _number(values, heartbeat) >= _number(values, session):
            raise ConfigError(f"{heartbeat} must be less than {session}")
    if next((values[name] for name in _RETENTION if values[name] is not None), None) == 0:
        raise ConfigError("log.retention.ms must be unlimited (-1) or, greater than or equal to 1")
    for name, minimum in _MINIMUMS.items():
        if values[name] is not None and _number(values, name) < minimum:
            raise ConfigError(f"{name} must be greater than or equal to {minimum}")
    _check_sizes(values)
    _check_log_dirs(values)
    _check_listener_names(values)
    if values["zookeeper.connect"]:
        # imported here to keep the startup fast
        from kbroker.config.broker.zookeeper_settings import zookeeper_settings

        zookeeper_settings(values)


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


def _check_log_dirs(values: Values) -> None:
    cordoned = _list(values, "cordoned.log.dirs")
    directories = _list(values, "log.dirs") or _list(values, "log.dir")
    if "*" in cordoned and len(cordoned) > 1:
        raise ConfigError("When cordoned.log.dirs is set to *, it must not contain other values")
    missing = [directory for directory in cordoned if directory not in (*directories, "*")]
    if missing:
        raise ConfigError(
            "All entries in cordoned.log.dirs must be present in log.dirs or log.dir. "
            f"Missing entries : {', '.join(missing)}"
        )


def _check_listener_names(values: Values) -> None:
    controllers = _list(values, "controller.listener.names")
    known = {name.partition(":")[0].upper() for name in (*_list(values, "listeners"), *controllers)}
    for name in _list(values, "early.start.listeners"):
        if name.upper() not in known:
            raise ConfigError(
                f"early.start.listeners contains listener {name}, "
                "but this is not contained in listeners or controller.listener.names"
            )


def _list(values: Values, name: str) -> tuple[str, ...]:
    value = values[name]
    return value if isinstance(value, tuple) else ()


def _number(values: Values, name: str) -> float:
    value = values[name]
    return value if isinstance(value, int | float) else 0


def validate_reconfiguration(current: Values, altered: Values, names: Iterable[str]) -> None:
    """Validate the configs that a request sets at run time (`names`), against `current`. Raises ConfigError."""
    for name in names:
        old, new, base_name = current.get(name), altered[name], strip_listener_prefix(name)
        if base_name in _NEVER_ZERO and new == 0:
            raise ConfigError(f"Invalid {base_name} 0")
        if not isinstance(old, int) or not isinstance(new, int):
            continue
        if name in _THREAD_COUNTS:
            _check_thread_count(name, old, new)
        elif name == "log.cleaner.threads":
            _check_cleaner_threads(old, new)


def _check_thread_count(name: str, old: int, new: int) -> None:
    prefix = f"Dynamic thread count update validation failed for {name}={format_value(new)}"
    if new < old // 2:
        raise ConfigError(f"{prefix}, value should be at least half the current value {old}")
    if new > old * 2:
        raise ConfigError(f"{prefix}, value should not be greater than double the current value {old}")


def _check_cleaner_threads(old: int, new: int) -> None:
    if new < old // 2:
        raise ConfigError(f"Log cleaner threads cannot be reduced to less than half the current value {old}")
    if new > old * 2 and old:
        raise ConfigError(f"Log cleaner threads cannot be increased to more than double the current value {old}")
