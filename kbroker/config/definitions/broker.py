"""All broker configs. Those of logs and replication are in log.py, those of TLS and SASL in security.py, those of
groups that are not classic in group.py, and those without effect in no_effect.json.
"""

import re

from kbroker.config.config_def import CLUSTER_WIDE, HIGH, LOW, MEDIUM, PER_BROKER, READ_ONLY, ConfigKey, config_def
from kbroker.config.definitions import group, log, security
from kbroker.config.definitions.no_effect import keys_without_effect
from kbroker.config.validators import (
    at_least,
    compression_codec,
    host_limits,
    key_value_pairs,
    non_empty_list_of,
    one_of,
    one_of_ignoring_case,
    optional_address,
)
from kbroker.config.values import BOOLEAN, INT, INT_MAX, LIST, LONG, LONG_MAX, PASSWORD, SHORT, STRING

# fmt: off
KEYS = (
    # Listeners, connections, requests, threads and the broker id.
    ConfigKey("advertised.listeners", LIST, None, non_empty_list_of(), HIGH, READ_ONLY,
        "Addresses that Metadata responses tell clients to use, as NAME://host:port. The default is listeners. A "
        "wildcard address is not allowed. The clients of a listener that is not among them get no addresses."),
    ConfigKey("broker.id", INT, 1, None, HIGH, READ_ONLY,
        "Older name of node.id."),
    ConfigKey("connections.max.idle.ms", LONG, 600_000, None, MEDIUM, READ_ONLY,
        "Time without traffic after which a connection is closed."),
    ConfigKey("fetch.max.bytes", INT, 55 << 20, at_least(1024), MEDIUM, READ_ONLY,
        "Maximum size of a Fetch response, whatever the client requests, in bytes."),
    ConfigKey("inter.broker.listener.name", STRING, None, None, MEDIUM, READ_ONLY,
        "Listener whose host, security protocol and certificates other brokers use, at the port of "
        "kbroker.inter.broker.listener, and whose addresses responses to brokers have. The default is the only "
        "listener; of several, that of security.inter.broker.protocol."),
    ConfigKey("kbroker.archive.locations", LIST, (), None, MEDIUM, READ_ONLY,
        "Only in kbroker. Where archives of topics (kbroker.archive.table) may be: locations and parents of locations, "
        "such as /srv/archives or s3://bucket. By default any directory, but none with an authorizer."),
    ConfigKey("kbroker.audit.log", STRING, "", None, MEDIUM, READ_ONLY,
        "Only in kbroker. File of the audit log, relative to the data directory; empty for none. Its lines are JSON "
        "objects: who was denied, who changed what, from where."),
    ConfigKey("kbroker.audit.log.files", INT, 10, at_least(1), LOW, READ_ONLY,
        "Only in kbroker. Maximum number of files of the audit log, with the current one."),
    ConfigKey("kbroker.audit.log.max.bytes", LONG, 67_108_864, at_least(1_048_576), LOW, READ_ONLY,
        "Only in kbroker. Size from which on a file of the audit log is renamed, and another one begins."),
    ConfigKey("kbroker.inter.broker.listener", STRING, "", optional_address, MEDIUM, READ_ONLY,
        "Only in kbroker. HOST:PORT on which a broker with zookeeper.connect listens for other brokers. The default is "
        "a free port on the host of the listener that inter.broker.listener.name names."),
    ConfigKey("listener.security.protocol.map", STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT", key_value_pairs, LOW, PER_BROKER,
        "Security protocol of each listener, as NAME:PROTOCOL pairs."),
    ConfigKey("listeners", LIST, ("PLAINTEXT://127.0.0.1:9092",), non_empty_list_of(), HIGH, PER_BROKER,
        "Addresses to listen on, as NAME://host:port. An empty host means every interface; port 0 means any free "
        "port. The clients of a listener get the advertised addresses of the listener of this name."),
    ConfigKey("max.connection.creation.rate", INT, INT_MAX, at_least(0), MEDIUM, CLUSTER_WIDE,
        "Maximum number of new connections per second."),
    ConfigKey("max.connections", INT, INT_MAX, at_least(0), MEDIUM, CLUSTER_WIDE,
        "Maximum number of open connections."),
    ConfigKey("max.connections.per.ip", INT, INT_MAX, at_least(0), MEDIUM, CLUSTER_WIDE,
        "Maximum number of open connections from one address."),
    ConfigKey("max.connections.per.ip.overrides", STRING, "", host_limits, MEDIUM, CLUSTER_WIDE,
        "Exceptions to max.connections.per.ip, as host:number pairs."),
    ConfigKey("max.incremental.fetch.session.cache.slots", INT, 1000, at_least(0), MEDIUM, READ_ONLY,
        "Maximum number of incremental fetch sessions (KIP-227)."),
    ConfigKey("max.request.partition.size.limit", INT, 2000, at_least(1), MEDIUM, READ_ONLY,
        "Maximum number of partitions in one DescribeTopicPartitions response."),
    ConfigKey("node.id", INT, 1, at_least(0), HIGH, READ_ONLY,
        "Id of this broker, unique in the cluster."),
    ConfigKey("num.io.threads", INT, 8, at_least(1), HIGH, CLUSTER_WIDE,
        "Number of threads for blocking disk I/O: cold reads, flushes, opening and deleting logs. The event loop "
        "serves the requests."),
    ConfigKey("request.timeout.ms", INT, 30_000, None, HIGH, READ_ONLY,
        "How long the broker waits for the response to a request of its own."),
    ConfigKey("socket.listen.backlog.size", INT, 50, at_least(1), MEDIUM, READ_ONLY,
        "Length of the queue of connections that wait to be accepted."),
    ConfigKey("socket.receive.buffer.bytes", INT, 102_400, None, HIGH, READ_ONLY,
        "Receive buffer (SO_RCVBUF) of client connections. If this is not set, or is -1, the system adapts it."),
    ConfigKey("socket.request.max.bytes", INT, 100 << 20, at_least(1), HIGH, READ_ONLY,
        "Maximum size of a request. A connection that sends a larger one is closed."),
    ConfigKey("socket.send.buffer.bytes", INT, 102_400, None, HIGH, READ_ONLY,
        "Send buffer (SO_SNDBUF) of client connections. With -1 the system adapts it: faster over long distances."),
    # Groups and committed offsets.
    ConfigKey("group.coordinator.append.linger.ms", INT, -1, at_least(-1), MEDIUM, READ_ONLY,
        "How long the group coordinator collects writes before it appends them; -1 adapts to the load."),
    ConfigKey("group.initial.rebalance.delay.ms", INT, 3000, None, MEDIUM, READ_ONLY,
        "How long a new or empty classic group waits for more members after the first one, before its first "
        "rebalance."),
    ConfigKey("group.max.session.timeout.ms", INT, 1_800_000, None, MEDIUM, READ_ONLY,
        "Maximum session timeout that a member of a classic group may request."),
    ConfigKey("group.max.size", INT, INT_MAX, at_least(1), MEDIUM, READ_ONLY,
        "Maximum number of members of a classic group."),
    ConfigKey("group.min.session.timeout.ms", INT, 6000, None, MEDIUM, READ_ONLY,
        "Minimum session timeout that a member of a classic group may request."),
    ConfigKey("offset.metadata.max.bytes", INT, 4096, None, HIGH, READ_ONLY,
        "Maximum size of the metadata text of a committed offset, in bytes."),
    ConfigKey("offsets.commit.timeout.ms", INT, 5000, at_least(1), HIGH, READ_ONLY,
        "How long an offset commit waits for the replicas of __consumer_offsets."),
    ConfigKey("offsets.load.buffer.size", INT, 5 << 20, at_least(1), HIGH, READ_ONLY,
        "Size of the reads with which groups and offsets are loaded, in bytes."),
    ConfigKey("offsets.retention.check.interval.ms", LONG, 600_000, at_least(1), HIGH, READ_ONLY,
        "How often the broker looks for expired committed offsets."),
    ConfigKey("offsets.retention.minutes", INT, 10_080, at_least(1), HIGH, READ_ONLY,
        "How long committed offsets are kept after the group has become empty, or has stopped subscribing to the "
        "topic."),
    ConfigKey("offsets.topic.compression.codec", INT, 0, compression_codec, HIGH, READ_ONLY,
        "Compression codec of __consumer_offsets: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."),
    ConfigKey("offsets.topic.num.partitions", INT, 50, at_least(1), HIGH, READ_ONLY,
        "Number of partitions of __consumer_offsets. It must not change once the topic exists."),
    ConfigKey("offsets.topic.replication.factor", SHORT, 1, at_least(1), HIGH, READ_ONLY,
        "Replication factor of __consumer_offsets. The default is 3 with zookeeper.connect, 1 for a single broker."),
    ConfigKey("offsets.topic.segment.bytes", INT, 100 << 20, at_least(1), HIGH, READ_ONLY,
        "Segment size of __consumer_offsets. A small value makes compaction and loading fast."),
    # Producer ids and transactions.
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
    ConfigKey("transactional.id.expiration.ms", INT, 604_800_000, at_least(1), HIGH, READ_ONLY,
        "Time without a transaction after which a transactional id expires."),
    # Quotas, metrics and the format of the log.
    ConfigKey("controller.quota.window.num", INT, 11, at_least(1), LOW, READ_ONLY,
        "Number of windows whose changes of partitions a client may make at once."),
    ConfigKey("controller.quota.window.size.seconds", INT, 1, at_least(1), LOW, READ_ONLY,
        "Length of a window over which the rate of changes of partitions is measured."),
    ConfigKey("kbroker.log.format", STRING, "text", one_of("text", "json"), LOW, READ_ONLY,
        "Only in kbroker. Format of the log: text, or json for one JSON object per line."),
    ConfigKey("kbroker.metrics.listener", STRING, "", optional_address, MEDIUM, READ_ONLY,
        "Only in kbroker. HOST:PORT on which /metrics is served for Prometheus; empty to disable it."),
    ConfigKey("kbroker.metrics.otlp", BOOLEAN, False, None, MEDIUM, READ_ONLY,
        "Only in kbroker. Whether to send the metrics by OTLP/HTTP, with the environment variables of OpenTelemetry, "
        "such as OTEL_EXPORTER_OTLP_ENDPOINT."),
    ConfigKey("quota.window.num", INT, 11, at_least(1), LOW, READ_ONLY,
        "Number of windows over which the rate of a client is measured; all but one may be used at once."),
    ConfigKey("quota.window.size.seconds", INT, 1, at_least(1), LOW, READ_ONLY,
        "Length of a window over which the rate of a client is measured."),
    ConfigKey("replication.quota.window.num", INT, 11, at_least(1), LOW, READ_ONLY,
        "Number of windows over which the rate of throttled replication is measured."),
    ConfigKey("replication.quota.window.size.seconds", INT, 1, at_least(1), LOW, READ_ONLY,
        "Length of a window over which the rate of throttled replication is measured."),
    ConfigKey("telemetry.max.bytes", INT, 1 << 20, at_least(1), LOW, READ_ONLY,
        "Maximum size of the metrics in one push of a client (KIP-714), in bytes."),
    # The controller.
    ConfigKey("controller.listener.names", LIST, ("CONTROLLER",), non_empty_list_of(), HIGH, READ_ONLY,
        "Names of the listeners of the metadata quorum. kbroker accepts them for compatibility and does not open "
        "them."),
    ConfigKey("process.roles", LIST, ("broker", "controller"), non_empty_list_of("broker", "controller"), HIGH,
        READ_ONLY,
        "Roles of this process in Apache Kafka. kbroker accepts it for compatibility; it must contain broker."),
)

