"""Broker configs: producer ids and transactions."""

from kbroker.config.checks import at_least
from kbroker.config.definition import CLUSTER_WIDE, HIGH, LOW, READ_ONLY, Row
from kbroker.config.values import BOOLEAN, INT, SHORT

# fmt: off
ROWS = (
    Row("add.partitions.to.txn.retry.backoff.max.ms", INT, 100, at_least(0), HIGH, READ_ONLY,
        ""),
    Row("add.partitions.to.txn.retry.backoff.ms", INT, 20, at_least(1), HIGH, READ_ONLY,
        ""),
    Row("producer.id.expiration.ms", INT, 86_400_000, at_least(1), LOW, CLUSTER_WIDE,
        ""),
    Row("transaction.abort.timed.out.transaction.cleanup.interval.ms", INT, 10_000, at_least(1), LOW,
        READ_ONLY,
        ""),
    Row("transaction.max.timeout.ms", INT, 900_000, at_least(1), HIGH, READ_ONLY,
        ""),
    Row("transaction.partition.verification.enable", BOOLEAN, True, None, LOW, CLUSTER_WIDE,
        ""),
    Row("transaction.remove.expired.transaction.cleanup.interval.ms", INT, 3_600_000, at_least(1), LOW,
        READ_ONLY,
        ""),
    Row("transaction.state.log.load.buffer.size", INT, 5 << 20, at_least(1), HIGH, READ_ONLY,
        ""),
    Row("transaction.state.log.min.isr", INT, 1, at_least(1), HIGH, READ_ONLY,
        ""),
    Row("transaction.state.log.num.partitions", INT, 50, at_least(1), HIGH, READ_ONLY,
        ""),
    Row("transaction.state.log.replication.factor", SHORT, 1, at_least(1), HIGH, READ_ONLY,
        ""),
    Row("transaction.state.log.segment.bytes", INT, 100 << 20, at_least(1), HIGH, READ_ONLY,
        ""),
    Row("transaction.two.phase.commit.enable", BOOLEAN, False, None, LOW, READ_ONLY,
        ""),
    Row("transactional.id.expiration.ms", INT, 604_800_000, at_least(1), HIGH, READ_ONLY,
        ""),
)
# fmt: on
