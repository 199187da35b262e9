"""Broker configs: producer ids and transactions."""

from kbroker.config.config_def import CLUSTER_WIDE, HIGH, LOW, READ_ONLY, ConfigKey
from kbroker.config.definitions.no_effect import NoEffect
from kbroker.config.validators import at_least
from kbroker.config.values import BOOLEAN, INT, SHORT

# fmt: off
KEYS = (
    ConfigKey("add.partitions.to.txn.retry.backoff.max.ms", INT, 100, at_least(0), HIGH, READ_ONLY,
        "Maximum time that the broker retries to add a partition to a transaction."),
    ConfigKey("add.partitions.to.txn.retry.backoff.ms", INT, 20, at_least(1), HIGH, READ_ONLY,
        "Pause before the broker retries to add a partition to a transaction."),
    ConfigKey("producer.id.expiration.ms", INT, 86_400_000, at_least(1), LOW, CLUSTER_WIDE,
        "Time without a write after which a partition forgets the state of a producer id."),
    ConfigKey("transaction.abort.timed.out.transaction.cleanup.interval.ms", INT, 10_000, at_least(1), LOW,
        READ_ONLY,
        "How often the broker looks for transactions that have timed out."),
    ConfigKey("transaction.max.timeout.ms", INT, 900_000, at_least(1), HIGH, READ_ONLY,
        "Maximum transaction timeout that a producer may request."),
    ConfigKey("transaction.partition.verification.enable", BOOLEAN, True, None, LOW, CLUSTER_WIDE,
        "Whether the broker verifies that a partition belongs to the transaction before it appends transactional "
        "records."),
    ConfigKey("transaction.remove.expired.transaction.cleanup.interval.ms", INT, 3_600_000, at_least(1), LOW,
        READ_ONLY,
        "How often the broker looks for expired transactional ids."),
    ConfigKey("transaction.state.log.load.buffer.size", INT, 5 << 20, at_least(1), HIGH, READ_ONLY,
        "Size of the reads with which transactions are loaded, in bytes."),
    ConfigKey("transaction.state.log.min.isr", INT, 1, at_least(1), HIGH, READ_ONLY,
        "min.insync.replicas of __transaction_state. The default is 2 with zookeeper.connect, 1 for a single broker."),
    ConfigKey("transaction.state.log.num.partitions", INT, 50, at_least(1), HIGH, READ_ONLY,
        "Number of partitions of __transaction_state. It must not change once the topic exists."),
    ConfigKey("transaction.state.log.replication.factor", SHORT, 1, at_least(1), HIGH, READ_ONLY,
        "Replication factor of __transaction_state. The default is 3 with zookeeper.connect, 1 for a single broker."),
    ConfigKey("transaction.state.log.segment.bytes", INT, 100 << 20, at_least(1), HIGH, READ_ONLY,
        "Segment size of __transaction_state. A small value makes compaction and loading fast."),
    ConfigKey("transaction.two.phase.commit.enable", BOOLEAN, False, None, LOW, READ_ONLY,
        "Whether transactions may take part in a two-phase commit of another system.",
        no_effect=NoEffect.NO_TWO_PHASE_COMMIT),
    ConfigKey("transactional.id.expiration.ms", INT, 604_800_000, at_least(1), HIGH, READ_ONLY,
        "Time without a transaction after which a transactional id expires."),
)
# fmt: on
