"""Group configs (KIP-848, KIP-932, KIP-1071)."""

from kbroker.config.config_def import CLUSTER_WIDE, MEDIUM, BrokerSynonym, ConfigKey, Validator, config_def
from kbroker.config.definitions.no_effect import NoEffect
from kbroker.config.validators import at_least, one_of, share_offset_reset
from kbroker.config.values import BOOLEAN, INT, STRING, ConfigType, Value


def _key(
    name: str,
    config_type: ConfigType,
    default: Value,
    validator: Validator | None,
    synonym: str,
    documentation: str,
    no_effect: NoEffect | None = None,
) -> ConfigKey:
    """Return a definition. `synonym` is the name of the broker config that is its default, or "" if there is none."""
    synonyms = (BrokerSynonym(synonym),) if synonym else ()
    return ConfigKey(name, config_type, default, validator, MEDIUM, CLUSTER_WIDE, documentation, synonyms, no_effect)


# fmt: off
GROUP_CONFIGS = config_def((
    _key("consumer.assignment.interval.ms", INT, 1000, at_least(0), "group.consumer.assignment.interval.ms",
        "Minimum time between two assignments of a consumer group (KIP-848).",
        no_effect=NoEffect.CLASSIC_GROUPS_ONLY),
    _key("consumer.heartbeat.interval.ms", INT, 5000, at_least(1), "group.consumer.heartbeat.interval.ms",
        "Heartbeat interval of the members of a consumer group (KIP-848).",
        no_effect=NoEffect.CLASSIC_GROUPS_ONLY),
    _key("consumer.session.timeout.ms", INT, 45_000, at_least(1), "group.consumer.session.timeout.ms",
        "Time without a heartbeat after which a member is removed from a consumer group (KIP-848).",
        no_effect=NoEffect.CLASSIC_GROUPS_ONLY),
    _key("share.assignment.interval.ms", INT, 1000, at_least(0), "group.share.assignment.interval.ms",
        "Minimum time between two assignments of a share group.",
        no_effect=NoEffect.CLASSIC_GROUPS_ONLY),
    _key("share.auto.offset.reset", STRING, "latest", share_offset_reset, "",
        "Where a share group starts in a partition: earliest, latest, or by_duration:<ISO 8601 duration>.",
        no_effect=NoEffect.CLASSIC_GROUPS_ONLY),
    _key("share.delivery.count.limit", INT, 5, at_least(2), "group.share.delivery.count.limit",
        "Maximum number of times that a record is delivered to a share group.",
        no_effect=NoEffect.CLASSIC_GROUPS_ONLY),
    _key("share.heartbeat.interval.ms", INT, 5000, at_least(1), "group.share.heartbeat.interval.ms",
        "Heartbeat interval of the members of a share group.",
        no_effect=NoEffect.CLASSIC_GROUPS_ONLY),
    _key("share.isolation.level", STRING, "read_uncommitted", one_of("read_committed", "read_uncommitted"), "",
        "Whether a share group receives only committed records (read_committed) or all records (read_uncommitted).",
        no_effect=NoEffect.CLASSIC_GROUPS_ONLY),
    _key("share.partition.max.record.locks", INT, 2000, at_least(100), "group.share.partition.max.record.locks",
        "Maximum number of records of a partition that a share group has locked.",
        no_effect=NoEffect.CLASSIC_GROUPS_ONLY),
    _key("share.record.lock.duration.ms", INT, 30_000, at_least(1000), "group.share.record.lock.duration.ms",
        "How long a record that was delivered to a share group stays locked.",
        no_effect=NoEffect.CLASSIC_GROUPS_ONLY),
    _key("share.renew.acknowledge.enable", BOOLEAN, True, None, "",
        "Whether members of a share group may renew their record locks.",
        no_effect=NoEffect.CLASSIC_GROUPS_ONLY),
    _key("share.session.timeout.ms", INT, 45_000, at_least(1), "group.share.session.timeout.ms",
        "Time without a heartbeat after which a member is removed from a share group.",
        no_effect=NoEffect.CLASSIC_GROUPS_ONLY),
    _key("streams.assignment.interval.ms", INT, 1000, at_least(0), "group.streams.assignment.interval.ms",
        "Minimum time between two assignments of a streams group.",
        no_effect=NoEffect.CLASSIC_GROUPS_ONLY),
    _key("streams.heartbeat.interval.ms", INT, 5000, at_least(1), "group.streams.heartbeat.interval.ms",
        "Heartbeat interval of the members of a streams group.",
        no_effect=NoEffect.CLASSIC_GROUPS_ONLY),
    _key("streams.initial.rebalance.delay.ms", INT, 3000, at_least(0), "group.streams.initial.rebalance.delay.ms",
        "How long a new streams group waits for more members before its first assignment.",
        no_effect=NoEffect.CLASSIC_GROUPS_ONLY),
    _key("streams.num.standby.replicas", INT, 0, at_least(0), "group.streams.num.standby.replicas",
        "Number of standby replicas of each streams task.",
        no_effect=NoEffect.CLASSIC_GROUPS_ONLY),
    _key("streams.session.timeout.ms", INT, 45_000, at_least(1), "group.streams.session.timeout.ms",
        "Time without a heartbeat after which a member is removed from a streams group.",
        no_effect=NoEffect.CLASSIC_GROUPS_ONLY),
))
# fmt: on
