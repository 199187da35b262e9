"""Broker configs: producer ids and transactions."""

from kbroker.config.config_def import CLUSTER_WIDE, HIGH, LOW, READ_ONLY, ConfigKey
from kbroker.config.validators import at_least
from kbroker.config.values import BOOLEAN, INT, SHORT

# fmt: off
ROWS = (
    ConfigKey("add.partitions.to.txn.retry.backoff.max.ms", INT, 100, at_least(0), HIGH, READ_ONLY,
        "Longest time that the broker keeps trying to add a partition to a transaction."),
    ConfigKey("add.partitions.to.txn.retry.backoff.ms", INT, 20, at_least(1), HIGH, READ_ONLY,
        "Pause before the broker tries again to add a partition to a transaction."),
    ConfigKey("producer.id.expiration.ms", INT, 86_400_000, at_least(1), LOW, CLUSTER_WIDE,
        "A producer id that has not written to a partition for so long is forgotten there."),
    ConfigKey("transaction.abort.timed.out.transaction.cleanup.interval.ms", INT, 10_000, at_least(1), LOW,
        READ_ONLY,
        "How often the broker looks for transactions that have timed out."),
    ConfigKey("transaction.max.timeout.ms", INT, 900_000, at_least(1), HIGH, READ_ONLY,
        "Longest transaction timeout that a producer may ask for."),
    ConfigKey("transaction.partition.verification.enable", BOOLEAN, True, None, LOW, CLUSTER_WIDE,
        "Check that a partition is part of the transaction before transactional records are written to "
        "it."),
    ConfigKey("transaction.remove.expired.transaction.cleanup.interval.ms", INT, 3_600_000, at_least(1), LOW,
        READ_ONLY,
        "How often the broker looks for transactional ids that have expired."),
    ConfigKey("transaction.state.log.load.buffer.size", INT, 5 << 20, at_least(1), HIGH, READ_ONLY,
        "Bytes that are read at a time when transactions are loaded."),
    ConfigKey("transaction.state.log.min.isr", INT, 1, at_least(1), HIGH, READ_ONLY,
        "min.insync.replicas of the transactions' topic. kbroker's default is 1, for a single broker."),
    ConfigKey("transaction.state.log.num.partitions", INT, 50, at_least(1), HIGH, READ_ONLY,
        "Partitions of the transactions' topic. It must not change once the topic exists."),
    ConfigKey("transaction.state.log.replication.factor", SHORT, 1, at_least(1), HIGH, READ_ONLY,
        "Replicas of the transactions' topic. kbroker's default is 1, for a single broker."),
    ConfigKey("transaction.state.log.segment.bytes", INT, 100 << 20, at_least(1), HIGH, READ_ONLY,
        "Segment size of the transactions' topic; small, so that it is compacted and loaded quickly."),
    ConfigKey("transaction.two.phase.commit.enable", BOOLEAN, False, None, LOW, READ_ONLY,
        "Let transactions take part in a two-phase commit that another system coordinates."),
    ConfigKey("transactional.id.expiration.ms", INT, 604_800_000, at_least(1), HIGH, READ_ONLY,
        "A transactional id without any transaction for so long is forgotten."),
)
# fmt: on
