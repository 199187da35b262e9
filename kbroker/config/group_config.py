"""Group configs against the limits that brokers set for them."""

from collections.abc import Mapping

from kbroker.config.config_def import parse_configs
from kbroker.config.definitions.group import GROUP_CONFIGS
from kbroker.config.inherit import inherit_broker_values
from kbroker.config.values import ConfigError, Value

Values = Mapping[str, Value]


def group_defaults(broker: Values) -> dict[str, Value]:
    """The configs of a group without overrides."""
    return inherit_broker_values(GROUP_CONFIGS, broker)


def validate_group_configs(overrides: Mapping[str, str], broker: Values) -> None:
    """Validates a group's overrides, each, against the broker's limits, and together. Raises ConfigError."""
    values = group_defaults(broker) | parse_configs(GROUP_CONFIGS, overrides, "group")
    for name in overrides:
        kind, _, what = name.partition(".")
        lowest = broker.get(f"group.{kind}.min.{what}")
        if isinstance(lowest, int) and _number(values[name]) < lowest:
            raise ConfigError(f"{name} must be greater than or equal to group.{kind}.min.{what}")
        limit = f"group.{kind}.max.{what.removeprefix('num.')}"
        highest = broker.get(limit)
        if isinstance(highest, int) and _number(values[name]) > highest:
            raise ConfigError(f"{name} must be less than or equal to {limit}")
    for kind in ("consumer", "share", "streams"):
        session, beat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if _number(values[session]) <= _number(values[beat]):
            raise ConfigError(f"{session} must be greater than {beat}")


def _number(value: Value) -> int:
    return value if isinstance(value, int) else 0
