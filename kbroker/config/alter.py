"""What AlterConfigs and IncrementalAlterConfigs decide: a resource's new overrides, or a refusal.

Pure: whoever calls these writes the outcome through the controller. The codes and messages are Kafka's.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from kbroker.common import KafkaError
from kbroker.config.broker.broker_config import BrokerConfig, broker_config_key
from kbroker.config.broker.reconfiguration import check_altered
from kbroker.config.config_def import CLUSTER_WIDE, READ_ONLY, ConfigDef, ConfigKey
from kbroker.config.definitions.client_metrics import CLIENT_METRICS_CONFIGS
from kbroker.config.definitions.group import GROUP_CONFIGS
from kbroker.config.definitions.topic import ALL_TOPIC_CONFIGS
from kbroker.config.group_config import validate_group_configs
from kbroker.config.topic_config import validate_topic_configs
from kbroker.config.values import LIST, ConfigError, Value, format_value, parse_value
from protocol.errors import ErrorCode

Texts = Mapping[str, str]

# TLS material may be changed under a listener's name only.
PER_LISTENER = frozenset(
    f"ssl.{what}"
    for what in (
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
# Dynamic in Kafka; kbroker opens its listeners once.
FIXED_HERE = frozenset({"listeners", "listener.security.protocol.map"})


class OpType(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class AlterConfigOp(NamedTuple):
    """`op` as it came over the wire, so it may be none of Op's."""

    name: str
    op: int
    value: str | None


def set_ops(configs: Iterable[tuple[str, str | None]]) -> list[AlterConfigOp]:
    """AlterConfigs' meaning, for changes that are applied to no overrides at all."""
    return [AlterConfigOp(name, OpType.SET, value) for name, value in configs]


def check_changes(changes: Sequence[AlterConfigOp]) -> None:
    """What is wrong whatever the resource. Raises KafkaError."""
    if len({change.name for change in changes}) < len(changes):
        raise _invalid("Error due to duplicate config keys")
    for change in changes:
        if change.op not in tuple(OpType):
            raise _invalid(f"Unknown operation {change.op} for config {change.name}")
    missing = [change.name for change in changes if change.value is None and change.op != OpType.DELETE]
    if missing:
        raise _invalid(f"Null value not supported for : {','.join(missing)}")


def alter_topic(current: Texts, changes: Sequence[AlterConfigOp], config: BrokerConfig) -> dict[str, str]:
    """A topic's new overrides. Raises KafkaError, mostly INVALID_CONFIG."""
    new = _applied(current, changes, ALL_TOPIC_CONFIGS.get, config.topic_defaults, _no_list)
    validate_topic_configs(new, config.topic_defaults)
    return _normal(new, ALL_TOPIC_CONFIGS)


def alter_group(current: Texts, changes: Sequence[AlterConfigOp], config: BrokerConfig) -> dict[str, str]:
    new = _applied(current, changes, GROUP_CONFIGS.get, {}, _no_list)
    validate_group_configs(new, config.values)
    return _normal(new, GROUP_CONFIGS)


def alter_client_metrics(current: Texts, changes: Sequence[AlterConfigOp]) -> dict[str, str]:
    new = _applied(current, changes, CLIENT_METRICS_CONFIGS.get, {}, _no_list)
    for name in new:
        if name not in CLIENT_METRICS_CONFIGS:
            raise _invalid(f"Unknown client metrics configuration: {name}")
    return _normal(new, CLIENT_METRICS_CONFIGS)


def alter_broker(
    current: Texts, changes: Sequence[AlterConfigOp], config: BrokerConfig, *, every: bool
) -> dict[str, str]:
    """The new dynamic configs of this broker, or (`every`) those that all brokers share.

    A bad value is INVALID_REQUEST here, as in Kafka. Unlike Kafka an unknown name is refused: there it might
    be meant for a plugin class.
    """
    new = _applied(current, changes, _broker_row, config.values, _no_broker_list)
    touched = {change.name: broker_config_key(change.name) for change in changes if change.name in new}
    _check_dynamic(touched)
    try:
        new = _normal(new, {name: broker_config_key(name) for name in new})
        _check_level(touched, every)
        after = config.with_dynamic(new, config.own) if every else config.with_dynamic(config.cluster, new)
        check_altered(config.values, after.values, touched)
    except ConfigError as wrong:
        raise _invalid(str(wrong)) from None
    return new


def _check_dynamic(rows: Mapping[str, ConfigKey]) -> None:
    fixed = [name for name, row in rows.items() if row.mode is READ_ONLY or name in FIXED_HERE]
    if fixed:
        raise _invalid(f"Cannot update these configs dynamically: {_listed(fixed)}")
    security = [name for name in rows if name in PER_LISTENER]
    if security:
        raise _invalid(
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            + _listed(security)
        )


def _check_level(rows: Mapping[str, ConfigKey], every: bool) -> None:
    single = [name for name, row in rows.items() if row.mode is not CLUSTER_WIDE or name.startswith("listener.")]
    if every and single:
        raise _invalid(
            "Cannot update these configs at default cluster level, broker id must be specified: " + _listed(single)
        )


def _applied(
    current: Texts,
    changes: Sequence[AlterConfigOp],
    find: Callable[[str], ConfigKey | None],
    defaults: Mapping[str, Value],
    no_list: Callable[[AlterConfigOp, ConfigKey | None], KafkaError],
) -> dict[str, str]:
    """The changes carried out, nothing validated but that lists are lists."""
    check_changes(changes)
    new = dict(current)
    for change in changes:
        if change.value is None or change.op == OpType.DELETE:
            new.pop(change.name, None)
        elif change.op == OpType.SET:
            new[change.name] = change.value
        else:
            row = find(change.name)
            if row is None or row.type is not LIST:
                raise no_list(change, row)
            text = new.get(change.name)
            # What is in effect is added to; Kafka adds to the config's default, whatever its broker says.
            before = defaults.get(change.name) if text is None else parse_value(change.name, LIST, text)
            new[change.name] = ",".join(_edited(before, change))
    return new


def _edited(before: Value, change: AlterConfigOp) -> list[str]:
    """The list with parts appended or taken away; each part is there at most once."""
    old = before if isinstance(before, tuple) else ()
    parts = parse_value(change.name, LIST, change.value)
    given = parts if isinstance(parts, tuple) else ()
    if change.op == OpType.APPEND:
        return list(dict.fromkeys((*old, *given)))
    return [part for part in old if part not in given]


def _normal(texts: Texts, rows: ConfigDef) -> dict[str, str]:
    """Values as they are described: without the blanks that they may have been sent with."""
    return {name: format_value(rows[name].parse(text)) or "" for name, text in texts.items()}


def _broker_row(name: str) -> ConfigKey | None:
    try:
        return broker_config_key(name)
    except ConfigError:
        return None


def _no_list(change: AlterConfigOp, row: ConfigKey | None) -> KafkaError:
    return ConfigError(f"Can't {OpType(change.op).name} to key {change.name} because its type is not LIST.")


def _no_broker_list(change: AlterConfigOp, row: ConfigKey | None) -> KafkaError:
    if row is None:
        return ConfigError(f"Unknown config name: {change.name}")
    return ConfigError(f"Config value {OpType(change.op).name.lower()} is not allowed for config key: {change.name}")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _listed(names: Iterable[str]) -> str:
    return "[" + ", ".join(sorted(names)) + "]"
