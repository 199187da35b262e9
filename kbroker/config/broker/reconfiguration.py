"""Checks of a broker config that is altered while the broker runs, against what was in effect before."""

from collections.abc import Iterable, Mapping

from kbroker.config.broker.listener_prefix import strip_listener_prefix
from kbroker.config.values import ConfigError, Value, format_value

Values = Mapping[str, Value]

# Kafka changes its pools by half or double at most. kbroker has no pools, and does not take more than Kafka would.
_THREADS = (
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


def check_altered(before: Values, after: Values, names: Iterable[str]) -> None:
    """`names` are those that a request sets. Raises ConfigError."""
    for name in names:
        old, new, base = before.get(name), after[name], strip_listener_prefix(name)
        if base in _NEVER_ZERO and new == 0:
            raise ConfigError(f"Invalid {base} 0")
        if not isinstance(old, int) or not isinstance(new, int):
            continue
        if name in _THREADS:
            _check_threads(name, old, new)
        elif name == "log.cleaner.threads":
            _check_cleaners(old, new)


def _check_threads(name: str, old: int, new: int) -> None:
    failed = f"Dynamic thread count update validation failed for {name}={format_value(new)}"
    if new < old // 2:
        raise ConfigError(f"{failed}, value should be at least half the current value {old}")
    if new > old * 2:
        raise ConfigError(f"{failed}, value should not be greater than double the current value {old}")


def _check_cleaners(old: int, new: int) -> None:
    if new < old // 2:
        raise ConfigError(f"Log cleaner threads cannot be reduced to less than half the current value {old}")
    if new > old * 2 and old:
        raise ConfigError(f"Log cleaner threads cannot be increased to more than double the current value {old}")
