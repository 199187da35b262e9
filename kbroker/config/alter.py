"""The decisions of AlterConfigs and IncrementalAlterConfigs: a resource's new overrides, or an error.

The caller writes the result through the controller. Error codes and messages are Kafka's.

The broker's loggers are a config resource, too (BROKER_LOGGER). The levels are Python's, with Log4j's names. As in
Kafka, they belong to the process and are lost when it ends, so `alter_loggers` sets them itself.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from kbroker.common import KafkaError
from kbroker.config.archive_configs import ARCHIVE_LOCATIONS, ARCHIVE_TABLE, check_archive_table
from kbroker.config.broker.broker_config import BrokerConfig, broker_config_key
from kbroker.config.broker.consistency import validate_reconfiguration
from kbroker.config.config_def import CLUSTER_WIDE, READ_ONLY, ConfigDef, ConfigKey
from kbroker.config.definitions.client_metrics import CLIENT_METRICS_CONFIGS
from kbroker.config.definitions.group import GROUP_CONFIGS
from kbroker.config.definitions.topic import ALL_TOPIC_CONFIGS
from kbroker.config.group_config import validate_group_configs
from kbroker.config.queue_configs import DEFAULT_LEVELS, DELAY_LEVELS, VIEW_OF, check_same_source, without_empty_view
from kbroker.config.topic_config import validate_topic_configs
from kbroker.config.values import LIST, ConfigError, Value, format_value, parse_value
from protocol.errors import ErrorCode

ConfigTexts = Mapping[str, str]

# Configs that can be altered only with a listener prefix.
LISTENER_PREFIX_REQUIRED = frozenset(
    f"ssl.{suffix}"
    for suffix in (
        "key.password",
        "keystore.certificate.chain",
        "keystore.key",
        "keystore.location",
        "keystore.password",
        "keystore.type",
        "truststore.certificates",
        "truststore.location",
        "truststore.password",
        "truststore.type",
    )
)
# Kafka can alter these while it runs. kbroker opens its listeners only at startup.
READ_ONLY_IN_KBROKER = frozenset({"listeners", "listener.security.protocol.map"})
DELAY_ENABLE = "kbroker.delay.enable"
MIN_ISR = "min.insync.replicas"


class OpType(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


OP_TYPES = frozenset(OpType)


class AlterConfigOp(NamedTuple):
    """One change of a config. `op_type` is the number in the request, which may be unknown."""

    name: str
    op_type: int
    value: str | None


def set_ops(configs: Iterable[tuple[str, str | None]]) -> list[AlterConfigOp]:
    """Return the configs of an AlterConfigs request, as changes to empty overrides."""
    return [AlterConfigOp(name, OpType.SET, value) for name, value in configs]


def validate_ops(ops: Sequence[AlterConfigOp]) -> None:
    """Make the checks that do not depend on the resource. Raises KafkaError."""
    if len({op.name for op in ops}) < len(ops):
        raise _invalid_request("Error due to duplicate config keys")
    for op in ops:
        if op.op_type not in OP_TYPES:
            raise _invalid_request(f"Unknown operation {op.op_type} for config {op.name}")
    without_value = [op.name for op in ops if op.value is None and op.op_type != OpType.DELETE]
    if without_value:
        raise _invalid_request(f"Null value not supported for : {','.join(without_value)}")


def alter_topic(
    overrides: ConfigTexts, ops: Sequence[AlterConfigOp], config: BrokerConfig, *, replace: bool = False
) -> dict[str, str]:
    """Return a topic's new overrides. Raises KafkaError, usually INVALID_CONFIG.

    `replace`: the changes are those of empty overrides. The current ones are needed still, as some may not change.
    """
    defaults = config.topic_defaults
    applied = _apply({} if replace else overrides, ops, ALL_TOPIC_CONFIGS.get, defaults.values, _not_a_list)
    altered = without_empty_view(applied)
    check_same_source(overrides.get(VIEW_OF), altered.get(VIEW_OF))
    validate_topic_overrides(altered, config)
    normalized = _normalize(altered, ALL_TOPIC_CONFIGS)
    if overrides.get(DELAY_ENABLE) == "true":
        if normalized.get(DELAY_ENABLE) != "true":
            raise ConfigError(f"{DELAY_ENABLE} cannot be disabled: consumers would see the pending records at once")
        if normalized.get(DELAY_LEVELS, DEFAULT_LEVELS) != overrides.get(DELAY_LEVELS, DEFAULT_LEVELS):
            raise ConfigError(f"{DELAY_LEVELS} cannot be changed: pending records would be due at another time")
    return normalized


def validate_topic_overrides(overrides: ConfigTexts, config: BrokerConfig) -> None:
    """Validate a topic's overrides by what the broker's configs allow. Raises ConfigError."""
    validate_topic_configs(overrides, config.topic_defaults)
    table = overrides.get(ARCHIVE_TABLE, "").strip()
    if table:
        allowed = config.get(ARCHIVE_LOCATIONS)
        assert isinstance(allowed, tuple)
        check_archive_table(table, allowed, has_authorizer=config.authorizer is not None)


def alter_group(overrides: ConfigTexts, ops: Sequence[AlterConfigOp], config: BrokerConfig) -> dict[str, str]:
    """Return a group's new overrides. Raises KafkaError, usually INVALID_CONFIG."""
    altered = _apply(overrides, ops, GROUP_CONFIGS.get, {}, _not_a_list)
    validate_group_configs(altered, config.values)
    return _normalize(altered, GROUP_CONFIGS)


