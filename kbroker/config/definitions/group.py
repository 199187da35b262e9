"""Group configs, and the broker configs that are their defaults and limits (KIP-848, KIP-932, KIP-1071, KIP-1191).

The default of a group's `share.session.timeout.ms` is the broker's `group.share.session.timeout.ms`, and its limits are
`group.share.min.session.timeout.ms` and `group.share.max.session.timeout.ms`.
"""

from collections.abc import Iterator
from typing import NamedTuple

from kbroker.config.config_def import (
    CLUSTER_WIDE,
    HIGH,
    LOW,
    MEDIUM,
    READ_ONLY,
    BrokerSynonym,
    ConfigKey,
    Importance,
    NoEffect,
    UpdateMode,
    Validator,
    config_def,
)
from kbroker.config.queue_configs import DEAD_LETTER_TOPIC, SHARE_RETRY_DELAYS, optional_delays_ms
from kbroker.config.validators import (
    at_least,
    between,
    compression_codec,
    distinct_tags,
    non_empty_list_of,
    one_of,
    one_of_ignoring_case,
    share_offset_reset,
)
from kbroker.config.values import BOOLEAN, INT, INT_MAX, LIST, SHORT, STRING, ConfigType, Value

# The kinds of groups with configs of their own.
KINDS = ("consumer", "share", "streams")


class Limited(NamedTuple):
    """A group config between two limits of the broker. The pairs are the values that the configs can have at all.

    `values` are those of the broker's default, `minimum_values` and `maximum_values` those of the limits.
    """

    kind: str
    suffix: str
    default: int
    minimum: int
    maximum: int
    values: tuple[int, int]
    minimum_values: tuple[int, int]
    maximum_values: tuple[int, int]
    documentation: str
    update_mode: UpdateMode = READ_ONLY


POSITIVE, NOT_NEGATIVE = (1, INT_MAX), (0, INT_MAX)


def _common(kind: str) -> Iterator[Limited]:
    """Yield what all kinds have."""
    yield Limited(kind, "heartbeat.interval.ms", 5000, 5000, 15_000, POSITIVE, POSITIVE, POSITIVE,
        f"Heartbeat interval of the members of a {kind} group.")  # fmt: skip
    yield Limited(kind, "session.timeout.ms", 45_000, 45_000, 60_000, POSITIVE, POSITIVE, POSITIVE,
        f"Time without a heartbeat after which a member is removed from a {kind} group.")  # fmt: skip
    yield Limited(kind, "assignment.interval.ms", 1000, 0, 15_000, NOT_NEGATIVE, NOT_NEGATIVE, NOT_NEGATIVE,
        f"Minimum time between two assignments of a {kind} group.", CLUSTER_WIDE)  # fmt: skip


# fmt: off
LIMITED = (
    *_common("consumer"),
    *_common("share"),
    *_common("streams"),
    Limited("share", "delivery.count.limit", 5, 2, 10, (2, 10), (2, 5), (5, 25),
        "Maximum number of times that a record is delivered to a share group."),
    Limited("share", "partition.max.record.locks", 2000, 100, 4000, (100, 10_000), (100, 2000), (2000, 10_000),
        "Maximum number of records of a partition that a share group has locked."),
    Limited("share", "record.lock.duration.ms", 30_000, 15_000, 60_000, (1000, 3_600_000), (1000, 30_000),
        (30_000, 3_600_000),
        "How long a record that was delivered to a share group stays locked."),
)
# fmt: on


def _in(values: tuple[int, int]) -> Validator:
    low, high = values
    return at_least(low) if high == INT_MAX else between(low, high)


def _broker(
    name: str,
    config_type: ConfigType,
    default: Value,
    validator: Validator | None,
    documentation: str,
    importance: Importance = MEDIUM,
    update_mode: UpdateMode = READ_ONLY,
) -> ConfigKey:
    return ConfigKey(name, config_type, default, validator, importance, update_mode, documentation)


def _group(
    name: str,
    config_type: ConfigType,
    default: Value,
    validator: Validator | None,
    documentation: str,
    synonym: str = "",
    importance: Importance = MEDIUM,
) -> ConfigKey:
    """Return a group config. `synonym`: the broker config that is its default, if there is one."""
    key = _broker(name, config_type, default, validator, documentation, importance, CLUSTER_WIDE)
    return key._replace(synonyms=(BrokerSynonym(synonym),) if synonym else ())


def _limits(limited: Limited) -> Iterator[ConfigKey]:
    """Yield the broker configs of a group config: its default and its limits."""
    kind, suffix = limited.kind, limited.suffix
    name, text = f"{kind}.{suffix}", limited.documentation
    yield _broker(f"group.{name}", INT, limited.default, _in(limited.values), text, MEDIUM, limited.update_mode)
    for limit, default, values, word in (
        ("min", limited.minimum, limited.minimum_values, "Minimum"),
        ("max", limited.maximum, limited.maximum_values, "Maximum"),
    ):
        yield _broker(f"group.{kind}.{limit}.{suffix}", INT, default, _in(values), f"{word} value of a group's {name}.")


