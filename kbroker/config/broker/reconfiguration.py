"""Checks of a broker config that is altered at run time, against its current value."""

from collections.abc import Iterable, Mapping

from kbroker.config.broker.listener_prefix import strip_listener_prefix
from kbroker.config.values import ConfigError, Value, format_value

Values = Mapping[str, Value]

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


def validate_reconfiguration(current: Values, altered: Values, names: Iterable[str]) -> None:
    """Validate the configs that a request sets (`names`). Raises ConfigError."""
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
