"""Group configs (KIP-1043, KIP-932, KIP-1071). Each takes its default from a broker config, if it has one."""

from kbroker.config.config_def import CLUSTER_WIDE, MEDIUM, BrokerSynonym, ConfigKey, Validator, config_def
from kbroker.config.validators import at_least, one_of, share_offset_reset
from kbroker.config.values import BOOLEAN, INT, STRING, ConfigType, Value


def _row(name: str, kind: ConfigType, default: Value, check: Validator | None, synonym: str, doc: str) -> ConfigKey:
    synonyms = (BrokerSynonym(synonym),) if synonym else ()
    return ConfigKey(name, kind, default, check, MEDIUM, CLUSTER_WIDE, doc, synonyms)


# fmt: off
GROUP_CONFIGS = config_def((
    _row("consumer.assignment.interval.ms", INT, 1000, at_least(0), "group.consumer.assignment.interval.ms",
         "Shortest time between two assignments, in the consumer protocol."),
    _row("consumer.heartbeat.interval.ms", INT, 5000, at_least(1), "group.consumer.heartbeat.interval.ms",
         "Heartbeat interval that members are given, in the consumer protocol."),
    _row("consumer.session.timeout.ms", INT, 45_000, at_least(1), "group.consumer.session.timeout.ms",
         "A member without a heartbeat for so long is removed, in the consumer protocol."),
    _row("share.assignment.interval.ms", INT, 1000, at_least(0), "group.share.assignment.interval.ms",
         "Shortest time between two assignments of a share group."),
    _row("share.auto.offset.reset", STRING, "latest", share_offset_reset, "",
         "Where a share group begins in a partition: earliest, latest, or by_duration: and how far back."),
    _row("share.delivery.count.limit", INT, 5, at_least(2), "group.share.delivery.count.limit",
         "How often a record is delivered before it is given up."),
    _row("share.heartbeat.interval.ms", INT, 5000, at_least(1), "group.share.heartbeat.interval.ms",
         "Heartbeat interval that members of a share group are given."),
    _row("share.isolation.level", STRING, "read_uncommitted", one_of("read_committed", "read_uncommitted"),
         "",
         "Whether records of open and aborted transactions are delivered to a share group."),
    _row("share.partition.max.record.locks", INT, 2000, at_least(100),
         "group.share.partition.max.record.locks",
         "Most records of a partition that a share group holds locked."),
    _row("share.record.lock.duration.ms", INT, 30_000, at_least(1000), "group.share.record.lock.duration.ms",
         "How long a delivered record is locked."),
    _row("share.renew.acknowledge.enable", BOOLEAN, True, None, "",
         "Let members of a share group renew their locks."),
    _row("share.session.timeout.ms", INT, 45_000, at_least(1), "group.share.session.timeout.ms",
         "A member of a share group without a heartbeat for so long is removed."),
    _row("streams.assignment.interval.ms", INT, 1000, at_least(0), "group.streams.assignment.interval.ms",
         "Shortest time between two assignments of a streams group."),
    _row("streams.heartbeat.interval.ms", INT, 5000, at_least(1), "group.streams.heartbeat.interval.ms",
         "Heartbeat interval that members of a streams group are given."),
    _row("streams.initial.rebalance.delay.ms", INT, 3000, at_least(0),
         "group.streams.initial.rebalance.delay.ms",
         "How long a new streams group waits for more members before it assigns tasks."),
    _row("streams.num.standby.replicas", INT, 0, at_least(0), "group.streams.num.standby.replicas",
         "Standby copies of each streams task."),
    _row("streams.session.timeout.ms", INT, 45_000, at_least(1), "group.streams.session.timeout.ms",
         "A member of a streams group without a heartbeat for so long is removed."),
))
# fmt: on
