"""The broker's loggers as a config resource: DescribeConfigs and IncrementalAlterConfigs of BROKER_LOGGER.

Levels are Python's under Log4j's names. They belong to the process and last as long as it does, as in Kafka.
"""

import logging
from collections.abc import Sequence

from kbroker.common import KafkaError
from kbroker.config.alter import AlterConfigOp, OpType, check_changes
from kbroker.config.values import ConfigError
from protocol.errors import ErrorCode

ROOT = "kbroker"

_LEVELS = {
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


def logger_levels() -> dict[str, str]:
    """The effective level of each of kbroker's loggers, by name."""
    known = logging.root.manager.loggerDict
    names = {ROOT, *(name for name in known if name.startswith(ROOT + "."))}
    return {name: _level_name(logging.getLogger(name).getEffectiveLevel()) for name in sorted(names)}


def alter_loggers(changes: Sequence[AlterConfigOp], *, validate_only: bool) -> None:
    """All of the changes, or none and a KafkaError."""
    check_changes(changes)
    known = logger_levels()
    for change in changes:
        _check(change, known)
    if not validate_only:
        for change in changes:
            level = _LEVELS[change.value.upper()] if change.op == OpType.SET and change.value else logging.NOTSET
            logging.getLogger(change.name).setLevel(level)


def _check(change: AlterConfigOp, known: dict[str, str]) -> None:
    if change.op in (OpType.APPEND, OpType.SUBTRACT):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{OpType(change.op).name} operation is not allowed for the BROKER_LOGGER resource",
        )
    if change.name not in known:
        raise ConfigError(f"Logger {change.name} does not exist!")
    if change.op == OpType.DELETE and change.name == ROOT:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Removing the log level of the {ROOT} logger is not allowed")
    if change.op == OpType.SET and (change.value or "").upper() not in _LEVELS:
        raise ConfigError(
            f"Cannot set the log level of {change.name} to {change.value} as it is not a supported log "
            f"level. Valid log levels are {', '.join(_LEVELS)}"
        )


def _level_name(level: int) -> str:
    """The nearest level at or above."""
    return next((name for name, number in _LEVELS.items() if level <= number), "FATAL")
