"""Broker configs: replication and leadership."""

from kbroker.config.checks import at_least
from kbroker.config.definition import CLUSTER_WIDE, HIGH, MEDIUM, READ_ONLY, Row
from kbroker.config.values import BOOLEAN, INT, LONG, STRING

# fmt: off
ROWS = (
    Row("auto.leader.rebalance.enable", BOOLEAN, True, None, HIGH, READ_ONLY,
        ""),
    Row("broker.rack", STRING, None, None, MEDIUM, READ_ONLY,
        ""),
    Row("controlled.shutdown.enable", BOOLEAN, True, None, MEDIUM, READ_ONLY,
        ""),
    Row("leader.imbalance.check.interval.seconds", LONG, 300, at_least(1), HIGH, READ_ONLY,
        ""),
    Row("num.replica.fetchers", INT, 1, at_least(1), HIGH, CLUSTER_WIDE,
        ""),
    Row("replica.fetch.backoff.ms", INT, 1000, at_least(0), MEDIUM, READ_ONLY,
        ""),
    Row("replica.fetch.max.bytes", INT, 1 << 20, at_least(0), MEDIUM, READ_ONLY,
        ""),
    Row("replica.fetch.min.bytes", INT, 1, None, HIGH, READ_ONLY,
        ""),
    Row("replica.fetch.response.max.bytes", INT, 10 << 20, at_least(0), MEDIUM, READ_ONLY,
        ""),
    Row("replica.fetch.wait.max.ms", INT, 500, None, HIGH, READ_ONLY,
        ""),
    Row("replica.high.watermark.checkpoint.interval.ms", LONG, 5000, None, HIGH, READ_ONLY,
        ""),
    Row("replica.lag.time.max.ms", LONG, 30_000, None, HIGH, READ_ONLY,
        ""),
    Row("replica.selector.class", STRING, None, None, MEDIUM, READ_ONLY,
        ""),
    Row("replica.socket.receive.buffer.bytes", INT, 65_536, None, HIGH, READ_ONLY,
        ""),
    Row("replica.socket.timeout.ms", INT, 30_000, None, HIGH, READ_ONLY,
        ""),
    Row("unclean.leader.election.enable", BOOLEAN, False, None, HIGH, CLUSTER_WIDE,
        ""),
)
# fmt: on