# The connection to ZooKeeper, with the names of Kafka 3.
ZOOKEEPER_KEYS = (
    ConfigKey("kbroker.zookeeper.digest", PASSWORD, None, None, MEDIUM, READ_ONLY,
        "Only in kbroker. USER:PASSWORD with which the broker authenticates to ZooKeeper (scheme digest)."),
    ConfigKey("zookeeper.connect", STRING, None, None, HIGH, READ_ONLY,
        "Kafka 3's. HOST:PORT[,HOST:PORT...][/CHROOT] of the ZooKeeper ensemble that stores the cluster metadata; "
        "without it, the broker stores it in its data directory."),
    ConfigKey("zookeeper.connection.timeout.ms", INT, None, None, HIGH, READ_ONLY,
        "Kafka 3's. Time that a start waits for ZooKeeper; zookeeper.session.timeout.ms if it is not set."),
    ConfigKey("zookeeper.session.timeout.ms", INT, 18_000, at_least(1000), HIGH, READ_ONLY,
        "Kafka 3's. Time without a connection after which the broker loses its session: others take over, "
        "and it joins again. ZooKeeper adapts it to its own limits."),
    ConfigKey("zookeeper.set.acl", BOOLEAN, False, None, HIGH, READ_ONLY,
        "Kafka 3's. Whether nodes in ZooKeeper can be read and written only with kbroker.zookeeper.digest, also those "
        "that existed before."),
    ConfigKey("zookeeper.ssl.client.enable", BOOLEAN, False, None, MEDIUM, READ_ONLY,
        "Kafka 3's. Whether connections to ZooKeeper use TLS."),
    ConfigKey("zookeeper.ssl.endpoint.identification.algorithm", STRING, "HTTPS", one_of_ignoring_case("", "HTTPS"),
        LOW, READ_ONLY,
        "Kafka 3's. HTTPS to check the host name in the certificate of a ZooKeeper server; empty for no check."),
    ConfigKey("zookeeper.ssl.keystore.location", STRING, None, None, MEDIUM, READ_ONLY,
        "Kafka 3's. PEM file with the private key and the certificate that the broker presents to ZooKeeper."),
    ConfigKey("zookeeper.ssl.keystore.password", PASSWORD, None, None, MEDIUM, READ_ONLY,
        "Kafka 3's. Password of the private key in zookeeper.ssl.keystore.location."),
    ConfigKey("zookeeper.ssl.keystore.type", STRING, "PEM", one_of_ignoring_case("PEM"), MEDIUM, READ_ONLY,
        "Kafka 3's. Format of zookeeper.ssl.keystore.location: PEM only."),
    ConfigKey("zookeeper.ssl.truststore.location", STRING, None, None, MEDIUM, READ_ONLY,
        "Kafka 3's. PEM file with the trusted certificates; without it, those of the system are trusted."),
    ConfigKey("zookeeper.ssl.truststore.type", STRING, "PEM", one_of_ignoring_case("PEM"), MEDIUM, READ_ONLY,
        "Kafka 3's. Format of zookeeper.ssl.truststore.location: PEM only."),
)

