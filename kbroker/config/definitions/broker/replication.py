"""Broker configs: replication and leadership."""

from kbroker.config.config_def import CLUSTER_WIDE, HIGH, MEDIUM, READ_ONLY, ConfigKey
from kbroker.config.validators import at_least
from kbroker.config.values import BOOLEAN, INT, LONG, STRING

# fmt: off
ROWS = (
    ConfigKey("auto.leader.rebalance.enable", BOOLEAN, True, None, HIGH, READ_ONLY,
        "Give partitions back to their preferred leaders from time to time."),
    ConfigKey("broker.rack", STRING, None, None, MEDIUM, READ_ONLY,
        "Rack or zone of this broker: replicas of one partition are spread over racks."),
    ConfigKey("controlled.shutdown.enable", BOOLEAN, True, None, MEDIUM, READ_ONLY,
        "Hand leadership over before stopping."),
    ConfigKey("leader.imbalance.check.interval.seconds", LONG, 300, at_least(1), HIGH, READ_ONLY,
        "How often the controller looks for partitions that are not led by their preferred leader."),
    ConfigKey("num.replica.fetchers", INT, 1, at_least(1), HIGH, CLUSTER_WIDE,
        "Fetchers for each broker that this one follows."),
    ConfigKey("replica.fetch.backoff.ms", INT, 1000, at_least(0), MEDIUM, READ_ONLY,
        "Pause of a follower after a failed fetch of a partition."),
    ConfigKey("replica.fetch.max.bytes", INT, 1 << 20, at_least(0), MEDIUM, READ_ONLY,
        "Bytes that a follower asks for from each partition; a larger first batch is still sent."),
    ConfigKey("replica.fetch.min.bytes", INT, 1, None, HIGH, READ_ONLY,
        "Bytes that a follower's fetch waits for, up to replica.fetch.wait.max.ms."),
    ConfigKey("replica.fetch.response.max.bytes", INT, 10 << 20, at_least(0), MEDIUM, READ_ONLY,
        "Bytes that a follower asks for in one fetch response; a larger first batch is still sent."),
    ConfigKey("replica.fetch.wait.max.ms", INT, 500, None, HIGH, READ_ONLY,
        "Longest wait of a follower's fetch for new records. It must be well below "
        "replica.lag.time.max.ms."),
    ConfigKey("replica.high.watermark.checkpoint.interval.ms", LONG, 5000, None, HIGH, READ_ONLY,
        "Time between two writes of the high watermarks to disk."),
    ConfigKey("replica.lag.time.max.ms", LONG, 30_000, None, HIGH, READ_ONLY,
        "A follower that has not caught up with the leader for so long leaves the in-sync replicas."),
    ConfigKey("replica.selector.class", STRING, None, None, MEDIUM, READ_ONLY,
        "Class that chooses the replica from which a consumer reads."),
    ConfigKey("replica.socket.receive.buffer.bytes", INT, 65_536, None, HIGH, READ_ONLY,
        "Receive buffer of a follower's connection to a leader."),
    ConfigKey("replica.socket.timeout.ms", INT, 30_000, None, HIGH, READ_ONLY,
        "How long a follower waits for an answer of the leader. It must not be less than "
        "replica.fetch.wait.max.ms."),
    ConfigKey("unclean.leader.election.enable", BOOLEAN, False, None, HIGH, CLUSTER_WIDE,
        "Let a replica that is out of sync become leader when no other is left, at the price of lost "
        "records."),
)
# fmt: on
