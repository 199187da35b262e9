"""Group configs: their defaults, and their validation against the broker's limits."""

from collections.abc import Mapping

from kbroker.config.config_def import broker_defaults, parse_configs
from kbroker.config.definitions.group import GROUP_CONFIGS
from kbroker.config.values import ConfigError, Value

Values = Mapping[str, Value]


def group_defaults(broker: Values) -> dict[str, Value]:
    """Return the configs of a group without overrides."""
    return broker_defaults(GROUP_CONFIGS, broker)


def validate_group_configs(overrides: Mapping[str, str], broker: Values) -> None:
    """Validate a group's overrides: each one, against the broker's limits, and together. Raises ConfigError."""
    values = group_defaults(broker) | parse_configs(GROUP_CONFIGS, overrides, "group")
    for name in overrides:
        protocol, _, suffix = name.partition(".")
        minimum = broker.get(f"group.{protocol}.min.{suffix}")
        if isinstance(minimum, int) and _number(values[name]) < minimum:
            raise ConfigError(f"{name} must be greater than or equal to group.{protocol}.min.{suffix}")
        maximum_name = f"group.{protocol}.max.{suffix.removeprefix('num.')}"
        maximum = broker.get(maximum_name)
        if isinstance(maximum, int) and _number(values[name]) > maximum:
            raise ConfigError(f"{name} must be less than or equal to {maximum_name}")
    for protocol in ("consumer", "share", "streams"):
        session, heartbeat = f"{protocol}.session.timeout.ms", f"{protocol}.heartbeat.interval.ms"
        if _number(values[session]) <= _number(values[heartbeat]):
            raise ConfigError(f"{session} must be greater than {heartbeat}")


def _number(value: Value) -> int:
    return value if isinstance(value, int) else 0
