"""What DescribeConfigs tells of a resource: each config's value, where it came from, and its synonyms."""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from kbroker.config.broker.broker_config import BrokerConfig, broker_config_key
from kbroker.config.broker.listener_prefix import strip_listener_prefix
from kbroker.config.config_def import READ_ONLY, ConfigKey
from kbroker.config.definitions.broker import BROKER_CONFIGS, DYNAMIC_ONLY
from kbroker.config.definitions.client_metrics import CLIENT_METRICS_CONFIGS
from kbroker.config.definitions.group import GROUP_CONFIGS
from kbroker.config.definitions.topic import ALL_TOPIC_CONFIGS, TOPIC_CONFIGS
from kbroker.config.group_config import group_defaults
from kbroker.config.topic_config import TopicConfig
from kbroker.config.values import Value, format_value, parse_value

Texts = Mapping[str, str]


class ConfigSource(IntEnum):
    """Where a value came from; the numbers are DescribeConfigs' config_source."""

    TOPIC = 1
    BROKER = 2
    CLUSTER = 3
    STATIC = 4
    DEFAULT = 5
    LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ConfigSynonym(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One config of a resource. `value` is None for a sensitive config, and for one without a value.

    `synonyms` are all the values that there are for it, the one in effect first.
    """

    row: ConfigKey
    value: str | None
    source: ConfigSource
    read_only: bool
    synonyms: Sequence[ConfigSynonym]


# Broker configs that stand in for each other, the strongest first.
_CHAINS = (
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
)
_CHAIN_OF = {name: chain for chain in _CHAINS for name in chain} | {
    # One way only: the scheduler's interval is a config of its own.
    "log.flush.interval.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
}
_DEFAULT_TEXTS = {name: text for name, row in BROKER_CONFIGS.items() if (text := format_value(row.default)) is not None}


def describe_topic(overrides: Texts, config: BrokerConfig) -> list[ConfigEntry]:
    """A topic with these overrides, on a broker with this configuration."""
    values = TopicConfig.of(overrides, config.topic_defaults).values
    entries = []
    for name, row in ALL_TOPIC_CONFIGS.items():
        if name in TOPIC_CONFIGS or name in overrides:
            synonyms = _own(row, overrides, ConfigSource.TOPIC)
            synonyms += _broker_synonyms(row.synonyms[0].name, config) if row.synonyms else []
            entries.append(_entry(row, values[name], synonyms))
    return entries


def describe_group(overrides: Texts, config: BrokerConfig) -> list[ConfigEntry]:
    defaults = group_defaults(config.values)
    entries = []
    for name, row in GROUP_CONFIGS.items():
        synonyms = _own(row, overrides, ConfigSource.GROUP)
        if row.synonyms:
            synonyms += _broker_synonyms(row.synonyms[0].name, config)
        else:
            synonyms.append(ConfigSynonym(name, format_value(row.default), ConfigSource.DEFAULT))
        value = row.parse(overrides[name]) if name in overrides else defaults[name]
        entries.append(_entry(row, value, synonyms))
    return entries


def describe_client_metrics(overrides: Texts) -> list[ConfigEntry]:
    return [
        _entry(
            row,
            row.parse(overrides[name]) if name in overrides else row.default,
            _own(row, overrides, ConfigSource.CLIENT_METRICS),
        )
        for name, row in CLIENT_METRICS_CONFIGS.items()
    ]


def describe_broker(config: BrokerConfig) -> list[ConfigEntry]:
    """Every broker config, and those that are set under a listener's name."""
    rows: dict[str, ConfigKey] = dict(BROKER_CONFIGS)
    for texts in (config.static, config.cluster, config.own):
        rows.update((name, broker_config_key(name)) for name in texts if name not in rows)
    return [
        _entry(row, config.values[name], _broker_synonyms(name, config), _fixed(row))
        for name, row in sorted(rows.items())
    ]


def describe_brokers(config: BrokerConfig) -> list[ConfigEntry]:
    """The dynamic configs that all brokers share; nothing else, as Kafka."""
    entries = []
    for name, text in sorted(config.cluster.items()):
        row = broker_config_key(name)
        synonym = ConfigSynonym(name, None if row.sensitive else text, ConfigSource.CLUSTER)
        entries.append(_entry(row, row.parse(text), [synonym], _fixed(row)))
    return entries


def _entry(row: ConfigKey, value: Value, synonyms: Sequence[ConfigSynonym], read_only: bool = False) -> ConfigEntry:
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
    return ConfigEntry(row, None if row.sensitive else format_value(value), source, read_only, synonyms)


def _fixed(row: ConfigKey) -> bool:
    """Names with a listener in front count as read-only, though they can be altered; as in Kafka."""
    return row.mode is READ_ONLY or row.name != strip_listener_prefix(row.name)


def _own(row: ConfigKey, overrides: Texts, source: ConfigSource) -> list[ConfigSynonym]:
    if row.name not in overrides:
        return []
    value = format_value(parse_value(row.name, row.type, overrides[row.name]))
    return [ConfigSynonym(row.name, value, source)]


def _broker_synonyms(name: str, config: BrokerConfig) -> list[ConfigSynonym]:
    """All values behind a broker config, as Kafka tells them.

    What stands before the first value under the name itself is left out. So retention.ms has no synonyms, and
    counts as a default, when only log.retention.hours is set.
    """
    chain = _CHAIN_OF.get(name) or tuple(dict.fromkeys((name, strip_listener_prefix(name))))
    row = BROKER_CONFIGS.get(strip_listener_prefix(name)) or DYNAMIC_ONLY[name]
    found = [
        ConfigSynonym(synonym, None if row.sensitive else texts[synonym], source)
        for texts, source in _layers(config)
        for synonym in chain
        if synonym in texts
    ]
    while found and found[0].name != name:
        del found[0]
    return found


def _layers(config: BrokerConfig) -> Iterable[tuple[Texts, ConfigSource]]:
    yield config.own, ConfigSource.BROKER
    yield config.cluster, ConfigSource.CLUSTER
    yield config.static, ConfigSource.STATIC
    yield _DEFAULT_TEXTS, ConfigSource.DEFAULT
