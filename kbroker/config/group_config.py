"""GroupConfig: the effective configuration of one group, with typed attributes."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from kbroker.config.config_def import broker_defaults, parse_configs
from kbroker.config.definitions.group import GROUP_CONFIGS, KINDS
from kbroker.config.values import ConfigError, Value, format_java_value


@dataclass(slots=True, frozen=True, kw_only=True)
class GroupConfig:
    """Effective values: the group's overrides, else the broker's values. `BrokerConfig.group_config` returns it.

    Immutable. An attribute is a config's name with underscores. Times are in milliseconds.
    """

    consumer_assignment_interval_ms: int
    consumer_heartbeat_interval_ms: int
    consumer_session_timeout_ms: int
    errors_deadletterqueue_copy_record_enable: bool
    errors_deadletterqueue_topic_name: str
    kbroker_share_retry_delays_ms: str
    share_assignment_interval_ms: int
    share_auto_offset_reset: str
    share_delivery_count_limit: int
    share_heartbeat_interval_ms: int
    share_isolation_level: str
    share_partition_max_record_locks: int
    share_record_lock_duration_ms: int
    share_renew_acknowledge_enable: bool
    share_session_timeout_ms: int
    streams_assignment_interval_ms: int
    streams_assignor_name: str
    streams_heartbeat_interval_ms: int
    streams_initial_rebalance_delay_ms: int
    streams_num_standby_replicas: int
    streams_rack_aware_assignment_tags: tuple[str, ...]
    streams_session_timeout_ms: int

    @classmethod
    def of(cls, overrides: Mapping[str, str], broker: Mapping[str, Value]) -> "GroupConfig":
        """Create it from a group's overrides, as text, and the broker's values. Raises ConfigError."""
        values = broker_defaults(GROUP_CONFIGS, broker) | parse_configs(GROUP_CONFIGS, overrides, "group")
        for name in overrides:
            # The broker may have got other limits since the config was set.
            minimum, maximum = limits(name)
            if isinstance(value := values[name], int):
                value = max(value, _number(broker.get(minimum, value)))
                values[name] = min(value, _number(broker.get(maximum, value)))
        typed: dict[str, Any] = {attribute: values[name] for attribute, name in _ATTRIBUTES}
        return cls(**typed)


_ATTRIBUTES = tuple((field.name, field.name.replace("_", ".")) for field in fields(GroupConfig))


def validate_group_configs(overrides: Mapping[str, str], broker: Mapping[str, Value]) -> None:
    """Validate a group's overrides: each one, against the broker's limits, and together. Raises ConfigError."""
    values = broker_defaults(GROUP_CONFIGS, broker) | parse_configs(GROUP_CONFIGS, overrides, "group")
    for name in overrides:
        minimum, maximum = (broker.get(limit) for limit in limits(name))
        value = _number(values[name])
        if minimum is not None and not _number(minimum) <= value <= _number(maximum):
            raise ConfigError(f"{name} must be in the range {minimum} to {maximum} inclusive.")
        if maximum is not None and value > _number(maximum):
            raise ConfigError(f"{name} must be less than or equal to {maximum}")
    assignors, assignor = broker["group.streams.assignors"], values["streams.assignor.name"]
    if isinstance(assignors, tuple) and assignor not in assignors:
        raise ConfigError(
            f"streams.assignor.name '{assignor}' is not a registered task assignor. Registered assignors are: "
            f"{format_java_value(assignors)}."
        )
    for kind in KINDS:
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if _number(values[session]) <= _number(values[heartbeat]):
            raise ConfigError(f"{session} must be greater than {heartbeat}")


def limits(name: str) -> tuple[str, str]:
    """Return the names of the broker configs that limit a group config. They may not exist."""
    kind, _, suffix = name.partition(".")
    return f"group.{kind}.min.{suffix}", f"group.{kind}.max.{suffix.removeprefix('num.')}"


def _number(value: Value) -> int:
    return value if isinstance(value, int) else 0
