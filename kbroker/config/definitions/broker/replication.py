"""Broker configs: replication and leadership."""

from kbroker.config.config_def import CLUSTER_WIDE, HIGH, MEDIUM, READ_ONLY, ConfigKey
from kbroker.config.definitions.no_effect import NoEffect
from kbroker.config.validators import at_least
from kbroker.config.values import BOOLEAN, INT, LONG, STRING

# fmt: off
KEYS = (
    ConfigKey("auto.leader.rebalance.enable", BOOLEAN, True, None, HIGH, READ_ONLY,
        "Whether the controller returns leadership to preferred leaders automatically."),
    ConfigKey("broker.rack", STRING, None, None, MEDIUM, READ_ONLY,
        "Rack or zone of this broker. The replicas of a partition are spread over racks."),
    ConfigKey("controlled.shutdown.enable", BOOLEAN, True, None, MEDIUM, READ_ONLY,
        "Whether a stopping broker first hands its partitions over to other leaders."),
    ConfigKey("kbroker.replica.rebuild.after.ms", LONG, -1, at_least(-1), HIGH, CLUSTER_WIDE,
        "Only in kbroker. Time after which the controller rebuilds the replicas of a broker that is away on other "
        "brokers. A broker that has returned gets replicas back after the same time. -1 or 0: never."),
    ConfigKey("kbroker.replica.rebuild.throttled.rate", LONG, 50 << 20, at_least(-1), MEDIUM, CLUSTER_WIDE,
        "Only in kbroker. Maximum bytes per second that each broker sends and receives while the controller rebuilds "
        "replicas or gives them back. -1 or 0: no limit."),
    ConfigKey("kbroker.retired.partition.idle.ms", LONG, 3_600_000, at_least(0), MEDIUM, CLUSTER_WIDE,
        "Only in kbroker. When no producer has sent to the removed partitions of a topic for this time, their logs are "
        "deleted."),
    ConfigKey("leader.imbalance.check.interval.seconds", LONG, 300, at_least(1), HIGH, READ_ONLY,
        "How often the controller looks for partitions whose leader is not the preferred one."),
    ConfigKey("num.replica.fetchers", INT, 1, at_least(1), HIGH, CLUSTER_WIDE,
        "Number of fetchers per leader that this broker follows.",
        no_effect=NoEffect.ONE_FETCHER),
    ConfigKey("replica.fetch.backoff.ms", INT, 1000, at_least(0), MEDIUM, READ_ONLY,
        "Longest backoff of a follower after failed fetches of a partition. It begins with 20 ms."),
    ConfigKey("replica.fetch.max.bytes", INT, 1 << 20, at_least(0), MEDIUM, READ_ONLY,
        "Maximum bytes that a follower fetches per partition. A larger first batch is still returned."),
    ConfigKey("replica.fetch.min.bytes", INT, 1, None, HIGH, READ_ONLY,
        "Minimum bytes that a follower's fetch waits for, at most replica.fetch.wait.max.ms."),
    ConfigKey("replica.fetch.response.max.bytes", INT, 10 << 20, at_least(0), MEDIUM, READ_ONLY,
        "Maximum size of the response to a follower's fetch. A larger first batch is still returned."),
    ConfigKey("replica.fetch.wait.max.ms", INT, 500, None, HIGH, READ_ONLY,
        "Maximum wait of a follower's fetch for new records. It should be well below replica.lag.time.max.ms."),
    ConfigKey("replica.high.watermark.checkpoint.interval.ms", LONG, 5000, None, HIGH, READ_ONLY,
        "How often the high watermarks of partitions with several replicas are checkpointed."),
    ConfigKey("replica.lag.time.max.ms", LONG, 30_000, None, HIGH, READ_ONLY,
        "Time without catching up to the leader after which a follower leaves the in-sync replicas."),
    ConfigKey("replica.selector.class", STRING, None, None, MEDIUM, READ_ONLY,
        "Class that selects the replica from which a consumer reads (KIP-392). "
        "org.apache.kafka.common.replica.RackAwareReplicaSelector selects one in the consumer's rack (client.rack)."),
    ConfigKey("replica.socket.receive.buffer.bytes", INT, 65_536, None, HIGH, READ_ONLY,
        "Receive buffer of a follower's connection to a leader.",
        no_effect=NoEffect.SYSTEM_BUFFERS),
    ConfigKey("replica.socket.timeout.ms", INT, 30_000, None, HIGH, READ_ONLY,
        "How long a follower waits for a response from the leader. It must be at least replica.fetch.wait.max.ms."),
    ConfigKey("unclean.leader.election.enable", BOOLEAN, False, None, HIGH, CLUSTER_WIDE,
        "Whether a replica that is not in sync may become the leader when no other is available. Records may be lost."),
)
# fmt: on