# fmt: off
GROUP_CONFIGS = config_def((
    *(_group(f"{row.kind}.{row.suffix}", INT, row.default, at_least(row.values[0]), row.documentation,
        f"group.{row.kind}.{row.suffix}") for row in LIMITED),
    _group("errors.deadletterqueue.copy.record.enable", BOOLEAN, False, None,
        "Whether a dead letter has the key and the value of its record (KIP-1191). Otherwise only its headers say "
        "which record it is."),
    _group(DEAD_LETTER_TOPIC, STRING, "", None,
        "The dead-letter topic of a share group; empty for none (KIP-1191)."),
    _group(SHARE_RETRY_DELAYS, STRING, "", optional_delays_ms,
        "Only in kbroker: the delay before each further delivery of a record to a share group in milliseconds, "
        "separated by commas; the last one repeats. Empty for no delay."),
    _group("share.auto.offset.reset", STRING, "latest", share_offset_reset,
        "Where a share group starts in a partition: earliest, latest, or by_duration:<ISO 8601 duration>."),
    _group("share.isolation.level", STRING, "read_uncommitted", one_of("read_committed", "read_uncommitted"),
        "Whether a share group receives only committed records (read_committed) or all records (read_uncommitted)."),
    _group("share.renew.acknowledge.enable", BOOLEAN, True, None,
        "Whether members of a share group may renew their record locks."),
    _group("streams.assignor.name", STRING, None, None,
        "Assignor of a streams group. The default is the first of group.streams.assignors.", "group.streams.assignors"),
    _group("streams.initial.rebalance.delay.ms", INT, 3000, at_least(0),
        "How long a new streams group waits for more members before its first assignment.",
        "group.streams.initial.rebalance.delay.ms"),
    _group("streams.num.standby.replicas", INT, 0, at_least(0),
        "Number of standby replicas of each streams task.", "group.streams.num.standby.replicas"),
    _group("streams.rack.aware.assignment.tags", LIST, (), distinct_tags,
        "Client tags by which standby tasks are spread, in order of importance.",
        "group.streams.rack.aware.assignment.tags", LOW),
))

BROKER_KEYS = (
    *(key for row in LIMITED for key in _limits(row)),
    _broker("errors.deadletterqueue.auto.create.topics.enable", BOOLEAN, False, None,
        "Whether the broker creates missing dead-letter topics of share groups (KIP-1191).", MEDIUM, CLUSTER_WIDE),
    _broker("errors.deadletterqueue.topic.name.prefix", STRING, "dlq.", None,
        "Prefix that the names of dead-letter topics of share groups must have (KIP-1191).", MEDIUM, CLUSTER_WIDE),
    _broker("group.coordinator.rebalance.protocols", LIST, ("classic", "consumer", "streams"),
        non_empty_list_of("consumer", "classic", "share", "streams"),
        "Enabled group protocols: classic, consumer, share, streams."),
    _broker("group.consumer.assignors", LIST, ("uniform", "range"), non_empty_list_of(),
        "Server-side assignors for consumer groups (KIP-848); the first is the default."),
    _broker("group.consumer.max.size", INT, INT_MAX, at_least(1),
        "Maximum number of members of a consumer group (KIP-848)."),
    _broker("group.consumer.migration.policy", STRING, "bidirectional",
        one_of_ignoring_case("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL"),
        "Which groups may change between the classic and the consumer protocol while they have members."),
    _broker("group.share.assignors", LIST, ("simple",), non_empty_list_of(),
        "Server-side assignors for share groups.")._replace(no_effect=NoEffect.ONE_SHARE_ASSIGNOR),
    _broker("group.share.max.share.sessions", INT, 2000, at_least(1),
        "Maximum number of share sessions of a broker."),
    _broker("group.share.max.size", INT, 200, between(1, 1000),
        "Maximum number of members of a share group."),
    _broker("group.streams.assignors", LIST, ("sticky",), non_empty_list_of(),
        "Assignors for streams groups; the first is the default."),
    _broker("group.streams.initial.rebalance.delay.ms", INT, 3000, at_least(0),
        "How long a new streams group waits for more members before its first assignment."),
    _broker("group.streams.max.size", INT, INT_MAX, at_least(1),
        "Maximum number of members of a streams group."),
    _broker("group.streams.max.standby.replicas", INT, 2, at_least(0),
        "Maximum value of a group's streams.num.standby.replicas."),
    _broker("group.streams.num.standby.replicas", INT, 0, at_least(0),
        "Number of standby replicas of each streams task."),
    _broker("group.streams.rack.aware.assignment.tags", LIST, (), distinct_tags,
        "Client tags by which standby tasks are spread, in order of importance.", LOW),
    _broker("share.coordinator.append.linger.ms", INT, -1, at_least(-1),
        "How long the share coordinator collects writes before it appends them; -1 adapts to the load."),
    _broker("share.coordinator.load.buffer.size", INT, 5 << 20, at_least(1),
        "Size of the reads with which share groups are loaded, in bytes.", HIGH),
    _broker("share.coordinator.snapshot.update.records.per.snapshot", INT, 500, between(0, 500),
        "Number of updates between two snapshots of a share partition."),
    _broker("share.coordinator.state.topic.compression.codec", INT, 0, compression_codec,
        "Compression codec of __share_group_state: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.", HIGH),
    _broker("share.coordinator.state.topic.min.isr", SHORT, 1, at_least(1),
        "min.insync.replicas of __share_group_state. The default is 2 with zookeeper.connect, 1 for a single broker.",
        HIGH),
    _broker("share.coordinator.state.topic.num.partitions", INT, 50, at_least(1),
        "Number of partitions of __share_group_state. It must not change once the topic exists.", HIGH),
    _broker("share.coordinator.state.topic.replication.factor", SHORT, 1, at_least(1),
        "Replication factor of __share_group_state. The default is 3 with zookeeper.connect, 1 for a single broker.",
        HIGH),
    _broker("share.coordinator.state.topic.segment.bytes", INT, 100 << 20, at_least(1),
        "Segment size of __share_group_state.", HIGH),
    _broker("share.coordinator.write.timeout.ms", INT, 5000, at_least(1),
        "How long the share coordinator waits for the replicas of __share_group_state.", HIGH),
)
# fmt: on
