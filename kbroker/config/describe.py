"""The contents of DescribeConfigs responses: each config's value, its source and its synonyms."""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from kbroker.config.broker.broker_config import BrokerConfig, broker_config_key
from kbroker.config.config_def import READ_ONLY, ConfigKey
from kbroker.config.definitions.broker import BROKER_CONFIGS, DYNAMIC_ONLY, strip_listener_prefix
from kbroker.config.definitions.client_metrics import CLIENT_METRICS_CONFIGS
from kbroker.config.definitions.group import GROUP_CONFIGS
from kbroker.config.definitions.topic import ALL_TOPIC_CONFIGS, TOPIC_CONFIGS
from kbroker.config.topic_config import TopicConfig
from kbroker.config.values import Value, format_value, parse_value

ConfigTexts = Mapping[str, str]


class ConfigSource(IntEnum):
    """The origin of a value, numbered as in DescribeConfigs' config_source."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class ConfigSynonym(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One config of a resource. `value` is None for a sensitive config and for a config without a value.

    `synonyms` are all the values that could apply, the one in effect first.
    """

    key: ConfigKey
    value: str | None
    source: ConfigSource
    read_only: bool
    synonyms: Sequence[ConfigSynonym]


# Broker configs that express the same setting in different units, in order of precedence.
_UNIT_CHAINS = (
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
)
_CHAINS = {name: chain for chain in _UNIT_CHAINS for name in chain} | {
    # Not the other way round: log.flush.scheduler.interval.ms is also a config in its own right.
    "log.flush.interval.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")
}
_DEFAULT_TEXTS = {name: text for name, key in BROKER_CONFIGS.items() if (text := format_value(key.default)) is not None}


def describe_topic(overrides: ConfigTexts, config: BrokerConfig) -> list[ConfigEntry]:
    """Describe a topic with these overrides, on a broker with this configuration."""
    entries = dict(_topic_defaults(config))
    if overrides:
        values = TopicConfig.of(overrides, config.topic_defaults).values
        for name in overrides:
            key = ALL_TOPIC_CONFIGS[name]
            synonyms = _override(key, overrides, ConfigSource.DYNAMIC_TOPIC_CONFIG) + _topic_synonyms(key, config)
            entries[name] = _entry(key, values[name], synonyms)
    return [entries[name] for name in ALL_TOPIC_CONFIGS if name in entries]


@lru_cache(maxsize=4)
def _topic_defaults(config: BrokerConfig) -> Mapping[str, ConfigEntry]:
    """Describe a topic without overrides."""
    values = config.topic_defaults.values
    return {name: _entry(key, values[name], _topic_synonyms(key, config)) for name, key in TOPIC_CONFIGS.items()}


def _topic_synonyms(key: ConfigKey, config: BrokerConfig) -> list[ConfigSynonym]:
    return _broker_synonyms(key.synonyms[0].name, config) if key.synonyms else []


def describe_group(overrides: ConfigTexts, config: BrokerConfig) -> list[ConfigEntry]:
    entries = []
    for name, key in GROUP_CONFIGS.items():
        synonyms = _override(key, overrides, ConfigSource.GROUP_CONFIG)
        if key.synonyms:
            synonyms += _broker_synonyms(key.synonyms[0].name, config)
        else:
            synonyms.append(ConfigSynonym(name, format_value(key.default), ConfigSource.DEFAULT_CONFIG))
        # As in Kafka, also if the broker has got other limits since the config was set.
        default = getattr(config.group_defaults, name.replace(".", "_"))
        entries.append(_entry(key, key.parse(overrides[name]) if name in overrides else default, synonyms))
    return entries


def describe_client_metrics(overrides: ConfigTexts) -> list[ConfigEntry]:
    return [
        _entry(
            key,
            key.parse(overrides[name]) if name in overrides else key.default,
            _override(key, overrides, ConfigSource.CLIENT_METRICS_CONFIG),
        )
        for name, key in CLIENT_METRICS_CONFIGS.items()
    ]


def describe_broker(config: BrokerConfig) -> list[ConfigEntry]:
    """Describe every broker config, and those that are set with a listener prefix."""
    keys: dict[str, ConfigKey] = dict(BROKER_CONFIGS)
    for texts in (config.static_configs, config.dynamic_default_configs, config.dynamic_broker_configs):
        keys.update((name, broker_config_key(name)) for name in texts if name not in keys)
    return [
        _entry(key, config.values[name], _broker_synonyms(name, config), _is_read_only(key))
        for name, key in sorted(keys.items())
    ]


def describe_broker_defaults(config: BrokerConfig) -> list[ConfigEntry]:
    """Describe the dynamic configs of all brokers, and no others, as Kafka does."""
    entries = []
    for name, text in sorted(config.dynamic_default_configs.items()):
        key = broker_config_key(name)
        value = None if key.is_sensitive else text
        synonym = ConfigSynonym(name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
        entries.append(_entry(key, key.parse(text), [synonym], _is_read_only(key)))
    return entries


def _entry(key: ConfigKey, value: Value, synonyms: Sequence[ConfigSynonym], read_only: bool = False) -> ConfigEntry:
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
    return ConfigEntry(key, None if key.is_sensitive else format_value(value), source, read_only, synonyms)


def _is_read_only(key: ConfigKey) -> bool:
    # Kafka calls configs with a listener prefix read-only, although they can be altered.
    return key.update_mode is READ_ONLY or key.name != strip_listener_prefix(key.name)


def _override(key: ConfigKey, overrides: ConfigTexts, source: ConfigSource) -> list[ConfigSynonym]:
    if key.name not in overrides:
        return []
    value = format_value(parse_value(key.name, key.type, overrides[key.name]))
    return [ConfigSynonym(key.name, value, source)]


def _broker_synonyms(name: str, config: BrokerConfig) -> list[ConfigSynonym]:
    """Return all values of a broker config and of its synonyms, as Kafka lists them.

    Values before the first one of the config's own name are omitted. So if only log.retention.hours is set,
    retention.ms has no synonyms, and its source is DEFAULT_CONFIG.
    """
    base_name = strip_listener_prefix(name)
    chain = _CHAINS.get(name) or tuple(dict.fromkeys((name, base_name)))
    key = BROKER_CONFIGS.get(base_name) or DYNAMIC_ONLY[name]
    synonyms = [
        ConfigSynonym(synonym, None if key.is_sensitive else texts[synonym], source)
        for texts, source in _broker_sources(config)
        for synonym in chain
        if synonym in texts
    ]
    while synonyms and synonyms[0].name != name:
        del synonyms[0]
    return synonyms


def _broker_sources(config: BrokerConfig) -> Iterable[tuple[ConfigTexts, ConfigSource]]:
    """Return the sources of broker configs in order of precedence."""
    yield config.dynamic_broker_configs, ConfigSource.DYNAMIC_BROKER_CONFIG
    yield config.dynamic_default_configs, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    yield config.static_configs, ConfigSource.STATIC_BROKER_CONFIG
    yield _DEFAULT_TEXTS, ConfigSource.DEFAULT_CONFIG