_DYNAMIC_ONLY = (
    ConfigKey("follower.replication.throttled.rate", LONG, LONG_MAX, at_least(0), MEDIUM, CLUSTER_WIDE,
        "Maximum bytes per second that this broker fetches of throttled replicas that are not in sync (see "
        "follower.replication.throttled.replicas). Those in sync are fetched without a limit, but their bytes count."),
    ConfigKey("leader.replication.throttled.rate", LONG, LONG_MAX, at_least(0), MEDIUM, CLUSTER_WIDE,
        "Maximum bytes per second that this broker sends of throttled replicas to followers that are not in sync (see "
        "leader.replication.throttled.replicas). Those in sync are sent records without a limit, but their bytes "
        "count."),
)
# fmt: on

_PREFIXED_NAME = re.compile(r"listener\.name\.[^.]+\.(.+)")

BROKER_CONFIGS = config_def(
    (
        *KEYS,
        *ZOOKEEPER_KEYS,
        *log.KEYS,
        *security.KEYS,
        *security.AUTHORIZER_KEYS,
        *group.BROKER_KEYS,
        *keys_without_effect("broker"),
    )
)

# Kafka accepts these through IncrementalAlterConfigs only, and does not list them until they are set.
DYNAMIC_ONLY = config_def((*_DYNAMIC_ONLY, *keys_without_effect("broker, dynamic only")))


def strip_listener_prefix(name: str) -> str:
    """Return a config's name without its listener prefix (`listener.name.<listener>.[<mechanism>.]`), if it has one."""
    match = _PREFIXED_NAME.fullmatch(name)
    if match is None:
        return name
    suffix = match[1]
    without_mechanism = suffix.partition(".")[2]
    return without_mechanism if suffix not in BROKER_CONFIGS and without_mechanism in BROKER_CONFIGS else suffix
