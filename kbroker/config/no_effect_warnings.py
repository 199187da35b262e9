"""Warnings about configs that are set but have no effect in kbroker (see ConfigKey.no_effect)."""

from collections.abc import Mapping

from kbroker.config.broker.broker_config import broker_config_key
from kbroker.config.broker.listeners import exclude_controller_listeners, parse_endpoints
from kbroker.config.config_def import ConfigKey, ConfigResourceType
from kbroker.config.definitions import security
from kbroker.config.definitions.broker import strip_listener_prefix
from kbroker.config.definitions.client_metrics import CLIENT_METRICS_CONFIGS
from kbroker.config.definitions.group import GROUP_CONFIGS
from kbroker.config.definitions.topic import ALL_TOPIC_CONFIGS
from kbroker.config.values import format_value

# Configs that take effect with a listener prefix, too.
PER_LISTENER = frozenset({"max.connections", "max.connection.creation.rate", *(key.name for key in security.KEYS)})
NOT_PER_LISTENER = "it applies to all listeners only"

_DEFINITIONS = {
    ConfigResourceType.TOPIC: ALL_TOPIC_CONFIGS,
    ConfigResourceType.CLIENT_METRICS: CLIENT_METRICS_CONFIGS,
    ConfigResourceType.GROUP: GROUP_CONFIGS,
}


def no_effect_warnings(resource_type: ConfigResourceType, texts: Mapping[str, str]) -> list[str]:
    """Return a sentence for each config without effect that `texts` sets to a value other than its default."""
    warnings = _unopened_listeners(texts) if resource_type is ConfigResourceType.BROKER else []
    for name, text in texts.items():
        key = _config_key(resource_type, name)
        value = key.parse(text)
        reason = no_effect_reason(key)
        if reason is not None and value != key.default:
            shown = name if key.is_sensitive else f"{name}={format_value(value)}"
            warnings.append(f"{shown} is accepted, but has no effect: {reason}")
    return warnings


def no_effect_reason(key: ConfigKey) -> str | None:
    """Return why a config has no effect; None if it has an effect. Its name may have a listener prefix."""
    base_name = strip_listener_prefix(key.name)
    if key.no_effect is None and base_name != key.name and base_name not in PER_LISTENER:
        return NOT_PER_LISTENER
    return key.no_effect


def _unopened_listeners(texts: Mapping[str, str]) -> list[str]:
    """Return warnings about controller listeners, which the broker does not open."""
    listeners = parse_endpoints("listeners", texts["listeners"].split(",") if "listeners" in texts else ())
    controller_names = texts.get("controller.listener.names", "CONTROLLER").split(",")
    opened = exclude_controller_listeners(listeners, [name.strip() for name in controller_names])
    return [
        f"the listener {endpoint} is not opened: kbroker has no metadata quorum"
        for endpoint in listeners
        if endpoint not in opened
    ]


def _config_key(resource_type: ConfigResourceType, name: str) -> ConfigKey:
    if resource_type is ConfigResourceType.BROKER:
        return broker_config_key(name)
    return _DEFINITIONS[resource_type][name]