def alter_client_metrics(overrides: ConfigTexts, ops: Sequence[AlterConfigOp]) -> dict[str, str]:
    """Return a client metrics subscription's new configs. Raises KafkaError."""
    altered = _apply(overrides, ops, CLIENT_METRICS_CONFIGS.get, {}, _not_a_list)
    for name in altered:
        if name not in CLIENT_METRICS_CONFIGS:
            raise _invalid_request(f"Unknown client metrics configuration: {name}")
    # In the order in which Kafka checks them.
    return _normalize(dict(sorted(altered.items())), CLIENT_METRICS_CONFIGS)


def alter_broker(
    overrides: ConfigTexts, ops: Sequence[AlterConfigOp], config: BrokerConfig, *, cluster_default: bool
) -> dict[str, str]:
    """Return the new dynamic configs of this broker, or with `cluster_default` those of all brokers.

    An invalid value gets INVALID_REQUEST, as in Kafka. Unlike Kafka, unknown names are rejected: in Kafka they may be
    meant for a plugin class. Raises KafkaError.
    """
    altered = _apply(overrides, ops, _find_broker_config, config.values, _not_a_broker_list)
    keys = {op.name: broker_config_key(op.name) for op in ops if op.name in altered}
    _check_alterable(keys)
    try:
        _check_duplicates(keys, altered)
        altered = _normalize(altered, {name: broker_config_key(name) for name in altered})
        if cluster_default:
            _check_cluster_wide(keys)
            new_config = config.with_dynamic(altered, config.dynamic_broker_configs)
        else:
            new_config = config.with_dynamic(config.dynamic_default_configs, altered)
        validate_reconfiguration(config.values, new_config.values, keys)
    except ConfigError as error:
        raise _invalid_request(str(error)) from None
    if not cluster_default and MIN_ISR in keys:
        # The controller decides with the value of all brokers which replicas are eligible leaders (KIP-966). A leader
        # with a lower one would commit records without them.
        message = f"Broker-level {MIN_ISR} cannot be altered while ELR is enabled."
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    return altered


def _check_alterable(keys: ConfigDef) -> None:
    read_only = [name for name, key in keys.items() if key.update_mode is READ_ONLY or name in READ_ONLY_IN_KBROKER]
    if read_only:
        raise _invalid_request(f"Cannot update these configs dynamically: {_format_names(read_only)}")
    security = [name for name in keys if name in LISTENER_PREFIX_REQUIRED]
    if security:
        raise _invalid_request(
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            + _format_names(security)
        )


def _check_duplicates(keys: ConfigDef, texts: ConfigTexts) -> None:
    """Refuse a list with duplicates. Elsewhere they are dropped."""
    for name, key in keys.items():
        elements = parse_value(name, key.type, texts[name]) if key.type is LIST else ()
        if isinstance(elements, tuple) and len(set(elements)) < len(elements):
            raise ConfigError(f"Configuration '{name}' values must not be duplicated.")


def _check_cluster_wide(keys: ConfigDef) -> None:
    per_broker = [
        name for name, key in keys.items() if key.update_mode is not CLUSTER_WIDE or name.startswith("listener.")
    ]
    if per_broker:
        raise _invalid_request(
            "Cannot update these configs at default cluster level, broker id must be specified: "
            + _format_names(per_broker)
        )


def _apply(
    overrides: ConfigTexts,
    ops: Sequence[AlterConfigOp],
    find_key: Callable[[str], ConfigKey | None],
    defaults: Mapping[str, Value],
    not_a_list: Callable[[AlterConfigOp, ConfigKey | None], KafkaError],
) -> dict[str, str]:
    """Apply the changes to the overrides; the values are not validated yet.

    `not_a_list` returns the error of an APPEND or SUBTRACT to a config that is not a list, or is unknown.
    """
    validate_ops(ops)
    altered = dict(overrides)
    for op in ops:
        if op.value is None or op.op_type == OpType.DELETE:
            altered.pop(op.name, None)
        elif op.op_type == OpType.SET:
            altered[op.name] = op.value
        else:
            key = find_key(op.name)
            if key is None or key.type is not LIST:
                raise not_a_list(op, key)
            text = altered.get(op.name)
            # A list without an override starts from the value in effect. Kafka starts from the config's default.
            current = defaults.get(op.name) if text is None else parse_value(op.name, LIST, text)
            altered[op.name] = ",".join(_alter_list(current, op))
    return altered


def _alter_list(current: Value, op: AlterConfigOp) -> list[str]:
    """Append the operation's elements to a list, without duplicates, or subtract them from it."""
    old = current if isinstance(current, tuple) else ()
    parsed = parse_value(op.name, LIST, op.value)
    elements = parsed if isinstance(parsed, tuple) else ()
    if op.op_type == OpType.APPEND:
        return list(dict.fromkeys((*old, *elements)))
    removed = frozenset(elements)
    return [element for element in old if element not in removed]


def _normalize(texts: ConfigTexts, definition: ConfigDef) -> dict[str, str]:
    """Return the values as DescribeConfigs returns them, for example without surrounding blanks."""
    return {name: format_value(definition[name].parse(text)) or "" for name, text in texts.items()}


def _find_broker_config(name: str) -> ConfigKey | None:
    try:
        return broker_config_key(name)
    except ConfigError:
        return None


def _not_a_list(op: AlterConfigOp, key: ConfigKey | None) -> KafkaError:
    return ConfigError(f"Can't {OpType(op.op_type).name} to key {op.name} because its type is not LIST.")


def _not_a_broker_list(op: AlterConfigOp, key: ConfigKey | None) -> KafkaError:
    if key is None:
        return ConfigError(f"Unknown config name: {op.name}")
    operation = OpType(op.op_type).name.lower()
    return ConfigError(f"Config value {operation} is not allowed for config key: {op.name}")


def _invalid_request(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _format_names(names: Iterable[str]) -> str:
    return "[" + ", ".join(sorted(names)) + "]"


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
