"""The broker's loggers as a config resource (BROKER_LOGGER), for DescribeConfigs and IncrementalAlterConfigs.

The levels are Python's, with Log4j's names. As in Kafka, they belong to the process and are lost when it ends.
"""

import logging
from collections.abc import Sequence

from kbroker.common import KafkaError
from kbroker.config.alter import AlterConfigOp, OpType, validate_ops
from kbroker.config.values import ConfigError
from protocol.errors import ErrorCode

ROOT_LOGGER = "kbroker"

_LEVELS = {
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


def logger_levels() -> dict[str, str]:
    """Return the effective level of each of kbroker's loggers, by name."""
    loggers = logging.root.manager.loggerDict
    names = {ROOT_LOGGER, *(name for name in loggers if name.startswith(ROOT_LOGGER + "."))}
    return {name: _level_name(logging.getLogger(name).getEffectiveLevel()) for name in sorted(names)}


def alter_loggers(ops: Sequence[AlterConfigOp], *, validate_only: bool) -> None:
    """Make all the changes. Raises KafkaError and makes none if one is invalid."""
    validate_ops(ops)
    levels = logger_levels()
    for op in ops:
        _validate(op, levels)
    if not validate_only:
        for op in ops:
            level = _LEVELS[op.value.upper()] if op.op_type == OpType.SET and op.value else logging.NOTSET
            logging.getLogger(op.name).setLevel(level)


def _validate(op: AlterConfigOp, levels: dict[str, str]) -> None:
    if op.op_type in (OpType.APPEND, OpType.SUBTRACT):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{OpType(op.op_type).name} operation is not allowed for the BROKER_LOGGER resource",
        )
    if op.name not in levels:
        raise ConfigError(f"Logger {op.name} does not exist!")
    if op.op_type == OpType.DELETE and op.name == ROOT_LOGGER:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Removing the log level of the {ROOT_LOGGER} logger is not allowed"
        )
    if op.op_type == OpType.SET and (op.value or "").upper() not in _LEVELS:
        raise ConfigError(
            f"Cannot set the log level of {op.name} to {op.value} as it is not a supported log "
            f"level. Valid log levels are {', '.join(_LEVELS)}"
        )


def _level_name(level: int) -> str:
    """Return the name of the lowest named level that is at least `level`."""
    return next((name for name, number in _LEVELS.items() if level <= number), "FATAL")
