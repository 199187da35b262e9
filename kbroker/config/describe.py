"""What DescribeConfigs tells of a resource: each config's value, where it came from, and its synonyms."""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from kbroker.config.broker import BrokerConfig, find_row
from kbroker.config.definition import READ_ONLY, Row
from kbroker.config.group import group_defaults
from kbroker.config.names import base_name
from kbroker.config.rows.broker import BROKER_CONFIGS, DYNAMIC_ONLY
from kbroker.config.rows.client_metrics import CLIENT_METRICS_CONFIGS
from kbroker.config.rows.group import GROUP_CONFIGS
from kbroker.config.rows.topic import ALL_TOPIC_CONFIGS, TOPIC_CONFIGS
from kbroker.config.topic import TopicConfig
from kbroker.config.values import Value, parse, show

Texts = Mapping[str, str]


class Source(IntEnum):
    """Where a value came from; the numbers are DescribeConfigs' config_source."""

    TOPIC = 1
    BROKER = 2
    CLUSTER = 3
    STATIC = 4
    DEFAULT = 5
    LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class SynonymValue(NamedTuple):
    name: str
    value: str | None
    source: Source


class Entry(NamedTuple):
    """One config of a resource. `value` is None for a sensitive config, and for one without a value.

    `synonyms` are all the values that there are for it, the one in effect first.
    """

    row: Row
    value: str | None
    source: Source
    read_only: bool
    synonyms: Sequence[SynonymValue]


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
_DEFAULT_TEXTS = {name: text for name, row in BROKER_CONFIGS.items() if (text := show(row.default)) is not None}


def describe_topic(overrides: Texts, config: BrokerConfig) -> list[Entry]:
    """A topic with these overrides, on a broker with this configuration."""
    values = TopicConfig.of(overrides, config.topic_defaults).values
    entries = []
    for name, row in ALL_TOPIC_CONFIGS.items():
        if name in TOPIC_CONFIGS or name in overrides:
            synonyms = _own(row, overrides, Source.TOPIC)
            synonyms += _broker_synonyms(row.synonyms[0].name, config) if row.synonyms else []
            entries.append(_entry(row, values[name], synonyms))
    return entries


def describe_group(overrides: Texts, config: BrokerConfig) -> list[Entry]:
    defaults = group_defaults(config.values)
    entries = []
    for name, row in GROUP_CONFIGS.items():
        synonyms = _own(row, overrides, Source.GROUP)
        if row.synonyms:
            synonyms += _broker_synonyms(row.synonyms[0].name, config)
        else:
            synonyms.append(SynonymValue(name, show(row.default), Source.DEFAULT))
        value = row.parse(overrides[name]) if name in overrides else defaults[name]
        entries.append(_entry(row, value, synonyms))
    return entries


def describe_client_metrics(overrides: Texts) -> list[Entry]:
    return [
        _entry(
            row,
            row.parse(overrides[name]) if name in overrides else row.default,
            _own(row, overrides, Source.CLIENT_METRICS),
        )
        for name, row in CLIENT_METRICS_CONFIGS.items()
    ]


def describe_broker(config: BrokerConfig) -> list[Entry]:
    """Every broker config, and those that are set under a listener's name."""
    rows: dict[str, Row] = dict(BROKER_CONFIGS)
    for texts in (config.static, config.cluster, config.own):
        rows.update((name, find_row(name)) for name in texts if name not in rows)
    return [
        _entry(row, config.values[name], _broker_synonyms(name, config), _fixed(row))
        for name, row in sorted(rows.items())
    ]


def describe_brokers(config: BrokerConfig) -> list[Entry]:
    """The dynamic configs that all brokers share; nothing else, as Kafka."""
    entries = []
    for name, text in sorted(config.cluster.items()):
        row = find_row(name)
        synonym = SynonymValue(name, None if row.sensitive else text, Source.CLUSTER)
        entries.append(_entry(row, row.parse(text), [synonym], _fixed(row)))
    return entries


def _entry(row: Row, value: Value, synonyms: Sequence[SynonymValue], read_only: bool = False) -> Entry:
    source = synonyms[0].source if synonyms else Source.DEFAULT
    return Entry(row, None if row.sensitive else show(value), source, read_only, synonyms)


def _fixed(row: Row) -> bool:
    """Names with a listener in front count as read-only, though they can be altered; as in Kafka."""
    return row.mode is READ_ONLY or row.name != base_name(row.name)


def _own(row: Row, overrides: Texts, source: Source) -> list[SynonymValue]:
    if row.name not in overrides:
        return []
    value = show(parse(row.name, row.type, overrides[row.name]))
    return [SynonymValue(row.name, value, source)]


def _broker_synonyms(name: str, config: BrokerConfig) -> list[SynonymValue]:
    """All values behind a broker config, as Kafka tells them.

    What stands before the first value under the name itself is left out. So retention.ms has no synonyms, and
    counts as a default, when only log.retention.hours is set.
    """
    chain = _CHAIN_OF.get(name) or tuple(dict.fromkeys((name, base_name(name))))
    row = BROKER_CONFIGS.get(base_name(name)) or DYNAMIC_ONLY[name]
    found = [
        SynonymValue(synonym, None if row.sensitive else texts[synonym], source)
        for texts, source in _layers(config)
        for synonym in chain
        if synonym in texts
    ]
    while found and found[0].name != name:
        del found[0]
    return found


def _layers(config: BrokerConfig) -> Iterable[tuple[Texts, Source]]:
    yield config.own, Source.BROKER
    yield config.cluster, Source.CLUSTER
    yield config.static, Source.STATIC
    yield _DEFAULT_TEXTS, Source.DEFAULT
